"""Lets torchvision's CUDA build be imported beside a CPU build of torch.

Its compiled half does not load there, which torchvision itself tolerates, but a little later it
registers shapes for two of the operators which that half would have declared. So they are
declared just before that, and only if nobody else has. SGLang imports torchvision for images;
nothing here makes these operators callable.

Started by a .pth file at every start of the interpreter: imports nothing until torchvision does.
"""

from __future__ import annotations

import sys

REGISTERS_SHAPES = "torchvision._meta_registrations"
OPERATORS = ("nms", "qnms")
SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

_kept: list[object] = []  # torch forgets an operator when the library object that declared it goes


class _BeforeShapes:
    """An import hook that finds nothing; it only learns that the module is about to load."""

    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> None:
        if fullname == REGISTERS_SHAPES:
            declare_missing()


def watch() -> None:
    """Installs the hook."""
    sys.meta_path.insert(0, _BeforeShapes)  # type: ignore[arg-type,unused-ignore]


def declare_missing() -> None:
    """Declares the operators that torchvision's compiled half did not."""
    from typing import Any

    import torch

    missing = [name for name in OPERATORS if not hasattr(torch.ops.torchvision, name)]
    if not missing:
        return
    kind = "DEF" if len(missing) == len(OPERATORS) else "FRAGMENT"
    library: Any = torch.library.Library("torchvision", kind)  # type: ignore[no-untyped-call]
    for name in missing:
        library.define(name + SIGNATURE)
    _kept.append(library)
