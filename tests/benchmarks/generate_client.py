"""What `dflash generate` itself costs: requests against servers that answer at once, and memory.

    PYTHONPATH=. python tests/benchmarks/generate_client.py [--requests 10000] [--tokens 1000]
    PYTHONPATH=. python tests/benchmarks/generate_client.py --records 900000

The first runs the whole command against processes that send one prepared body; processor time is
the client's own. The second feeds the early audit and the folder's list of ids with so many records
and prints what the process holds on the way.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import multiprocessing
import random
import resource
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

IDENTITY = b'{"model_path": "/m", "served_model_name": "toy"}'


def body_of(tokens: int) -> bytes:
    """A completion of so many tokens, with ids, as SGLang sends it."""
    chosen = random.Random(7)
    ids = [chosen.randrange(150_000) for _ in range(tokens)]
    text = (
        "<think>\n" + " ".join(f"w{n}" for n in ids[: tokens // 2]) + "\n</think>\n\nyes<|im_end|>"
    )
    value = {
        "choices": [
            {"finish_reason": "stop", "matched_stop": 2,
             "message": {"role": "assistant", "content": text}},
        ],
        "usage": {"prompt_tokens": 20, "completion_tokens": tokens},
        "sglext": {"output_ids": [ids], "input_ids": [ids[:20]]},
    }  # fmt: skip
    return json.dumps(value).encode()


class Instant(asyncio.Protocol):
    """Answers each request with what lies ready; reads no more of it than its length."""

    def __init__(self, body: bytes) -> None:
        self._answer = framed(body)
        self._left = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._left += data
        while b"\r\n\r\n" in self._left:
            head, _, rest = self._left.partition(b"\r\n\r\n")
            lower = head.lower()
            at = lower.find(b"content-length:")
            size = int(lower[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(rest) < size:
                return
            self._left = rest[size:]
            get = head.startswith(b"GET")
            known = b"/model_info" in head.split(b"\r\n", 1)[0]
            missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
            self._transport.write(
                self._answer if not get else framed(IDENTITY) if known else missing
            )


def framed(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
    return head + str(len(body)).encode() + b"\r\n\r\n" + body


def serve(tell: Connection, tokens: int) -> None:
    async def forever() -> None:
        body = body_of(tokens)
        server = await asyncio.get_running_loop().create_server(
            lambda: Instant(body), "127.0.0.1", 0
        )
        tell.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(forever())


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def held_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def requests(count: int, tokens: int, servers: int, concurrency: int) -> None:
    from dflash.__main__ import main

    spawn = multiprocessing.get_context("spawn")
    ports, processes = [], []
    for _ in range(servers):
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=serve, args=(theirs, tokens), daemon=True)
        process.start()
        processes.append(process)
        ports.append(ours.recv())
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder) / "prompts.jsonl"
        with prompts.open("w") as handle:
            for n in range(count):
                messages = [{"role": "user", "content": f"What comes after {n}?"}]
                handle.write(json.dumps({"id": f"p{n}", "messages": messages}) + "\n")
        words = ["generate", "--prompts", str(prompts), "--out", f"{folder}/out", "--model", "toy"]
        words += ["--gate", "max_identical=1", "--gate", "max_mode_share=1"]
        words += ["--concurrency", str(concurrency)]
        for port in ports:
            words += ["--server", f"http://127.0.0.1:{port}"]
        before, cpu, began = held_mib(), time.process_time(), time.perf_counter()
        with contextlib.redirect_stderr(io.StringIO()):
            assert main(words) == 0
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        size = sum(path.stat().st_size for path in Path(folder, "out").glob("*.jsonl"))
    for process in processes:
        process.terminate()
        process.join()
    print(
        f"{count:,} requests of {tokens:,} tokens on {servers} servers: {took:.1f} s, "
        f"{count / took:,.0f} requests/s, {count * tokens / took:,.0f} tok/s; "
        f"{1000 * cpu / count:.2f} ms of processor time each; {size / 2**20:,.0f} MiB written; "
        f"memory {before:.0f} MiB before, {peak_mib():.0f} MiB at most"
    )


def records(count: int) -> None:
    from dflash.completions import CompletionStore
    from dflash.early_audit import EarlyAudit
    from dflash.errors import Interrupted
    from dflash.gates import early_gates

    chosen = random.Random(7)
    gates = early_gates(["max_identical=1"], thinking="default")
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.suppress(Interrupted),
        CompletionStore(Path(folder), settings={}, shard_rows=500) as store,
    ):
        audit = EarlyAudit(Path(folder), gates=gates, after=500, settings={})
        began = time.perf_counter()
        for n in range(count + 1):
            if n and n % (count // 9) == 0:
                print(f"{n:>9,} records: {held_mib():.0f} MiB, {time.perf_counter() - began:.0f} s")
            tokens = int(chosen.lognormvariate(6, 1)) + 1
            record = {
                "id": f"prompt-{n:09d}", "prompt_hash": f"{n:016x}", "tokens": tokens,
                "messages": [{"role": "user", "content": f"question {n}"}],
                "completion": f"<think>\na {n}\n</think>\n\nb {n}", "content": f"b {n}",
                "finish_reason": "stop", "usage": {"completion_tokens": tokens},
            }  # fmt: skip
            store.add(record)
            audit.add(record)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--records", type=int)
    options = parser.parse_args()
    if options.records:
        records(options.records)
    else:
        requests(options.requests, options.tokens, options.servers, options.concurrency)
