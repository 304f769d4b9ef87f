"""The reference of runbook files is what the models say, and its example is a valid file."""

from __future__ import annotations

from pathlib import Path

from runbook.plan import load_text
from runbook.plan.reference import reference
from runbook.plan.shape import RunbookFile, TaskFile
from runbook.steps import STEP_TYPES
from runbook.steps.checks import CHECKS

DOCS = Path(__file__).resolve().parents[2] / "docs" / "runbook-file.md"


def test_the_reference_in_docs_is_current() -> None:
    kept = DOCS.read_text(encoding="utf-8")
    assert kept == reference(), "make it anew: python scripts/render_docs.py"


def test_every_key_step_and_check_is_in_it() -> None:
    text = reference()
    keys = [f.alias or n for m in (RunbookFile, TaskFile) for n, f in m.model_fields.items()]
    assert [key for key in keys if f"| `{key}` |" not in text] == []
    assert [name for name in (*STEP_TYPES, *CHECKS) if f"### {name}\n" not in text] == []


def test_its_example_is_valid() -> None:
    example = reference().partition("```yaml\n")[2].partition("```")[0]
    runbook = load_text(example, path="docs", params={})
    assert [task.id for task in runbook.tasks][:2] == ["make@left[a]", "make@left[b]"]
    assert len(runbook.tasks[-1].needs) == 4
