"""The command line of the user's own ssh for a host, with the key that is pinned to its record."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from remote.errors import RemoteError
from remote.identity_file import identity_of, require_private_key
from remote.ssh_config import resolve

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from remote.model import HostTarget

PINNED = "runbook-pinned"
"""The name under which ssh looks the pinned key up: the record's, not the address's."""


def command(
    target: HostTarget,
    words: Sequence[str] = (),
    *,
    options: Sequence[str] = (),
    known_hosts: Path,
    config: Path | None = None,
) -> list[str]:
    """argv that connects as we would. Writes the pinned key to `known_hosts`.

    Raises:
        RemoteError: there is no ssh program here, the address is none, or its key file is none.
    """
    program = shutil.which("ssh")
    if program is None:
        raise RemoteError(
            "There is no `ssh` program on this machine", hint="install the OpenSSH client"
        )
    resolve(target.address, user=target.user, config=config)  # refuses what is no address
    argv = [program, *options]
    argv += ["-F", str(config)] if config else []
    argv += ["-p", str(target.port)] if target.port != 22 else []
    argv += ["-l", target.user] if target.user else []
    identity = identity_of(target)
    if identity is not None:
        require_private_key(identity)  # ssh would go on with others, and ask for a password
        argv += ["-i", str(identity)]
    if target.host_key:
        known_hosts.parent.mkdir(parents=True, exist_ok=True)
        known_hosts.write_text(f"{PINNED} {target.host_key}\n", encoding="utf-8")
        argv += [
            "-o", f"HostKeyAlias={PINNED}", "-o", f'UserKnownHostsFile="{known_hosts}"',
            "-o", "GlobalKnownHostsFile=none", "-o", "StrictHostKeyChecking=yes",
            "-o", "UpdateHostKeys=no",
        ]  # fmt: skip
    return [*argv, "--", target.address, *words]
