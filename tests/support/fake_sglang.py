"""A server with SGLang's command line and answers, for what SGLang cannot do on a CPU.

`install(venv)` puts it where `serve` looks for `sglang`. What it does is read from
`PORT.json` beside it, anew for each request, so that a test wedges or heals one server of many:

    loading    /health refuses with 503, as in the warm-up
    wedged     generations hang, /health answers 503, /metrics stands still (SIGSTOP of a scheduler)
    liar       as wedged, but /health goes on saying 200
    busy       /health answers 503, generations hang, and the tokens in /metrics grow
    delay      how long a generation of more than 64 tokens takes
    ids        its token ids
    running    this many requests in /metrics
    drafts     so many verifications for the four tokens of a generation; without, as without
               speculation: gauges of it that say 0
    accepts    the acceptance length that its gauge has, of whatever batch
    public     from its start on, a second port on all interfaces, as SGLang's rendezvous is
    silent     as while a model is loaded: nothing listens on its port yet
    says       lines for the error stream, then exit with `exit`: a start that fails; without an
               `exit` it stays and does nothing
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = '''
import argparse, json, pathlib, socket, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("verb")
parser.add_argument("--port", type=int)
parser.add_argument("--nccl-port", type=int)
parser.add_argument("--served-model-name")
parser.add_argument("--weight-version")
args, _ = parser.parse_known_args()
control = pathlib.Path(__file__).with_name(f"{args.port}.json")
seen = pathlib.Path(__file__).with_name(f"{args.port}.seen")
tokens, running, verified = [0], [0], [0]

def told():
    try:
        return json.loads(control.read_text())
    except (OSError, ValueError):
        return {}

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, code, body):
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        mode = told()
        with seen.open("a") as file:
            file.write("GET " + self.path + chr(10))
        if self.path == "/health":
            bad = any(mode.get(name) for name in ("loading", "wedged", "busy"))
            return self.answer(503 if bad else 200, "")
        if self.path == "/model_info":
            return self.answer(200, {"served_model_name": args.served_model_name,
                                     "weight_version": args.weight_version})
        if self.path == "/v1/models":
            return self.answer(200, {"data": [{"id": args.served_model_name}]})
        if self.path == "/metrics":
            if mode.get("busy"):
                tokens[0] += 10
            busy = mode.get("running", running[0])
            drafts = f"""sglang:spec_verify_calls_total{{tp_rank="0"}} {float(verified[0])}
""" if verified[0] else ""
            return self.answer(200, drafts + f"""# HELP sglang:num_running_reqs
sglang:num_running_reqs{{engine_type="unified",tp_rank="0"}} {float(busy)}
sglang:num_queue_reqs{{tp_rank="0"}} {float(mode.get("queued", 0))}
sglang:gen_throughput{{tp_rank="0"}} 12.5
sglang:token_usage{{tp_rank="0"}} 0.25
sglang:mamba_usage{{tp_rank="0"}} 0.5
sglang:spec_accept_length{{tp_rank="0"}} {float(mode.get("accepts", "drafts" in mode))}
sglang:generation_tokens_total{{tp_rank="0"}} {float(tokens[0])}
""")
        self.answer(404, "")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "{}")
        with seen.open("a") as file:
            file.write("POST " + self.path + chr(10))
        if self.path == "/flush_cache":
            return self.answer(200, "")
        running[0] += 1
        try:
            while any(told().get(name) for name in ("wedged", "liar", "busy", "slow")):
                time.sleep(0.05)
        finally:
            running[0] -= 1
        sampling = body.get("sampling_params", {})
        if (body.get("max_tokens") or sampling.get("max_new_tokens") or 0) > 64:
            time.sleep(told().get("delay", 0))
        tokens[0] += 4
        verified[0] += told().get("drafts", 0)
        ids = told().get("ids", [1, 2, 3, 4])
        choice = {"message": {"content": "yes", "reasoning_content": None}, "text": "yes",
                  "finish_reason": "length", "matched_stop": None}
        usage = {"completion_tokens": 4, "prompt_tokens": 3}
        self.answer(200, {"choices": [choice], "usage": usage,
                          "output_ids": ids, "text": "yes",
                          "sglext": {"output_ids": [ids], "input_ids": [[7]]}})

    def log_message(self, *_):
        pass

if told().get("says") is not None:
    print(chr(10).join(told()["says"]), file=sys.stderr, flush=True)
    while told().get("exit") is None:
        time.sleep(0.05)
    sys.exit(told()["exit"])
while told().get("silent"):
    time.sleep(0.05)
if told().get("public"):
    rendezvous = socket.create_server(("0.0.0.0", args.nccl_port))
print("The server is fired up and ready to roll!", file=sys.stderr, flush=True)
ThreadingHTTPServer(("127.0.0.1", args.port), Handler).serve_forever()
'''


def install(venv: Path, *, name: str = "sglang") -> None:
    """Makes an environment whose `sglang` is this one."""
    programs = venv / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    program = programs / name
    program.write_text(f"#!{sys.executable}\n{PROGRAM}")
    program.chmod(0o755)


def tell(venv: Path, port: int, **mode: Any) -> None:
    """How the server on this port behaves from now on."""
    path = venv / "bin" / f"{port}.json"
    aside = path.with_suffix(".aside")
    aside.write_text(json.dumps(mode))
    aside.replace(path)


def requests(venv: Path, port: int) -> list[str]:
    """What it was asked, in order: `GET /health`."""
    path = venv / "bin" / f"{port}.seen"
    return path.read_text().splitlines() if path.exists() else []
