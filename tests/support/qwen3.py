"""The real Qwen3 tokenizer, unpacked where a test wants it, with the template that is in use."""

from __future__ import annotations

import lzma
import shutil
from pathlib import Path

ASSETS = Path(__file__).parents[1] / "assets"


def unpack_qwen3(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    packed = (ASSETS / "qwen3" / "tokenizer.json.xz").read_bytes()
    (folder / "tokenizer.json").write_bytes(lzma.decompress(packed))
    shutil.copy(ASSETS / "qwen3" / "tokenizer_config.json", folder)
    shutil.copy(ASSETS / "chat-templates" / "qwen3.jinja", folder / "chat_template.jinja")
    return folder
