"""A workspace in memory, made of real state records, that the terminal interface can be driven on.

`World` is the database: every `FakeService` opened on it sees the same graph, from any thread, and
`changed()` answers as `PRAGMA data_version` does. What was asked is kept in `calls`.
"""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from runbook.engine.events import Listener, Progressed, TaskMoved
from runbook.errors import RunbookError
from runbook.verbs.checking import Verified
from runbook.verbs.logs import Copied
from runbook.views import Checkpoint, Live, NextAction, RunResult, View
from runbook.workspace import Workspace
from state.model import (
    Attempt,
    AttemptState,
    CheckRun,
    Claim,
    Event,
    FailureClass,
    HostBinding,
    Meta,
    Need,
    Note,
    Snapshot,
    Task,
    TaskKind,
    TaskState,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

NOW = datetime(2026, 3, 14, 12, 0, 0, tzinfo=UTC)


def ago(seconds: float) -> str:
    """A time before the frozen now."""
    return (NOW - timedelta(seconds=seconds)).isoformat()


def make_task(
    name: str,
    title: str = "",
    *,
    phase: str = "prepare",
    state: str = "ready",
    needs: Sequence[str] = (),
    step: str = "shell",
    role: str | None = "gpu",
    reason: str = "",
    out: dict[str, Any] | None = None,
    since: float = 60,
    kind: str = "once",
    resources: Sequence[str] = (),
) -> Task:
    """A task with defaults."""
    return Task(
        id=name,
        title=title or name,
        phase=phase,
        step=step,
        kind=TaskKind(kind),
        role=role,
        needs=tuple(Need(task=need) for need in needs),
        definition={},
        definition_hash="d0",
        position=0,
        resources=tuple(resources),
        state=TaskState(state),
        reason=reason,
        out=out or {},
        since=ago(since),
        removed=False,
        began_hash=None,
    )


def make_attempt(
    task: str,
    number: int = 1,
    *,
    state: str = "verified",
    cls: str | None = "ok",
    exit_code: int | None = 0,
    started: float = 300,
    ended: float | None = 60,
    host: str = "gpu",
) -> Attempt:
    """An attempt with defaults; times are seconds before the frozen now."""
    return Attempt(
        id=f"{task}-{number}",
        task=task,
        number=number,
        generation=number,
        host=host,
        epoch="e1",
        state=AttemptState(state),
        cls=FailureClass(cls) if cls is not None else None,
        exit_code=exit_code,
        signal=None,
        created_at=ago(started + 1),
        started_at=ago(started),
        ended_at=None if ended is None else ago(ended),
        superseded_by=None,
        definition_hash="d0",
        detail={},
        evidence={},
    )


def live_attempt(task: str, number: int = 1, *, started: float) -> Attempt:
    """An attempt that runs."""
    return make_attempt(
        task, number, state="running", cls=None, exit_code=None, started=started, ended=None
    )


def make_check(
    task: str, name: str, verdict: str, evidence: dict[str, Any], *, purpose: str = "done"
) -> CheckRun:
    """A check with its verdict."""
    return CheckRun(
        id=f"{task}-{name}",
        task=task,
        attempt=None,
        purpose=purpose,  # type: ignore[arg-type]
        name=name,
        spec={},
        verdict=verdict,  # type: ignore[arg-type]
        evidence=evidence,
        at=ago(55),
        epoch="e1",
    )


class World:
    """The shared graph."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        self.version = 0
        self.calls: list[tuple[Any, ...]] = []
        self.live: dict[str, Live] = {}
        self.next = NextAction(verb="run", task=None, command="runbook run", reason="")
        self.engine: str | None = None
        self.error: Exception | None = None
        self.blind: Exception | None = None
        """Raised by every reading while set."""
        self.edited = False
        self.events: list[Event] = []
        self.audits: dict[str, dict[str, Any]] = {}
        self.checkpoints: tuple[Checkpoint, ...] = ()
        self.claims: dict[str, float] = {}
        self.documents: dict[str, str] = {}
        self.script: Callable[[World, threading.Event, Listener], RunResult] | None = None
        self.snapshot = Snapshot(
            revision=1,
            meta=Meta(
                workspace_id="w1",
                name="fake",
                title="A fake runbook",
                goal="",
                runbook_hash="h",
                runbook_path="runbook.yaml",
                schema_version=1,
            ),
            tasks=(),
            attempts=(),
            checks=(),
            hosts=(),
            notes=(),
            artifacts=(),
            leases=(),
        )

    def open(self) -> FakeService:
        """Another connection."""
        return FakeService(self)

    def change(self, **fields: Any) -> None:
        """Another revision."""
        with self.lock:
            self.version += 1
            self.snapshot = replace(self.snapshot, revision=self.snapshot.revision + 1, **fields)

    def move(self, name: str, state: str, reason: str = "") -> None:
        """Another state for a task."""
        with self.lock:
            self.change(
                tasks=tuple(
                    replace(task, state=TaskState(state), reason=reason, since=ago(0))
                    if task.id == name
                    else task
                    for task in self.snapshot.tasks
                )
            )

    def end(self, name: str, cls: str) -> None:
        """The newest attempt of a task ends like this."""
        with self.lock:
            newest = self.snapshot.latest_attempt(name)
            ended = tuple(
                replace(one, cls=FailureClass(cls), state=AttemptState.STOPPED, ended_at=ago(0))
                if one is newest
                else one
                for one in self.snapshot.attempts
            )
            self.change(attempts=ended)

    def state(self, name: str) -> str:
        """The state of a task."""
        with self.lock:
            return str(self.snapshot.task(name).state)

    def write_log(
        self, task: str, stream: str, data: bytes, *, append: bool = False, attempt: str = ""
    ) -> Path:
        """Output of an attempt of a task, by default of the newest."""
        newest = self.snapshot.latest_attempt(task)
        path = Workspace(self.folder).log(
            attempt or (newest.id if newest is not None else f"{task}-0"), stream
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab" if append else "wb") as file:
            file.write(data)
        return path


class FakeService:
    """The service over a `World`; bound to the thread that opened it, as SQLite is."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen = world.version
        self._thread = threading.get_ident()
        self.workspace = Workspace(world.folder)
        self.actor = "me"

    def _mine(self) -> World:
        assert threading.get_ident() == self._thread, "used by another thread than opened it"
        return self._world

    def view(self) -> View:
        world = self._mine()
        if world.blind is not None:
            raise world.blind
        with world.lock:
            return View(
                snapshot=world.snapshot,
                next=world.next,
                live=dict(world.live),
                engine=world.engine,
                edited=world.edited,
                claims=dict(world.claims),
                documents=dict(world.documents),
            )

    def changed(self) -> bool:
        world = self._mine()
        moved, self._seen = world.version != self._seen, world.version
        return moved

    def run(
        self,
        *,
        until: str | None = None,
        only: Collection[str] = (),
        stop_event: threading.Event | None = None,
        listen: Listener = lambda _event: None,
    ) -> RunResult:
        world = self._mine()
        world.calls.append(("run", until, tuple(only)))
        assert stop_event is not None
        if world.script is not None:
            return world.script(world, stop_event, listen)
        return RunResult(outcome="done", reason="nothing was left to do")

    def _act(self, *call: Any) -> World:
        world = self._mine()
        with world.lock:
            world.calls.append(call)
        if world.error is not None:
            raise world.error
        return world

    def stop(self, task: str) -> None:
        world = self._act("stop", task)
        with world.lock:
            world.end(task, "stopped")
            world.move(task, "gated", "stopped by a person")

    def restart(self, task: str) -> None:
        self._act("restart", task).move(task, "draining", "restarted by me")

    def retry(self, task: str, *, reason: str = "", below: bool = False) -> None:
        more = [*([reason] if reason else ()), *(["below"] if below else ())]
        self._act("retry", task, *more).move(task, "ready", reason)

    def supersede(self, task: str, *, reason: str) -> None:
        self._act("supersede", task, reason).move(task, "ready", reason)

    def skip(self, task: str, reason: str) -> None:
        self._act("skip", task, reason).move(task, "skipped", reason)

    def approve(self, task: str, reason: str) -> None:
        self._act("approve", task, reason).move(task, "done", reason)

    def note(self, text: str, *, task: str | None = None, decision: bool = False) -> None:
        world = self._act("note", text, task, decision)
        note = Note(id="n", at=ago(0), actor="me", task=task, text=text, decision=decision)
        world.change(notes=(*world.snapshot.notes, note))

    def copy_logs(self, _task_id: str, *, within_s: float = 0.0) -> Copied:
        del within_s
        return Copied(state="running")

    def verify(self, task_ids: Collection[str] = ()) -> Verified:
        self._act("verify", *task_ids)
        row = {"check": "file", "verdict": "pass", "evidence": {}}
        return Verified(tasks={task: [row] for task in task_ids})

    def probe(self, role: str) -> dict[str, Any]:
        self._act("probe", role)
        return {}

    def reconcile(self) -> tuple[str, ...]:
        self._act("reconcile")
        return ("train-2",)

    def claim(self, subject: str) -> None:
        world = self._act("claim", subject)
        claim = Claim(subject=subject, holder="me", token=1, at=ago(0), for_s=1800, reason="")
        with world.lock:
            world.claims[subject] = 1800
            world.change(claims=(claim,))

    def release(self, subject: str) -> None:
        world = self._act("release", subject)
        with world.lock:
            world.claims.pop(subject, None)
            world.change(claims=())

    def audit(self, task: str) -> dict[str, Any]:
        world = self._act("audit", task)
        return world.audits[task]

    def checkpoints(self, task: str) -> tuple[Checkpoint, ...]:
        return self._act("checkpoints", task).checkpoints

    def bind(self, role: str, binding: HostBinding, *, accept_fingerprint: str = "") -> None:
        world = self._act("bind", role, binding.address or binding.kind)
        others = tuple(host for host in world.snapshot.hosts if host.role != role)
        world.change(hosts=(*others, binding))

    def push(self, place: Any) -> Any:
        world = self._act("push", place.url)
        return SimpleNamespace(where=place.url, revision=world.snapshot.revision)

    def events(self, *, after: int = 0, limit: int = 1000, task: str | None = None) -> list[Event]:
        world = self._mine()
        return [e for e in world.events if e.seq > after and task in (None, e.task)][:limit]

    def brief(self) -> str:
        self._mine()
        return "# Brief\nrevision 1\n[/] is no markup here\n"

    def plan_task(self, task: str) -> tuple[str, ...]:
        self._mine()
        return (f"runs /bin/true for {task}",)

    def close(self) -> None:
        self._mine()


def broken() -> RunbookError:
    """An error as the service raises them."""
    return RunbookError("cannot retry train: its attempt still runs", hint="runbook stop train")


def example(folder: Path) -> World:
    """A drafter runbook in mid-run: done, serving, running with metrics, failed, gated, waiting."""
    world = World(folder)
    tasks = (
        make_task("rent", "Rent the box", phase="host", state="done", step="manual", role=None),
        make_task("probe", "Look at the host", phase="host", state="done", step="probe"),
        make_task("venv-serve", "Serving environment", phase="environments", state="done",
                  step="venv", needs=["probe"]),
        make_task("venv-train", "Training environment", phase="environments", state="done",
                  step="venv", needs=["probe"]),
        make_task("weights", "Fetch the target", phase="environments", state="done", step="fetch",
                  needs=["probe"], out={"path": "/work/target", "bytes": 54_100_200_300}),
        make_task("serve", "Serve the target", phase="data", state="serving", step="serve",
                  needs=["venv-serve", "weights"], kind="service", since=5000),
        make_task("smoke", "Smoke test the server", phase="data", state="failed", step="shell",
                  needs=["serve"], since=610,
                  reason="check http_generate failed: the answer was empty"),
        make_task("generate", "Generate completions", phase="data", state="done", step="generate",
                  needs=["serve"]),
        make_task("audit", "Audit the completions", phase="data", state="done", step="audit",
                  needs=["generate"], out={"path": "/work/audit", "rows": 8000}),
        make_task("look", "Read samples", phase="data", state="gated", step="manual", role=None,
                  needs=["audit"], reason="look at 20 samples, then approve", since=200),
        make_task("tokenize", "Tokenize", phase="data", state="done", step="tokenize",
                  needs=["generate"]),
        make_task("train", "Train the drafter", phase="drafter", state="active", step="train",
                  needs=["tokenize", "venv-train"], since=4321,
                  resources=["gpu:0", f"shm:{64 << 30}"]),
        make_task("eval", "Acceptance length", phase="drafter", state="blocked", step="eval",
                  needs=["train"], reason="waits for train"),
        make_task("export", "Export to the published layout", phase="drafter", state="blocked",
                  step="export", needs=["eval", "look"], reason="waits for eval, look"),
        make_task("push", "Push the artifact", phase="drafter", state="blocked", step="artifact",
                  needs=["export"], reason="waits for export"),
    )  # fmt: skip
    progress = {
        "v": 1, "kind": "step", "done": 620, "total": 1000, "unit": "steps", "message": "",
        "metrics": {"loss": 2.3142, "lr": 0.0003, "tokens_per_s": 12450}, "t": 0,
    }  # fmt: skip
    world.change(
        tasks=tuple(replace(task, position=i) for i, task in enumerate(tasks)),
        attempts=(
            make_attempt("probe", started=9000, ended=8996),
            make_attempt("venv-serve", started=8990, ended=8700),
            make_attempt("venv-train", started=8990, ended=8610),
            make_attempt("weights", started=8990, ended=7000),
            live_attempt("serve", started=5060),
            make_attempt("smoke", 1, state="exited", cls="exit", exit_code=3,
                         started=700, ended=640),
            make_attempt("smoke", 2, state="check_failed", cls="check_failed",
                         started=630, ended=611),
            make_attempt("generate", started=6000, ended=4800),
            make_attempt("audit", started=4795, ended=4790),
            make_attempt("tokenize", started=4780, ended=4700),
            make_attempt("train", 1, state="exited", cls="oom", exit_code=1,
                         started=4600, ended=4400),
            live_attempt("train", 2, started=4321),
        ),
        checks=(
            make_check("smoke", "port", "pass", {"port": 30000}),
            make_check("smoke", "http_generate", "fail", {"text": "", "ids": 0, "seconds": 0.42}),
            make_check("weights", "manifest", "pass", {"files": 17, "bytes": 54_100_200_300}),
            make_check("weights", "free_space", "unknown", {"error": "timed out after 60 s"}),
        ),
        hosts=(
            HostBinding(role="gpu", kind="ssh", address="203.0.113.7", user="root", port=40022,
                        root="/root/rb", work="/work", seen_at=ago(3), epoch="e1",
                        usd_per_hour=7.98, ends_at=ago(-9 * 3600), facts=host_facts()),
        ),
        meta=replace(world.snapshot.meta, name="qwen3.6-27b-dflash", title="Qwen3.6-27B drafter"),
    )  # fmt: skip
    world.live["train"] = Live(
        attempt="train-2", progress=progress, out_size=1, err_size=0, beat=9, seen_at=ago(3)
    )
    world.events = example_events(world)
    world.audits["audit"] = example_audit()
    world.checkpoints = tuple(
        Checkpoint(
            path=f"/work/drafter/step-{step:06d}", step=step, size=3_450_000_000,
            latest=step == 600, best=step == 400,
        )
        for step in range(200, 601, 100)
    )  # fmt: skip
    world.next = NextAction(
        verb="approve",
        task="look",
        command="runbook gate approve look",
        reason="look waits for a person; train goes on meanwhile",
    )
    world.write_log("train", "out", training_log(620))
    world.write_log("train", "err", b"")
    world.write_log("train", "progress", progress_lines(620))
    world.write_log("smoke", "err", b"curl: (52) Empty reply from server\n")
    return world


def training_log(steps: int) -> bytes:
    """Output as a training run writes it."""
    return b"".join(
        f"step {n:>5}  loss {loss(n):.4f}  lr 3.0e-04  12,4{n % 100:02d} tok/s\n".encode()
        for n in range(1, steps + 1)
    )


def progress_lines(steps: int) -> bytes:
    """Progress lines with a loss that falls."""
    return b"".join(
        json.dumps(
            {"v": 1, "kind": "step", "done": n, "total": 1000, "unit": "steps", "message": "",
             "metrics": {
                 "loss": loss(n), "acceptance": 1 + 12 / (1 + loss(n)), "lr": 0.0003,
                 "slot_accuracy": [0.9 / (1 + slot * loss(n) / 20) for slot in range(1, 16)],
                 "tok_s": 12400 + n % 100, "step_s": 6.0, "drafter_waited_s": 0.4,
                 "target_waited_s": 0.1 + 0.01 * (n % 7),
             }, "t": 1000.0 + n * 6}
        ).encode() + b"\n"
        for n in range(1, steps + 1)
    )  # fmt: skip


def loss(step: int) -> float:
    """A curve like a real one: steep, then flat, with a wobble that repeats exactly."""
    return 2.1 + 8.0 / (1 + step / 40) + 0.25 * ((step * 7919) % 13 - 6) / 6 / (1 + step / 200)


def one_task_run(name: str, *, steps: int = 3) -> Callable[..., RunResult]:
    """A run that advances one task and ends when told to stop or when `steps` are told."""

    def script(world: World, stop: threading.Event, listen: Listener) -> RunResult:
        world.move(name, "active")
        listen(TaskMoved(task=name, state="active", reason=""))
        for done in range(1, steps + 1):
            listen(Progressed(task=name, progress={"done": done, "total": steps, "unit": "rows"}))
            if stop.is_set():
                return RunResult(outcome="interrupted", reason="stopped by the person")
        world.move(name, "done")
        listen(TaskMoved(task=name, state="done", reason=""))
        return RunResult(outcome="done", reason=f"{name} is done", started=(name,))

    return script


def run_until_stopped(world: World, stop: threading.Event, listen: Listener) -> RunResult:
    """A run that goes on until it is asked to end."""
    stop.wait(30)
    return RunResult(outcome="interrupted", reason="stopped by the person")


def host_facts() -> dict[str, Any]:
    """Facts of a rented box with two GPUs, as the probe tells them."""
    gib = 1 << 30
    return {
        "hostname": "box", "distribution": "Ubuntu 24.04", "container": "docker",
        "cpu": {"count": 64, "usable": 32, "cgroup_cpus": 32.0, "model": "EPYC", "load": 11.2},
        "memory": {"total_bytes": 512 * gib, "available_bytes": 400 * gib,
                   "cgroup_limit_bytes": 256 * gib, "cgroup_used_bytes": 100 * gib},
        "shm": {"size_bytes": 250 * gib, "free_bytes": 190 * gib,
                "memory_behind_bytes": 156 * gib},
        "gpus": [
            {"index": n, "name": "NVIDIA H200", "memory_bytes": 141 * gib,
             "used_bytes": (n + 1) * 60 * gib, "utilization_pct": 97 - n}
            for n in range(2)
        ],
        "radar": [
            {"path": "/work", "verdict": "ok", "why": "", "read_bytes_s": 2_100_000_000},
            {"path": "/root/rb", "verdict": "unknown", "why": "nothing there to measure"},
        ],
        "mounts": [
            {"path": "/", "type": "overlay", "network": False, "total_bytes": 1000 * gib,
             "free_bytes": 700 * gib},
            {"path": "/workspace", "type": "nfs4", "network": True, "total_bytes": 9000 * gib,
             "free_bytes": 8000 * gib},
            {"path": "/dead", "type": "fuse", "network": True, "hung": True},
        ],
        "clock": {"offset_s": -3.2, "error_s": 0.1}, "public_ports": [22, 8888],
    }  # fmt: skip


def example_events(world: World) -> list[Event]:
    """A few facts, as the store records them."""
    told = (
        ("task.moved", "probe", "me", {"from": "ready", "to": "active", "reason": ""}),
        ("task.moved", "probe", "me", {"from": "verifying", "to": "done", "reason": ""}),
        ("note.added", "n1", "anna", {"text": "[/] the box is slow"}),
        ("task.moved", "smoke", "me", {"to": "failed", "reason": "the answer was empty"}),
        ("task.moved", "train", "anna", {"from": "ready", "to": "active", "reason": "retried"}),
    )
    return [
        Event(
            seq=n, at=ago(9000 - n * 1500), actor=actor, kind=kind, subject=subject,
            task=subject if kind == "task.moved" else None, payload=payload,
        )
        for n, (kind, subject, actor, payload) in enumerate(told, start=1)
    ]  # fmt: skip


def example_audit() -> dict[str, Any]:
    """What an audit wrote: a gate that holds, one that does not, and two samples."""
    numbers = {
        "min": 4, "p5": 20, "p25": 200, "p50": 600, "p75": 900, "p95": 1800, "max": 2048,
        "mean": 640.5, "total": 5_124_000, "mode": 2048, "mode_share": 0.02,
        "histogram": [{"from": n * 512, "to": n * 512 + 511, "rows": 4000 >> n} for n in range(4)],
    }  # fmt: skip
    tokens = [
        {"id": n, "text": text, "loss": int(n > 3)}
        for n, text in enumerate(
            ["<|user|>", "\n", "Why", "?", "<think>", "\n", "[/]", " Be", "cause"]
        )
    ]
    return {
        "path": "/work/audit",
        "report": {
            "source": "/work/completions", "rows": 8000, "splits": {"train": 7200, "heldout": 800},
            "loss_tokens": numbers, "length": numbers, "finish_reasons": {"stop": 7900},
            "shares": {"empty": 0.0, "truncated": 0.0125, "mask_token": None},
            "examples": {"truncated": ["p-17"]}, "thinking": {"counts": {"closed": 7990}},
            "special_ids": {},
            "gates": [
                {"gate": "empty", "passed": True, "sentence": "0% of rows are empty, at most 1%"},
                {"gate": "truncated", "passed": False, "sentence": "1.25% are cut off, at most 1%"},
            ],
        },
        "samples": [
            {"id": "p-1", "split": "train", "flags": [], "thinking": "closed", "length": 90,
             "loss_tokens": 60, "finish_reason": "stop", "tokens": tokens, "content": "Because.",
             "messages": [{"role": "user", "content": "Why?"}], "reasoning": "Hm."},
            {"id": "p-17", "split": "train", "flags": ["truncated"], "thinking": "unclosed",
             "length": 2048, "loss_tokens": 2000, "finish_reason": "length", "content": "and on"},
        ],
    }  # fmt: skip
