"""Tokens a second of a frozen target that only gives its taps, at the shapes of Qwen3.6-27B.

    PYTHONPATH=. python3 tests/benchmarks/target_taps.py [--plain] [--profile] [--layers 64]

48 gated delta-rule layers and 16 of full attention, random bf16 weights, one document a row. First
the taps are held against Transformers' own forward; `--plain` times that one too.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch

from dflash.random_target import random_target
from dflash.target import TargetTaps
from tests.benchmarks.shapes import DOCUMENTS, LENGTH, TAPS, machine, table_row, timed

SHAPE = {
    "model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"], "hidden_size": 5120,
    "intermediate_size": 17408, "num_hidden_layers": 64, "num_attention_heads": 24,
    "num_key_value_heads": 4, "head_dim": 256, "linear_num_key_heads": 16,
    "linear_num_value_heads": 48, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "full_attention_interval": 4, "vocab_size": 248320,
    "rms_norm_eps": 1e-6, "max_position_embeddings": 262144, "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10], "mrope_interleaved": True,
    },
}  # fmt: skip


def target_folder(folder: Path, layers: int = 64) -> Path:
    """A folder that holds nothing but this config.json."""
    (folder / "config.json").write_text(
        json.dumps(SHAPE | {"num_hidden_layers": layers}), encoding="utf-8"
    )
    return folder


def flops_per_token(model: torch.nn.Module, layers: int) -> float:
    """Matrix products of the layers up to the last tap; attention and delta rule left out."""
    decoder = model.get_submodule("model")
    counted = list(decoder.layers)[:layers]  # type: ignore[arg-type]
    return 2.0 * sum(p.numel() for layer in counted for p in layer.parameters() if p.ndim == 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=64)
    parser.add_argument("--rows", type=int, nargs="+", default=[DOCUMENTS])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    print(machine(), flush=True)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        model = random_target(target_folder(Path(folder), args.layers), torch.bfloat16, "cuda")
    torch.cuda.synchronize()
    print(f"loaded in {time.perf_counter() - began:.1f} s", flush=True)
    taps = TargetTaps(model, [min(i, args.layers - 2) for i in TAPS])
    torch.manual_seed(0)
    ids = torch.randint(0, 200_000, (max(args.rows), LENGTH), device="cuda")
    work = flops_per_token(model, max(taps.layer_ids) + 1)
    theirs = taps._by_hooks(ids[:1, :512], torch.ones(1, 512, dtype=torch.bool, device="cuda"))
    ours = taps.states(ids[:1, :512], torch.tensor([512])).split(model.config.hidden_size, -1)
    far = [float((a - b).norm() / b.norm()) for a, b in zip(ours, theirs, strict=True)]
    fast = bool(taps._fast)
    print("check", json.dumps({"fast": fast, "distance": [round(d, 4) for d in far]}), flush=True)
    print(table_row("forward", "rows", "batch", "speed", "products", "peak", "first"))
    for rows in args.rows:
        part, lengths = ids[:rows], torch.full((rows,), LENGTH)
        real = torch.ones(part.shape, dtype=torch.bool, device="cuda")
        calls = {"dflash": lambda p=part, n=lengths: taps.states(p, n)}
        if args.plain:
            calls["Transformers"] = lambda p=part, r=real: taps._by_hooks(p, r)
        for name, call in calls.items():
            with torch.no_grad():
                result = timed(lambda c=call: (c(), None)[1], args.steps if name == "dflash" else 1)
            speed = rows * LENGTH / result.step_s
            print(
                table_row(
                    name, rows, f"{result.step_s * 1e3:.0f} ms", f"{speed:,.0f} tok/s",
                    f"{work * speed / 1e12:.0f} TFLOP/s", f"{result.peak_gib:.1f} GiB",
                    f"{result.first_s:.1f} s",
                ),
                flush=True,
            )  # fmt: skip
            if args.profile and name == "dflash":
                from tests.benchmarks.drafter_step import profile

                profile(lambda c=call: (c(), None)[1], f"{name}, {rows} rows")


if __name__ == "__main__":
    main()
