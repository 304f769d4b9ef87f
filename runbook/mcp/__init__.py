"""The MCP server: the service's verbs as tools for a coding agent, over stdio."""

from __future__ import annotations
