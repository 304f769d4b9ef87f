"""Step types as data: `cases/<step>/<case>.json` holds arguments and the plan they must make.

Run with STEP_CASES=write to record the plans of new cases; read the difference before keeping it.
In a case, `@tmp@` is a fresh folder and the host's bundles lie in `/ship/NAME`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from runbook.steps import STEP_TYPES
from runbook.steps.base import StepContext, StepPlan
from runbook.steps.serve import Serve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CASES = Path(__file__).parent / "cases"
MADE = (
    "argv", "cwd", "env", "ports", "grace_s", "precheck", "done_when", "ready_when",
    "ready_within_s", "stagger_s", "watch", "out", "summary", "outcome", "grants",
)  # fmt: skip
ALL = sorted(CASES.glob("*/*.json"))


@dataclass
class ScriptedHost:
    """Facts and verdicts as a case says."""

    found: Mapping[str, Any]
    verdicts: Mapping[str, str]
    asked: list[Mapping[str, Any]] = field(default_factory=list)

    def facts(self) -> Mapping[str, Any]:
        return self.found

    def check(
        self,
        checks: Sequence[Mapping[str, Any]],
        *,
        attempt: str | None = None,
        timeout: float = 60,
    ) -> Sequence[Any]:
        self.asked += checks
        return [
            SimpleNamespace(verdict=self.verdicts.get(name, "pass"), evidence={"asked": name})
            for check in checks
            for name in check
        ]

    def read_file(self, path: str, limit: int) -> bytes:
        raise FileNotFoundError(path)


def context(case: Mapping[str, Any]) -> StepContext:
    stops = case.get("stops", {})

    def stop_task(task: str) -> Any:
        state = stops.get(task, "stopped")
        survivors = [{"pid": 7}] if state != "stopped" else []
        return SimpleNamespace(state=state, survivors=survivors)

    return StepContext(
        host=ScriptedHost(case.get("facts", {}), case.get("verdicts", {})),
        host_name="box",
        root="/root-of-jobs",
        work="/work-of-box",
        workspace=Path("/workspace"),
        task_id="task",
        facts={},
        ship=lambda name: f"/ship/{name}",
        stop_task=stop_task,
        outs={},
        log=lambda text: None,
        host_kind=case.get("host_kind", "local"),
    )


def as_data(plan: StepPlan) -> dict[str, Any]:
    """The parts of a plan that a case may expect; empty ones left out."""
    job = plan.job
    made: dict[str, Any] = {
        "argv": list(job.argv) if job else None,
        "cwd": job.cwd if job else None,
        "env": dict(job.env) if job else None,
        "ports": list(job.ports) if job else None,
        "grace_s": job.grace_s if job else None,
        "grants": list(map(dict, job.grants)) if job else None,
        "precheck": plan.precheck,
        "done_when": plan.done_when,
        "ready_when": plan.ready_when,
        "ready_within_s": plan.ready_within_s,
        "stagger_s": plan.stagger_s,
        "watch": dict(plan.watch),
        "out": dict(plan.out),
        "summary": None if job else plan.summary,
    }
    return json.loads(json.dumps({key: value for key, value in made.items() if value}))


def load(path: Path, tmp: Path) -> dict[str, Any]:
    text = path.read_text()
    case = json.loads(text.replace("@tmp@", str(tmp)))
    for name, content in case.get("files", {}).items():
        (tmp / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp / name).write_text(content)
    return case


@pytest.mark.parametrize("path", ALL, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_case(path: Path, tmp_path: Path) -> None:
    case = load(path, tmp_path)
    name = path.parent.name
    step = Serve(new_token=lambda: "TOKEN") if name == "serve" else STEP_TYPES[name]
    if "error" in case:
        with pytest.raises(ValidationError, match=case["error"]):
            step.plan_raw(case["args"], context(case))
        return
    live = context(case)
    plan = step.plan_raw(case["args"], live)
    made = as_data(plan)
    assert not (plan.job and plan.run), "a job or an action, not both"
    if plan.run is not None and "outcome" in case:
        outcome = plan.run(live)
        made["outcome"] = json.loads(
            json.dumps(
                {
                    "ok": outcome.ok,
                    "message": outcome.message,
                    "out": dict(outcome.out),
                    "evidence": dict(outcome.evidence),
                }
            )
        )
    expected = {key: case[key] for key in MADE if key in case}
    if os.environ.get("STEP_CASES") == "write":
        record(path, made, tmp_path)
        return
    assert made == expected


def record(path: Path, made: Mapping[str, Any], tmp: Path) -> None:
    case = json.loads(path.read_text())
    text = json.dumps({**case, **made}, indent=1, ensure_ascii=False) + "\n"
    path.write_text(text.replace(str(tmp), "@tmp@"))


def test_every_step_type_has_cases() -> None:
    with_cases = {path.parent.name for path in ALL}
    assert with_cases == set(STEP_TYPES)


@pytest.mark.parametrize("name", sorted(STEP_TYPES))
def test_every_step_type_explains_itself(name: str) -> None:
    step = STEP_TYPES[name]
    assert step.name == name
    assert step.__doc__
    schema = step.Args.model_json_schema()
    undescribed = [key for key, value in schema["properties"].items() if "description" not in value]
    assert undescribed == []
    assert list(STEP_TYPES) == sorted(STEP_TYPES)


@pytest.mark.parametrize(
    ("step", "program", "not_wanted"),
    [
        ("venv", "remote.payloads.venv", set()),
        ("model_copy", "remote.payloads.model_copy", set()),
        ("generate", "dflash generate", {"--part-mib", "--short-lived-only"}),
        ("audit", "dflash audit", set()),
    ],
)
def test_a_runbook_has_every_option_that_errors_name_as_the_next_step(
    step: str, program: str, not_wanted: set[str]
) -> None:
    asked = subprocess.run(
        [sys.executable, "-m", *program.split(), "--help"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    options = set(re.findall(r"--[a-z][a-z-]+", asked.stdout)) - {"--help"} - not_wanted
    given = {word for path in (CASES / step).glob("*.json")
             for word in json.loads(path.read_text()).get("argv", ())}  # fmt: skip
    assert options == options & given


def test_a_bench_says_in_words_what_it_compares() -> None:
    """Its command has whole servers in it, which nobody reads before saying yes."""
    case = json.loads((CASES / "bench/mtp_and_pools.json").read_text())
    first = STEP_TYPES["bench"].plan_raw(case["args"], context(case)).summary[0]
    assert first.startswith("compare plain")
    for variant in case["args"]["variants"]:
        assert variant["name"] in first
    assert '{"speculation": "mtp"' in first
    assert "requests at a time" in first
