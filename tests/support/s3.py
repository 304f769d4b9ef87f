"""One S3 server for the tests: moto on loopback, in this process, with a bucket for each test.

Use: `from tests.support.s3 import s3, s3_server` (fixtures). What speaks to it finds address and
keys in the environment, as on a real machine, and nothing of the person who runs the tests.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.support.deadline import wait_for
from tests.support.link import Link

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.link import Way

ROOT = Path(__file__).parents[2]
REGION = "us-east-1"
KEYS = {
    "AWS_ACCESS_KEY_ID": "key-of-the-test", "AWS_SECRET_ACCESS_KEY": "secret-of-the-test",
    "AWS_DEFAULT_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true",
}  # fmt: skip


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    """Its address."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    made = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    made.start()
    host, port = made.get_host_and_port()
    url = f"http://{host}:{port}"
    forget_all(url)
    yield url
    made.stop()


def forget_all(url: str) -> None:
    """What other tests stored: the servers of one process have one memory."""
    request = urllib.request.Request(f"{url}/moto-api/reset", method="POST")
    urllib.request.urlopen(request, timeout=60).close()


@pytest.fixture
def s3_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """Long-lived keys in the environment, and no other credentials of this machine."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "no-aws-file"))
    return KEYS


def killed_in_the_middle(words: Sequence[str], way: Way, size: int, reached: Any) -> None:
    """`dflash WORDS`, killed once that is `reached`; its line to the store falls silent after
    `size` bytes, so that it cannot come to its end before."""
    link = Link(int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2]))
    link.break_after(way, size, how="freeze")
    running = subprocess.Popen(
        [sys.executable, "-m", "dflash", *words], cwd=ROOT, stderr=subprocess.DEVNULL,
        env={**os.environ, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{link.port}"},
    )  # fmt: skip
    try:
        wait_for(lambda: reached() or running.poll() is not None, what="some of it to go")
        assert running.poll() is None, "it ended before it could be killed"
    finally:
        running.kill()
        running.wait()
        link.close()


@pytest.fixture
def s3(
    s3_server: str, s3_keys: dict[str, str], monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Any:  # fmt: skip
    """A boto3 client; `.bucket` names an empty bucket of the test's own."""
    del s3_keys
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    client: Any = boto3.client("s3")
    client.bucket = f"b-{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:20]}"
    client.create_bucket(Bucket=client.bucket)
    return client
