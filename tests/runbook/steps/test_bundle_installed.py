"""What goes to a host comes from the installed package, the same as from this checkout."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from runbook.bundle import BUNDLES, bundle_files
from tests.support.wheel import CHECKOUT, built_wheel, installed_wheel

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.wheel import Installed

__all__ = ["built_wheel", "installed_wheel"]

DIGESTS = """
import hashlib, json, runbook.bundle as bundle
digest = lambda data: hashlib.sha256(data).hexdigest()
print(json.dumps({
    name: {path: digest(data) for path, data in bundle.bundle_files(name).items()}
    for name in bundle.BUNDLES
} | {"from": bundle.__file__}))
"""


def test_bundles_of_an_installed_wheel(installed_wheel: Installed, tmp_path: Path) -> None:
    done = installed_wheel.run(["-c", DIGESTS], cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("from").startswith(str(installed_wheel.site))
    assert found == {
        name: {path: hashlib.sha256(data).hexdigest() for path, data in bundle_files(name).items()}
        for name in BUNDLES
    }


def test_the_host_runs_what_an_installed_wheel_ships(
    installed_wheel: Installed, tmp_path: Path
) -> None:
    """Repacked, put elsewhere, and run where nothing else of ours can be imported."""
    code = (
        "import sys, pathlib, runbook.bundle as bundle\n"
        "for path, data in bundle.bundle_files('dflash').items():\n"
        "    to = pathlib.Path(sys.argv[1]) / path\n"
        "    to.parent.mkdir(parents=True, exist_ok=True)\n"
        "    to.write_bytes(data)\n"
    )
    shipped = tmp_path / "shipped"
    assert installed_wheel.run(["-c", code, str(shipped)], cwd=tmp_path).returncode == 0

    look = "import sys; sys.path.insert(0, sys.argv[1]); import dflash.put as p; print(p.__file__)"
    done = installed_wheel.run(["-c", look, str(shipped)], cwd=CHECKOUT)

    assert done.stdout.startswith(str(shipped)), done.stderr
    assert {path.name for path in shipped.iterdir()} == {"dflash"}
