"""GPUs and who uses them, as nvidia-smi tells."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from remote.supervisor.base import INJECT, JSON

PLACES = "/usr/bin:/usr/local/bin:/usr/local/nvidia/bin:/opt/bin:/usr/lib/wsl/lib"

BUSY = "index,utilization.gpu,temperature.gpu"
"""Asked apart: a card that does not tell these still tells the rest."""


def program() -> str | None:
    path = os.environ.get("PATH", "") + ":" + PLACES
    return INJECT.get("nvidia_smi") or shutil.which("nvidia-smi", path=path)


def nvidia_smi(*words: str, limit_s: float = 20) -> str | None:
    """What it says; None when there is none, or it does not answer."""
    found = program()
    if found is None:
        return None
    try:
        done = subprocess.run(
            [found, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, timeout=limit_s, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def rows(kind: str, fields: str, limit_s: float = 20) -> list[list[str]]:
    text = nvidia_smi(f"--query-{kind}={fields}", "--format=csv,noheader,nounits", limit_s=limit_s)
    width = fields.count(",") + 1
    lines = [[cell.strip() for cell in line.split(",")] for line in (text or "").splitlines()]
    return [cells for cells in lines if len(cells) == width]


def mebibytes(text: str) -> int | None:
    return int(text) << 20 if text.isdigit() else None


def gpus() -> list[JSON]:
    names = "index,name,uuid,memory.total,memory.used,driver_version,compute_cap,pci.bus_id"
    found: list[JSON] = [
        {
            "index": int(index), "name": name, "uuid": uuid, "driver": driver,
            "memory_bytes": mebibytes(total), "used_bytes": mebibytes(used),
            "compute_capability": capability, "pci": pci, "processes": [],
        }
        for index, name, uuid, total, used, driver, capability, pci in rows("gpu", names)
        if index.isdigit()
    ]  # fmt: skip
    for index, load, heat in rows("gpu", BUSY) if found else []:
        for gpu in found:
            if str(gpu["index"]) == index:
                gpu["utilization_pct"] = int(load) if load.isdigit() else None
                gpu["temperature_c"] = int(heat) if heat.isdigit() else None
    for user in gpu_users() if found else []:
        for gpu in found:
            if gpu["index"] == user["gpu"]:
                gpu["processes"].append({key: user[key] for key in ("pid", "command", "bytes")})
    return found


def gpu_users(limit_s: float = 20) -> list[JSON]:
    """Every process that holds memory of a GPU. In a container the numbers may be the host's."""
    numbers = rows("gpu", "index,uuid", limit_s)
    index = {uuid: int(number) for number, uuid in numbers if number.isdigit()}
    return [
        {"pid": int(pid), "gpu": index.get(uuid), "bytes": mebibytes(used), "command": name[:200]}
        for pid, uuid, used, name in rows(
            "compute-apps", "pid,gpu_uuid,used_memory,process_name", limit_s
        )
        if pid.isdigit()
    ]


def topology() -> dict[str, dict[str, str]]:
    """How each pair of GPUs is connected: NV18 (NVLinks), PIX, PHB, NODE, SYS ..."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", nvidia_smi("topo", "-m") or "").splitlines()
    columns: list[str] = []
    found: dict[str, dict[str, str]] = {}
    for line in lines:
        cells = line.split()
        if not columns and cells[:1] == ["GPU0"]:
            columns = [cell for cell in cells if re.fullmatch(r"GPU\d+", cell)]
        elif columns and cells and cells[0] in columns:
            links = zip(columns, cells[1:])  # noqa: B905 - Python 3.8
            found[cells[0]] = {other: link for other, link in links if other != cells[0]}
    return found


def cuda() -> JSON:
    """The newest CUDA that the driver can run, and the compiler's, where there is one."""
    driver = re.search(r"CUDA Version:\s*([0-9.]+)", nvidia_smi() or "")
    compiler = ""
    nvcc = shutil.which("nvcc", path=os.environ.get("PATH", "") + ":/usr/local/cuda/bin")
    if nvcc:
        done = subprocess.run(
            [nvcc, "--version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, timeout=10, check=False,
        )  # fmt: skip
        release = re.search(r"release ([0-9.]+)", done.stdout.decode("utf-8", "replace"))
        compiler = release.group(1) if release else ""
    return {"driver": driver.group(1) if driver else "", "nvcc": compiler}
