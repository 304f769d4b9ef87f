"""A locked SSH key: the screen asks for its passphrase, over a real sshd; nothing keeps it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from textual.widgets import Input

from remote.passphrases import PERSON
from runbook.service import Service
from runbook.tui.app import RunbookApp
from runbook.tui.dialogs import AskScreen, PassphraseScreen
from tests.support.sshd import Sshd, know, make_key, running_sshd
from tests.support.tui_driver import driven, in_front
from tests.support.waiting import wait_until
from tests.support.workspaces import make

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from textual.pilot import Pilot

SECRET = "correct horse"
GRAPH = """\
  first:
    title: Says where it is
    phase: one
    step: shell
    with: {sh: "echo here"}
"""


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    """A server that lets one key in, whose file is locked."""
    with running_sshd(tmp_path / "sshd") as server:
        public = make_key(tmp_path / "locked", passphrase=SECRET)
        (server.folder / "authorized_keys").write_text(public + "\n")
        config = server.client_config.read_text()
        ours = config.replace(f"{server.folder}/client_key", f"{tmp_path}/locked")
        server.client_config.write_text(ours)
        know(server, tmp_path, monkeypatch)
        yield server


def made(tmp_path: Path) -> RunbookApp:
    make(tmp_path / "w", GRAPH).close()
    return RunbookApp(lambda: Service.open(tmp_path / "w"), crash_file=tmp_path / "crash.log")


async def bind(app: RunbookApp, pilot: Pilot[int], target: str) -> None:
    await pilot.press("b")
    await in_front(app, AskScreen)
    app.screen.query_one(Input).value = target
    await pilot.press("enter")


async def answer(app: RunbookApp, pilot: Pilot[int], text: str) -> None:
    await wait_until(
        lambda: isinstance(app.screen, PassphraseScreen) and app.screen.focused is not None,
        "the question",
        seconds=60,
    )
    screen = app.screen
    screen.query_one(Input).value = text
    await pilot.press("enter")
    await wait_until(lambda: app.screen is not screen, "the answer to be taken")


def kept(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file() and SECRET.encode() in path.read_bytes():
                yield path


async def test_the_screen_asks_and_nothing_keeps_it(locked: Sshd, tmp_path: Path) -> None:
    app = made(tmp_path)
    target = f"{locked.user}@127.0.0.1 -P {locked.port} --root {tmp_path}/far"
    async with driven(app) as pilot:
        await bind(app, pilot, target)
        await answer(app, pilot, "wrong")
        await in_front(app, PassphraseScreen)
        assert isinstance(app.screen, PassphraseScreen)
        assert app.screen.again
        assert app.screen.query_one(Input).password
        await answer(app, pilot, SECRET)
        await wait_until(lambda: not app.bridge.busy, "the binding", seconds=60)
        await wait_until(
            lambda: any(host.kind == "ssh" for host in app.view.snapshot.hosts), "it shown"
        )
        await pilot.press("r")
        await wait_until(
            lambda: str(app.view.snapshot.task("first").state) == "done", "a job", seconds=90
        )
        await wait_until(lambda: not app.bridge.engine_runs, "the end")
    app.service.close()
    assert list(kept(tmp_path / "w")) == []
    assert list(kept(tmp_path / "far")) == []
    assert PERSON.ask is None, "nobody is asked once the screen is gone"


async def test_no_answer_is_an_answer_and_the_next_key_asks_again(
    locked: Sshd, tmp_path: Path
) -> None:
    app = made(tmp_path)
    target = f"{locked.user}@127.0.0.1 -P {locked.port}"
    async with driven(app) as pilot:
        for _ in range(2):
            await bind(app, pilot, target)
            await wait_until(lambda: isinstance(app.screen, PassphraseScreen), "it", seconds=60)
            await pilot.press("escape")
            await wait_until(lambda: not app.bridge.busy, "the refusal", seconds=60)
            await wait_until(lambda: app.board.message.said_last is not None, "it said")
            said = app.board.message.said_last
            assert said is not None
            assert said.problem
            assert "none of our keys" in said.text
            await pilot.press("escape")
    app.service.close()


async def test_leaving_while_it_asks_ends_at_once(locked: Sshd, tmp_path: Path) -> None:
    app = made(tmp_path)
    async with driven(app) as pilot:
        await bind(app, pilot, f"{locked.user}@127.0.0.1 -P {locked.port}")
        await wait_until(lambda: isinstance(app.screen, PassphraseScreen), "it", seconds=60)
        began = asyncio.get_running_loop().time()
        await pilot.press("ctrl+q")
        await wait_until(lambda: not app.is_running, "the end")
        assert asyncio.get_running_loop().time() - began < 20
    app.service.close()
