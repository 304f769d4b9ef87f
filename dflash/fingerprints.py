"""What makes two inputs the same for a training run, wherever they lie on disk; no torch here."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.errors import InputInvalid
from dflash.files import read_json
from dflash.shards import read_manifest

if TYPE_CHECKING:
    from dflash.train_config import TrainConfig

LOOKED_AT = 1 << 16
"""Bytes of each weights file that are read: its table of tensors, or the begin of it."""
INCIDENTAL = ("transformers_version", "_name_or_path", "torch_dtype", "dtype")


def of_data(config: TrainConfig) -> str:
    """Of the training split, from its manifest."""
    split = read_manifest(Path(config.data))["splits"].get(config.split, {"shards": []})
    return hashlib.sha256(json.dumps([s["sha256"] for s in split["shards"]]).encode()).hexdigest()


def of_target(folder: Path | str) -> str:
    """Of a target's config and its files of weights: sizes, and the first and last bytes of each.

    Not all of them: 54 GB take a minute to read, and another model differs in more than one number.
    """
    path = Path(folder)
    config = read_json(path / "config.json" if path.is_dir() else path, "target's config")
    plain = {key: value for key, value in config.items() if key not in INCIDENTAL}
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
    for file in sorted(path.glob("*.safetensors")) if path.is_dir() else ():
        size = file.stat().st_size
        with file.open("rb") as handle:
            head = handle.read(LOOKED_AT)
            handle.seek(max(0, size - LOOKED_AT))
            digest.update(f"{size}".encode() + head + handle.read())
    return digest.hexdigest()


def check_tokenizer(config: TrainConfig, manifest: dict[str, Any]) -> None:
    """A set of another model's ids trains without an error, on noise."""
    wanted = manifest.get("tokenizer", {})
    if config.random_weights or not isinstance(wanted, dict) or not wanted.get("fingerprint"):
        return
    from dflash.tokenizer import TargetTokenizer

    found = TargetTokenizer(Path(config.target))
    if found.fingerprint == wanted["fingerprint"]:
        return
    differs = "its chat template"
    if found.vocab_size != wanted.get("vocab_size"):
        differs = f"{wanted.get('vocab_size')} tokens there, {found.vocab_size} here"
    raise InputInvalid(
        f"{config.data} was tokenized for another target than {config.target} ({differs}).",
        "Tokenize it again with `dflash tokenize --tokenizer` and this target's folder.",
    )
