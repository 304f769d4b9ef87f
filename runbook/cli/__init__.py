"""The command line. Commands are loaded when called, so that `runbook status` starts quickly."""

from __future__ import annotations
