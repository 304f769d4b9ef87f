"""On a machine with a GPU: what nvidia-smi really says, and memory that is really given back."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import textwrap

import pytest

from remote import Host, HostFenceHeld, LocalTransport
from tests.support.deadline import wait_for

pytestmark = pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no GPU on this machine")

HOLD = textwrap.dedent(
    """
    import ctypes, os, sys, time
    if "--leave" in sys.argv and os.fork() == 0:
        os.setsid()  # as workers of inference servers do
    elif "--leave" in sys.argv:
        time.sleep(300)
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    for failed in (
        cuda.cuInit(0),
        cuda.cuDeviceGet(ctypes.byref(device), 0),
        cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device),
        cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(2 << 30)),
    ):
        if failed:
            sys.exit(f"CUDA error {failed}")
    print("holds", flush=True)
    time.sleep(300)
    """
)


def holding(*more: str) -> tuple[str, ...]:
    return (sys.executable, "-c", HOLD, *more)


def used(bench) -> int:
    return bench.host.facts()["gpus"][0]["used_bytes"]


def test_facts_of_a_real_gpu(bench):
    facts = bench.host.facts()
    print({key: facts[key] for key in ("gpus", "gpu_topology", "cuda", "shm", "memory")})
    gpu = facts["gpus"][0]
    assert gpu["memory_bytes"] > 1 << 30
    assert gpu["name"]
    assert facts["cuda"]["driver"]
    others = [f"GPU{one['index']}" for one in facts["gpus"][1:]]
    assert sorted(facts["gpu_topology"].get("GPU0", {})) == others


def test_memory_of_a_worker_that_left_the_tree_is_given_back(bench):
    before = used(bench)
    bench.launch("a1", "", argv=holding("--leave"), resources=["gpu:0"])
    bench.said("a1", "holds")
    wait_for(lambda: used(bench) >= before + (2 << 30), what="the memory to be taken")
    inject = {"machine_root": str(bench.machine)}
    other = Host(LocalTransport(), root=str(bench.root / "o"), workspace_id="o", inject=inject)
    with pytest.raises(HostFenceHeld) as held:
        other.launch(bench.spec("b1", "true", resources=["gpu:0"]))
    assert held.value.attempt == "a1"
    report = bench.host.stop("a1", grace_s=2)
    print(report)
    assert report.state == "stopped"
    assert used(bench) < before + (1 << 30)
    other.launch(bench.spec("b1", "true", resources=["gpu:0"]))


def test_a_survivor_is_named_with_the_memory_it_holds(bench):
    bench.launch("a1", "", argv=holding(), resources=["gpu:0"])
    bench.said("a1", "holds")
    [pid] = bench.processes("a1")
    bench.host = bench.make_host(spare=[pid], kill_wait_s=0.5, gpu_wait_s=0.5)
    for supervisor in bench.supervisors():
        os.kill(supervisor, signal.SIGKILL)
    report = bench.host.stop("a1", grace_s=0.2)
    print(report)
    assert report.state == "stop_incomplete"
    assert report.survivors[0]["holds"][0]["gpu"] == 0
