"""Demands the cluster's key on every route of vLLM, whose own key guards some of them only."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, MutableMapping

from vllm_cluster.serving.node.key_check import KEY_FILE, OPEN, KeyReader, Refusal, has_key, refusal

Scope = MutableMapping[str, object]
Receive = Callable[[], Awaitable[MutableMapping[str, object]]]
Send = Callable[[MutableMapping[str, object]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class RequireKey:
    """ASGI middleware: `Authorization: Bearer KEY` or nothing. Without a key of its own it refuses every request."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._reader = KeyReader(os.environ.get(KEY_FILE, ""))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer it."""
        if scope["type"] == "lifespan" or self._open(scope):
            await self._app(scope, receive, send)
            return
        headers = scope["headers"]
        rows = headers if isinstance(headers, Iterable) else ()
        given = [value for name, value in rows if name.lower() == b"authorization"]
        keys = self._reader.keys()
        if has_key(given, keys):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._refuse(send, refusal(keys))
        else:
            # A websocket that is closed before it is accepted gets 403.
            await send({"type": "websocket.close", "code": 1008})

    @staticmethod
    def _open(scope: Scope) -> bool:
        # Both forms of the path: what the router sees is decoded, and /%68ealth is not a way in.
        raw = scope.get("raw_path")
        same = raw is None or raw == str(scope["path"]).encode()
        return scope["type"] == "http" and same and (scope["method"], scope["path"]) in OPEN

    @staticmethod
    async def _refuse(send: Send, refused: Refusal) -> None:
        body = refused.body()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if refused.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await send({"type": "http.response.start", "status": refused.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
