"""A Docker engine that holds one cluster's node, in as much of the Engine API as looking, checking and down ask."""

from __future__ import annotations

import functools
import io
import json
import posixpath
import re
import struct
import tarfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote

STARTED = "2026-01-01T00:00:00.000000000Z"
# What a terminal would do: the clipboard, the title, the screen, colours in 7 and 8 bits, the bell, the direction
# of writing; rich's markup; half a character.
HOSTILE = "\x1b]52;c;Q0FOQVJZ\x07\x1b]0;title\x1b\\\x1b[2J\x1b[?1049h\x9b31m\x1bc\x07\u202e[blink]canary[/blink][/] "
FLOOD_BYTES = 100 << 20
# What the program in a container of `check` prints that finds all well.
WELL = {
    "python": "3.12.3",
    "machine": "x86_64",
    "glibc": "2.39",
    "have": {"vllm": "0.33.0", "ray": "2.56.1"},
    "gpus": 2,
}
_VERSION = re.compile(r"^/v[0-9.]+")


class Reader(Protocol):
    """The side of a stream that requests come from."""

    async def readline(self) -> bytes: ...
    async def readexactly(self, size: int) -> bytes: ...


@dataclass
class Engine:
    """One host's Docker: containers and volumes by name (labels), images, and the files of the state volume by name."""

    containers: dict[str, Mapping[str, str]] = field(default_factory=dict)
    images: list[dict[str, Any]] = field(default_factory=list)
    volumes: dict[str, Mapping[str, str]] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    flood: str = ""

    async def serve(self, reader: Reader) -> AsyncIterator[bytes]:
        """Answers to the requests of one connection, in order, until it ends."""
        while request := (await reader.readline()).decode().split():
            size = 0
            while line := (await reader.readline()).strip():
                name, _, value = line.decode().partition(":")
                size = int(value) if name.lower() == "content-length" else size
            if size:
                await reader.readexactly(size)
            path, _, query = request[1].partition("?")
            yield self.answer(request[0], unquote(_VERSION.sub("", path)), dict(parse_qsl(query)))

    def answer(self, method: str, path: str, query: Mapping[str, str]) -> bytes:
        """One response."""
        listed = {
            "/containers/json": [self._row(name) for name in self.containers],
            "/images/json": self.images,
            "/volumes": {"Volumes": [{"Name": name, "Labels": labels} for name, labels in self.volumes.items()]},
        }
        if method == "GET" and path in listed and self.flood != "error":
            return _json(200, listed[path])
        if self.flood == "error":
            return _response(500, _flooding_error(), "Content-Type: application/json\r\n")
        if (method, path) == ("POST", "/containers/create"):
            self.containers[query["name"]] = {}
            return _json(201, {"Id": _id(query["name"])})
        kind, name, *rest = path.strip("/").split("/")
        name = next((own for own in self.containers if name in (own, _id(own))), name)
        if kind == "containers" and name in self.containers:
            return self._on_container(method, name, rest, query)
        if (method, kind) == ("DELETE", "volumes") and name in self.volumes:
            del self.volumes[name]
            return _json(204)
        return _json(404, {"message": f"no such {kind[:-1]}, in answer to {method} {path}"})

    def _on_container(self, method: str, name: str, rest: list[str], query: Mapping[str, str]) -> bytes:
        if method == "DELETE":
            del self.containers[name]
            return _json(204)
        if rest == ["json"]:
            state = "exited" if self.flood == "log" else "running"
            state_of = {"Status": state, "StartedAt": STARTED, "ExitCode": 0}
            return _json(200, {"Id": _id(name), "State": state_of, "Config": {"Tty": False}})
        if rest == ["archive"]:
            name = posixpath.basename(query["path"])
            if name not in self.files:
                return _json(404, {"message": f"no {name}"})
            content = flood() if (self.flood, name) == ("status", "status.json") else self.files[name]
            return _response(200, _tar(name, content), "X-Docker-Container-Path-Stat: e30=\r\n")
        if rest == ["logs"]:
            line = flood()
            return _response(200, struct.pack(">BxxxI", 1, len(line)) + line, "")
        return _json(204 if rest in (["start"], ["stop"]) else 404)

    def _row(self, name: str) -> dict[str, Any]:
        return {
            "Id": _id(name),
            "Names": [f"/{name}"],
            "State": "running",
            "ImageID": "sha256:1",
            "Labels": self.containers[name],
        }


@functools.cache
def flood() -> bytes:
    """One line of 100 MB that would take over a terminal."""
    return HOSTILE.encode() * (FLOOD_BYTES // len(HOSTILE.encode()))


@functools.cache
def _flooding_error() -> bytes:
    return b'{"message":"%s"}' % (json.dumps(HOSTILE)[1:-1].encode() * (FLOOD_BYTES // len(HOSTILE.encode())))


def _id(name: str) -> str:
    return name.encode().hex().ljust(64, "0")


def _json(code: int, content: object = None) -> bytes:
    return _response(
        code, b"" if content is None else json.dumps(content).encode(), "Content-Type: application/json\r\n"
    )


def _response(code: int, body: bytes, headers: str) -> bytes:
    return f"HTTP/1.1 {code} X\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _tar(name: str, content: bytes) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()
