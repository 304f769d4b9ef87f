"""What SGLang says where a CPU cannot make it say so, printed by a process and taken the whole way.

The texts in `last_words/` are put together from SGLang 0.5.23's sources and from reports of such
failures; one server of a family prints each. What a CPU can provoke is in test_provoked.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runbook.serving.diagnosis import OUT_OF_MEMORY, RULES, diagnose
from tests.support import fake_sglang
from tests.support.failing_servers import Failing, told, workspace
from tests.support.ports import free_ports
from tests.support.workspaces import cli

if TYPE_CHECKING:
    from runbook.service import Service

TEXTS = sorted((Path(__file__).parent / "last_words").glob("*.log"))
KINDS = {rule.kind: rule for rule in RULES}


def kind_of(path: Path) -> str:
    """`kernel-absent.log` is a text of `kernel`."""
    return path.stem.partition("-")[0]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_each_is_understood(path: Path) -> None:
    found = diagnose(path.read_text())
    assert found is not None
    assert found.kind == kind_of(path)


def test_each_is_told_by_status_with_the_next_step(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    fake_sglang.install(venv)
    one_each = [path for path in TEXTS if path.stem == kind_of(path)]
    servers = []
    for path, port in zip(one_each, free_ports(len(one_each)), strict=True):
        fake_sglang.tell(venv, port, says=path.read_text().splitlines(), exit=137)
        servers.append(Failing(name=path.stem, given={"port": port}))
    base = {"venv": str(venv), "model": "/m", "served_name": "m", "device": "cpu", "stagger": 0}
    with workspace(tmp_path, servers, base) as service:
        assert service.run().outcome == "failed"
        for path in one_each:
            _judge(service, path)
        assert KINDS["nccl"].next in cli(tmp_path, "logs", "nccl").stdout


def _judge(service: Service, path: Path) -> None:
    rule, found = KINDS[kind_of(path)], told(service, path.stem)
    assert found.kind == rule.kind, (path.stem, found.reason)
    assert found.final == rule.final
    assert f"{rule.cause}. Next: {rule.next}. Its log: " in found.reason
    assert path.read_text() in found.log + "\n"
    if rule.kind in OUT_OF_MEMORY:
        assert found.cls == "oom"


def test_a_capture_that_fails_for_another_reason_is_not_short_of_memory() -> None:
    found = diagnose("Exception: Capture cuda graph failed: Connection closed by peer [10.0.0.2]")
    assert found is not None
    assert found.kind == "exception"
