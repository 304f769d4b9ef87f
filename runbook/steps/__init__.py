"""The step types: one file each, one line here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runbook.steps.artifact import Artifact
from runbook.steps.audit import Audit
from runbook.steps.bench import Bench
from runbook.steps.check import CheckDrafter
from runbook.steps.download import Download
from runbook.steps.eval import Eval
from runbook.steps.export import Export
from runbook.steps.fetch import Fetch
from runbook.steps.generate import Generate
from runbook.steps.manual import Manual
from runbook.steps.model_copy import ModelCopy
from runbook.steps.plan import Plan
from runbook.steps.probe import Probe
from runbook.steps.s3_sync import S3Sync
from runbook.steps.serve import Serve
from runbook.steps.shell import Shell
from runbook.steps.stop import Stop
from runbook.steps.tokenize import Tokenize
from runbook.steps.train import Train
from runbook.steps.upload import Upload
from runbook.steps.venv import Venv

if TYPE_CHECKING:
    from runbook.steps.base import Step

STEP_TYPES: dict[str, Step[Any]] = {
    "artifact": Artifact(),
    "audit": Audit(),
    "bench": Bench(),
    "check": CheckDrafter(),
    "download": Download(),
    "eval": Eval(),
    "export": Export(),
    "fetch": Fetch(),
    "generate": Generate(),
    "manual": Manual(),
    "model_copy": ModelCopy(),
    "plan": Plan(),
    "probe": Probe(),
    "s3_sync": S3Sync(),
    "serve": Serve(),
    "shell": Shell(),
    "stop": Stop(),
    "tokenize": Tokenize(),
    "train": Train(),
    "upload": Upload(),
    "venv": Venv(),
}
