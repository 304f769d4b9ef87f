"""Samples a second of `dflash tokenize`'s worker beside a plain Transformers loop, in one run.

    PYTHONPATH=. OMP_NUM_THREADS=1 python3 tests/benchmarks/tokenize_speed.py [--rows 600]

Both read the same JSON lines and write the same Arrow columns; the plain loop renders and encodes
each conversation with `apply_chat_template` and takes the mask from a second call on the prompt.
Seconds are of processor time, so that other work on the machine counts less.
Texts: HumanEval's tasks, reasoning prompts, and source files of this Python, to 2,000 tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

from dflash import shards
from dflash.completions import CompletionStore
from dflash.parts import make_part, tokenizer_of
from dflash.progress import Progress
from dflash.sources import open_source
from dflash.tokenize import tokenize
from tests.support.qwen3 import unpack_qwen3

SHARD_ROWS = 200
CHARACTERS = 7600  # about 2,000 tokens of code and prose


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        measure(Path(work), args.rows, args.processes, args.rounds)


def measure(work: Path, rows: int, processes: int, rounds: int) -> None:
    model = unpack_qwen3(work / "model")
    source = write_completions(work / "completions", rows)
    one = tokenize(  # loads and proves the twin: the worker is measured without it
        completions=source, tokenizer=model, out=work / "set", shares={"train": 1.0},
        progress=Progress(),
    )  # fmt: skip
    tokens = one["splits"]["train"]["tokens"] / rows
    print(f"{rows} samples of {tokens:,.0f} tokens on average, Qwen3's tokenizer, one core each")
    plain = ours = float("inf")
    for number in range(rounds):  # by turns, and the best of each: other work disturbs both
        seconds, theirs = plain_loop(model, source, work / "plain.arrow")
        plain = min(plain, seconds)
        ours = min(ours, *(worker(model, source, work / f"again-{number}-{n}") for n in range(3)))
    same = sum(compare(work / "set", theirs))
    print(f"plain Transformers loop     {rows / plain:8,.0f} samples/s")
    print(f"dflash tokenize, a worker   {rows / ours:8,.0f} samples/s   {plain / ours:.1f}x")
    print(f"ids equal on {same} of {rows}, where the mask is asked of them too")
    spread = processes_loop(model, source, work, processes)
    print(f"{processes} workers at once          {spread:8,.0f} samples/s")


def write_completions(folder: Path, rows: int) -> Path:
    texts = bodies(rows)
    with CompletionStore(folder, settings={"model": "bench"}, shard_rows=SHARD_ROWS) as store:
        for number, text in enumerate(texts):
            prompt = text[:400]
            store.add(
                {
                    "id": f"{number:06d}",
                    "messages": [{"role": "user", "content": f"Continue:\n{prompt}"}],
                    "completion": f"<think>\nWell.\n</think>\n\n{text[400:].strip()}",
                    "finish_reason": "stop",
                }
            )
        store.finish(complete=True, failed=0)
    return folder


def bodies(rows: int) -> list[str]:
    prompts = Path(__file__).parents[2] / "runbook/library/prompts/code-and-reasoning.jsonl"
    prose = "\n\n".join(json.loads(line)["messages"][-1]["content"] for line in prompts.open())
    texts = cut(prose)
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("[a-z]*.py")):
        if len(texts) >= rows:
            break
        if "site-packages" not in path.parts and "test" not in path.parts:
            texts += cut(path.read_text(encoding="utf-8", errors="replace"))
    return texts[:rows]


def cut(text: str) -> list[str]:
    starts = range(0, len(text) - CHARACTERS, CHARACTERS)
    return [text[start : start + CHARACTERS] for start in starts]


def plain_loop(model: Path, source: Path, out: Path) -> tuple[float, list[tuple[list[int], int]]]:
    """What a script does: the whole conversation, and the prompt alone for the mask."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(model))
    tokenizer.apply_chat_template([{"role": "user", "content": "warm up"}])
    end = tokenizer.eos_token_id
    found = []
    began = time.process_time()
    rows = []
    for shard in sorted(source.glob("shard-*.jsonl")):
        for line in shard.open(encoding="utf-8"):
            record = json.loads(line)
            answer = {"role": "assistant", "content": record["completion"]}
            conversation = [*record["messages"], answer]
            ids = tokenizer.apply_chat_template(conversation, tokenize=True, return_dict=False)
            prompt = tokenizer.apply_chat_template(
                record["messages"], tokenize=True, add_generation_prompt=True, return_dict=False
            )
            ids = ids[: len(ids) - ids[::-1].index(end)]  # the newline after it is the template's
            found.append((ids, len(prompt)))
            rows.append(row_of(record["id"], ids, len(prompt)))
    shards.write_shard(out, rows)
    return time.process_time() - began, found


def row_of(name: str, ids: list[int], edge: int) -> shards.Row:
    import numpy as np

    mask = np.ones(len(ids), dtype=np.uint8)
    mask[:edge] = 0
    return shards.Row(id=name, input_ids=np.array(ids, dtype=np.int32), loss_mask=mask)


def worker(model: Path, source: Path, out: Path) -> float:
    """All input files through the function that every worker process runs."""
    recipe = recipe_of(model)
    tokenizer = tokenizer_of(recipe)
    assert tokenizer.twin is not None, tokenizer.why_slow
    opened = open_source(str(source))
    began = time.process_time()
    for entry in opened.entries:
        make_part(source / entry.file, entry, out, recipe)
    return time.process_time() - began


def recipe_of(model: Path) -> Any:
    from dflash.parts import Recipe
    from dflash.splits import Splits

    return Recipe(
        tokenizer=str(model), fingerprint="bench", template_kwargs={}, max_length=None,
        overlong="drop", splits=Splits.over((), {"train": 1.0}, floor=0),
    )  # fmt: skip


def compare(folder: Path, theirs: list[tuple[list[int], int]]) -> list[bool]:
    ours = shards.TokenizedSet(folder)
    return [
        ours.row(n).input_ids.tolist() == ids and int(ours.row(n).loss_mask.argmax()) == edge
        for n, (ids, edge) in enumerate(theirs)
    ]


def timed(model: str, source: str, out: str, gate: Any) -> float:
    tokenizer_of(recipe_of(Path(model))).encode_completion("warm up")
    gate.wait()
    return worker(Path(model), Path(source), Path(out))


def processes_loop(model: Path, source: Path, work: Path, count: int) -> float:
    """Every process does the whole input, starting together."""
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        gate = manager.Barrier(count)
        with context.Pool(count) as pool:
            jobs = [(str(model), str(source), str(work / f"p{n}"), gate) for n in range(count)]
            seconds = pool.starmap(timed, jobs, chunksize=1)
    rows = len(shards.TokenizedSet(work / "set"))
    return sum(rows / second for second in seconds)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
