"""The program that is pushed to hosts: `remote.supervisor` as one zip archive Python can run.

The same sources give the same bytes everywhere, so that their hash names them.
"""

from __future__ import annotations

import functools
import io
import zipfile
from importlib import resources

START = b"import sys\n\nfrom remote.supervisor.main import main\n\nsys.exit(main(sys.argv))\n"


@functools.cache
def archive() -> bytes:
    """The archive. Stored, not compressed: it stays readable where somebody looks into a job."""
    files = {"__main__.py": START, "remote/__init__.py": b""}  # ours would load the operator's side
    for entry in resources.files("remote.supervisor").iterdir():
        if entry.name.endswith(".py"):
            files[f"remote/supervisor/{entry.name}"] = entry.read_bytes()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as packed:
        for name in sorted(files):
            packed.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), files[name])
    return out.getvalue()
