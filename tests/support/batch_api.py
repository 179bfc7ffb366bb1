"""An OpenAI-compatible API that is made up."""

from __future__ import annotations

import http.server
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

KEY = "k"
# Another answer than an object is sent as it is, or piece by piece as it comes.
Reply = tuple[int, dict[str, Any] | bytes | Iterator[bytes]]


@dataclass
class Api:
    """Answers each prompt by `reply`, which gets how often it was asked; None breaks the connection."""

    reply: Callable[[str, int], Reply | None]
    asked: Counter[str] = field(default_factory=Counter)
    open: int = 0
    most: int = 0
    port: int = 0
    metrics: str = ""
    model: str = "m"
    # Of what comes piece by piece.
    length: int = 1 << 20
    keys: tuple[str, ...] = (KEY,)
    # Of each of its replies.
    headers: dict[str, str] = field(default_factory=dict)
    # How often it was asked for its models, and what happens then.
    looked: int = 0
    when_looked: Callable[[], object] = lambda: None
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
            api.looked += 1
            known = self.headers["Authorization"] in {f"Bearer {key}" for key in api.keys}
            self._send(200 if known else 401, json.dumps({"data": [{"id": api.model}]} if known else {}).encode())
            api.when_looked()

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.headers["Authorization"] != f"Bearer {KEY}":
                found: Reply | None = (401, {"error": {"message": "wrong key"}})
            else:
                found = api.post(body)
            if found is None:
                self.close_connection = True
                return
            status, sent = found
            self._send(status, json.dumps(sent).encode() if isinstance(sent, dict) else sent)

        def _send(self, status: int, sent: bytes | Iterator[bytes]) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(sent) if isinstance(sent, bytes) else api.length))
            for name, value in api.headers.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(ConnectionError):  # whoever has read enough closes
                for piece in [sent] if isinstance(sent, bytes) else sent:
                    self.wfile.write(piece)

        def log_message(self, *_: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        request_queue_size = 1024

    made = Server(("127.0.0.1", 0), Handler)
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
