"""What `ssh` would do to reach an address, as OpenSSH itself resolves it.

The libraries' own parsers ignore Include and take `ProxyJump none` for a host, so the binary is
asked (`ssh -G`): it evaluates Include, Match and canonicalisation. Without it, only what the host
record says is used, and `source` says so.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from remote.errors import RemoteError

RESOLVE_S = 10.0
MOST_JUMPS = 8
DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One hop: where, as whom, with which keys, and through what."""

    host: str
    port: int
    user: str
    alias: str = ""
    identity_files: tuple[Path, ...] = ()
    named: Path | None = None
    """The one of them that the host record names."""
    identities_only: bool = False
    agent: str = ""
    known_hosts: tuple[Path, ...] = ()
    proxy_command: str = ""
    jumps: tuple[str, ...] = ()
    source: str = "ssh -G"

    @property
    def name(self) -> str:
        """How known_hosts files call it."""
        host = self.alias or self.host
        return host if self.port == 22 or self.alias else f"[{host}]:{self.port}"


def resolve(
    address: str,
    *,
    user: str = "",
    port: int | None = None,
    identity: Path | None = None,
    config: Path | None = None,
) -> Route:
    """The route to an address. `config` replaces the user's own configuration file."""
    if not re.fullmatch(r"[A-Za-z0-9_.:%\[\]][A-Za-z0-9_.:%\[\]-]*", address):
        raise RemoteError(
            f"{address!r} is not a host name or address",
            hint="write user@address, or user@address:port",
        )
    if user.startswith("-") or re.search(r"[\s@]", user):
        raise RemoteError(f"{user!r} is not a user name")
    program = shutil.which("ssh")
    if program is None:
        return _without_ssh(address, user, port, identity)
    argv = [program, "-G"]
    argv += ["-F", str(config)] if config else []
    argv += ["-p", str(port)] if port else []
    argv += ["-l", user] if user else []
    argv += ["-i", str(identity)] if identity else []
    try:
        done = subprocess.run(
            [*argv, "--", address], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=RESOLVE_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise RemoteError(
            f"`ssh -G {address}` did not end in {RESOLVE_S:.0f} s",
            hint="look for a slow `Match exec` in ~/.ssh/config",
        ) from error
    if done.returncode != 0:
        raise RemoteError(
            f"`ssh -G {address}` failed: {done.stderr.strip()[-300:]}", hint="mend ~/.ssh/config"
        )
    return replace(parse(done.stdout), named=identity)


def chain(
    address: str,
    *,
    user: str = "",
    port: int | None = None,
    identity: Path | None = None,
    config: Path | None = None,
    depth: int = 0,
) -> tuple[Route, ...]:
    """Every hop to an address, the address itself last.

    As ssh does it: the first jump host is reached by its own configuration, jumps included; each
    further one of a list through the one before it. `identity` is for the address alone.
    """
    route = resolve(address, user=user, port=port, identity=identity, config=config)
    hops: list[Route] = []
    for number, jump in enumerate(route.jumps):
        if depth >= MOST_JUMPS:
            raise RemoteError(
                f"The jump hosts of {address} lead in a circle, by way of {jump}",
                hint="give the jump host `ProxyJump none` in ~/.ssh/config",
            )
        name, host, at = split_hop(jump)
        if number == 0:
            hops += chain(host, user=name, port=at, config=config, depth=depth + 1)
        else:
            via = resolve(host, user=name, port=at, config=config)
            hops.append(replace(via, jumps=(), proxy_command=""))
    return (*hops, route)


def parse(text: str) -> Route:
    """The route in the output of `ssh -G`."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        values.setdefault(key.lower(), []).append(value.strip())

    def one(key: str, default: str = "") -> str:
        value = values.get(key, [default])[0]
        return default if value.lower() == "none" else value

    host, port, user = one("hostname"), one("port", "22"), one("user")
    tokens = {"%": "%", "h": host, "p": port, "r": user, "d": str(Path.home())}
    return Route(
        host=host,
        port=int(port),
        user=user,
        alias=one("hostkeyalias"),
        identity_files=tuple(
            Path(_expand(path, tokens)).expanduser() for path in values.get("identityfile", [])
        ),
        identities_only=one("identitiesonly") == "yes",
        agent=values.get("identityagent", [""])[0],
        known_hosts=tuple(
            Path(_expand(path, tokens)).expanduser()
            for key in ("userknownhostsfile", "globalknownhostsfile")
            for path in one(key).split()
        ),
        # ssh runs it in a shell, and so do we: it is the operator's own configuration.
        proxy_command=_expand(one("proxycommand"), tokens),
        jumps=tuple(hop.strip() for hop in one("proxyjump").split(",") if hop.strip()),
    )


def split_hop(hop: str) -> tuple[str, str, int | None]:
    """(user, host, port) of one ProxyJump entry: [user@]host[:port], [user@][v6]:port, ssh://."""
    rest = hop.removeprefix("ssh://").rstrip("/")
    user, _, place = rest.rpartition("@")
    match = re.fullmatch(r"\[([^\]]+)\](?::(\d+))?|([^:]+)(?::(\d+))?|(.+)", place)
    if match is None:
        raise RemoteError(f"{hop!r} is no jump host", hint="write [user@]host[:port]")
    host = match[1] or match[3] or match[5]
    port = match[2] or match[4]
    return user, host, int(port) if port else None


def _expand(text: str, tokens: dict[str, str]) -> str:
    return re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), text)


def _without_ssh(address: str, user: str, port: int | None, identity: Path | None) -> Route:
    folder = Path.home() / ".ssh"
    found = (identity,) if identity else tuple(folder / name for name in DEFAULT_KEYS)
    return Route(
        host=address.strip("[]"),
        port=port or 22,
        user=user or getpass.getuser(),
        identity_files=found,
        named=identity,
        agent=os.environ.get("SSH_AUTH_SOCK", ""),
        known_hosts=(folder / "known_hosts", Path("/etc/ssh/ssh_known_hosts")),
        source="the host record alone: no ssh program here",
    )
