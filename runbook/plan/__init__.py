"""The runbook file: read strictly, validated whole, turned into tasks."""

from __future__ import annotations

from runbook.plan.load import load_runbook, load_text, read_file
from runbook.plan.model import PlannedTask, Runbook
from runbook.plan.problems import PlanError, Problem
from runbook.plan.schema import json_schema

__all__ = [
    "PlanError",
    "PlannedTask",
    "Problem",
    "Runbook",
    "json_schema",
    "load_runbook",
    "load_text",
    "read_file",
]
