"""Entry point that offers SGLang a platform without an accelerator.

SGLang asks each entry point for the dotted name of a class and imports it only when it is
chosen, so this module imports nothing of SGLang: listing platforms stays cheap.
"""

from __future__ import annotations


def activate() -> str:
    """The class SGLang should instantiate. This plugin is installed only where it is wanted."""
    return "runbook_cpu_device.PlainCpu"
