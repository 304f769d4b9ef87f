"""A listing of many objects by the store behind `dflash put`, `get` and `sync`: time and memory.

The server on loopback is the one in `s3_sink.py`, a thousand keys a page as S3 has it, in a process
of its own; its time is in the seconds, not in the processor time. The memory is the list's own.
Run: python tests/benchmarks/object_listing.py [OBJECTS]
"""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from dflash.s3 import StoreOptions  # noqa: E402
from dflash.s3_store import S3Store  # noqa: E402
from tests.benchmarks import s3_sink  # noqa: E402

ROUNDS = 3


def peak() -> float:
    """MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    process, url = s3_sink.start(objects=count)
    os.environ |= {
        "AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    store = S3Store("s3://bench/rows", StoreOptions())
    store.listed(below="0000/0000000")  # what the first request costs
    before = peak()
    for _ in range(ROUNDS):
        began, used = time.perf_counter(), time.process_time()
        listed = store.listed()
        took, used = time.perf_counter() - began, time.process_time() - used
        assert len(listed) == count
        print(f"{count:,} objects in {took:.2f} s, {used:.2f} s of processor time; "
              f"memory {before:.0f} MiB before, {peak():.0f} MiB at most")  # fmt: skip
        del listed
    process.terminate()


if __name__ == "__main__":
    main()
