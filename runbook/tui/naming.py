"""Words for what files and evidence call by a key: `free_bytes` 5.2e10 is `free 52.0 GB`. Pure."""

from __future__ import annotations

from typing import Any

from runbook.tui import format as fmt

_WORDS = {
    "sha256": "sha256",
    "rc": "exit code",
    "cpu_s": "processor time",
    "max_rss_bytes": "most memory",
    "exit_code": "exit code",
    "cls": "ended",
    "pid": "process",
    "pgid": "process group",
    "ids": "token ids",
    "url": "url",
    "out": "results",
    "rows": "rows",
    "tok_s": "tokens a second",
    "tokens_per_s": "tokens a second",
    "lr": "learning rate",
    "loss": "loss",
    "ticks": "start ticks",
    "before": "before the stop",
    "after": "after the stop",
    "class_of_stop": "counts as",
    "sees": "processes in sight",
}
"""Keys whose words are not their own letters."""
_RATES = frozenset({"tok_s", "tokens_per_s"})
"""Keys whose `_s` are no seconds."""
OF_A_TASK = {
    "with": "arguments",
    "done_when": "done when",
    "ready_when": "ready when",
    "resources": "holds",
    "retry": "retries",
    "max": "at most",
    "on": "after",
    "timeout_s": "time limit",
    "kind": "kind",
    "role": "host",
    "gate": "gate",
    "needs": "needs",
    "step": "step type",
}
"""What a task's definition consists of, in the words of the documentation."""


def words(key: object) -> str:
    """A key as a person says it."""
    name = fmt.clean(key)
    known = _WORDS.get(name) or OF_A_TASK.get(name)
    if known is not None:
        return known
    for unit in ("_bytes", "_s", "_ms"):
        if name.endswith(unit) and len(name) > len(unit):
            name = name.removesuffix(unit)
            break
    return name.replace("_", " ").strip() or fmt.clean(key)


def quantity(key: object, value: Any) -> str:
    """A value with the unit that its key names."""
    name = str(key)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if name == "bytes" or name.endswith("_bytes"):
            return fmt.size(value)
        if name == "size":
            return fmt.size(value)
        if name.endswith("_ms"):
            return f"{value:.1f} ms"
        if name == "seconds" or (name.endswith("_s") and name not in _RATES):
            return f"{value:.1f} s" if value < 100 else fmt.duration(value)
    if isinstance(value, dict) and value and not any(map(_is_nested, value.values())):
        return ", ".join(pair(*one) for one in value.items())
    return fmt.value(value)


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict | list)


def pair(key: object, value: Any) -> str:
    """Both: `free 52.0 GB`."""
    return f"{words(key)} {quantity(key, value)}"
