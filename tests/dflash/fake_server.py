"""A small HTTP server with the shapes of SGLang and of OpenAI, and faults on request.

Run as a process: `fake_server.py PORT_FILE [--api openai] [--delay S] [--served NAME]`. Faults are
set over `POST /_faults` as a list of {"kind", "times"}; each chat request uses up the first that
has times left; who must `wait` does so until faults are set again. Another delay may be set there
as well. `GET /_seen` tells which requests came in. Answers depend on the prompt only, so that two
servers agree and a test knows what to expect.

With --places N, N requests are worked on at a time and the others wait, as /v1/loads tells; with
--queue M as well, more than M that wait are turned away. --say chooses what is answered. With
--vary an answer takes from half to one and a half of the delay, by its prompt.
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
FREE = 10**6


def answer_text(prompt: str) -> str:
    words = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")
    seed = zlib.crc32(prompt.encode())
    return " ".join(words[(seed >> shift) % 8] for shift in range(0, 24, 3))


EMPTY = "<think>\n\n</think>\n\n"
CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


def said(kind: str, prompt: str) -> str:
    """What the model writes, without its end."""
    words = answer_text(prompt)
    if kind == "mostly-empty":  # 87 of 100 end after an empty thought
        empty = zlib.crc32(prompt.encode()) % 100 < 87
        return EMPTY if empty else f"<think>\n{words}\n</think>\n\n{words} {prompt}"
    return {
        "words": words,
        "thought": f"<think>\n{words}\n</think>\n\n{prompt} {words}",
        "same": "I cannot help with that.",
        "calls": f"{words} {prompt}" + CALL * 4,
        "nothing": "",
    }[kind]


class State:
    def __init__(self, options):
        self.options = options
        self.places = threading.Semaphore(options.places)
        self.running = self.waiting = self.most = 0
        self.lock = threading.Lock()
        self.faults = []
        self.seen = []
        self.health = 200
        self.go_on = threading.Event()

    def next_fault(self):
        with self.lock:
            for fault in self.faults:
                if fault["times"] > 0:
                    fault["times"] -= 1
                    return {**fault, "go_on": self.go_on}
        return None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_args):
        pass

    def do_GET(self):
        state = self.server.state
        if self.path == "/model_info" and state.options.api == "sglang":
            options = state.options
            info = {"model_path": options.weights, "served_model_name": options.served}
            self.reply(200, info)
        elif self.path == "/v1/models":
            self.reply(200, {"data": [{"id": state.options.served}]})
        elif self.path.startswith("/v1/loads") and state.options.places < FREE:
            with state.lock:
                row = {"num_running_reqs": state.running, "num_waiting_reqs": state.waiting}
            self.reply(200, {"loads": [row]})
        elif self.path == "/health":
            self.reply(state.health, {})
        elif self.path == "/_seen":
            with state.lock:
                self.reply(200, state.seen)
        elif self.path == "/_most":
            self.reply(200, state.most)
        else:
            self.reply(404, {"detail": "Not Found"})

    def do_POST(self):
        state = self.server.state
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/_faults":
            with state.lock:
                state.faults = body["faults"]
                state.go_on.set()
                state.go_on = threading.Event()
                state.health = body.get("health", 200)
                state.options.delay = body.get("delay", state.options.delay)
            self.reply(200, {})
        elif self.path == "/v1/chat/completions":
            self.chat(state, body)
        else:
            self.reply(404, {"detail": "Not Found"})

    def chat(self, state, body):
        prompt = body["messages"][-1]["content"]
        with state.lock:
            state.seen.append({"rid": body.get("rid"), "prompt": prompt, "body": body})
            state.most = max(state.most, state.running + state.waiting + 1)
            full = state.waiting >= state.options.queue
            state.waiting += not full
        if full:
            self.reply(503, {"message": "The request queue is full."})
            return
        with state.places:
            with state.lock:
                state.waiting, state.running = state.waiting - 1, state.running + 1
            spread = zlib.crc32(prompt.encode()) % 1000 / 1000 - 0.5 if state.options.vary else 0
            time.sleep(state.options.delay * (1 + spread))
            with state.lock:
                state.running -= 1
        fault = state.next_fault() or {"kind": "none"}
        kind = fault["kind"]
        if kind == "wait":
            fault["go_on"].wait()
        if kind == "hang":
            time.sleep(3600)
        elif kind == "503":
            self.reply(503, {"message": "The request queue is full."})
        elif kind == "429":
            self.reply(429, {"message": "slow down"}, {"Retry-After": "0.2"})
        elif kind == "502":
            self.reply(502, {"message": "bad gateway"})
        elif kind == "duplicate":
            self.reply(400, {"message": "Duplicate request ID detected"})
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
        options = self.server.state.options
        text = said(options.say, prompt)
        cut = body["max_tokens"] < len(text) + 1
        ids = [ord(c) for c in text][: body["max_tokens"]] + ([] if cut else [END])
        if text == EMPTY:
            ids = [*range(9, 14), END]  # six tokens
        finish = finish or ("length" if cut else "stop")
        shown = text[: body["max_tokens"]]
        choice = {"index": 0, "finish_reason": finish, "matched_stop": None if cut else END}
        value = {"model": body["model"], "choices": [choice]}
        value["usage"] = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        thought = None
        if options.api == "sglang":
            shown += "" if cut else "<|im_end|>"
            choice.update(response_token_ids=ids, prompt_token_ids=[ord(c) for c in prompt])
        elif options.split and "<think>" in shown:
            # As --reasoning-parser does: the tags are gone, the thought is a field of its own.
            thought, _, shown = shown.removeprefix("<think>").partition("</think>")
        choice["message"] = {"role": "assistant", "content": shown, "reasoning_content": thought}
        return value

    def reply(self, status, value, headers=None):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, text in (headers or {}).items():
            self.send_header(name, text)
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
    parser.add_argument("--vary", action="store_true")
    parser.add_argument("--served", default="toy")
    parser.add_argument("--weights", default="/m")
    parser.add_argument("--places", type=int, default=FREE)
    parser.add_argument("--queue", type=int, default=FREE)
    parser.add_argument("--say", default="words")
    parser.add_argument("--split", action="store_true")
    options = parser.parse_args()
    server = Quiet(("127.0.0.1", options.port), Handler)
    server.state = State(options)
    aside = options.port_file.with_suffix(".part")
    aside.write_text(str(server.server_address[1]))
    aside.replace(options.port_file)
    server.serve_forever()


if __name__ == "__main__":
    main()
