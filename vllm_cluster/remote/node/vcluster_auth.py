"""Demands the cluster's key on every route of vLLM, whose own key guards some of them only."""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from vllm_cluster.wire.keys import valid_keys

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Answers that reveal only that the server lives. Exactly these: a path that only looks like one is not open.
OPEN = frozenset((method, path) for method in ("GET", "HEAD") for path in ("/health", "/ping"))
KEY_FILE = "VCLUSTER_API_KEY_FILE"


class RequireKey:
    """ASGI middleware: `Authorization: Bearer KEY` or nothing. Without a key of its own it refuses every request.

    A rotation rewrites the file: a look at it, 2 µs a request, is all that a new key needs, and vLLM need not restart.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._seen: object = None
        self._content = b""

    def _keys(self) -> list[bytes]:
        """The keys that are valid now; what was read last where the file is being written at this moment."""
        try:
            path = Path(os.environ[KEY_FILE])
            found = path.stat()
            # Not the time of its content: Docker writes that of the archive, 1970 for each key, into the same inode.
            seen = (found.st_ino, found.st_ctime_ns, found.st_size)
            if seen != self._seen:
                content = path.read_bytes()
                if valid_keys(content):
                    self._content, self._seen = content, seen
        except (KeyError, OSError):
            pass
        return valid_keys(self._content)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer it."""
        if scope["type"] == "lifespan" or self._open(scope) or self._allowed(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._refuse(send)
        else:
            # A websocket that is closed before it is accepted gets 403.
            await send({"type": "websocket.close", "code": 1008})

    @staticmethod
    def _open(scope: Scope) -> bool:
        # Both forms of the path: what the router sees is decoded, and /%68ealth is not a way in.
        raw = scope.get("raw_path")
        same = raw is None or raw == scope["path"].encode()
        return scope["type"] == "http" and same and (scope["method"], scope["path"]) in OPEN

    def _allowed(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, token = given[0].partition(b" ")
        right = [hmac.compare_digest(token.strip(), key) for key in self._keys()]
        return bool(scheme.lower() == b"bearer") and any(right)

    async def _refuse(self, send: Send) -> None:
        status, code, message = (
            401,
            "invalid_api_key",
            "missing or wrong API key: send Authorization: Bearer KEY (vcluster endpoint --key prints it)",
        )
        if not self._keys():
            status, code, message = (
                503,
                "no_api_key",
                f"the server has no key: the file that {KEY_FILE} names is not there",
            )
        error = {"message": message, "type": "authentication_error", "param": None, "code": code}
        body = json.dumps({"error": error}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
