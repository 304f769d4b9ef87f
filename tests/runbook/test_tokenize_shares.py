"""A tokenized set made in shares, as on several hosts: a family of tasks, one more merges them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.workspaces import make, states

TOKENIZER = Path(__file__).parent.parent / "assets" / "smollm2"
FILES, ROWS = 6, 20
TASKS = """\
  share:
    title: Share ${{each.i}} of ${{each.count}}
    phase: one
    for_each: {{i: ["1", "2", "3"]}}
    step: tokenize
    with:
      venv: {venv}
      completions: {rows}
      tokenizer: {tokenizer}
      out: ${{host.work}}/share-${{each.i}}
      shard: ${{each.i}}/3
      split: {{train: 0.9, heldout: 0.1}}
  merge:
    title: All shares together
    phase: one
    needs: [share]
    step: tokenize
    with:
      venv: {venv}
      merge:
        - ${{task.share[1].out.path}}
        - ${{task.share[2].out.path}}
        - ${{task.share[3].out.path}}
      out: ${{host.work}}/set
      split: {{train: 0.9, heldout: 0.1}}
  whole:
    title: The same in one go
    phase: one
    step: tokenize
    with:
      venv: {venv}
      completions: {rows}
      tokenizer: {tokenizer}
      out: ${{host.work}}/whole
      split: {{train: 0.9, heldout: 0.1}}
"""


def completions(folder: Path) -> Path:
    folder.mkdir()
    for number in range(FILES):
        lines = [
            json.dumps(
                {
                    "id": f"{number}-{row}",
                    "messages": [{"role": "user", "content": f"What is {number} plus {row}?"}],
                    "completion": f"It is {number + row}.",
                    "finish_reason": "stop",
                }
            )
            for row in range(ROWS)
        ]
        (folder / f"part-{number}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_shares_of_a_family_make_the_set_that_one_task_makes(tmp_path: Path) -> None:
    rows = completions(tmp_path / "rows")
    tasks = TASKS.format(venv=sys.prefix, rows=rows, tokenizer=TOKENIZER)
    with make(tmp_path / "ws", tasks) as service:
        result = service.run()
        assert result.outcome == "done", (result, states(service))
    sets = [
        json.loads((tmp_path / "ws" / "work" / name / "manifest.json").read_text())["splits"]
        for name in ("set", "whole")
    ]
    merged, whole = ({k: (v["rows"], v["tokens"]) for k, v in one.items()} for one in sets)
    assert merged == whole
    assert sum(count for count, _ in merged.values()) == FILES * ROWS
