"""Verbs about which machine plays a role: bound, rented, rebuilt, forgotten."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from runbook import report
from runbook.cli.acting import Acting, acting
from runbook.cli.common import Amount, F, Number, finite
from runbook.cli.terminal import ask_word
from runbook.errors import Exit, RunbookError

if TYPE_CHECKING:
    from runbook.reach import Dependants
    from runbook.service import Service
    from runbook.workspace import Workspace
    from state import HostBinding


_ADDRESS = re.compile(r"(?:\[(?P<six>[^\]]*)\]|(?P<name>[^:\[\]]*))(?::(?P<port>[^:]*))?")


class OfMachine(TypedDict):
    """What may be said of a machine when it is bound, by the names of the options."""

    port: int
    identity: str
    root: str
    work: str
    usd_per_hour: float | None
    ends_at: str | None


def rental_options(function: F) -> F:
    """What a machine costs, and until when it is there."""
    for decorate in (
        click.option(
            "--ends-at", metavar="TIME", help="When its rental ends: 2026-03-09T18:00:00Z."
        ),
        click.option(
            "--usd-per-hour",
            type=Amount(min=0),
            callback=finite,
            help="What an hour of it costs.",
        ),
    ):
        function = decorate(function)
    return function


@click.command("bind")
@click.argument("role")
@click.argument("target")
@click.option("-p", "-P", "--port", type=Number(1, 65535), default=22, help="SSH port.")
@click.option("-i", "--identity", metavar="KEY", default="", help="The private key, as ssh -i.")
@click.option("--root", default="", help="Where jobs are kept on the host.")
@click.option("--work", default="", help="Where data goes on the host.")
@click.option(
    "--accept-fingerprint", default="", metavar="SHA256:...", help="Of a host key not known yet."
)
@rental_options
@acting("host")
def bind_command(
    call: Acting, role: str, target: str, accept_fingerprint: str, **of_it: Unpack[OfMachine]
) -> None:
    """Say which machine plays ROLE: `local`, or user@address, or user@address:port.

    Example: runbook host bind box local
    """
    from runbook.reach import dependants

    with call.open() as service:
        before = service.snapshot()
        binding = binding_of(role, target, service.workspace, **of_it)
        if call.rehearsed(
            service, f"meet {binding.place}, pin its key to {role} and record its facts"
        ):
            return
        facts = service.bind(role, binding, accept_fingerprint=accept_fingerprint)
        said = [
            *_past(binding),
            f"{role} is {binding.place}; jobs in {binding.root}, data in {binding.work}",
        ]
        earlier = next((host for host in before.hosts if host.role == role), None)
        if earlier is not None and earlier.machine != binding.machine:
            said += _void(dependants(before, role))
        call.answer(service, {"host": binding, "facts": facts}, *said)


@click.command("rent")
@click.argument("role")
@rental_options
@acting("host")
def rent_command(call: Acting, role: str, usd_per_hour: float | None, ends_at: str | None) -> None:
    """Say what the machine of ROLE costs and when its rental ends. Asks no machine.

    What cannot end before that, or would cost more than the budget of the runbook, waits for a yes.

    Example: runbook host rent gpu --usd-per-hour 18 --ends-at 2026-03-09T18:00:00Z
    """
    if usd_per_hour is None and ends_at is None:
        raise RunbookError("Nothing to keep.", hint="Give --usd-per-hour, --ends-at, or both.")
    with call.open() as service:
        binding = service.rent(role, usd_per_hour=usd_per_hour, ends_at=moment_of(ends_at))
        price = binding.usd_per_hour
        said = "no price" if price is None else f"${price:,.2f} an hour"
        said = f"{role}: {said}, {binding.ends_at or 'no end'}"
        call.answer(service, {"host": binding}, said, *_past(binding))


def _past(binding: HostBinding) -> list[str]:
    """A warning of a rental that is over already: more likely a slip than meant."""
    from runbook.costs import parse

    if binding.ends_at is None or parse(binding.ends_at) > datetime.now(UTC):
        return []
    return [f"warning: that time is past: nothing starts on {binding.role} unasked"]


def moment_of(text: str | None) -> str | None:
    """A time that a person gave, as it is stored."""
    from state.ids import stamp

    if text is None:
        return None
    try:
        return stamp(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        raise RunbookError(
            f"`{text}` is no time with a zone.",
            hint="Write 2026-03-09T18:00:00Z, or +01:00 instead of Z.",
        ) from None


def binding_of(
    role: str,
    target: str,
    workspace: Workspace,
    **of_it: Unpack[OfMachine],
) -> HostBinding:
    """The record of what was said of a machine, with what was left unsaid filled in.

    Raises:
        RunbookError: it names no machine, no moment, or a folder that is anywhere.
        RemoteError: the key file is none that ssh would take.
    """
    from state import HostBinding

    port, identity, root, work = of_it["port"], of_it["identity"], of_it["root"], of_it["work"]
    price, until = of_it["usd_per_hour"], moment_of(of_it["ends_at"])
    for name, folder in (("root", root), ("work", work)):
        if folder and not folder.startswith(("/", "~/")):
            raise RunbookError(
                f"--{name} {folder} is no absolute path.",
                hint=f"Write /{folder}, or ~/{folder} for one in the home of its user.",
            )
    if target == "local":
        if identity:
            raise RunbookError("This machine needs no key.", hint="Leave -i out.")
        return HostBinding(
            role=role,
            kind="local",
            root=root or str(workspace.private / "host"),
            work=work or str(workspace.root / "work"),
            usd_per_hour=price,
            ends_at=until,
        )
    user, at, address = target.rpartition("@")
    address, port = _address(address, port)
    if not address:
        raise RunbookError(f"`{target}` names no machine.", hint="Write `local` or user@address.")
    home = root or "~/.runbook"
    return HostBinding(
        role=role,
        kind="ssh",
        address=address,
        user=user if at else "",
        port=port,
        identity_file=_kept(identity) if identity else "",
        root=home,
        work=work or f"{home}/work",
        usd_per_hour=price,
        ends_at=until,
    )


def _address(said: str, port: int) -> tuple[str, int]:
    """`box`, `box:2222`, `fe80::1`, `[fe80::1]` or `[fe80::1]:2222`, taken apart."""
    found = _ADDRESS.fullmatch(said)
    if found is None:  # an IPv6 address has more than one colon
        return said, port
    number = found["port"]
    if number is not None:
        known = number.isascii() and number.isdigit() and len(number) <= len("65535")
        if not known or not 1 <= int(number) <= 65535:
            raise RunbookError(f"`{number}` is no port.", hint="Write user@address:2222.")
        port = int(number)
    return found["six"] or found["name"] or "", port


def _kept(identity: str) -> str:
    """The name of a key file as it is recorded: another operator's home is another one."""
    from remote.identity_file import require_private_key

    path, home = Path(identity).expanduser().absolute(), Path.home()
    require_private_key(path)
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


@click.command("repin")
@click.argument("role")
@click.option("--fingerprint", default="", metavar="SHA256:...", help="Of the new key, compared.")
@acting("host")
def repin_command(call: Acting, role: str, fingerprint: str) -> None:
    """Take the new key of a rebuilt machine. Shows both; a person decides. A new epoch begins.

    Example: runbook host repin box
    """
    from runbook.reach import dependants

    with call.open() as service:
        if call.dry_run:
            machine = service.snapshot().host(role).machine
            call.rehearsed(service, f"ask {machine} for its key, and take it if a person says yes")
            return
        changed = service.shown_key(role)
        if changed is None:
            _unchanged(call, service, role)
            return
        pinned = changed.expected_fingerprint
        if not call.as_json:
            report.line(f"pinned: {changed.expected.split()[0]} {pinned}")
            report.line(f"shown:  {changed.found.split()[0]} {changed.fingerprint}")
        _require_yes(role, changed.fingerprint, fingerprint)
        void = dependants(service.snapshot(), role)
        binding = service.repin(role, changed.found)
        data = {"host": binding, "was": pinned, "is": changed.fingerprint, "void": void}
        said = f"{role} is known by {changed.fingerprint} from now on; a new epoch began."
        call.answer(service, data, said, *_void(void))


def _unchanged(call: Acting, service: Service, role: str) -> None:
    from remote.ssh_trust import fingerprint
    from runbook.reach import Dependants

    binding = service.snapshot().host(role)
    known = fingerprint(binding.host_key) if binding.host_key else ""
    nothing = Dependants(memory=(), disk=())
    data = {"host": binding, "was": known, "is": known, "void": nothing}
    call.answer(service, data, f"{role} shows the key that is pinned to it; nothing to do.")


def _require_yes(role: str, shown: str, given: str) -> None:
    """A person's yes: the fingerprint, typed as an option or compared at the terminal."""
    if given:
        from runbook.verbs.hosts import require_same_key

        require_same_key(role, shown, given)
        return
    question = f"Is that the key of the machine you rebuilt? Type `{role}` to take it: "
    if ask_word(question) != role:
        raise RunbookError(
            f"The key of {role} was not taken: that is for a person at a terminal.",
            hint=f"Compare it; then `runbook host repin {role}` in a terminal, or --fingerprint.",
            exit_code=Exit.NEEDS_APPROVAL,
        )


def _void(void: Dependants) -> list[str]:
    """What another machine, or another boot, takes from the graph."""
    said = []
    if void.memory:
        said.append(f"Done with memory or processes of that machine: {', '.join(void.memory)}")
    if void.disk:
        said.append(f"Done with files on it: {', '.join(void.disk)}")
    return [*said, "`runbook verify` looks, and turns stale what no longer holds."] if said else []


@click.command("forget")
@click.argument("role")
@acting("host")
def forget_command(call: Acting, role: str) -> None:
    """Take the machine from ROLE. Nothing on the machine is touched.

    Example: runbook host forget box
    """
    from runbook.reach import dependants

    with call.open() as service:
        void = dependants(service.snapshot(), role)
        binding = service.forget(role)
        said = f"{role} is no longer {binding.machine}. Bind another: runbook host bind {role} ..."
        call.answer(service, {"role": role, "was": binding, "void": void}, said, *_void(void))
