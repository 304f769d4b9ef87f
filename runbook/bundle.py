"""What goes to a host: files of the installed packages, by bundle name.

A host gets `dflash` and single payload scripts, never `state`, `remote` or `runbook` as a whole.
Read through importlib.resources, so that a wheel, an editable install and a checkout all work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

# Bundle -> package, folder inside it, folder on the host, what of it is wanted.
_Wanted = Callable[[str], bool]
_BUNDLES: dict[str, tuple[str, str, str, _Wanted]] = {
    "dflash": ("dflash", "", "dflash/", lambda name: name.endswith((".py", ".typed", ".yaml"))),
    "payloads": ("remote", "payloads", "remote/payloads/", lambda name: name.endswith(".py")),
    "locks": ("runbook", "locks", "", lambda name: name.endswith(".lock")),
    "prompts": ("runbook", "library/prompts", "", lambda name: name.endswith(".jsonl")),
    "cpu_platform": ("runbook", "serving/cpu_platform", "", lambda _: True),
}
BUNDLES = tuple(sorted(_BUNDLES))


def bundle_files(name: str) -> dict[str, bytes]:
    """Path on the host -> content, sorted: the same files always make the same digest.

    Raises:
        KeyError: no bundle of that name.
    """
    package, folder, prefix, wanted = _BUNDLES[name]
    top = files(package)
    for part in folder.split("/") if folder else ():
        top = top / part
    return dict(sorted((prefix + path, content) for path, content in _walk(top, "", wanted)))


def _walk(folder: Traversable, prefix: str, wanted: _Wanted) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            if entry.name not in ("__pycache__", "build") and not entry.name.endswith(".egg-info"):
                yield from _walk(entry, f"{prefix}{entry.name}/", wanted)
        elif wanted(entry.name) and not entry.name.endswith(".pyc"):
            yield prefix + entry.name, entry.read_bytes()
