"""An OpenAI-compatible API that is made up."""

from __future__ import annotations

import http.server
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

KEY = "k"
Reply = tuple[int, dict[str, Any]]


@dataclass
class Api:
    """Answers each prompt by `reply`, which gets how often it was asked; None breaks the connection."""

    reply: Callable[[str, int], Reply | None]
    asked: Counter[str] = field(default_factory=Counter)
    open: int = 0
    most: int = 0
    port: int = 0
    metrics: str = ""
    keys: tuple[str, ...] = (KEY,)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def post(self, body: dict[str, Any]) -> Reply | None:
        prompt = body["prompt"]
        with self.lock:
            self.asked[prompt] += 1
            self.open += 1
            self.most = max(self.most, self.open)
            times = self.asked[prompt]
        try:
            return self.reply(prompt, times)
        finally:
            with self.lock:
                self.open -= 1


def answer(prompt: str, _times: int = 1) -> Reply:
    usage = {"prompt_tokens": 2, "completion_tokens": 3}
    return 200, {"id": "cmpl", "model": "m", "choices": [{"text": prompt.upper()}], "usage": usage}


@contextmanager
def serving(api: Api) -> Iterator[Api]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path != "/v1/models":
                self._send(200, api.metrics.encode())
                return
            known = self.headers["Authorization"] in {f"Bearer {key}" for key in api.keys}
            self._send(200 if known else 401, json.dumps({"data": [{"id": "m"}]} if known else {}).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.headers["Authorization"] != f"Bearer {KEY}":
                found: Reply | None = (401, {"error": {"message": "wrong key"}})
            else:
                found = api.post(body)
            if found is None:
                self.close_connection = True
                return
            self._send(found[0], json.dumps(found[1]).encode())

        def _send(self, status: int, raw: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: object) -> None:
            pass

    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.daemon_threads = True
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    api.port = made.server_address[1]
    try:
        yield api
    finally:
        made.shutdown()
        thread.join()
        made.server_close()
