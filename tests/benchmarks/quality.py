"""What a loss, a start and a number of anchors are worth: drafters trained alike, then compared.

    PYTHONPATH=. python3 tests/benchmarks/quality.py --target models/smollm2 --work work \\
        [--prompts FILE ...] [--documents 20000] [--steps 1250] [--anchors 128 512] [--tiny]

The target answers prompts (plain Transformers); each run trains on the same documents in the same
order for the same number of steps; the lossless greedy acceptance length is counted on held-out
prompts by walking the target's greedy text (`dflash.walk`). Differences are paired by prompt, seeds
averaged, with 95 % bootstrap intervals. Everything is kept in --work: what is there is not done
again. `--tiny` runs all of it on a CPU, to see that it works.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dflash.batches import Batches
from dflash.drafter import load_drafter
from dflash.evaluate import stop_ids
from dflash.export import step_folder
from dflash.feed import packed_states
from dflash.files import read_json, write_json
from dflash.losses import FrozenHead, LossOptions
from dflash.shards import TokenizedSet
from dflash.statistics import Round, macro, micro, paired_bootstrap, slots
from dflash.target import TargetTaps, load_target
from dflash.walk import leading_runs, walk
from tests.benchmarks.quality_runs import VARIANTS
from tests.benchmarks.quality_text import pack, unpack, write_set, write_texts

if TYPE_CHECKING:
    from collections.abc import Iterator

PEERS = ("specforge", "speculators", "dpace-choices")
"""Both peers, and speculators' loss from our start; SpecForge's from there is `ce`."""
TINY = {
    "documents": 48, "heldout": 6, "new": 16, "steps": 6, "batch": 18, "parallel": 1,
    "layers": 1, "batch_docs": 8, "anchors": [8, 16], "block_size": 4, "seeds": 2, "check": 3,
}  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--target", type=Path, required=True, help="folder of a chat model, with its tokenizer")
    add("--work", type=Path, required=True)
    add("--prompts", type=Path, nargs="*", default=[], help="JSON lines with messages")
    add("--texts", type=Path, help="packed texts of an earlier run, instead of generating")
    add("--phase", choices=("all", "texts", "train", "table", "check"), default="all")
    add("--documents", type=int, default=20_000)
    add("--heldout", type=int, default=512)
    add("--new", type=int, default=192, help="tokens of a completion, at most")
    add("--temperature", type=float, default=0.2)
    add("--batch", type=int, default=4096, help="sequences generated at once")
    add("--text-minutes", type=float, default=5.0)
    add("--steps", type=int, default=1250)
    add("--batch-docs", type=int, default=32)
    add("--lr", type=float, default=1e-3)
    add("--layers", type=int, default=5)
    add("--block-size", type=int, default=8)
    add("--attention", default="auto")
    add("--anchors", type=int, nargs="+", default=[128, 512])
    add("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    add("--seeds", type=int, default=2)
    add("--parallel", type=int, default=8, help="trainings side by side on the one GPU")
    add("--train-minutes", type=float, default=60.0, help="then those under way save and end")
    add("--check", type=int, default=8, help="prompts that are decoded for real as well")
    add("--tiny", action="store_true")
    args = parser.parse_args()
    if args.tiny:
        vars(args).update(TINY)
    return args


def make_texts(args: argparse.Namespace, data: Path) -> dict[str, Any]:
    if (data / "facts.json").is_file():
        return read_json(data / "facts.json", "facts of the texts")
    if args.texts is not None:
        return unpack(args.texts, data)
    stop = stop_ids(args.target, read_json(args.target / "config.json", "target's config"))
    facts = write_texts(
        args.target, args.prompts, data, documents=args.documents, heldout=args.heldout,
        new=args.new, temperature=args.temperature, batch=args.batch, stop=stop,
        minutes=args.text_minutes,
    )  # fmt: skip
    pack(data, args.work / "texts.npz")
    return facts


# -- training


def names_of(args: argparse.Namespace) -> list[str]:
    """Runs in the order of their worth, should time run out."""
    return [f"{variant}-{anchors}-{seed}" for anchors in args.anchors
            for seed in range(args.seeds) for variant in args.variants]  # fmt: skip


def options_of(args: argparse.Namespace, name: str) -> dict[str, Any]:
    variant, anchors, seed = name.rsplit("-", 2)
    return {
        "target": str(args.target), "data": str(args.work / "set"), "colocated": True,
        "out": str(args.work / "runs" / name), "layers": args.layers,
        "block_size": args.block_size, "anchors_per_doc": int(anchors), "seed": int(seed),
        "batch_docs": args.batch_docs, "steps": args.steps, "lr": args.lr, "keep": 1,
        "attention": args.attention,
        "save_every": max(1, args.steps // 5), "eval_docs": 64, "eval_prompts": 2,
        "eval_tokens": 32, **VARIANTS[variant],
    }  # fmt: skip


def done(args: argparse.Namespace, name: str) -> bool:
    path = args.work / "runs" / name / "train.json"
    return path.is_file() and read_json(path, "summary")["ended"] == "steps"


def start(args: argparse.Namespace, name: str) -> subprocess.Popen[bytes]:
    folder = args.work / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / f"{name}.json"
    write_json(config, options_of(args, name))
    argv = [sys.executable, "-m", "tests.benchmarks.quality_runs", str(config)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(argv, stdout=log, stderr=log, env=environment)


def train_all(args: argparse.Namespace) -> Iterator[str]:
    """Names of finished runs; those that time cuts off save, and go on another time."""
    until = time.monotonic() + args.train_minutes * 60
    left = [name for name in names_of(args) if not done(args, name)]
    yield from (name for name in names_of(args) if done(args, name))
    running: dict[str, subprocess.Popen[bytes]] = {}
    while running or (left and time.monotonic() < until):
        while left and len(running) < args.parallel and time.monotonic() < until:
            name = left.pop(0)
            running[name] = start(args, name)
        if time.monotonic() > until:
            for process in running.values():
                process.send_signal(signal.SIGTERM)
            until += 30
        for name, process in list(running.items()):
            if process.poll() is not None:
                del running[name]
                print(f"{name}: exit code {process.returncode}", flush=True)
                if process.returncode == 0:
                    yield name
        time.sleep(0.2)


# -- evaluation


class Course:
    """The held-out greedy texts with the target's states, for any drafter to be walked over."""

    def __init__(self, target: Path, data: Path, dtype: torch.dtype | None = None) -> None:
        cuda = torch.cuda.is_available()
        self.device = torch.device("cuda" if cuda else "cpu")
        self.dtype = dtype or (torch.bfloat16 if cuda else torch.float32)
        self.model = load_target(target, self.dtype, self.device)
        self.data = TokenizedSet(data, "greedy")
        self.limit = int(self.data.manifest["made_by"]["new_tokens"])
        self.states: dict[int, torch.Tensor] = {}

    @torch.no_grad()
    def rounds(self, folder: Path) -> dict[str, list[Round]]:
        """By prompt; those whose first token ended the text have none."""
        drafter, config = load_drafter(folder, self.dtype, self.device)
        drafter.eval()
        taps = TargetTaps(self.model, config.target_layer_ids)
        head = FrozenHead(taps.head_weight, taps.head_bias)
        options = LossOptions(block_size=config.block_size)
        longest = int(max(self.data.lengths))
        batches = Batches(
            self.data, anchors_per_doc=longest, block_size=config.block_size,
            mask_token_id=config.mask_token_id, max_length=longest, seed=0, batch_tokens=16384,
            batch_blocks=16384,
        )  # fmt: skip
        found = {}
        for number in range(batches.per_epoch):
            batch = batches.micro_batch(number)
            if number not in self.states:  # one order, and all drafters have the same taps
                shape = (batch.tokens, taps.width)
                self.states[number] = torch.empty(shape, dtype=self.dtype, device=self.device)
                packed_states(taps, batches, batch, self.states[number])
            rows = batches.drafter_rows(batch).to(self.device)
            embeds = taps.embed(rows.block_ids[None], config.input_embedding_scale)
            out = drafter(embeds, self.states[number][None], rows.layout, "auto")[0]
            runs = leading_runs(out.to(self.dtype), rows, head, options).cpu()
            owner = rows.layout.block_doc[:: config.block_size].cpu()
            for place, row in enumerate(batch.rows):
                mine = runs[owner == place].tolist()
                found[row.id] = walk(mine, block_size=config.block_size, limit=self.limit)
        return found


def evaluate(args: argparse.Namespace, course: Course, name: str) -> None:
    path = args.work / "rounds" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    started = time.monotonic()
    found = course.rounds(step_folder(args.work / "runs" / name))
    kept = {k: [[r.proposed, r.accepted, r.produced] for r in v] for k, v in found.items()}
    summary = read_json(args.work / "runs" / name / "train.json", "summary")
    facts = {key: summary[key] for key in ("step", "seconds", "tokens")}
    write_json(path, {"rounds": kept, "run": facts, "walked_s": time.monotonic() - started})


# -- the table


def lengths_of(args: argparse.Namespace, name: str) -> dict[str, list[Round]] | None:
    path = args.work / "rounds" / f"{name}.json"
    if not path.is_file():
        return None
    kept = read_json(path, "rounds")["rounds"]
    return {k: [Round(proposed=p, accepted=a, produced=n) for p, a, n in v]
            for k, v in kept.items()}  # fmt: skip


def table(args: argparse.Namespace) -> dict[str, Any]:
    """Every variant, and ours against each peer, for what has been evaluated so far."""
    cells: dict[str, Any] = {}
    pooled: dict[str, dict[str, float]] = {}
    for anchors in args.anchors:
        for variant in args.variants:
            key = f"{variant}-{anchors}"
            seeds = [f for s in range(args.seeds) if (f := lengths_of(args, f"{key}-{s}"))]
            if not seeds:
                continue
            means = [macro(found.values()) for found in seeds]
            pooled[key] = {
                prompt: sum(sum(r.produced for r in f[prompt]) / len(f[prompt]) for f in seeds)
                / len(seeds)
                for prompt in seeds[0] if seeds[0][prompt]
            }  # fmt: skip
            everything = [rounds for found in seeds for rounds in found.values()]
            cells[key] = {
                "macro": sum(pooled[key].values()) / len(pooled[key]), "by_seed": means,
                "micro": micro(everything), "prompts": len(pooled[key]),
                "slots": [slot.rate for slot in slots(everything)],
            }  # fmt: skip
    differences = {}
    for one in pooled:
        for other in pooled:
            (a, n), (b, m) = one.rsplit("-", 1), other.rsplit("-", 1)
            if (n == m and b in (*PEERS, "ce") and a != b) or (a == b and int(n) > int(m)):
                pairs = [pooled[one][p] - pooled[other][p] for p in sorted(pooled[one])]
                interval = paired_bootstrap(pairs, seed=0)
                base = cells[other]["macro"]
                differences[f"{one} - {other}"] = {
                    "mean": interval.mean, "low": interval.low, "high": interval.high,
                    "percent": 100 * interval.mean / base,
                }  # fmt: skip
    return {"acceptance": cells, "differences": differences}


def show(found: dict[str, Any]) -> None:
    for name, cell in found["acceptance"].items():
        seeds = ", ".join(f"{x:.3f}" for x in cell["by_seed"])
        print(f"{name:<20} {cell['macro']:.3f} ({seeds}); micro {cell['micro']:.3f}; "
              f"slot 1 {cell['slots'][0]:.3f}; {cell['prompts']} prompts")  # fmt: skip
    for name, d in found["differences"].items():
        sure = "" if d["low"] <= 0 <= d["high"] else " *"
        print(f"{name:<36} {d['mean']:+.3f} ({d['low']:+.3f} to {d['high']:+.3f}), "
              f"{d['percent']:+.1f} %{sure}")  # fmt: skip


def check_walk(args: argparse.Namespace) -> None:
    """Some prompts decoded for real, in fp32: the rounds must be those that are walked."""
    from dflash.bench import Bench, BenchSpec

    folder = next(step_folder(args.work / "runs" / n) for n in names_of(args) if done(args, n))
    data = TokenizedSet(args.work / "set", "greedy")
    limit = int(data.manifest["made_by"]["new_tokens"])
    stop = stop_ids(args.target, read_json(args.target / "config.json", "target's config"))
    bench = Bench(BenchSpec(
        target=str(args.target), drafter=str(folder), methods=("plain", "trained"),
        dtype="float32", device="cuda" if torch.cuda.is_available() else "cpu", threads=1,
        max_new_tokens=limit, stop_ids=stop, temperature=0, top_p=1.0, top_k=0, seed=0,
    ))  # fmt: skip
    pairs, decoded = [], []
    for number in range(min(args.check, len(data))):
        row = data.row(number)
        prompt = row.input_ids[: int(row.loss_mask.argmax())].tolist()
        methods = bench.evaluate(row.id, prompt)["methods"]
        if methods["plain"]["tokens"] == methods["trained"]["tokens"]:  # else a tie was broken
            pairs.append((prompt, methods["plain"]["tokens"]))
            decoded.append([n for _p, _a, n in methods["trained"]["rounds"]])
    write_set(args.work / "check", {"greedy": pairs}, {"new_tokens": limit})
    walked = Course(args.target, args.work / "check", torch.float32).rounds(folder)
    found = [[r.produced for r in walked.get(f"greedy-{i}", [])] for i in range(len(pairs))]
    same = sum(one == other for one, other in zip(found, decoded, strict=True))
    tokens, rounds = sum(map(sum, decoded)), sum(map(len, decoded))
    print(f"walked as decoded: {same} of {len(pairs)} prompts, {tokens} tokens in {rounds} rounds, "
          f"walked {sum(map(sum, found))} in {sum(map(len, found))}", flush=True)  # fmt: skip


def main() -> None:
    args = arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    if args.phase in ("all", "texts"):
        print(json.dumps(make_texts(args, args.work / "set")), flush=True)
    if args.phase in ("all", "train"):
        course = Course(args.target, args.work / "set")
        for name in train_all(args):
            if not (args.work / "rounds" / f"{name}.json").is_file():
                evaluate(args, course, name)
            write_json(args.work / "table.json", table(args))
    if args.phase in ("all", "check"):
        check_walk(args)
    with contextlib.suppress(BrokenPipeError):
        show(table(args))


if __name__ == "__main__":
    main()
