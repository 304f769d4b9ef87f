"""Every kind of check: it holds, it does not, or it cannot be told."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.deadline import wait_for


class Model(BaseHTTPRequestHandler):
    """The few answers of a model server that checks look at."""

    def log_message(self, *_) -> None:
        pass

    def answer(self, value, status=200) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        answers = {
            "/health": b"fine",
            "/v1/models": {"data": [{"id": "toy"}]},
            "/model_info": {"model": {"path": "/m", "tags": ["a", "b"]}},
        }
        if self.path == "/slow":
            time.sleep(3)
        self.answer(answers.get(self.path, b"no"), 200 if self.path in answers else 503)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/generate":
            count = body["sampling_params"]["max_new_tokens"]
            self.answer({"text": " 3", "output_ids": list(range(count)), "meta_info": {}})
        else:
            choice = {"message": {"content": "Hello"}}
            self.answer({"choices": [choice], "usage": {"completion_tokens": 2}})


@pytest.fixture
def url():
    with ThreadingHTTPServer(("127.0.0.1", 0), Model) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def verdicts(bench, checks, **more):
    return [result.verdict for result in bench.host.check(checks, **more)]


def test_files_and_what_is_in_them(bench, tmp_path):
    data, rows = tmp_path / "data.bin", tmp_path / "rows-0.jsonl"
    data.write_bytes(b"12345")
    rows.write_text('{"a": 1}\n\n{"a": 2}\n{"torn')
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"eval": {"accept": 3.5, "runs": [1, 2]}}))
    digest = hashlib.sha256(b"12345").hexdigest()
    cases = [
        ({"file": {"path": str(data)}}, "pass"),
        ({"file": {"path": str(data), "min_bytes": 6}}, "fail"),
        ({"file": {"path": str(tmp_path / "no")}}, "fail"),
        ({"file": {"path": str(tmp_path)}}, "fail"),
        ({"file": {"path": "relative"}}, "unknown"),
        ({"sha256": {"path": str(data), "hex": digest.upper()}}, "pass"),
        ({"sha256": {"path": str(data), "hex": "0" * 64}}, "fail"),
        ({"rows_at_least": {"glob": str(tmp_path / "rows-*.jsonl"), "rows": 2}}, "pass"),
        ({"rows_at_least": {"glob": str(tmp_path / "rows-*.jsonl"), "rows": 3}}, "fail"),
        ({"json_metric": {"path": str(report), "key": "eval.accept", "min": 3.5}}, "pass"),
        ({"json_metric": {"path": str(report), "key": "eval.accept", "above": 3.5}}, "fail"),
        ({"json_metric": {"path": str(report), "key": "eval.runs.1", "equals": 2}}, "pass"),
        ({"json_metric": {"path": str(report), "key": "eval.none", "max": 1}}, "unknown"),
        ({"json_metric": {"path": str(report), "key": "eval.accept"}}, "unknown"),
        ({"json_metric": {"path": str(tmp_path / "no"), "key": "a", "max": 1}}, "fail"),
        ({"free_space": {"path": str(tmp_path / "new" / "dir"), "bytes": 1}}, "pass"),
        ({"free_space": {"path": str(tmp_path), "bytes": 1 << 60}}, "fail"),
        ({"no_such_check": {}}, "unknown"),
        ({"file": {}}, "unknown"),
    ]
    results = bench.host.check([check for check, _ in cases])
    assert [(c, r.verdict) for (c, _), r in zip(cases, results, strict=True)] == cases
    assert results[1].evidence["bytes"] == 5
    assert results[7].evidence == {
        "glob": str(tmp_path / "rows-*.jsonl"), "rows": 2, "files": 1, "torn_lines": 1
    }  # fmt: skip


def test_a_manifest_finds_the_file_that_changed(bench, tmp_path):
    (tmp_path / "a.bin").write_bytes(b"aaaa")
    (tmp_path / "b.bin").write_bytes(b"bbbb")
    files = [
        {"path": name, "size": 4, "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in (("a.bin", b"aaaa"), ("b.bin", b"bbbb"))
    ]
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"files": files}))
    full, quick = {"manifest": {"path": str(manifest)}}, {
        "manifest": {"path": str(manifest), "quick": True}
    }  # fmt: skip
    assert verdicts(bench, [full, quick]) == ["pass", "pass"]
    (tmp_path / "b.bin").write_bytes(b"bbXb")
    results = bench.host.check([full, quick])
    assert [result.verdict for result in results] == ["fail", "pass"], "same size, other bytes"
    assert results[0].evidence["problems"] == ["b.bin has other content"]
    (tmp_path / "a.bin").unlink()
    assert verdicts(bench, [full, quick]) == ["fail", "fail"]
    manifest.write_text('{"files": [{"path": "../x", "size": 1, "sha256": ""}]}')
    assert verdicts(bench, [full]) == ["unknown"]
    manifest.write_text('{"files": [')
    assert verdicts(bench, [full]) == ["unknown"]


def test_commands_and_imports(bench):
    python = sys.executable
    cases = [
        ({"command": {"argv": ["echo", "ready now"], "expect": "ready"}}, "pass"),
        ({"command": {"argv": ["echo", "ready"], "expect": "other"}}, "fail"),
        ({"command": {"argv": ["false"]}}, "fail"),
        ({"command": {"argv": ["/no/such"]}}, "fail"),
        ({"command": {"argv": ["sleep", "60"], "timeout_s": 0.2}}, "unknown"),
        ({"python_imports": {"python": python, "modules": ["json", "csv"]}}, "pass"),
        ({"python_imports": {"python": python, "modules": ["no_such_module"]}}, "fail"),
        ({"python_imports": {"python": python, "modules": ["json"], "under_s": 0.0001}}, "fail"),
        ({"python_imports": {"python": "/no/python", "modules": ["json"]}}, "fail"),
    ]
    results = bench.host.check([check for check, _ in cases])
    assert [(c, r.verdict) for (c, _), r in zip(cases, results, strict=True)] == cases


def test_a_check_that_hangs_is_unknown_and_delays_nothing_else(bench, tmp_path):
    os.mkfifo(tmp_path / "pipe")  # opening it waits for a writer that never comes
    hanging = {"rows_at_least": {"glob": str(tmp_path / "pipe"), "rows": 1}}
    began = time.monotonic()
    results = bench.host.check([{"file": {"path": "/etc/hostname"}}, hanging, hanging], timeout=2)
    assert [result.verdict for result in results] == ["pass", "unknown", "unknown"]
    assert time.monotonic() - began < 30


def test_ports_and_servers(bench, url):
    port = int(url.rpartition(":")[2])
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = unused.getsockname()[1]
    dead = f"http://127.0.0.1:{closed}"
    identity = {"url": url + "/model_info", "field": "model.tags.1"}
    cases = [
        ({"port": {"port": port}}, "pass"),
        ({"port": {"port": closed}}, "fail"),
        ({"port_free": {"port": port}}, "fail"),
        ({"port_free": {"port": closed}}, "pass"),
        ({"http": {"url": url + "/health", "contains": "fine"}}, "pass"),
        ({"http": {"url": url + "/health", "contains": "ill"}}, "fail"),
        ({"http": {"url": url + "/other"}}, "fail"),
        ({"http": {"url": url + "/other", "status": 503}}, "pass"),
        ({"http": {"url": url + "/slow", "timeout_s": 0.3}}, "fail"),
        ({"http": {"url": dead}}, "fail"),
        ({"http": {"url": "file:///etc/passwd"}}, "unknown"),
        ({"http_identity": {**identity, "equals": "b"}}, "pass"),
        ({"http_identity": {**identity, "equals": "a"}}, "fail"),
        ({"http_generate": {"url": url, "model": "toy", "api": "sglang"}}, "pass"),
        ({"http_generate": {"url": url, "model": "toy", "api": "openai"}}, "pass"),
        ({"http_generate": {"url": url, "model": "yesterdays", "api": "openai"}}, "fail"),
        ({"http_generate": {"url": dead, "model": "toy", "api": "openai"}}, "fail"),
        ({"http_generate": {"url": url, "model": "toy", "api": "other"}}, "unknown"),
    ]
    results = bench.host.check([check for check, _ in cases])
    assert [(c, r.verdict) for (c, _), r in zip(cases, results, strict=True)] == cases
    assert results[13].evidence["ids"] == 4
    assert results[14].evidence["text"] == "Hello"


def test_process_alive_asks_the_jobs_evidence(bench):
    bench.launch("a1", "sleep 300")
    alive = {"process_alive": {}}
    assert verdicts(bench, [alive], attempt="a1") == ["pass"]
    bench.host.stop("a1", grace_s=1)
    assert verdicts(bench, [alive], attempt="a1") == ["fail"]


def test_facts_are_plain_and_complete(bench):
    facts = bench.host.facts()
    json.dumps(facts)
    assert facts["system"] == "Linux"
    assert facts["root"] == str(bench.root)
    assert facts["root_free_bytes"] > 0
    assert facts["cpu"]["usable"] >= 1
    assert facts["memory"]["total_bytes"] > facts["shm"]["memory_behind_bytes"] > 0
    assert {"/"} <= {mount["path"] for mount in facts["mounts"]}
    assert facts["limits"]["open_files"][0] > 0
    assert isinstance(facts["gpus"], list)


def test_a_request_past_its_limit_takes_its_commands_with_it(bench, tmp_path):
    """The client may be long gone: the limit is the host's own."""
    bench.host.identity()
    [program] = (bench.root / "w" / "bin").glob("*.pyz")
    check = {"command": {"argv": ["sh", "-c", f"echo $$ > {tmp_path}/pid; sleep 300"]}}
    request = {
        "begin": "<", "end": ">", "root": str(bench.root), "workspace": "w", "limit_s": 600,
        "checks": [check], "budget_s": 500,
    }  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(program), "checks"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as asked:  # fmt: skip
        asked.stdin.write(json.dumps(request).encode())
        asked.stdin.close()
        wait_for(lambda: number_in(tmp_path / "pid"), what="the command to start")
        asked.send_signal(signal.SIGALRM)  # what the kernel sends when the limit is reached
        assert b"ran past its limit" in asked.stderr.read()
    wait_for(lambda: not is_live(number_in(tmp_path / "pid")), what="the command to be gone")


def number_in(path: Path) -> int:
    return int(path.read_text() or 0) if path.exists() else 0


def is_live(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
