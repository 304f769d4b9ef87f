"""An edit far above: nothing new is built on what was made before it until somebody settles it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runbook.errors import Exit
from tests.support.workspaces import HEAD, cli, make, states

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from runbook.service import Service

ROWS = """\
  fetch:
    title: Fetch
    phase: one
    step: shell
    with: {sh: "echo ROWS > ${host.work}/rows"}
  train:
    title: Train
    phase: one
    needs: [fetch]
    step: shell
    with: {sh: "cat ${host.work}/rows > ${host.work}/model"}
  publish:
    title: Publish
    phase: one
    needs: [train]
    gate: {ask: "Publish it?"}
    step: shell
    with: {sh: "cat ${host.work}/model > ${host.work}/published"}
"""
TASKS = ROWS.replace("ROWS", "2")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """`publish` waits at its gate, and then `fetch` is edited."""
    with make(tmp_path, TASKS) as service:
        assert service.run().outcome == "gate"
        edited = HEAD + ROWS.replace("ROWS", "3")
        service.workspace.runbook_file.write_text(edited, encoding="utf-8")
        assert cli(tmp_path, "init", str(service.workspace.runbook_file)).returncode == 0
        assert states(service) == {"fetch": "stale", "train": "done", "publish": "gated"}
        yield service


def test_first_the_edit_is_settled_then_the_gate_is_asked(service: Service) -> None:
    folder = service.workspace.root
    assert service.view().next.command == "runbook retry fetch --below"
    listed = " ".join(cli(folder, "gate", "list").stdout.split())
    assert "first settle fetch: it is stale" in listed
    service.approve("publish", "looks good")
    ended = cli(folder, "run")
    assert ended.returncode != Exit.OK
    assert "publish waits until fetch is settled: it is stale" in ended.stdout
    assert states(service)["publish"] == "ready"
    assert not (folder / "work" / "published").exists()


def test_made_again_with_all_that_was_made_of_it(service: Service) -> None:
    service.approve("publish", "looks good")
    service.retry("fetch", reason="more rows", below=True)
    assert service.run().outcome in ("gate", "done")
    assert states(service)["train"] == "done"
    assert (service.workspace.root / "work" / "model").read_text() == "3\n"


def test_who_skips_it_says_that_the_old_results_are_good(service: Service) -> None:
    service.approve("publish", "looks good")
    service.skip("fetch", "two rows are enough")
    assert service.run().outcome == "done"
    assert (service.workspace.root / "work" / "published").read_text() == "2\n"
