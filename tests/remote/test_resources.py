"""What a machine has once is held by one attempt, whoever asks and from which workspace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from remote import Host, HostFenceHeld, JobSpec, LaunchFailed, LocalTransport
from tests.support.deadline import wait_for


def other_client(bench, name: str) -> Host:
    """Another person's: another workspace, another root, a database that knows nothing of ours."""
    inject = {"machine_root": str(bench.machine)}
    return Host(LocalTransport(), root=str(bench.root / name), workspace_id=name, inject=inject)


def wants(attempt: str, *resources: str, script: str = "sleep 300", **more) -> JobSpec:
    given = {"task": attempt, "generation": 1, "grace_s": 1.0, "argv": ("sh", "-c", script)}
    return JobSpec(attempt=attempt, resources=resources, **{**given, **more})


def test_two_workspaces_never_hold_one_gpu_twice(bench):
    theirs = other_client(bench, "theirs")
    bench.host.launch(wants("ours", "gpu:0", "gpu:1", "shm:m"))
    with pytest.raises(HostFenceHeld) as held:
        theirs.launch(wants("yours", "gpu:1", "gpu:2"))
    assert (held.value.resource, held.value.attempt) == ("gpu:1", "ours")
    assert held.value.holder["job"] == str(bench.job("ours"))
    assert theirs.poll(["yours"])["yours"].state == "absent", "nothing was left behind"
    with pytest.raises(HostFenceHeld):
        theirs.launch(wants("yours", "gpu:5", "port:39994", "shm:m"))
    assert {claim.attempt for claim in theirs.resources()} == {"ours"}
    assert theirs.launch(wants("mine", "gpu:2")).state == "running", "gpu:2 was not kept"
    assert {claim.resource for claim in theirs.resources() if claim.locked} == {
        "gpu:0", "gpu:1", "gpu:2", "shm:m",
    }  # fmt: skip
    bench.host.stop("ours", grace_s=1)
    assert theirs.launch(wants("yours", "gpu:1")).state == "running"
    generations = {claim.resource: claim.generation for claim in theirs.resources()}
    assert generations == {"gpu:1": 2, "gpu:2": 1}, "it grows with each holder"


def test_many_clients_at_once_get_a_gpu_once(bench):
    clients = [other_client(bench, f"w{number}") for number in range(5)]
    for client in clients:
        client.identity()
    states = []

    def start(client: Host) -> None:
        spec = wants("a", "gpu:0", "shm:model", script=f"echo x >> {bench.root}/starts; sleep 300")
        try:
            states.append(client.launch(spec).state)
        except HostFenceHeld:
            states.append("held")

    threads = [threading.Thread(target=start, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(states) == ["held"] * 4 + ["running"]
    wait_for((bench.root / "starts").exists, what="the payload")
    assert (bench.root / "starts").read_text() == "x\n"


def test_a_payload_that_outlives_its_supervisor_keeps_its_gpu(bench):
    theirs = other_client(bench, "theirs")
    bench.host.launch(wants("ours", "gpu:0"))
    [supervisor] = bench.supervisors()
    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: bench.status("ours").state == "lost", what="the loss to show")
    with pytest.raises(HostFenceHeld, match="lost"):
        theirs.launch(wants("yours", "gpu:0"))
    bench.clean()
    wait_for(lambda: not bench.processes(), what="the payload to die")
    assert theirs.launch(wants("yours", "gpu:0")).state == "running"


def test_a_holder_whose_folder_is_gone_keeps_what_its_processes_use(bench):
    theirs = other_client(bench, "theirs")
    bench.host.launch(wants("ours", "gpu:0"))
    [supervisor] = bench.supervisors()
    os.kill(supervisor, signal.SIGKILL)
    bench.job("ours").rename(bench.root / "elsewhere")
    with pytest.raises(HostFenceHeld, match="ours"):
        theirs.launch(wants("yours", "gpu:0"))
    bench.clean()
    wait_for(lambda: not bench.processes(), what="the payload to die")
    assert theirs.launch(wants("yours", "gpu:0")).state == "running"


@pytest.mark.parametrize("point", ["launch.claimed", "launch.published", "launch.spawned"])
def test_a_launcher_killed_with_a_claim_blocks_nobody(bench, point):
    with pytest.raises(Exception):  # noqa: B017 - the launcher is dead
        bench.make_host(crash_at=point).launch(wants("ours", "gpu:0"))
    theirs = other_client(bench, "theirs")
    assert theirs.launch(wants("yours", "gpu:0")).state == "running"
    with pytest.raises(HostFenceHeld) as held:
        bench.host.launch(wants("ours", "gpu:0"))
    assert held.value.attempt == "yours"
    theirs.stop("yours", grace_s=1)
    assert bench.host.launch(wants("ours", "gpu:0")).state == "running"


def test_a_job_that_ends_gives_back_what_it_held(bench):
    bench.host.launch(wants("ours", "gpu:0", script="true", ports=(39996,)))
    bench.ended("ours")
    wait_for(lambda: not bench.host.resources(), what="the claims to go")


def test_another_boot_has_other_claims(bench, tmp_path):
    for name in ("b1", "b2"):
        boot = tmp_path / name / "proc/sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True)
        boot.write_text(name)
    before = bench.make_host(facts_root=str(tmp_path / "b1"))
    before.launch(wants("ours", "gpu:0"))
    assert [claim.attempt for claim in before.resources()] == ["ours"]
    assert bench.make_host(facts_root=str(tmp_path / "b2")).resources() == []


def test_a_damaged_claim_is_named_not_guessed(bench):
    bench.host.launch(wants("ours", "gpu:0"))
    bench.host.stop("ours", grace_s=1)
    [claim] = bench.machine.glob("*/gpu:0")
    claim.write_bytes(b"{half")
    with pytest.raises(LaunchFailed, match=str(claim)) as failed:
        bench.host.launch(wants("next", "gpu:0"))
    assert failed.value.kind == "fence_unreadable"
    claim.unlink()
    assert bench.host.launch(wants("next", "gpu:0")).state == "running"


def test_a_resource_has_a_kind_and_a_name(bench):
    for name in ("gpu", "gpu:", "gpu:00", "disk:0", "shm:../x", "port:http", "gpu:0/1"):
        with pytest.raises(LaunchFailed, match="gpu:0, port:30000 or shm:NAME"):
            bench.host.launch(wants("a", name))


def test_another_user_sees_who_holds_a_gpu_and_gets_it_when_it_is_free(open_bench):
    if os.getuid() != 0:
        pytest.skip("needs root to act as another user")
    bench = open_bench
    bench.host.launch(wants("ours", "gpu:0"))
    root = bench.root.parent / "other"
    root.mkdir()
    os.chown(root, 65534, 65534)
    program = next((bench.root / "w" / "bin").glob("*.pyz"))
    copy = root / "supervisor.pyz"
    copy.write_bytes(program.read_bytes())
    copy.chmod(0o644)

    def launch() -> dict:
        request = {
            "begin": "<", "end": ">", "root": str(root), "workspace": "w", "secrets": {},
            "inject": {"machine_root": str(bench.machine)},
            "spec": {"attempt": "theirs", "task": "t", "generation": 1, "env": {}, "cwd": "",
                     "argv": ["sh", "-c", "echo ran"], "resources": ["gpu:0"], "ports": [],
                     "time_limit_s": None, "grace_s": 1},
        }  # fmt: skip
        done = subprocess.run(
            ["/usr/bin/env", "python3", "-I", "-S", str(copy), "launch"],
            input=json.dumps(request).encode(), capture_output=True, check=False, cwd="/",
            user=65534, group=65534, extra_groups=[], env={"PATH": other_python()},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.strip(b"<>\n"))

    refused = launch()
    assert (refused["error"], refused["attempt"]) == ("fence_held", "ours")
    bench.host.stop("ours", grace_s=1)
    assert launch()["ok"]


def other_python() -> str:
    """Where everybody may run a Python; the tests' own may lie in a home that nobody else sees."""
    for folder in ("/usr/bin", "/usr/local/bin", str(Path(sys.executable).parent)):
        if (Path(folder) / "python3").exists():
            return f"{folder}:/usr/bin:/bin"
    return "/usr/bin:/bin"
