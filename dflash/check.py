"""`dflash check`: will this export do in the engines what it did in training?

Reloads the export, holds the training forward against the decoding forward on the real target,
reads the config as each engine would, and, given its interpreter, runs the official package on the
same inputs. Exit 4 when anything fails; the report is written either way.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.config import read_target_config, text_part
from dflash.engines import ENGINES, VERSIONS, differences, layout_problems
from dflash.errors import GateFailed, UsageError
from dflash.export import CONFIG, FILES, MANIFEST, broken_files, read_config, step_folder
from dflash.files import read_json, write_json
from dflash.progress import Progress, write_out

if TYPE_CHECKING:
    import argparse

    from dflash.config import DrafterConfig

FORMAT = "dflash-check/1"
LENGTH = 48
EXAMPLE = """example:
  python -m dflash check --drafter out/export --target models/smollm2 --out out/check.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    add = parser.add_argument
    add("--drafter", required=True, type=Path, metavar="DIR", help="the export")
    add("--target", required=True, type=Path, metavar="DIR", help="the target it drafts for")
    add("--out", required=True, type=Path, metavar="FILE", help="the report (JSON)")
    add(
        "--official-python", type=Path, metavar="PYTHON",
        help="interpreter of an environment with the official dflash package",
    )  # fmt: skip
    add("--tokens", type=int, default=LENGTH, metavar="N", help="of context (default: %(default)s)")
    add("--seed", type=int, default=0, help="of the random text (default: %(default)s)")
    add("--device", default="cpu", help="(default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    report = check(
        args.drafter,
        args.target,
        args.out,
        official_python=args.official_python,
        length=args.tokens,
        seed=args.seed,
        device=args.device,
        progress=Progress(echo=sys.stderr),
    )
    for row in report["checks"]:
        sys.stdout.write(f"{row['verdict']:<8} {row['name']}{_why(row)}\n")
    if report["verdict"] != "pass":
        failed = [row["name"] for row in report["checks"] if row["verdict"] == "fail"]
        raise GateFailed(
            f"{len(failed)} checks failed, first: {failed[0]}", f"The report is {args.out}."
        )
    return 0


def check(
    drafter: Path,
    target: Path,
    out: Path,
    *,
    official_python: Path | None = None,
    length: int = LENGTH,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress,
) -> dict[str, Any]:
    """Run all checks and write the report."""
    if length < 4:
        raise UsageError(f"--tokens is {length}", "It must be at least 4.")
    drafter = step_folder(drafter)
    hf = read_json(drafter / CONFIG, "drafter's config")
    config = read_config(hf, drafter)
    target_config = read_target_config(target / "config.json")
    checks = [
        _files(drafter),
        _fit(config, target_config, target),
        _rows("config layout", layout_problems(hf)),
        *(_rows(f"config as {name} reads it", differences(name, hf, config), version=VERSIONS[name])
          for name in ENGINES),
    ]  # fmt: skip
    fits = checks[1]["verdict"] == "pass"
    progress.emit("step", done=len(checks), unit="checks", message="files and config")
    if fits:  # the forward of a drafter on the wrong target has no meaning
        checks += _numbers(
            drafter, target, config, official_python=official_python, length=length, seed=seed,
            device=device,
        )  # fmt: skip
    verdict = "fail" if any(row["verdict"] == "fail" for row in checks) else "pass"
    report = {
        "format": FORMAT,
        "verdict": verdict,
        "drafter": str(drafter),
        "target": str(target),
        "engines": {name: checks[3 + i]["verdict"] for i, name in enumerate(ENGINES)},
        "checks": checks,
        "tokens": length,
        "seed": seed,
    }
    write_json(out, report)
    progress.emit("done", done=len(checks), total=len(checks), unit="checks", message=verdict)
    write_out({"report": str(out), "verdict": verdict, "engines": report["engines"]})
    return report


def _numbers(
    folder: Path,
    target: Path,
    config: DrafterConfig,
    *,
    official_python: Path | None,
    length: int,
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    import torch

    from dflash import parity
    from dflash.drafter import load_drafter
    from dflash.target import TargetTaps, load_target

    drafter, _ = load_drafter(folder, torch.float32, device)
    drafter.eval().requires_grad_(requires_grad=False)
    taps = TargetTaps(load_target(target, torch.float32, device), config.target_layer_ids)
    with torch.inference_mode():
        case = parity.Case(drafter, taps, length=length, seed=seed)
        single = case.single(drafter)
        found = [
            parity.compare("training forward equals decoding", single, case.packed(drafter)),
            parity.taps_in_decoding(case, taps),
        ]
        if official_python is None:
            found.append(
                {"name": "official package equals decoding", "verdict": "skipped",
                 "found": "no --official-python"}
            )  # fmt: skip
        else:
            found.append(
                parity.official(
                    case, single, python=official_python, folder=folder, drafter=drafter
                )
            )
    return found


def _files(folder: Path) -> dict[str, Any]:
    if not (folder / MANIFEST).is_file():
        return {"name": "files", "verdict": "skipped", "found": f"no {MANIFEST}"}
    return _rows("files", broken_files(folder, read_json(folder / MANIFEST, "manifest", FILES)))


def _fit(config: DrafterConfig, target: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Shapes, and a mask token that means nothing else to the target."""
    from dflash.evaluate import stop_ids

    text = text_part(target)
    pairs = {
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.num_target_layers,
    }
    found = [
        f"target's {key} is {text.get(key)}, the drafter was made for {ours}"
        for key, ours in pairs.items()
        if text.get(key) != ours
    ]
    taken = {*stop_ids(folder, target), target.get("pad_token_id"), target.get("bos_token_id")}
    if config.mask_token_id in taken:
        found.append(f"mask token {config.mask_token_id} is the target's end, begin or pad token")
    return _rows("fits the target", found)


def _rows(name: str, problems: list[str], **more: Any) -> dict[str, Any]:
    return {"name": name, "verdict": "fail" if problems else "pass", "found": problems, **more}


def _why(row: dict[str, Any]) -> str:
    found = row.get("found")
    if isinstance(found, list):
        return f": {'; '.join(found)}" if found else ""
    if found:
        return f": {found}"
    if "max_difference" in row:
        return f" (max difference {row['max_difference']:.2g} of {row['largest_output']:.3g})"
    return ""
