"""Time of each kernel of a drafter step by itself, and of the matrix products around them.

    PYTHONPATH=. python3 tests/benchmarks/kernels.py [--anchors 512] [--tiles]

`--tiles` tries other tile sizes for attention; the best ones belong in `dflash/kernels`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import torch

from dflash import kernels
from dflash.batches import Batches
from dflash.kernels import attention as attention_kernels
from dflash.spans import spans_of
from tests.benchmarks.shapes import BLOCK, LENGTH, documents, drafter_shape, machine, table_row

if TYPE_CHECKING:
    from collections.abc import Callable


def milliseconds(call: Callable[[], Any], repeat: int = 7) -> float:
    times = []
    for _ in range(repeat + 2):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        marks[0].record()
        call()
        marks[1].record()
        torch.cuda.synchronize()
        times.append(marks[0].elapsed_time(marks[1]))
    return sorted(times[2:])[repeat // 2]


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def products(rows: int, context: int) -> None:
    """Every product of a layer and of the head, with the rate cuBLAS reaches."""
    shape = drafter_shape()
    h, i, v = shape.hidden_size, shape.intermediate_size, shape.vocab_size
    for name, m, k, n in (
        ("q", rows, h, 4096), ("k", rows, h, 1024), ("o", rows, 4096, h), ("gate", rows, h, i),
        ("down", rows, i, h), ("fc", context, shape.context_width, h), ("head", 3840, h, v),
        ("head back", 3840, v, h), ("head back", 4096, v, h), ("head back", 4224, v, h),
        ("head", 4096, h, v), ("head", 5120, h, v), ("head back", 5120, v, h),
    ):  # fmt: skip
        a, b, up = random(m, k), random(n, k) if name != "head back" else random(k, n), random(m, n)
        forward = (lambda a=a, b=b: a @ b) if name == "head back" else (lambda a=a, b=b: a @ b.t())
        cells = [f"{2e-9 * m * k * n / milliseconds(forward):.0f}"]
        if "head" not in name:
            cells.append(f"{2e-9 * m * k * n / milliseconds(lambda u=up, b=b: u @ b):.0f}")
            cells.append(f"{2e-9 * m * k * n / milliseconds(lambda u=up, a=a: u.t() @ a):.0f}")
        print(table_row(name, m, k, n, "TFLOP/s forward, dX, dW", *cells), flush=True)
        del a, b, up


def attention(anchors: int, *, tiles: bool) -> None:
    data: Any = documents()
    batches = Batches(
        data, batch_docs=4, anchors_per_doc=anchors, block_size=BLOCK, mask_token_id=5,
        max_length=LENGTH, seed=0,
    )  # fmt: skip
    rows = batches.drafter_rows(batches.micro_batch(0)).to(torch.device("cuda"))
    count, size, d = len(rows.labels), 4 * LENGTH, 128
    q, do = random(count, 4096), random(count, 4096)
    ck, cv, bk, bv = (
        random(size, 1024),
        random(size, 1024),
        random(count, 1024),
        random(count, 1024),
    )
    spans = spans_of(rows.layout, window=None, causal=False)
    useful = 4e-9 * 4096 * float((spans.context.high - spans.context.low).sum() + count * BLOCK)
    settings = [(128, 64, 8, 3)]
    if tiles:
        settings += [(64, 64, 4, 3), (128, 64, 8, 4),
                     (64, 64, 4, 2), (64, 128, 8, 3), (64, 128, 8, 2), (32, 128, 8, 3),
                     (32, 128, 4, 3), (64, 64, 8, 3), (64, 32, 4, 4), (64, 64, 4, 4)]  # fmt: skip
    found: dict[str, list[tuple[float, tuple[int, ...]]]] = {}
    for setting in settings:
        chosen = dict(zip(("rows", "keys", "num_warps", "num_stages"), setting, strict=True))
        for name, config in (
            ("FORWARD", attention_kernels.FORWARD), ("QUERIES", attention_kernels.QUERIES),
            ("KEYS", attention_kernels.KEYS),
        ):  # fmt: skip
            kept = dict(config)
            config.update(chosen)
            try:
                out, lse = kernels.attend(q, ck, cv, bk, bv, spans, d)
                if name == "FORWARD":
                    ms = milliseconds(lambda: kernels.attend(q, ck, cv, bk, bv, spans, d))
                else:
                    ms = milliseconds(
                        lambda o=out, n=lse: kernels.attend_backward(
                            do, q, ck, cv, bk, bv, o, n, spans, d
                        )
                    )
                found.setdefault(name, []).append((ms, setting))
            except Exception as error:  # noqa: BLE001 - a tile too large for the chip is an answer
                print(name, setting, str(error).splitlines()[0][:100])
            config.update(kept)
    print(f"attention, {anchors} anchors a document: {useful:.0f} GFLOP forward")
    for name, times in found.items():
        for ms, setting in sorted(times):
            note = f"{useful / ms:.0f} TFLOP/s" if name == "FORWARD" else "whole backward"
            print(table_row(name, setting, f"{ms:.2f} ms", note), flush=True)


def pointwise(rows: int) -> None:
    x, dy, w = random(rows, 5120), random(rows, 5120), random(5120)
    both, dh = random(rows, 2 * 17408), random(rows, 17408)
    q, n, table = random(rows, 4096), random(128), random(rows, 128)
    labels = torch.randint(0, 248320, (3840,), device="cuda")
    logits = random(3840, 248320)
    for name, call, moved in (
        ("norm + add", lambda: kernels.rms_norm(x, w, 1e-6, dy), 4 * x.nbytes),
        ("norm backward", lambda: kernels.rms_norm_backward(dy, x, w, 1e-6, dy), 5 * x.nbytes),
        ("rotate", lambda: kernels.rotate_heads(q, n, table, table, 1e-6), 2 * q.nbytes),
        ("rotate backward", lambda: kernels.rotate_heads_backward(q, q, n, table, table, 1e-6),
         3 * q.nbytes),
        ("swiglu", lambda: kernels.swiglu(both), 3 * dh.nbytes),
        ("swiglu backward", lambda: kernels.swiglu_backward_(dh, both), 6 * dh.nbytes),
        ("cross entropy", lambda: kernels.cross_entropy_(
            logits, labels, scale=1.0, cap=0.0, gradient=True), 3 * logits.nbytes),
    ):  # fmt: skip
        ms = milliseconds(call)
        print(table_row(name, rows, f"{ms:.3f} ms", f"{moved / ms / 1e9:.2f} TB/s"), flush=True)


def tried(name: str, config: dict[str, int], settings: list[dict[str, int]],
          call: Callable[[], Any]) -> None:  # fmt: skip
    """Time a call under each setting of a kernel's tile, the present one restored after."""
    kept, times = dict(config), []
    for setting in settings:
        config.update(setting)
        try:
            times.append((milliseconds(call), setting))
        except Exception as error:  # noqa: BLE001 - a tile too large for the chip is an answer
            print(name, setting, str(error).splitlines()[0][:100])
        config.update(kept)
    for ms, setting in sorted(times, key=lambda pair: pair[0]):
        print(table_row(name, setting, f"{ms:.3f} ms"), flush=True)


def tile_sweep(rows: int) -> None:
    from dflash.kernels.cross_entropy import TILE
    from dflash.kernels.norm import BACK

    logits, labels = random(4096, 248320), torch.randint(0, 248320, (4096,), device="cuda")
    tiles = [(4, 2048, 8), (2, 2048, 8), (4, 1024, 4), (8, 1024, 4), (4, 4096, 16), (8, 2048, 8)]
    tried(
        "cross entropy", TILE,
        [{"DEEP": d, "WIDE": w, "num_warps": n} for d, w, n in tiles],
        lambda: kernels.cross_entropy_(logits, labels, scale=1.0, cap=0.0, gradient=True),
    )  # fmt: skip
    x, dy, w = random(rows, 5120), random(rows, 5120), random(5120)
    backs = [(264, 8), (528, 8), (1056, 8), (528, 16), (264, 16), (1056, 4), (528, 4), (2112, 4)]
    tried(
        "norm backward", BACK, [{"programs": p, "num_warps": n} for p, n in backs],
        lambda: kernels.rms_norm_backward(dy, x, w, 1e-6, dy),
    )  # fmt: skip


def delta_sweep() -> None:
    """The delta rule of one layer of the target, 4 rows of 2,048 tokens."""
    from dflash.kernels.delta_rule import RECUR, SOLVE

    raw, conv = random(4 * LENGTH, 16480), random(10240, 4)
    a_log, bias = random(48), random(48)

    def call() -> torch.Tensor:
        return kernels.delta_rule(
            raw, conv, a_log, bias, rows=4, key_heads=16, value_heads=48, key_width=128,
            value_width=128,
        )  # fmt: skip

    tried("delta rule", SOLVE, [
        {"BLOCK": b, "num_warps": w} for b in (2, 4, 8, 16) for w in (2, 4, 8)
    ], call)  # fmt: skip
    tried("delta rule", RECUR, [
        {"BV": b, "num_warps": w, "num_stages": n}
        for b, w, n in ((64, 4, 2), (64, 4, 3), (32, 4, 2), (128, 8, 2), (64, 8, 2), (32, 2, 3))
    ], call)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--anchors", type=int, nargs="+", default=[512])
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--delta", action="store_true", help="only the delta rule's settings")
    args = parser.parse_args()
    print(machine(), flush=True)
    if args.delta:
        delta_sweep()
        return
    for anchors in args.anchors:
        attention(anchors, tiles=args.tiles)
    rows = 4 * args.anchors[0] * BLOCK
    pointwise(rows)
    if args.tiles:
        tile_sweep(rows)
    torch.cuda.empty_cache()
    products(rows, 4 * LENGTH)


if __name__ == "__main__":
    main()
