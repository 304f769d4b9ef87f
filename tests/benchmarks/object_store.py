"""Folders to and from S3: `dflash put` and `get` beside s5cmd, obstore and boto3.

Each is a command of its own, in turns, with 32 requests at a time, against a server on loopback:
the one in `s3_sink.py`, which does as little as can be, or SeaweedFS, which is a real one. What
each does besides moving bytes:

  dflash         SHA-256 of each file, signed with it and kept with the object; the store's listing
                 is held against what was sent; what arrives is proved, fsynced and renamed
  obstore proof  the same hashes, and the arriving ones compared; plain writes
  obstore        signs the SHA-256 of what is sent; what arrives is not looked at; plain writes
  s5cmd          signs the SHA-256, sends an MD5; what arrives is not looked at; plain writes
  boto3          as s5cmd with CRC-32 instead of MD5, by its TransferManager

"start" is the same command for a single small file: what a command costs before it moves anything.
With `--line` the server lets through so many MB/s of all streams together, as a real line does.
Run: python tests/benchmarks/object_store.py [--files 200] [--kib 4096] [--s5cmd PATH] [--weed PATH]
     [--line 400] [--ways dflash,s5cmd]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import boto3  # noqa: E402
from botocore.exceptions import BotoCoreError, ClientError  # noqa: E402

from tests.benchmarks import s3_sink  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

CONNECTIONS, BUCKET = 32, "bench"
WAYS = "dflash,obstore proof,obstore,s5cmd,boto3"
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret-of-bench",
        "AWS_DEFAULT_REGION": "us-east-1"}  # fmt: skip


# -- the others, each in a process of its own ------------------------------------------------------


def obstore_way(direction: str, folder: Path, *, proof: bool) -> None:
    from obstore.store import S3Store

    name = "obstore-proof" if proof else "obstore"
    store = S3Store(
        BUCKET, endpoint=os.environ["AWS_ENDPOINT_URL"], prefix=name,
        virtual_hosted_style_request=False, client_options={"allow_http": True},
    )  # fmt: skip

    async def send(name: str) -> None:
        about = {}
        if proof:
            about["sha256"] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        await store.put_async(name, folder / name, attributes=about)

    async def fetch(name: str) -> None:
        data = await (await store.get_async(name)).bytes_async()
        if proof:
            hashlib.sha256(data).hexdigest()
        (folder / name).write_bytes(data)

    async def each(work: Any, names: list[str]) -> None:
        gate = asyncio.Semaphore(CONNECTIONS)

        async def one(name: str) -> None:
            async with gate:
                await work(name)

        await asyncio.gather(*map(one, names))

    if direction == "up":
        asyncio.run(each(send, [path.name for path in folder.iterdir()]))
    else:
        asyncio.run(each(fetch, [one["path"] for page in store.list() for one in page]))
    os._exit(0)  # its threads may abort an interpreter that ends


def boto3_way(direction: str, folder: Path) -> None:
    client = boto3.client("s3")
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        if direction == "up":
            todo = [path.name for path in folder.iterdir()]
            list(
                pool.map(lambda n: client.upload_file(str(folder / n), BUCKET, f"boto3/{n}"), todo)
            )
            return
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix="boto3/")
        todo = [one["Key"].removeprefix("boto3/") for page in pages for one in page["Contents"]]
        list(pool.map(lambda n: client.download_file(BUCKET, f"boto3/{n}", folder / n), todo))


# -- measuring -------------------------------------------------------------------------------------


def commands(way: str, s5cmd: str, source: Path, target: Path) -> dict[str, list[str]]:
    url = f"s3://{BUCKET}/{way.replace(' ', '-')}"
    if way == "dflash":
        ours = [sys.executable, "-m", "dflash"]
        return {"up": [*ours, "put", str(source), url], "down": [*ours, "get", url, str(target)]}
    if way == "s5cmd":
        copy = [s5cmd, "--log", "error", "--numworkers", str(CONNECTIONS), "cp"]
        return {"up": [*copy, f"{source}/", f"{url}/"], "down": [*copy, f"{url}/*", f"{target}/"]}
    itself = [sys.executable, __file__, "--way", way]
    return {"up": [*itself, "up", str(source)], "down": [*itself, "down", str(target)]}


def timed(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Seconds by the clock, and of the command's processor time."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        command, env=environment, cwd=ROOT, check=True,
        stderr=subprocess.DEVNULL if "dflash" in command else None,
    )  # fmt: skip
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return took, used


@contextlib.contextmanager
def seaweed(program: str, folder: Path) -> Iterator[str]:
    """SeaweedFS on loopback, its data in `folder`; it tells nobody that it runs."""
    keys = {"accessKey": KEYS["AWS_ACCESS_KEY_ID"], "secretKey": KEYS["AWS_SECRET_ACCESS_KEY"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [
        {"name": "bench", "credentials": [keys], "actions": ["Admin", "Read", "Write", "List"]}
    ]}))  # fmt: skip
    running = subprocess.Popen(
        [program, "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3",
         "-master.telemetry=false", "-s3.port=28333", "-master.port=29333", "-volume.port=28080",
         "-filer.port=28888", "-s3.port.iceberg=0", "-s3.port.lance=0",
         f"-s3.config={folder}/s3.json", "-volume.max=0", "-master.volumeSizeLimitMB=1024",
         f"-filer.localSocket={folder}/filer.sock", f"-s3.localSocket={folder}/s3.sock"],
        cwd=folder, env={**os.environ, "HOME": str(folder)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        url = "http://127.0.0.1:28333"
        client = boto3.client("s3", endpoint_url=url, aws_access_key_id=keys["accessKey"],
                              aws_secret_access_key=keys["secretKey"])  # fmt: skip
        for _ in range(600):
            with contextlib.suppress(ClientError, BotoCoreError):
                client.create_bucket(Bucket="ready")  # it may be there and its volumes not
            with contextlib.suppress(ClientError, BotoCoreError):
                client.put_object(Bucket="ready", Key="volumes take writes", Body=b"")
                break
            time.sleep(0.1)
        else:
            raise SystemExit(f"{program} takes no object within a minute")
        yield url
    finally:
        running.terminate()
        running.wait()


@contextlib.contextmanager
def sink(rate: float) -> Iterator[str]:
    process, url = s3_sink.start(rate=rate)
    try:
        yield url
    finally:
        process.terminate()


def measure(args: argparse.Namespace, url: str, top: Path) -> dict[str, Any]:
    """Rounds of every way, in turns; the figures of each way and direction."""
    environment = {**os.environ, **KEYS, "AWS_ENDPOINT_URL": url, "S3_ENDPOINT_URL": url}
    os.environ |= environment
    client, bucket = boto3.client("s3"), boto3.resource("s3").Bucket(BUCKET)
    client.create_bucket(Bucket=BUCKET)
    ways = [way for way in args.ways.split(",") if way != "s5cmd" or args.s5cmd]
    found: dict[str, Any] = {}
    for name, count, size in (("start", 1, 1024), ("all", args.files, args.kib << 10)):
        source, target = top / f"{name}-source", top / f"{name}-target"
        source.mkdir()
        for number in range(count):
            (source / f"{number:05}").write_bytes(os.urandom(size))
        for _ in range(args.rounds):
            for way in ways:
                for one in bucket.objects.all():
                    one.delete()
                target.mkdir()
                for direction, command in commands(way, args.s5cmd, source, target).items():
                    took = timed(command, environment)
                    found.setdefault(f"{way} {direction} {name}", []).append(took)
                whole = [p for p in target.iterdir() if p.stat().st_size == size]
                assert len(whole) >= count, f"{way} brought {len(whole)} of {count}"
                shutil.rmtree(target)
    return {"ways": ways, **found}


def show(args: argparse.Namespace, found: dict[str, Any]) -> None:
    print(f"{args.files} files of {args.kib} KiB, median of {args.rounds}; load {os.getloadavg()}")
    if args.line:
        moved = args.files * args.kib * 1024 / 1e6
        print(f"a line of {args.line:g} MB/s, which takes {moved / args.line:.2f} s")

    def median(way: str, direction: str, name: str) -> tuple[float, float]:
        took, used = zip(*found[f"{way} {direction} {name}"], strict=True)
        return statistics.median(took), statistics.median(used)

    for direction in ("up", "down"):
        for way in found["ways"]:
            (all_s, all_cpu), (start_s, start_cpu) = (
                median(way, direction, name) for name in ("all", "start")
            )
            print(
                f"{direction:<5} {way:<14} {all_s:6.2f} s, {all_s - start_s:6.2f} after its start; "
                f"processor {all_cpu:5.2f} s, {all_cpu - start_cpu:5.2f} after its start"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--kib", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--s5cmd", default=shutil.which("s5cmd") or "", metavar="PATH")
    parser.add_argument("--weed", default="", metavar="PATH", help="SeaweedFS as the server")
    parser.add_argument("--line", type=float, default=0.0, metavar="MB_PER_S", help="of the server")
    parser.add_argument("--ways", default=WAYS, metavar="LIST", help="(%(default)s)")
    parser.add_argument("--folder", default="/dev/shm", help="where the files are")
    parser.add_argument("--way", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        way, direction, folder = args.way
        if way == "boto3":
            boto3_way(direction, Path(folder))
        else:
            obstore_way(direction, Path(folder), proof=way == "obstore proof")
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        store = Path(name) / "store"
        store.mkdir()
        with seaweed(args.weed, store) if args.weed else sink(args.line * 1e6) as url:
            found = measure(args, url, Path(name))
    show(args, found)


if __name__ == "__main__":
    main()
