"""An environment with the peers' packages on top of this one's: `make_oracles.py FOLDER`.

A virtual environment of its own, for z-lab's package has the import name of ours; what it does not
have itself it takes from the environment that runs this. Ten seconds and 100 MB, no second torch.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

LOCK = Path(__file__).parents[1] / "tests" / "oracles" / "oracles.lock"
MARKER = ".oracles"


def main(folder: Path) -> int:
    beneath = sysconfig.get_paths()["purelib"]
    wanted = hashlib.sha256(LOCK.read_bytes() + beneath.encode()).hexdigest()
    marker = folder / MARKER
    if marker.is_file() and marker.read_text(encoding="utf-8") == wanted:
        return 0
    venv.EnvBuilder(clear=True, symlinks=True).create(folder)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps"]
    done = subprocess.run([*pip, "--quiet", "--requirement", str(LOCK)], check=False)
    if done.returncode:
        return done.returncode
    site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (site / "beneath.pth").write_text(beneath + "\n", encoding="utf-8")
    marker.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
