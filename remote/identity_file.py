"""The key file that somebody names for a host, judged as ssh judges it before anything is asked."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from remote.errors import RemoteError

if TYPE_CHECKING:
    from remote.model import HostTarget

MOST_BYTES = 1 << 16
PUBLIC = ("ssh-", "ecdsa-", "sk-", "-----BEGIN PUBLIC KEY", "---- BEGIN SSH2 PUBLIC KEY")


class NoPrivateKey(RemoteError):
    """What was named cannot let us in anywhere."""


def identity_of(target: HostTarget) -> Path | None:
    """The key file of a host record, where it lies here."""
    return Path(target.identity_file).expanduser() if target.identity_file else None


def require_private_key(path: Path) -> None:
    """Looks at the file without opening the key, so that no passphrase is needed.

    Raises:
        NoPrivateKey: it is not there, not ours to read, open to others, or no private key.
    """
    if "%" in str(path):
        raise NoPrivateKey(
            f"The name of the key file {path} has a `%`, which ssh reads as something else",
            hint="give the file another name",
        )
    try:
        kept = path.stat()
        if not stat.S_ISREG(kept.st_mode):
            raise NoPrivateKey(f"{path} is no file", hint="name the private key itself")
        with path.open("rb") as file:
            text = file.read(MOST_BYTES).decode("ascii", "replace")
    except FileNotFoundError:
        raise NoPrivateKey(
            f"There is no key file {path}", hint="name one that is here, such as ~/.ssh/id_ed25519"
        ) from None
    except OSError as error:
        raise NoPrivateKey(
            f"Cannot read the key file {path}: {error.strerror}",
            hint="it must be a file that you may read",
        ) from None
    _require_form(path, text)
    # As ssh has it: of somebody else's file it is not for us to say who reads it.
    if kept.st_uid == os.getuid() and kept.st_mode & 0o077:
        raise NoPrivateKey(
            f"The key file {path} is open to others (mode {stat.S_IMODE(kept.st_mode):04o})",
            hint=f"ssh refuses such a key: chmod 600 {path}",
        )


def _require_form(path: Path, text: str) -> None:
    if text.lstrip().startswith(PUBLIC):
        private = path.with_suffix("")
        named = private if path.suffix == ".pub" and private.exists() else "the private one"
        raise NoPrivateKey(f"{path} is a public key", hint=f"name {named}: it lets us in")
    if text.startswith("PuTTY-User-Key-File"):
        raise NoPrivateKey(
            f"{path} is a key in PuTTY's form",
            hint=f"turn it into OpenSSH's: puttygen {path} -O private-openssh -o NEW",
        )
    if "PRIVATE KEY-----" not in text:
        raise NoPrivateKey(f"{path} holds no private key", hint="name the file that ssh -i takes")
