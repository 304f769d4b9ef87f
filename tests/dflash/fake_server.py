"""A small HTTP server with the shapes of SGLang and of OpenAI, and faults on request.

Run as a process: `fake_server.py PORT_FILE [--api openai] [--delay S] [--served NAME]`. Faults are
set over `POST /_faults` as a list of {"kind", "times"}; each chat request uses up the first
that has times left. `GET /_seen` tells which requests came in. Answers depend on the prompt
only, so that two servers agree and a test knows what to expect.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import socket
import struct
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

END = 2  # the id of <|im_end|> here


def answer_text(prompt: str) -> str:
    words = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")
    seed = zlib.crc32(prompt.encode())
    return " ".join(words[(seed >> shift) % 8] for shift in range(0, 24, 3))


class State:
    def __init__(self, options):
        self.options = options
        self.lock = threading.Lock()
        self.faults = []
        self.seen = []
        self.health = 200

    def next_fault(self):
        with self.lock:
            for fault in self.faults:
                if fault["times"] > 0:
                    fault["times"] -= 1
                    return fault
        return None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_args):
        pass

    def do_GET(self):
        state = self.server.state
        if self.path == "/model_info" and state.options.api == "sglang":
            self.reply(200, {"model_path": "/m", "served_model_name": state.options.served})
        elif self.path == "/v1/models":
            self.reply(200, {"data": [{"id": state.options.served}]})
        elif self.path == "/health":
            self.reply(state.health, {})
        elif self.path == "/_seen":
            with state.lock:
                self.reply(200, state.seen)
        else:
            self.reply(404, {"detail": "Not Found"})

    def do_POST(self):
        state = self.server.state
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/_faults":
            with state.lock:
                state.faults = body["faults"]
                state.health = body.get("health", 200)
            self.reply(200, {})
        elif self.path == "/v1/chat/completions":
            self.chat(state, body)
        else:
            self.reply(404, {"detail": "Not Found"})

    def chat(self, state, body):
        prompt = body["messages"][-1]["content"]
        with state.lock:
            state.seen.append({"rid": body.get("rid"), "prompt": prompt, "body": body})
        time.sleep(state.options.delay)
        fault = state.next_fault() or {"kind": "none"}
        kind = fault["kind"]
        if kind == "hang":
            time.sleep(3600)
        elif kind == "503":
            self.reply(503, {"message": "The request queue is full."})
        elif kind == "500":
            self.reply(500, {"message": "internal"})
        elif kind == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
        elif kind == "die":
            os._exit(9)
        elif kind == "garbage":
            self.reply(200, {"hello": 1})
        elif "too long" in prompt or kind == "400":
            self.reply(400, {"message": "The input (9000 tokens) is longer than the context."})
        else:
            self.reply(200, self.completion(body, prompt, "abort" if kind == "abort" else None))

    def completion(self, body, prompt, finish):
        text = answer_text(prompt)
        cut = body["max_tokens"] < len(text) + 1
        ids = [ord(c) for c in text][: body["max_tokens"]] + ([] if cut else [END])
        finish = finish or ("length" if cut else "stop")
        shown = text[: body["max_tokens"]]
        choice = {"index": 0, "finish_reason": finish, "matched_stop": None if cut else END}
        value = {"model": body["model"], "choices": [choice]}
        value["usage"] = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        if self.server.state.options.api == "sglang":
            shown += "" if cut else "<|im_end|>"
            value["sglext"] = {"output_ids": [ids], "input_ids": [ord(c) for c in prompt]}
        choice["message"] = {"role": "assistant", "content": shown, "reasoning_content": None}
        return value

    def reply(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Quiet(ThreadingHTTPServer):
    """Clients here are killed on purpose; a traceback for each would bury the test's own."""

    allow_reuse_address = True
    request_queue_size = 128
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("port_file", type=pathlib.Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--api", default="sglang")
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--served", default="toy")
    options = parser.parse_args()
    server = Quiet(("127.0.0.1", options.port), Handler)
    server.state = State(options)
    aside = options.port_file.with_suffix(".part")
    aside.write_text(str(server.server_address[1]))
    aside.replace(options.port_file)
    server.serve_forever()


if __name__ == "__main__":
    main()
