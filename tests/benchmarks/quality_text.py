"""Texts for the quality run: prompts, a target's own completions of them, and the tokenized set.

Prompts are those of the files; what is missing of the wanted number the target draws itself, by
going on after an empty user turn. All are distinct, and held-out ones are never trained on. The set
has the splits `train`, `heldout` (sampled completions) and `greedy` (held-out prompts with the
target's greedy text); beside it lie the target's own choices for every token of `train`.
"""

from __future__ import annotations

import json
import random
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dflash.files import write_json
from dflash.prompts import load_prompts
from dflash.shards import Row, TokenizedSet, write_shard

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

LONGEST_PROMPT = 256
CHOICES = "choices.npz"
MARK = "\u0001mark\u0001"


class Speaker:
    """A target with its tokenizer, generating in batches by plain Transformers."""

    def __init__(self, folder: Path, *, batch: int, stop: Sequence[int]) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        cuda = torch.cuda.is_available()
        self.device = torch.device("cuda" if cuda else "cpu")
        dtype = torch.bfloat16 if cuda else torch.float32
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        self.model = model.to(self.device).eval()
        self.batch, self.stop = batch, list(stop)

    def prompt(self, messages: list[dict[str, Any]]) -> list[int]:
        text = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    @torch.inference_mode()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        new: int,
        temperature: float,
        until: float = float("inf"),
    ) -> list[list[int]]:
        """What follows each prompt, its end token included; temperature 0 is greedy.

        Prompts whose turn does not come before `until` have nothing.
        """
        found: list[list[int]] = [[] for _ in prompts]
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        sampled = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        starts = list(range(0, len(order), self.batch))
        random.Random(0).shuffle(starts)  # short and long ones alike are left out, if any are
        for start in starts:
            if time.monotonic() > until:
                break
            part = order[start : start + self.batch]
            longest = max(len(prompts[i]) for i in part)
            ids = torch.full((len(part), longest), self.stop[0])
            seen = torch.zeros_like(ids)
            for row, i in enumerate(part):
                ids[row, longest - len(prompts[i]) :] = torch.tensor(list(prompts[i]))
                seen[row, longest - len(prompts[i]) :] = 1
            made = self.model.generate(
                input_ids=ids.to(self.device), attention_mask=seen.to(self.device),
                max_new_tokens=new, pad_token_id=self.stop[0], eos_token_id=self.stop,
                **(sampled if temperature else {"do_sample": False, "temperature": None,
                                                "top_k": None, "top_p": None}),
            )[:, longest:].cpu().tolist()  # fmt: skip
            for row, i in enumerate(part):
                found[i] = self._until_stop(made[row])
        return found

    def _until_stop(self, tokens: list[int]) -> list[int]:
        ends = [tokens.index(s) for s in self.stop if s in tokens]
        return tokens[: min(ends) + 1] if ends else tokens

    def instructions(self, wanted: int, *, new: int = 96) -> Iterable[str]:
        """User turns that the target makes up, for as long as it takes."""
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": MARK}], add_generation_prompt=True, tokenize=False
        )
        before = self.tokenizer(text.split(MARK)[0], add_special_tokens=False)["input_ids"]
        while True:
            for ids in self.generate([before] * wanted, new=new, temperature=1.0):
                if ids and ids[-1] in self.stop:
                    yield self.tokenizer.decode(ids[:-1], skip_special_tokens=True).strip()

    @torch.inference_mode()
    def choices(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """For each token of each row: what the target would have put there, given what precedes."""
        found: list[np.ndarray] = [np.zeros(0, np.int32)] * len(rows)
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        step = max(1, self.batch // 32)
        for start in range(0, len(order), step):
            part = order[start : start + step]
            longest = max(len(rows[i]) for i in part)
            ids = torch.zeros(len(part), longest, dtype=torch.long)
            for row, i in enumerate(part):
                ids[row, : len(rows[i])] = torch.tensor(list(rows[i]))
            best = self.model(input_ids=ids.to(self.device)).logits.argmax(-1).cpu().numpy()
            for row, i in enumerate(part):
                shifted = np.concatenate([[rows[i][0]], best[row, : len(rows[i]) - 1]])
                found[i] = shifted.astype(np.int32)
        return found


def distinct_prompts(
    speaker: Speaker, files: Sequence[Path], wanted: int, seed: int
) -> tuple[list[list[int]], dict[str, int]]:
    """Prompts as token ids, shuffled, and how many came from where."""
    seen: set[tuple[int, ...]] = set()

    def fresh(messages: list[dict[str, Any]]) -> bool:
        ids = tuple(speaker.prompt(messages))
        good = len(ids) <= LONGEST_PROMPT and ids not in seen and len(seen) < wanted
        if good:
            seen.add(ids)
        return good

    given = [p.messages for path in files for p in load_prompts(path)]
    random.Random(seed).shuffle(given)
    count = {"files": sum(map(fresh, given)), "drawn": 0}
    if len(seen) < wanted:
        for text in speaker.instructions(min(speaker.batch, 2 * (wanted - len(seen)))):
            if len(text) >= 8:
                count["drawn"] += fresh([{"role": "user", "content": text}])
            if len(seen) >= wanted:
                break
    prompts = [list(ids) for ids in sorted(seen)]
    random.Random(seed).shuffle(prompts)
    return prompts, count


def write_texts(
    target: Path, files: Sequence[Path], out: Path, *, documents: int, heldout: int, new: int,
    temperature: float, batch: int, stop: Sequence[int], minutes: float, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """The whole set, written to `out`; returns what there is to say about it."""
    marks = [time.monotonic()]
    torch.manual_seed(seed)
    speaker = Speaker(target, batch=batch, stop=stop)
    prompts, count = distinct_prompts(speaker, files, documents + heldout, seed)
    marks.append(time.monotonic())
    greedy = speaker.generate(prompts[:heldout], new=new, temperature=0.0)
    marks.append(time.monotonic())
    said = speaker.generate(
        prompts, new=new, temperature=temperature, until=marks[0] + minutes * 60
    )
    pairs = list(zip(prompts, said, strict=True))
    splits = {
        "train": [pair for pair in pairs[heldout:] if pair[1]],
        "heldout": [pair for pair in pairs[:heldout] if pair[1]],
        "greedy": list(zip(prompts[:heldout], greedy, strict=True)),
    }
    facts = {"prompts": count, "temperature": temperature, "new_tokens": new}
    write_set(out, splits, facts)
    marks.append(time.monotonic())
    chosen = speaker.choices([p + s for p, s in splits["train"]])
    np.savez_compressed(out / CHOICES, tokens=np.concatenate(chosen).astype(np.uint32))
    marks.append(time.monotonic())
    names = ("prompts", "greedy", "completions", "choices")
    seconds = {n: round(b - a, 1) for n, a, b in zip(names, marks, marks[1:], strict=False)}
    same = sum(int((c[len(p) :] == np.array(s)).sum())
               for c, (p, s) in zip(chosen, splits["train"], strict=True))  # fmt: skip
    loss_tokens = sum(len(s) for _, s in splits["train"])
    facts |= {
        "train": len(splits["train"]), "heldout": heldout,
        "tokens": sum(len(p) + len(s) for p, s in splits["train"]), "loss_tokens": loss_tokens,
        "chosen_share": same / max(1, loss_tokens), "seconds": seconds,
    }  # fmt: skip
    write_json(out / "facts.json", facts)
    return facts


def write_set(
    out: Path, splits: dict[str, list[tuple[list[int], list[int]]]], facts: dict[str, Any]
) -> None:
    """As `dflash tokenize` leaves one, from exact ids: the loss is on what the target said."""
    entries: dict[str, Any] = {}
    for name, pairs in splits.items():
        (out / name).mkdir(parents=True, exist_ok=True)
        rows = []
        for number, (prompt, text) in enumerate(pairs):
            ids = np.array(prompt + text, dtype=np.int32)
            mask = (np.arange(len(ids)) >= len(prompt)).astype(np.uint8)
            rows.append(Row(id=f"{name}-{number}", input_ids=ids, loss_mask=mask))
        entry = write_shard(out / name / "shard-00000.arrow", rows)
        tokens = sum(len(p) + len(t) for p, t in pairs)
        entries[name] = {"shards": [entry], "rows": len(pairs), "tokens": tokens}
    manifest = {"format": "dflash-tokenized/1", "splits": entries, "made_by": facts}
    (out / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def pack(folder: Path, file: Path) -> None:
    """The set and the choices in one compressed file, to go on elsewhere."""
    arrays: dict[str, np.ndarray] = {"facts": np.array((folder / "facts.json").read_text())}
    for split in ("train", "heldout", "greedy"):
        data = TokenizedSet(folder, split)
        rows = [data.row(i) for i in range(len(data))]
        arrays[f"{split}_ids"] = np.concatenate([r.input_ids for r in rows]).astype(np.uint32)
        arrays[f"{split}_length"] = np.array([len(r.input_ids) for r in rows], np.int32)
        arrays[f"{split}_prompt"] = np.array([int(r.loss_mask.argmax()) for r in rows], np.int32)
    with np.load(folder / CHOICES) as kept:
        plain = arrays["train_ids"].astype(np.int64)
        other = np.flatnonzero(kept["tokens"] != plain)  # few: the rest repeats the data
        arrays["other_at"], arrays["other"] = other.astype(np.uint32), kept["tokens"][other]
    np.savez_compressed(file, **arrays)


def unpack(file: Path, folder: Path) -> dict[str, Any]:
    with np.load(file) as kept:
        splits = {}
        for split in ("train", "heldout", "greedy"):
            ends = np.cumsum(kept[f"{split}_length"])
            rows = np.split(kept[f"{split}_ids"].astype(np.int64), ends[:-1])
            prompts = kept[f"{split}_prompt"].tolist()
            splits[split] = [(r[:p].tolist(), r[p:].tolist())
                             for r, p in zip(rows, prompts, strict=True)]  # fmt: skip
        facts: dict[str, Any] = json.loads(str(kept["facts"]))
        write_set(folder, splits, facts)
        chosen = kept["train_ids"].astype(np.uint32)
        chosen[kept["other_at"]] = kept["other"]
        np.savez_compressed(folder / CHOICES, tokens=chosen)
    write_json(folder / "facts.json", facts)
    return facts
