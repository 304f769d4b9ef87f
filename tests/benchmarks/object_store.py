"""Folders to and from S3: `dflash put` and `get` beside a plain boto3 loop and obstore.

A moto server in a process of its own on loopback, with a delay before each answer, as a real store
has one; in turns. Ours also hashes every file, proves each one that arrives, has the store list
everything and writes with fsync. The processor time is the client's alone: on a fast line it
decides.
Run: python tests/benchmarks/object_store.py [FILES] [KIBIBYTES EACH] [DELAY MS]
"""

from __future__ import annotations

import asyncio
import importlib.util
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import boto3

from dflash.get import get
from dflash.progress import Progress
from dflash.put import put
from dflash.s3 import StoreOptions

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS, CONNECTIONS = 3, 32
BUCKET = "bench"


def serve(port: Any, delay_s: float) -> None:
    """moto, as slow to answer as told."""
    import logging

    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = DomainDispatcherApplication(create_backend_app)

    def late(environ: Any, start: Any) -> Any:
        time.sleep(delay_s)
        return app(environ, start)

    server = make_server("127.0.0.1", 0, late, threaded=True)
    port.send(server.port)
    server.serve_forever()


def ours(source: Path, target: Path) -> tuple[Callable[[], object], Callable[[], object]]:
    options, url = StoreOptions(connections=CONNECTIONS), f"s3://{BUCKET}/ours"
    return (
        lambda: put(source, url, options, progress=Progress()),
        lambda: get(url, target, options, progress=Progress()),
    )


def loop(source: Path, target: Path) -> tuple[Callable[[], object], Callable[[], object]]:
    client = boto3.client("s3")
    names = [path.name for path in source.iterdir()]

    def up() -> None:
        for name in names:
            client.upload_file(str(source / name), BUCKET, f"loop/{name}")

    def down() -> None:
        for name in names:
            client.download_file(BUCKET, f"loop/{name}", str(target / name))

    return up, down


def obstore_way(source: Path, target: Path) -> tuple[Callable[[], object], Callable[[], object]]:
    from obstore.store import S3Store

    store = S3Store(
        BUCKET, endpoint=os.environ["AWS_ENDPOINT_URL"], prefix="obstore",
        virtual_hosted_style_request=False, client_options={"allow_http": True},
    )  # fmt: skip
    names = [path.name for path in source.iterdir()]

    async def each(work: Callable[[str], Any]) -> None:
        gate = asyncio.Semaphore(CONNECTIONS)

        async def one(name: str) -> None:
            async with gate:
                await work(name)

        await asyncio.gather(*map(one, names))

    async def send(name: str) -> None:
        await store.put_async(name, source / name)

    async def fetch(name: str) -> None:
        answer = await store.get_async(name)
        (target / name).write_bytes(await answer.bytes_async())

    return lambda: asyncio.run(each(send)), lambda: asyncio.run(each(fetch))


def main() -> None:
    count, kibibytes, delay_ms = (
        int(word) for word in (sys.argv[1:] + ["200", "1024", "30"][len(sys.argv) - 1 :])
    )
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(there, delay_ms / 1000), daemon=True
    )
    server.start()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{here.recv()}", "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    ways = {"dflash": ours, "boto3 loop": loop}
    if importlib.util.find_spec("obstore"):
        ways["obstore"] = obstore_way
    best = {name: [(1e9, 1e9), (1e9, 1e9)] for name in ways}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        source, target = Path(name) / "source", Path(name) / "target"
        source.mkdir()
        for number in range(count):
            (source / f"{number:05}").write_bytes(os.urandom(kibibytes << 10))
        for _ in range(ROUNDS):
            for way, make in ways.items():
                bucket = boto3.resource("s3").create_bucket(Bucket=BUCKET)
                bucket.objects.delete()
                target.mkdir()
                for number, work in enumerate(make(source, target)):
                    began, used = time.perf_counter(), time.process_time()
                    work()
                    took = (time.perf_counter() - began, time.process_time() - used)
                    best[way][number] = min(best[way][number], took)
                shutil.rmtree(target)
    print(f"{count} files of {kibibytes} KiB, {delay_ms} ms to each answer, best of {ROUNDS}")
    size = count * kibibytes * 1024 / 1e6
    for way, both in best.items():
        told = (
            f"{name} {took:6.2f} s {size / took:6.0f} MB/s, processor {used:5.2f} s"
            for name, (took, used) in zip(("up", "down"), both, strict=True)
        )
        print(f"{way:<12} " + "   ".join(told))
    server.terminate()


if __name__ == "__main__":
    main()
