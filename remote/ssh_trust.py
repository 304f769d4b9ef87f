"""Which key a host must show: the one pinned to its record, else what known_hosts says.

A key is pinned to the record, not to the address: rented machines reuse addresses. A changed key
is never accepted here; a person pins it anew, and that starts a new epoch.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

import paramiko

from remote.errors import HostKeyChanged, HostKeyUnknown, RemoteError

if TYPE_CHECKING:
    from remote.ssh_config import Route

RSA_NAMES = ("rsa-sha2-512", "rsa-sha2-256")


def key_text(key: paramiko.PKey) -> str:
    return f"{key.get_name()} {key.get_base64()}"


def fingerprint(text: str) -> str:
    """As `ssh-keygen -l` prints it."""
    digest = hashlib.sha256(base64.b64decode(text.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def trusted_keys(route: Route, pinned: str | None) -> tuple[str, ...]:
    """Every key that the host may show; () when nothing is known about it."""
    if pinned:
        words = pinned.split()
        if len(words) < 2:
            raise RemoteError(f"The key pinned for {route.host} is not `TYPE BASE64`")
        return (f"{words[0]} {words[1]}",)
    found: list[str] = []
    for path in route.known_hosts:
        keys = paramiko.HostKeys()
        try:
            keys.load(str(path))
        except OSError:
            continue
        entries = keys.lookup(route.name)
        if entries is not None:
            found += [key_text(key) for key in entries.values()]
    return tuple(dict.fromkeys(found))


def wanted_types(keys: tuple[str, ...], offered: tuple[str, ...]) -> tuple[str, ...]:
    """The key types to ask for: those we can compare first, or a good host looks changed."""
    known: list[str] = []
    for key in keys:
        kind = key.split()[0]
        known += RSA_NAMES if kind == "ssh-rsa" else (kind,)
    first = [kind for kind in offered if kind in known]
    return (*first, *(kind for kind in offered if kind not in known))


def verify(label: str, shown: paramiko.PKey, keys: tuple[str, ...]) -> None:
    text = key_text(shown)
    if text in keys:
        return
    if keys:
        raise HostKeyChanged(
            label,
            expected=keys[0],
            found=text,
            fingerprint=fingerprint(text),
            expected_fingerprint=fingerprint(keys[0]),
        )
    raise HostKeyUnknown(label, key=text, fingerprint=fingerprint(text))
