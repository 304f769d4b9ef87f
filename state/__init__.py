"""The durable task graph: records, transitions, and the store that keeps them.

Knows nothing of hosts, steps or screens. Importing it opens nothing and stays light: the schema
tool is loaded only when there is something to migrate.
"""

from __future__ import annotations

from state.errors import (
    ClaimHeld,
    DatabaseBusy,
    DatabaseUnusable,
    IllegalTransition,
    LeaseHeld,
    LeaseLost,
    NetworkFileSystem,
    NotRunnable,
    PreviousAttemptLive,
    RevisionMoved,
    SchemaTooNew,
    StateError,
    StateMoved,
    UnknownAttempt,
    UnknownHost,
    UnknownTask,
)
from state.ids import utc_now
from state.model import (
    JSON,
    Approval,
    Artifact,
    Attempt,
    AttemptState,
    CheckRun,
    Claim,
    Document,
    Event,
    FailureClass,
    HostBinding,
    HostEpoch,
    Lease,
    LoadReport,
    Meta,
    Need,
    Note,
    Purpose,
    Rental,
    SecretRef,
    Snapshot,
    Task,
    TaskDef,
    TaskKind,
    TaskState,
    Verdict,
)
from state.store import Store, open_store
from state.writing import Tx

__all__ = [
    # the door
    "open_store",
    "Store",
    "Tx",
    "utc_now",
    # records
    "JSON",
    "Approval",
    "Artifact",
    "Attempt",
    "AttemptState",
    "CheckRun",
    "Claim",
    "Document",
    "Event",
    "FailureClass",
    "HostBinding",
    "HostEpoch",
    "Lease",
    "LoadReport",
    "Meta",
    "Need",
    "Note",
    "Purpose",
    "Rental",
    "SecretRef",
    "Snapshot",
    "Task",
    "TaskDef",
    "TaskKind",
    "TaskState",
    "Verdict",
    # refusals
    "ClaimHeld",
    "DatabaseBusy",
    "DatabaseUnusable",
    "IllegalTransition",
    "LeaseHeld",
    "LeaseLost",
    "NetworkFileSystem",
    "NotRunnable",
    "PreviousAttemptLive",
    "RevisionMoved",
    "SchemaTooNew",
    "StateError",
    "StateMoved",
    "UnknownAttempt",
    "UnknownHost",
    "UnknownTask",
]
