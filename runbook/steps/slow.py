"""The warning of a step whose files would lie on a slow folder."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from runbook.slow_folders import NOT_MEASURED, slow_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runbook.steps.base import StepContext


def warned(ctx: StepContext, *paths: str) -> Iterator[str]:
    """A line for each slow folder among these, told too when the step really starts."""
    for path in dict.fromkeys(path for path in paths if path.startswith(("/", "~"))):  # no s3://
        found = slow_folder(ctx.facts, path)
        if found is not None and found.why == NOT_MEASURED and ctx.host is not None:
            rows = ctx.host.radar([path, str(PurePosixPath(path).parent)])
            found = slow_folder({**ctx.facts, "radar": rows}, path)
        if found is not None:
            if ctx.host is not None:
                ctx.log(f"{ctx.task_id}: {found}")
            yield f"warning: {found}"
