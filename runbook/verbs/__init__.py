"""The verbs, grouped; `runbook.service.Service` is all of them together."""

from __future__ import annotations
