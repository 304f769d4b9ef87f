"""Who we are to a host: key files, the agent, and passphrases that only a person types.

An opened key is held in memory as long as the process lives, so that a connection that broke, or a
second one, asks nobody again. A passphrase itself is never kept.
"""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import paramiko
import paramiko.agent

from remote.errors import AuthRefused
from remote.identity_file import NoPrivateKey, require_private_key
from remote.passphrases import PERSON, Person

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from remote.ssh_config import Route

TRIES = 3
MANY_KEYS = 5  # servers hang up after six by default


class PassphraseNeeded(AuthRefused):
    """No open key is let in, and these files could be opened with a passphrase."""

    def __init__(self, message: str, *, hint: str, files: Sequence[Path]) -> None:
        super().__init__(message, hint=hint)
        self.files = tuple(files)


class Keyring:
    """Key files opened with a passphrase in this process."""

    def __init__(self, person: Person = PERSON) -> None:
        self._person = person
        self._open: dict[tuple[Path, int], paramiko.PKey] = {}
        self._given_up: dict[tuple[Path, int], int] = {}
        self._lock = threading.Lock()

    def key(self, path: Path) -> paramiko.PKey | None:
        """The key in a file that was opened before."""
        return self._open.get(_stamp(path))

    def refused(self, path: Path) -> bool:
        """Whether a person was asked in vain; nobody is asked twice in one turn."""
        return self._given_up.get(_stamp(path)) == self._person.turn

    def unlock(self, files: Sequence[Path]) -> bool:
        """Asks for the passphrases of these files; whether one more of them is open now."""
        # One question at a time, and the second who wants the same key finds it open.
        with self._lock:
            return any(self._unlock(path) for path in files)

    def _unlock(self, path: Path) -> bool:
        stamp = _stamp(path)
        if stamp in self._open:
            return True
        ask = self._person.ask
        if ask is None or self.refused(path):
            return False
        for turn in range(TRIES):
            passphrase = ask(path, turn > 0)
            if passphrase is None:
                break
            with contextlib.suppress(paramiko.SSHException, ValueError, TypeError, OSError):
                self._open[stamp] = _load(path, passphrase.encode())
                return True
        self._given_up[stamp] = self._person.turn
        return False


KEYRING = Keyring()
"""The one of this process."""


def authenticate(
    transport: paramiko.Transport,
    route: Route,
    label: str,
    left: Callable[[], float],
    keyring: Keyring = KEYRING,
) -> None:
    """Public keys only: files first, then the agent.

    Raises:
        PassphraseNeeded: none is let in, but a locked one may be.
        AuthRefused: none is let in; the text says what was tried.
    """
    tried: list[str] = []
    locked: list[Path] = []
    with contextlib.ExitStack() as held:
        for name, key in _keys(route, keyring, tried, locked, held):
            transport.auth_timeout = left()
            try:
                more = transport.auth_publickey(route.user, key)
                if more:
                    tried.append(f"{name}: let in, but the server also wants {', '.join(more)}")
            except paramiko.BadAuthenticationType as error:
                tried.append(f"{name}: the server wants {', '.join(error.allowed_types)}")
            except paramiko.AuthenticationException as error:
                if str(error) == "Authentication timeout.":
                    raise TimeoutError("no answer to our key in time") from error
                if not transport.is_active() and len(tried) < MANY_KEYS:
                    raise  # the link broke: that is no refusal
                tried.append(f"{name}: refused")
            if transport.is_authenticated():
                return
            if not transport.is_active():
                break
    said = (
        f"{label} lets {route.user} in with none of our keys ({'; '.join(tried) or 'none found'})"
    )
    hint = (
        "load it into ssh-agent (`ssh-add`), or name it: -i KEY, or IdentityFile in ~/.ssh/config"
    )
    if locked:
        raise PassphraseNeeded(said, hint=hint, files=locked)
    raise AuthRefused(said, hint=hint)


def _keys(
    route: Route,
    keyring: Keyring,
    tried: list[str],
    locked: list[Path],
    held: contextlib.ExitStack,
) -> list[tuple[str, paramiko.PKey]]:
    found: list[tuple[str, paramiko.PKey]] = []
    agent_keys = _agent_keys(route.agent, tried, held)
    in_agent = {key.asbytes() for key in agent_keys}
    for path in _files(route, tried):
        key = keyring.key(path)
        if key is not None:
            found.append((path.name, key))
            continue
        try:
            found.append((path.name, _load(path, None)))
        except (paramiko.PasswordRequiredException, TypeError):
            if in_agent.intersection(_public_blob(path)):
                continue  # the agent signs with it
            if keyring.refused(path):
                tried.append(f"{path.name}: no right passphrase was given")
            else:
                tried.append(f"{path.name}: needs its passphrase, which ssh-agent would hold")
                locked.append(path)
        except (paramiko.SSHException, ValueError, OSError) as error:
            tried.append(f"{path.name}: {error}")
    public = {key.asbytes() for _, key in found}
    # An agent key is fine under IdentitiesOnly when its .pub lies beside an IdentityFile.
    allowed = public | {blob for path in route.identity_files for blob in _public_blob(path)}
    found.extend(
        (f"agent key {key.fingerprint}", key)
        for key in agent_keys
        if key.asbytes() not in public and (not route.identities_only or key.asbytes() in allowed)
    )
    return found


def _files(route: Route, tried: list[str]) -> list[Path]:
    """Those that are there; of the one that the host record names, why it is of no use."""
    files = [path for path in route.identity_files if path.is_file()]
    if route.named is not None:
        try:
            require_private_key(route.named)
        except NoPrivateKey as refused:
            tried.append(f"{refused.message}; {refused.hint}")
            files = [path for path in files if path != route.named]
    return files


def _load(path: Path, passphrase: bytes | None) -> paramiko.PKey:
    return paramiko.PKey.from_path(path, passphrase)  # type: ignore[arg-type, unused-ignore]


def _stamp(path: Path) -> tuple[Path, int]:
    try:
        return path, path.stat().st_mtime_ns
    except OSError:
        return path, 0


def _public_blob(path: Path) -> list[bytes]:
    try:
        text = path.with_name(path.name + ".pub").read_text(encoding="utf-8")
        return [base64.b64decode(text.split()[1])]
    except (OSError, ValueError, IndexError):
        return []


class _Agent(paramiko.agent.AgentSSH):
    """The agent behind a socket that IdentityAgent names; the library knows only its own."""

    def __init__(self, place: str) -> None:
        super().__init__()
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(5)
        try:
            link.connect(place)
            link.settimeout(None)
            self._connect(link)  # type: ignore[attr-defined]
        except BaseException:
            link.close()
            raise

    def close(self) -> None:
        self._close()  # type: ignore[attr-defined]


def _agent_keys(
    agent: str, tried: list[str], held: contextlib.ExitStack
) -> list[paramiko.AgentKey]:
    """The agent's keys; it is asked to sign with them, so it stays open as long as `held`."""
    place = os.environ.get("SSH_AUTH_SOCK", "") if agent in ("", "SSH_AUTH_SOCK") else agent
    if not place or place.lower() == "none":
        return []
    if place.startswith("$"):  # as IdentityAgent allows it
        place = os.environ.get(place.strip("${}"), "")
    try:
        open_agent = _Agent(str(Path(place).expanduser()))
        held.callback(open_agent.close)
        return list(open_agent.get_keys())
    except FileNotFoundError:
        tried.append(f"agent {place}: gone, perhaps with an earlier session")
    except (paramiko.SSHException, OSError) as error:
        tried.append(f"agent {place}: {error}")
    return []
