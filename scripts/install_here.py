"""Installs this checkout, editable, into the environment that runs this script; once."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent


def installed_from() -> Path | None:
    """The folder that `dflash-runbook` is installed from, if it is an editable install."""
    try:
        text = importlib.metadata.distribution("dflash-runbook").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    url = json.loads(text or "{}").get("url", "")
    return Path(url.removeprefix("file://")) if url.startswith("file://") else None


def main() -> int:
    """Installs unless that has been done."""
    if installed_from() == HERE:
        return 0
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--no-warn-script-location", "--editable", str(HERE)]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
