"""For all tests: a temporary folder of their own, and an order of files.

Those that take long come first, so that no worker is left alone with one.
"""

from __future__ import annotations

import multiprocessing.util
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

settings.register_profile(
    "no-clock", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # a busy machine is no finding; the rest stays as it is, in CI as Hypothesis has it there
settings.load_profile("no-clock")

LONG = (
    "test_simulated.py", "test_cli.py", "test_step_commands.py", "test_two_hosts.py",
    "test_docs.py", "test_evaluate.py", "test_payload_venv.py", "test_contract.py",
    "test_thinking_sglang.py", "test_two_nodes.py", "test_killed_training.py", "test_fleet.py",
    "test_sglang_itself.py", "test_train.py", "test_train_inputs.py", "test_kill_soak.py",
    "test_audit.py", "test_killed_runs.py", "test_tokenize_shares.py", "test_every_key.py",
    "test_ports.py", "test_provoked.py", "test_renewed_keys.py", "test_wrong_input.py",
)  # fmt: skip
"""By minutes on two cores; needs `--no-loadscope-reorder`, else xdist takes those of many tests."""


def pytest_configure() -> None:
    """A shell ignores ctrl+c for what it puts into the background, and so would all that the tests
    start and then interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONG)))


@pytest.fixture(autouse=True, scope="session")
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Crash reports, and what else goes to the shared folder, go with the tests that made them.

    As open as that one, for tests that act as another user, and with a name as short: sockets lie
    in it, whose paths may have a hundred letters.
    """
    tmp_path_factory.getbasetemp()  # stays where it is, for whoever looks at what failed
    multiprocessing.util.get_temp_dir()  # the same: it is used, and removed, after the last test
    with tempfile.TemporaryDirectory(prefix="rb-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o1777)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "tempdir", folder)
            patch.setenv("TMPDIR", folder)
            yield
