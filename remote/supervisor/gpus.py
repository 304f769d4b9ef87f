"""GPUs as nvidia-smi tells of them."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remote.supervisor.base import JSON


def gpus() -> list[JSON]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    names = "index,name,uuid,memory.total,memory.used,driver_version,compute_cap"
    try:
        done = subprocess.run(
            [program, "--query-gpu=" + names, "--format=csv,noheader,nounits"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    found = []
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) == 7 and values[0].isdigit():
            index, name, uuid, total, used, driver, capability = values
            found.append(
                {
                    "index": int(index), "name": name, "uuid": uuid, "driver": driver,
                    "memory_bytes": mebibytes(total), "used_bytes": mebibytes(used),
                    "compute_capability": capability,
                }
            )  # fmt: skip
    return found


def mebibytes(text: str) -> int | None:
    return int(text) << 20 if text.isdigit() else None
