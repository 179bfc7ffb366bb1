"""An OpenAI-compatible server that is made up, as a process of its own: it streams tokens at a pace.

`python -m tests.support.openai_server --port 0 --name m --pace 50`; prints its port. What a request's body has beside
OpenAI's fields makes it misbehave: `hang`, `reset`, `abort_after`, `whole`; `burst` tokens come at once.
`GET /seen` answers what it has seen.
`GET /die` ends its engine, as vLLM's ends with a rank: the API stays, answers each request by 500, and is unhealthy.
After `GET /late` it answers no question for its health.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Any, cast

import httptools
import uvloop

TOKEN = b'{"id":"c","object":"text_completion","choices":[{"index":0,"text":" token","finish_reason":null}]}'
EVENT = b"data: " + TOKEN + b"\n\n"
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
DONE = b"data: [DONE]\n\n"
LAST = b"%x\r\n%b\r\n0\r\n\r\n" % (len(DONE), DONE)
STREAM = (
    b"HTTP/1.1 200 OK\r\nserver: made-up\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


class State:
    """What the server has seen, and the streams that wait for a step."""

    def __init__(self, names: list[str], key: str) -> None:
        self.names, self.key = names, key
        self.streams: dict[Connection, int] = {}
        self.got = self.requests = self.cancelled = self.connections = self.open = 0
        self.last: dict[str, Any] = {}
        self.dead = self.late = False

    def seen(self) -> dict[str, Any]:
        """What the server has seen so far."""
        return {
            "got": self.got,
            "requests": self.requests,
            "cancelled": self.cancelled,
            "connections": self.connections,
            "open": self.open,
            "streams": len(self.streams),
            "last": self.last,
        }

    async def step(self, pace: float) -> None:
        """Give each stream a token, as an engine does: all of them at each step."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due += 1 / pace
            await asyncio.sleep(max(due - loop.time(), 0))
            for stream, left in list(self.streams.items()):
                stream.give(left)


class Connection(asyncio.Protocol):
    """One connection; what it answers is decided by path and body."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._url, self._headers, self._body = b"", list[tuple[str, str]](), bytearray()
        self._abort_after = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is of no class that asyncio has
        self._state.connections += 1
        self._state.open += 1

    def connection_lost(self, error: Exception | None) -> None:
        self._state.open -= 1
        self._transport = None
        if self._state.streams.pop(self, None) is not None:
            self._state.cancelled += 1

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._url, self._headers, self._body = b"", [], bytearray()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode().lower(), value.decode("latin-1")))

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode()
        if self._url == b"/seen":
            self._answer(200, self._state.seen())
            return
        if self._url in (b"/health", b"/die"):
            self._state.dead = self._state.dead or self._url == b"/die"
            if not self._state.late:
                self._answer(503 if self._state.dead else 200, {})
            return
        if self._url == b"/late":
            self._state.late = True
            self._answer(200, {})
            return
        self._state.got += 1
        self._state.last = {
            "method": method,
            "target": self._url.decode(),
            "headers": self._headers,
            "length": len(self._body),
        }
        if f"Bearer {self._state.key}" not in [value for name, value in self._headers if name == "authorization"]:
            self._answer(401, {"error": {"message": "wrong key"}})
        elif self._url == b"/v1/models":
            rows = [{"id": name, "object": "model", "owned_by": "vllm"} for name in self._state.names]
            self._answer(200, {"object": "list", "data": rows})
        elif method == "POST":
            self._state.requests += 1
            self._generate()
        else:
            self._answer(200, {"path": self._url.decode(), "name": self._state.names[0]}, head=method == "HEAD")

    def _generate(self) -> None:
        try:
            asked = json.loads(self._body)
        except ValueError:
            asked = {}
        if self._state.dead:
            self._answer(500, {"error": {"message": "EngineCore encountered an issue."}})
        elif asked.get("hang"):
            # vLLM sends the head of a stream before its first token.
            self._write(STREAM if asked.get("stream") else b"")
            self._state.streams[self] = 1 << 60
        elif asked.get("status"):
            self._answer(int(asked["status"]), {})
        elif asked.get("reset"):
            self._end()
        elif asked.get("stream"):
            self._abort_after = int(asked.get("abort_after", -1))
            self._write(STREAM + CHUNK * int(asked.get("burst", 1)))
            self._state.streams[self] = int(asked.get("max_tokens", 16)) - 1
        else:
            text = "x" * int(asked.get("whole", 1))
            self._answer(200, {"name": self._state.names[0], "choices": [{"text": text}]})

    def give(self, left: int) -> None:
        """Send the next token of a stream."""
        if left > 1 << 50:
            return
        if self._abort_after == 0:
            self._state.streams.pop(self, None)
            self._end()
        elif left > 0:
            self._abort_after -= 1
            self._write(CHUNK)
            self._state.streams[self] = left - 1
        else:
            self._state.streams.pop(self, None)
            self._write(LAST)

    def _answer(self, status: int, content: dict[str, Any], *, head: bool = False) -> None:
        body = json.dumps(content).encode()
        lines = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self._write(lines.encode() + (b"" if head else body))

    def _write(self, data: bytes) -> None:
        if self._transport:
            self._transport.write(data)

    def _end(self) -> None:
        if self._transport:
            self._transport.abort()


async def serve(host: str, port: int, state: State, pace: float) -> None:
    """Serve without end."""
    server = await asyncio.get_running_loop().create_server(lambda: Connection(state), host, port, backlog=4096)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await state.step(pace)


def main() -> None:
    """Read the command line, and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--name", action="append", required=True)
    parser.add_argument("--key", default="replica-key")
    parser.add_argument("--pace", type=float, default=50.0)
    given = parser.parse_args()
    loop = uvloop.new_event_loop()
    loop.run_until_complete(serve(given.host, given.port, State(given.name, given.key), given.pace))


if __name__ == "__main__":
    main()
