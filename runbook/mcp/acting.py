"""Tools that act. Each returns at once; whatever cannot be undone waits for a person's token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from mcp.types import ToolAnnotations
from pydantic import Field

from runbook.check_words import found as in_words
from runbook.detached import start_engine
from runbook.mcp import answers
from runbook.report import at
from runbook.requests import RETRY_BELOW
from runbook.verbs.confirming import NeedsConfirmation
from runbook.verbs.serving import DRAIN_S
from state.graph import members
from state.telling import told_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server.mcpserver import MCPServer

    from runbook.mcp.session import Session
    from runbook.service import Service

ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
REACHES = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=True)
DESTROYS = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True)

TaskId = Annotated[str, Field(description="A task's id, as `status` lists it.")]
Subject = Annotated[str, Field(description="A task's id, or `run` for the whole graph.")]
Reason = Annotated[str, Field(min_length=1, description="Why; it is recorded.")]
Token = Annotated[
    str | None, Field(description="What `runbook confirm REQUEST` gave the person; one use.")
]
ExpectRev = Annotated[
    int | None, Field(description="Refuse when the graph is not at this revision any more.")
]


def add_act_tools(server: MCPServer, session: Session) -> None:
    """Registers the tools that change something."""
    _add_running(server, session)
    _add_recording(server, session)
    _add_sharing(server, session)
    _add_confirmed(server, session)


def _add_running(server: MCPServer, session: Session) -> None:
    @server.tool(annotations=REACHES)
    def run(
        until: Annotated[
            str | None,
            Field(description="Only what this task (or family) needs, and the task itself."),
        ] = None,
        expect_rev: ExpectRev = None,
    ) -> answers.Engine:
        """Advances the graph until it ends, fails or needs a person. Returns at once: the engine
        is a process of its own and outlives this session; follow it with `wait` and `status`."""
        with session.acting() as service:
            with service.store.write(expect_rev=expect_rev):
                pass  # only the comparison: the engine's own writes move the revision
            service.require_approved()
            if until is not None:
                members(service.snapshot(), until)  # raises for one that is not there
            scope = ["--until", until] if until is not None else []
            engine = start_engine(service, ["run", *scope])
            return answers.Engine(
                pid=engine.pid,
                log=str(engine.log),
                ended_with=engine.ended,
                said=engine.said,
                revision=service.store.revision(),
            )

    @server.tool(annotations=REACHES)
    def verify(
        task: Annotated[str, Field(description="A task's id, or a family's name.")],
        token: Token = None,
    ) -> answers.Done:
        """Runs the recorded checks of a done task again, on its host. One that no longer holds
        makes the task stale; nothing is run again by this. A task that failed by a check alone is
        judged again, and done if its checks hold; when they were edited, that needs a person's
        token."""

        def act(service: Service) -> str:
            found = service.verify([task])
            rows = [(name, row) for name, rows in found.tasks.items() for row in rows]
            said = [
                f"{name}: {row['verdict']}: {in_words(row['check'], row['evidence'])}"
                for name, row in rows
                if row["verdict"] != "pass"
            ]
            missing = {**found.left, **found.unanswered}
            said += [f"{name}: not judged: {why}" for name, why in missing.items()]
            snapshot = service.snapshot()
            now = ", ".join(f"{name} is {told_state(snapshot.task(name))}" for name in found.tasks)
            held = len(rows) - sum(row["verdict"] != "pass" for _, row in rows)
            return "; ".join([f"{held} of {len(rows)} checks hold", *said, *([now] if now else [])])

        return _confirmed(session, "verify", task, token, act)


def _add_recording(server: MCPServer, session: Session) -> None:
    @server.tool(annotations=ADDS)
    def retry(
        task: TaskId,
        reason: Reason,
        below: Annotated[
            bool, Field(description="And what was made of its results: all that needs it.")
        ] = False,
        token: Token = None,
        expect_rev: ExpectRev = None,
    ) -> answers.Done:
        """Makes a failed, skipped, stale, stopped or done task ready again; `run` then starts it.
        What a person stopped, what is stale because it was edited, what is done, and `below` need
        a person's token. A lost attempt is another matter: that needs `supersede`."""

        def act(service: Service) -> str:
            return f"{task} is {service.retry(task, reason=reason, below=below).state}"

        return _confirmed(session, RETRY_BELOW if below else "retry", task, token, act, expect_rev)

    @server.tool(annotations=ADDS)
    def note(
        text: Annotated[str, Field(min_length=1, max_length=4000, description="The words.")],
        task: Annotated[str | None, Field(description="The task it is about.")] = None,
        decision: Annotated[bool, Field(description="A decision with its reason.")] = False,
    ) -> answers.Done:
        """Keeps a note or a decision for whoever comes next: it is in the brief and PROGRESS.md."""
        with session.acting() as service:
            kept = service.note(text, task=task, decision=decision)
            return answers.Done(
                done=True, message=f"kept as {kept.id}", revision=service.store.revision()
            )


def _add_sharing(server: MCPServer, session: Session) -> None:
    @server.tool(annotations=ADDS)
    def claim(
        subject: Subject,
        minutes: Annotated[float, Field(gt=0, le=24 * 60, description="For so long.")] = 30,
        reason: Annotated[str, Field(description="What for.")] = "",
    ) -> answers.Done:
        """Keeps a task, or the whole run, for you: others are refused meanwhile. Claim it again to
        keep it longer."""
        with session.acting() as service:
            held = service.claim(subject, for_s=minutes * 60, reason=reason)
            return answers.Done(
                done=True,
                message=f"{subject} is claimed by {held.holder} for {minutes:g} min",
                revision=service.store.revision(),
            )

    @server.tool(annotations=ADDS)
    def release(subject: Subject) -> answers.Done:
        """Gives a claim of yours back."""
        with session.acting() as service:
            given = service.release(subject)
            return answers.Done(
                done=True,
                message=f"{subject} is released" if given else f"nobody had claimed {subject}",
                revision=service.store.revision(),
            )


def _add_confirmed(server: MCPServer, session: Session) -> None:
    @server.tool(annotations=DESTROYS)
    def stop(task: TaskId, reason: Reason, token: Token = None) -> answers.Done:
        """Stops a task's job and verifies that nothing of it is left. Needs a person's token."""
        return _confirmed(session, "stop", task, token, lambda s: s.stop(task, reason=reason))

    @server.tool(annotations=DESTROYS)
    def restart(
        task: TaskId,
        reason: Reason,
        drain_s: Annotated[
            float, Field(ge=0, le=3600, description="For so long it answers what it has.")
        ] = DRAIN_S,
        token: Token = None,
    ) -> answers.Done:
        """Has one server stopped and started again, without the others; `run` does it when nobody
        advances the graph. Needs a person's token."""

        def act(service: Service) -> str:
            moved = service.restart(task, drain_s=drain_s, reason=reason)
            return f"{task} is {moved.state}; whoever advances the graph restarts it"

        return _confirmed(session, "restart", task, token, act)

    @server.tool(annotations=DESTROYS)
    def supersede(task: TaskId, reason: Reason, token: Token = None) -> answers.Done:
        """Gives a lost attempt up for a new one. Needs a person's token."""

        def act(service: Service) -> str:
            return f"{task} is {service.supersede(task, reason=reason).state}"

        return _confirmed(session, "supersede", task, token, act)

    @server.tool(annotations=DESTROYS)
    def skip(task: TaskId, reason: Reason, token: Token = None) -> answers.Done:
        """Leaves a task out; what needs it may run without it. Needs a person's token."""

        def act(service: Service) -> str:
            return f"{task} is {service.skip(task, reason).state}"

        return _confirmed(session, "skip", task, token, act)

    @server.tool(annotations=DESTROYS)
    def approve(task: TaskId, reason: Reason, token: Token = None) -> answers.Done:
        """Passes on a person's yes to a gate. Needs that person's token."""

        def act(service: Service) -> str:
            return f"{task} is {service.approve(task, reason).state}"

        return _confirmed(session, "approve", task, token, act)


def _confirmed(
    session: Session,
    verb: str,
    task: str,
    token: str | None,
    act: Callable[[Service], str],
    expect_rev: int | None = None,
) -> answers.Done:
    """Carried out with a person's token, or asked for."""
    with session.acting(expect_rev) as service:
        if token is not None:
            service.redeem(token, verb, task)
        try:
            message = act(service)
        except NeedsConfirmation as asked:
            if not asked.request:
                raise
            return answers.Done(
                done=False,
                message="A person must say yes first: ask them to run "
                f"`{at(session.workspace, f'runbook confirm {asked.request}')}` and to give you "
                "the token it prints; then call this again with it.",
                revision=service.store.revision(),
                request=asked.request,
            )
        return answers.Done(done=True, message=message, revision=service.store.revision())
