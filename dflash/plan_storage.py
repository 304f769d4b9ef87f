"""`dflash plan storage`: bytes of hidden states on disk, each way of storing them, and none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash.errors import UsageError
from dflash.plan_inputs import DTYPE_BYTES
from dflash.plan_report import PlanReport, Said, Table, duration, size

if TYPE_CHECKING:
    from dflash.plan_inputs import Work

DISK_GB_S = 5.0
SEED_WIDTH = 25_600
SEED_DOCUMENTS = (850_000, 950_000)
SEED_SMALL_BYTES = 645e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One way to keep the states; `documents` of `tokens` each are on disk at the same time."""

    key: str
    words: str
    documents: float
    tokens: float
    note: str

    def bytes(self, work: Work, dtype: str) -> float:
        return offline_bytes(self.documents, self.tokens, work.state_bytes(DTYPE_BYTES[dtype]))


def offline_bytes(documents: float, tokens: float, token_bytes: int) -> float:
    """Documents x tokens x (taps x hidden size x bytes of a number).

    Source: a captured token is the residual stream after each tap, side by side, nothing else; the
    ids and masks beside it are 5 bytes a token and not counted.
    """
    return documents * tokens * token_bytes


def ways(work: Work, *, truncate: int, subset: int, chunk: int) -> tuple[Stored, ...]:
    """Each way of storing states, with what it costs in other coin."""
    docs, mean = float(work.documents), work.mean_tokens
    return (
        Stored(key="whole", words="every token", documents=docs, tokens=mean,
               note="one pass of the target, read again every epoch"),
        Stored(key="anchors", words=f"{work.anchors} anchors a document", documents=docs,
               tokens=min(mean, float(work.anchors)),
               note="does not train: a block reads every token before its anchor"),
        Stored(key="truncated", words=f"first {truncate:,} tokens", documents=docs,
               tokens=min(mean, float(truncate)), note="nothing later is learnt; by the mean"),
        Stored(key="subset", words=f"{min(subset, work.documents):,} documents",
               documents=min(docs, float(subset)), tokens=mean, note="the rest is never seen"),
        Stored(key="chunked", words=f"{min(chunk, work.documents):,} documents at a time",
               documents=min(docs, float(chunk)), tokens=mean,
               note="the target runs again every epoch, as online"),
    )  # fmt: skip


def plan_storage(
    work: Work, *, truncate: int = 1024, subset: int = 100_000, chunk: int = 10_000
) -> PlanReport:
    for flag, value in (("truncate", truncate), ("subset", subset), ("chunk", chunk)):
        if value < 1:
            raise UsageError(f"--{flag} is {value}", "It is a number of at least one.")
    found = ways(work, truncate=truncate, subset=subset, chunk=chunk)
    rows = [
        (
            way.words,
            size(way.bytes(work, "bfloat16")),
            size(way.bytes(work, "float8")),
            duration(way.bytes(work, "bfloat16") / (DISK_GB_S * 1e9)),
            way.note,
        )
        for way in found
    ]
    rows.append(("online", "0 B", "0 B", "-", "states go from GPU to GPU and are gone"))
    whole = found[0].bytes(work, "bfloat16")
    taps, hidden = len(work.drafter.target_layer_ids), work.drafter.hidden_size
    moving = work.ring * work.batch_docs * work.max_length * work.state_bytes()
    return PlanReport(
        kind="storage",
        title=(
            f"{work.documents:,} documents x {work.mean_tokens:,.1f} tokens = "
            f"{work.documents * work.mean_tokens / 1e9:,.3f} G tokens, "
            f"each of {taps} taps x {hidden} numbers"
        ),
        tables=(
            Table(columns=("stored", "bf16", "fp8", "one read", "at what cost"), rows=tuple(rows)),
        ),
        numbers={
            "documents": work.documents,
            "mean_tokens": work.mean_tokens,
            "token_bytes": work.state_bytes(),
            "bytes": {
                way.key: {dtype: way.bytes(work, dtype) for dtype in DTYPE_BYTES} for way in found
            }
            | {"online": dict.fromkeys(DTYPE_BYTES, 0.0)},
            "ring_bytes": moving,
        },
        conclusion=(
            (
                f"Online training keeps none of the {size(whole)}: a drafter GPU holds at most "
                f"{size(moving)} of states at a time ({work.ring} micro-batches)."
            ),
        ),
        assumptions=(
            f"a disk that is read at {DISK_GB_S:g} GB/s (one read of the bf16 states)",
            "fp8 stores one byte a number and no scales",
            "mean lengths: what truncation saves depends on the spread as well",
        ),
        said=_said(work, whole),
    )


def is_seed_size(work: Work) -> bool:
    """The seed plan's set and taps, whose figures can be set beside ours."""
    low, high = SEED_DOCUMENTS
    return work.drafter.context_width == SEED_WIDTH and low <= work.documents <= high


def _said(work: Work, whole: float) -> tuple[Said, ...]:
    if not is_seed_size(work):
        return ()
    each = work.mean_tokens * work.state_bytes()
    held = SEED_SMALL_BYTES / each
    return (
        Said(what="offline states", said="90 TB", computed=size(whole)),
        Said(
            what="a small variant",
            said=size(SEED_SMALL_BYTES),
            computed=(
                f"no row above; that holds {held:,.0f} documents, "
                f"{held / work.documents:.1%} of the set"
            ),
        ),
    )
