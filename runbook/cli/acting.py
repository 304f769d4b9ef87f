"""What verbs that change something share: how they are asked, opened, rehearsed and answered."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from runbook import report
from runbook.cli.common import (
    answer,
    dry_run_option,
    expect_option,
    json_option,
    tell_rehearsal,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from runbook.service import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class Acting:
    """One call of a verb, by the options that all of them have."""

    verb: str
    workspace: Path
    expect_rev: int | None
    dry_run: bool
    as_json: bool

    def open(self) -> Service:
        """The workspace, to be closed by the caller; nothing is written in a rehearsal."""
        from runbook.service import Service

        return Service.open(self.workspace, expect_rev=self.expect_rev, dry_run=self.dry_run)

    def rehearsed(self, service: Service, would: str = "") -> bool:
        """Whether this was a rehearsal; then it was told, with what no event tells."""
        if self.dry_run:
            service.would.extend([would] if would else [])
            tell_rehearsal(service, self.verb, as_json=self.as_json)
        return self.dry_run

    def answer(self, service: Service, data: Mapping[str, Any], *said: str) -> None:
        """The one answer: what would be, or the records, or lines for people."""
        if self.rehearsed(service):
            return
        if self.as_json:
            answer(self.verb, service.store.revision(), data)
            return
        for text in said:
            report.line(text)


def acting(verb: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`--dry-run`, `--expect-rev` and `--json`, as one argument. `verb` is named in the answer."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @dry_run_option
        @expect_option
        @json_option
        @click.pass_obj
        @wraps(function)
        def command(workspace: Path, /, **given: Any) -> None:
            ours = {name: given.pop(name) for name in ("expect_rev", "dry_run", "as_json")}
            function(Acting(verb=verb, workspace=workspace, **ours), **given)

        return command

    return decorate
