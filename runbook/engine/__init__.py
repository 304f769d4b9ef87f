"""The engine: advances the task graph by observing jobs on hosts and starting what is ready."""

from __future__ import annotations
