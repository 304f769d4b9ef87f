"""`serve`: an inference server as a service task: SGLang, or any that speaks the OpenAI API.

Ready means: our process lives, it is healthy, it answers with our name and this start's token, and
it generated something. A server's own "ready" line proves none of that.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from runbook.steps import checks
from runbook.steps.base import JobPlan, Step, StepContext, StepPlan
from runbook.steps.dflash_job import told
from runbook.steps.serve_args import ServeArgs
from runbook.steps.server_argv import environment, server_argv

if TYPE_CHECKING:
    from collections.abc import Callable

    from runbook.steps.base import Check


def _new_token() -> str:
    return secrets.token_hex(8)


class Serve(Step[ServeArgs]):
    """Serve a model; its address is `${task.NAME.out.url}`, with `out.model` and `out.api`."""

    name = "serve"
    kind = "service"
    Args = ServeArgs

    def __init__(self, *, new_token: Callable[[], str] = _new_token) -> None:
        self._new_token = new_token

    def plan(self, args: ServeArgs, ctx: StepContext) -> StepPlan:
        token = self._new_token()
        sglang = args.engine == "sglang"
        job = JobPlan(
            argv=server_argv(args, token),
            cwd=ctx.work,
            env=environment(args),
            ports=args.ports,
            grace_s=args.grace,
        )
        # `transformers serve` knows a model by its folder only.
        model = args.model if args.engine == "transformers" else args.served_name
        out = {"url": args.url, "model": model, "api": "sglang" if sglang else "openai"}
        return StepPlan(
            summary=told(job, ctx),
            job=job,
            precheck=tuple(checks.port_free(port) for port in args.ports),
            ready_when=(
                {"process_alive": {}},
                {"http": {"url": f"{args.url}/health", "timeout_s": 30}},
                *(_identity(args, token) if sglang else ()),
                {"http_generate": {**out, "timeout_s": 120}},
            ),
            ready_within_s=args.ready_within,
            stagger_s=args.stagger,
            watch={
                **out,
                "ports": list(args.ports),
                "every_s": min(10.0, args.probe_every),
                "probe_every_s": args.probe_every,
                "probe_timeout_s": args.probe_timeout,
                "deadline_s": args.stuck_after,
                "strikes": args.strikes,
            },
            out={**out, "port": args.port},
        )


def _identity(args: ServeArgs, token: str) -> tuple[Check, ...]:
    """A second server on the same port, or yesterday's, would answer as healthily as ours."""
    url = f"{args.url}/model_info"
    found = {"served_model_name": args.served_name, "weight_version": token}
    return tuple(
        {"http_identity": {"url": url, "field": field, "equals": value}}
        for field, value in found.items()
    )
