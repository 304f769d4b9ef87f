"""What a key may do to a machine: bind, probe, look again, open a shell."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from runbook.errors import RunbookError
from runbook.tui.dialogs import AskScreen
from runbook.tui.sending import Sender

if TYPE_CHECKING:
    from runbook.tui.ports import ServicePort


class MachineVerbs(Sender):
    """Carries the keys that are about a role from the places to the bridge."""

    def bind(self, role: str | None) -> None:
        """Say which machine plays a role; it is met before anything changes."""
        if self.refused("bind", None) or self._no_role(role):
            return
        self._app.push_screen(
            AskScreen(
                f"Which machine plays {role}?",
                "user@address (with -P PORT if it is not 22), or local for this machine. It is "
                "asked for its facts, and its key is pinned, before anything changes.",
                hint="local, or user@address",
                value="local",
                needed=True,
            ),
            lambda said: None if not said else self.send(
                f"runbook host bind {role} {said}",
                lambda service: bind_as_said(service, str(role), said),
                then=lambda _said: self._app.voice.tell(f"{role} is {said}."),
            ),
        )  # fmt: skip

    def _no_role(self, role: str | None) -> bool:
        if role is None:
            self._app.voice.tell("No machine belongs to this; 4 lists them.")
        return role is None

    def probe(self, role: str | None) -> None:
        """Ask a machine for its facts, off the screen's thread."""
        if self.refused("probe", None) or self._no_role(role):
            return
        assert role is not None
        self.send(f"runbook host probe {role}", lambda service: service.probe(role))

    def reconcile(self) -> None:
        """Look again, for certain, at what may run."""
        if not self.refused("reconcile", None):
            self.send(
                "runbook reconcile",
                lambda service: service.reconcile(),
                then=lambda seen: self._app.voice.tell(
                    f"Looked at {len(seen)} attempt{'' if len(seen) == 1 else 's'}."
                    if seen
                    else "No attempt may still run: there is nothing to look at."
                ),
            )

    def shell(self, role: str | None) -> None:
        """A shell on the machine behind a role; the screen comes back when it ends."""
        if self.refused("shell", None) or self._no_role(role):
            return
        assert role is not None
        self._app.suspend_for(f"runbook host shell {role}", ("host", "shell", role))


def bind_as_said(service: ServicePort, role: str, said: str) -> None:
    """What was typed is read as the command line reads it, with all its options.

    Raises:
        RunbookError: it cannot be read, or the runbook has no such role.
    """
    from click import ClickException

    from runbook.cli.host_binding import bind_command, binding_of

    try:
        given = bind_command.make_context("bind", [role, *shlex.split(said)]).params
    except (ClickException, ValueError) as error:
        text = error.format_message() if isinstance(error, ClickException) else str(error)
        raise RunbookError(text, hint="Write `local`, or user@address with -P PORT.") from error
    of_a_machine = ("port", "identity", "root", "work", "usd_per_hour", "ends_at")
    said_of_it = {name: given[name] for name in of_a_machine}
    binding = binding_of(role, given["target"], service.workspace, **said_of_it)
    service.bind(role, binding, accept_fingerprint=given["accept_fingerprint"])
