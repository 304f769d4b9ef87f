"""Passphrases are asked of a person, once; and what no key opens is told in one message."""

from __future__ import annotations

import subprocess
import threading
from typing import TYPE_CHECKING

import pytest

from remote import AuthRefused, HostTarget
from remote.passphrases import Person
from remote.ssh import SshTransport
from remote.ssh_keys import Keyring
from tests.support.deadline import wait_for
from tests.support.sshd import make_key, running_agent

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def locked(sshd, tmp_path) -> Path:
    """A key behind a passphrase that the server lets in."""
    public = make_key(tmp_path / "locked", passphrase="right")
    with (sshd.folder / "authorized_keys").open("a") as file:
        file.write(public + "\n")
    return tmp_path / "locked"


class Prepared(Person):
    """Types what was prepared, and remembers being asked."""

    def __init__(self, *answers: str | None) -> None:
        self.ask = self
        self.answers = list(answers)
        self.asked: list[tuple[str, bool]] = []

    def __call__(self, path: Path, again: bool) -> str | None:
        self.asked.append((path.name, again))
        return self.answers.pop(0)


def over(sshd, tmp_path, keyring, extra="") -> SshTransport:
    config = tmp_path / "config"
    config.write_text(f"IdentityFile {tmp_path}/locked\n{extra}")
    target = HostTarget(
        kind="ssh", address="127.0.0.1", user=sshd.user, port=sshd.port, root="/nowhere",
        host_key=sshd.host_key,
    )  # fmt: skip
    return SshTransport(target, config=config, keyring=keyring)


def test_the_right_passphrase_is_asked_once_for_all_connections(sshd, tmp_path, locked):
    person = Prepared("right")
    keyring = Keyring(person)
    made, other = over(sshd, tmp_path, keyring), over(sshd, tmp_path, keyring)
    results = []

    def ask(transport) -> None:
        results.append(transport.run(["true"], timeout=30).ok)

    threads = [threading.Thread(target=ask, args=(one,)) for one in (made, made, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sshd.cut()
    assert wait_for(lambda: made.bulk().run(["true"], timeout=30).ok, what="the second connection")
    assert results == [True, True, True]
    assert person.asked == [("locked", False)]
    made.close()
    other.close()


def test_a_typing_error_may_be_mended(sshd, tmp_path, locked):
    person = Prepared("wrong", "right")
    made = over(sshd, tmp_path, Keyring(person))
    assert made.run(["true"], timeout=30).ok
    assert person.asked == [("locked", False), ("locked", True)]
    made.close()


@pytest.mark.parametrize("answers", [("a", "b", "c"), (None,)])
def test_without_the_right_one_there_is_one_message_and_no_further_question(
    sshd, tmp_path, locked, answers
):
    person = Prepared(*answers)
    made = over(sshd, tmp_path, Keyring(person))
    for _ in range(2):
        with pytest.raises(AuthRefused, match="locked: ") as refused:
            made.run(["true"], timeout=30)
        assert "ssh-add" in refused.value.hint
        made.breaker.answered()
    assert "no right passphrase" in str(refused.value)
    assert not person.answers, "asked as often as there were answers, and never again"
    made.close()


def test_where_nobody_can_be_asked_the_key_is_named(sshd, tmp_path, locked):
    made = over(sshd, tmp_path, Keyring(Person()))
    with pytest.raises(AuthRefused, match="locked: needs its passphrase"):
        made.run(["true"], timeout=30)
    made.close()


@pytest.fixture
def agent(sshd, tmp_path):
    with running_agent(tmp_path / "agent"):
        yield tmp_path / "agent"


def test_the_agent_that_the_configuration_names(sshd, tmp_path, agent):
    subprocess.run(
        ["ssh-add", "-q", sshd.folder / "client_key"], check=True, env={"SSH_AUTH_SOCK": str(agent)}
    )
    made = over(sshd, tmp_path, Keyring(Person()), f"IdentityAgent {agent}\n")
    assert made.run(["true"], timeout=30).ok
    made.close()


def test_an_agent_that_is_gone_or_switched_off(sshd, tmp_path, monkeypatch, agent):
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "died"))
    made = over(sshd, tmp_path, Keyring(Person()))
    with pytest.raises(AuthRefused, match="gone, perhaps with an earlier session"):
        made.run(["true"], timeout=30)
    made.close()
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    subprocess.run(["ssh-add", "-q", sshd.folder / "client_key"], check=True)
    made = over(sshd, tmp_path, Keyring(Person()), "IdentityAgent none\n")
    with pytest.raises(AuthRefused, match="none found"):
        made.run(["true"], timeout=30)
    made.close()


def test_more_keys_than_the_server_listens_to_is_a_refusal(sshd, tmp_path):
    names = "".join(f"IdentityFile {tmp_path}/k{number}\n" for number in range(7))
    for number in range(7):
        make_key(tmp_path / f"k{number}")
    made = over(sshd, tmp_path, Keyring(Person()), names)
    with pytest.raises(AuthRefused, match="k4: refused"):
        made.run(["true"], timeout=30)
    made.close()
