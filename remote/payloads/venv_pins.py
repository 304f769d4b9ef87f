"""What an environment is made from: a lock file or a list, and the digest that names it.

Standard library only, Python 3.8 or later.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Dict, Mapping, Sequence, Tuple

from remote.payloads.records import Refused

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = "runbook-venv/1"
VERSION = r"[0-9][\w.+!-]*"
REQUIREMENT = r"([\w.-]+)(\[[\w,.-]+\])?\s*(((==|~=|>=|<=|!=|>|<)\s*[\w.*+!-]+,?\s*)*)"


def numbers(version: str) -> Tuple[int, ...]:
    """`3.11.7` or `glibc 2.36` as comparable numbers."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def plain(name: str) -> str:
    """A distribution's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins_of(lock: Path) -> Dict[str, str]:
    """The `name==version` lines of a lock file."""
    try:
        text = lock.read_text(encoding="utf-8")
    except OSError as error:
        raise Refused(
            "lock file %s: %s" % (lock, error.strerror), "name a file that exists"
        ) from None
    pins: Dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#", 1)[0].strip()
        if not line:
            continue
        name, found, version = line.partition("==")
        if not found or not re.fullmatch(r"[\w.-]+", name) or not re.fullmatch(VERSION, version):
            raise Refused(
                "%s line %d is not a pin: %r" % (lock, number, line),
                "write name==version, one a line",
            )
        pins[plain(name)] = version
    if not pins:
        raise Refused("%s pins nothing" % lock, "was the file copied whole?")
    return pins


def list_of(packages: Sequence[str]) -> Dict[str, str]:
    """The names of a list of requirements, with the version of those that are pinned."""
    found = {}
    for package in packages:
        match = re.fullmatch(REQUIREMENT, package)
        if match is None:
            raise Refused("%r is no requirement" % package, "write NAME or NAME>=VERSION")
        pin = re.fullmatch("==\\s*(%s)" % VERSION, match[3].strip())
        found[plain(match[1])] = pin[1] if pin else ""
    return found


def cuda_of(pins: Mapping[str, str]) -> str:
    """The CUDA that the packages were made for, such as "13"; empty for none."""
    runtime = pins.get("nvidia-cuda-runtime", "").partition(".")[0]
    return runtime or ("12" if "nvidia-cuda-runtime-cu12" in pins else "")


def digest_of(
    pins: Mapping[str, str], plugins: Sequence[Path], version: str, packages: Sequence[str] = ()
) -> str:
    """Names all that decides what ends up in the environment; a lock's comments do not."""
    seen = hashlib.sha256(("%s python %s\n" % (FORMAT, version.rpartition(".")[0])).encode())
    seen.update(json.dumps(sorted(packages) or sorted(pins.items())).encode())
    for plugin in plugins:
        for path in sorted(p for p in plugin.rglob("*") if p.is_file()):
            if "__pycache__" not in path.parts:
                seen.update(("\n%s\n" % path.relative_to(plugin)).encode())
                seen.update(path.read_bytes())
    return seen.hexdigest()
