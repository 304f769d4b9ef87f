"""moto's S3 and STS on loopback behind a doorkeeper whose clock a test owns: keys end when it says.

A request that is signed with keys that have ended is refused as AWS does: ExpiredToken with 400,
and for HEAD without a word. Each set of keys may also be good for so many uploads only.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server

from tests.support.s3 import forget_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

KEY = re.compile(r"Credential=([^/%&]+)")
TEMPORARY = "ASIA"
REFUSED = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>ExpiredToken</Code>'
    b"<Message>The provided token has expired.</Message></Error>"
)


class EndingStore:
    """What a test may turn: `end` the keys that were seen, or give each `uploads` at most."""

    def __init__(self) -> None:
        self.uploads: int | None = None
        self.refused = 0
        self.puts: Counter[str] = Counter()
        """Uploads that went through, by object."""
        self._used: Counter[str] = Counter()
        self._ended: set[str] = set()
        self._lock = threading.Lock()
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server(
            "127.0.0.1", 0, self._answer, True, request_handler=MotoRequestHandler
        )
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        host, port = self._server.server_address[:2]
        self.url = f"http://{host}:{port}"

    def end(self) -> None:
        """The time of all temporary keys that were used so far is over."""
        with self._lock:
            self._ended |= set(self._used)

    @property
    def keys(self) -> int:
        """How many sets of temporary keys were used."""
        return len(self._used)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        signed = environ.get("HTTP_AUTHORIZATION", "") + environ.get("QUERY_STRING", "")
        found = KEY.search(signed.replace("X-Amz-Credential", "Credential"))
        key = found[1] if found else ""
        put = environ["REQUEST_METHOD"] == "PUT"
        if key.startswith(TEMPORARY):
            with self._lock:
                over = self.uploads is not None and self._used[key] >= self.uploads
                self._used[key] += put and not over
                refused = key in self._ended or over
                self.refused += refused
            if refused:
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                body = b"" if environ["REQUEST_METHOD"] == "HEAD" else REFUSED
                about = [("Content-Type", "text/xml"), ("Content-Length", str(len(body)))]
                start("400 Bad Request", about)
                return [body]
        if put:
            with self._lock:
                self.puts[environ["PATH_INFO"]] += 1
        answer: Iterable[bytes] = self._app(environ, start)
        return answer


@pytest.fixture
def ending(s3_keys: dict[str, str]) -> Iterator[EndingStore]:
    """A store of the test's own, with a bucket named `bucket`."""
    del s3_keys
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    store = EndingStore()
    forget_all(store.url)
    boto3.client("s3", endpoint_url=store.url).create_bucket(Bucket="bucket")
    yield store
    store.close()


def temporary_keys(url: str) -> dict[str, str]:
    """New ones of the store's token service, as variables."""
    made = boto3.client("sts", endpoint_url=url).assume_role(
        RoleArn="arn:aws:iam::000000000000:role/any", RoleSessionName="test"
    )["Credentials"]
    return {
        "AWS_ACCESS_KEY_ID": made["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": made["SecretAccessKey"],
        "AWS_SESSION_TOKEN": made["SessionToken"],
    }  # fmt: skip
