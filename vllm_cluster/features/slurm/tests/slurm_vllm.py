#!/usr/bin/env python3
"""A program in place of vLLM: its leader answers as vLLM does, all others wait; with the standard library alone."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

OPTIONS = dict(word[2:].partition("=")[::2] for word in sys.argv if word.startswith("--"))


# Answers wait while this is not set.
RUNS = threading.Event()
RUNS.set()


class Handler(BaseHTTPRequestHandler):
    """vLLM's API behind its key, as far as a job asks it."""

    def do_GET(self) -> None:
        """Answer that it lives, what its scheduler has counted, and what it serves."""
        counted = b'vllm:prompt_tokens_total{engine="0"} 1.0\n'
        models = json.dumps({"object": "list", "data": [{"id": OPTIONS.get("served-model-name")}]}).encode()
        self.write(200, {"/metrics": counted, "/v1/models": models}.get(self.path, b"{}"))

    def do_POST(self) -> None:
        """Answer a completion with one token, or end or hang as its prompt asks."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        RUNS.wait()
        key = Path(os.environ["VCLUSTER_API_KEY_FILE"]).read_text()
        allowed = self.headers["Authorization"] == f"Bearer {key}"
        start = os.environ["VCLUSTER_ATTEMPT"]
        answer = {"id": f"start-{start}", "asked": asked.get("prompt"), "usage": {"completion_tokens": 1}}
        self.answer(200 if allowed else 401, answer)
        if asked.get("prompt") == "exit 0":
            os._exit(0)
        if asked.get("prompt") == "hang":
            RUNS.clear()

    def answer(self, code: int, body: object) -> None:
        """Write an answer."""
        self.write(code, json.dumps(body).encode())

    def write(self, code: int, raw: bytes) -> None:
        """Write an answer as it is."""
        self.send_response(code)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


def main() -> None:
    """Serve, or wait."""
    print("started", json.dumps(sys.argv[1:]), flush=True)
    # As ranks that wait for one that is gone: a request to end alone does not end them.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.environ.get("VLLM_FAILS"):
        print("ValueError: The model's config.json has no architectures", file=sys.stderr)
        raise SystemExit(1)
    time.sleep(float(os.environ.get("VLLM_STARTS_FOR", "0")))
    while Path(os.environ.get("VCLUSTER_JOB", "/nowhere"), "hold").exists():
        time.sleep(0.05)
    # The port where all parts meet: a start after another must not find it taken.
    if "master-port" in OPTIONS and "headless" not in OPTIONS:
        meet = socket.create_server(("", int(OPTIONS["master-port"])))
        meet.listen()
    if "headless" in OPTIONS:
        while True:
            signal.pause()
    ThreadingHTTPServer((OPTIONS["host"], int(OPTIONS["port"])), Handler).serve_forever()


if __name__ == "__main__":
    main()
