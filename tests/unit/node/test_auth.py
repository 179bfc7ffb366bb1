"""Who gets past the middleware: no client without the key, on no route but two, and none at all without a key file."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_cluster.serving.node.key_check import KEY_FILE
from vllm_cluster.serving.node.vcluster_auth import RequireKey

KEY = "sk-0123456789abcdef"
RIGHT = [(b"authorization", f"Bearer {KEY}".encode())]
Message = MutableMapping[str, Any]


@pytest.fixture
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    monkeypatch.setenv(KEY_FILE, str(path))
    return path


def ask(
    path: str = "/v1/models",
    method: str = "GET",
    headers: list[tuple[bytes, bytes]] | None = None,
    raw: bytes | None = None,
    kind: str = "http",
) -> list[Message]:
    """What comes back, from the application behind or from the middleware."""
    sent: list[Message] = []

    async def application(_scope: Message, _receive: object, send: Any) -> None:
        await send({"type": "inside"})

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("nothing is read before the key is known")

    scope: dict[str, object] = {"type": kind, "method": method, "path": path, "raw_path": raw or path.encode()}
    scope["headers"] = headers or []
    asyncio.run(RequireKey(application)(scope, receive, send))
    return sent


def inside(sent: list[Message]) -> bool:
    return sent == [{"type": "inside"}]


@pytest.mark.parametrize("path", ["/v1/models", "/invocations", "/metrics", "/docs", "/", "/health"])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.usefixtures("key_file")
def test_the_key_opens_every_route(path: str, method: str) -> None:
    assert inside(ask(path, method, RIGHT))


@pytest.mark.parametrize(("method", "path"), [(m, p) for m in ("GET", "HEAD") for p in ("/health", "/ping")])
@pytest.mark.usefixtures("key_file")
def test_two_routes_are_open(method: str, path: str) -> None:
    assert inside(ask(path, method))


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models",
        "/invocations",
        "/metrics",
        "/health/",
        "//health",
        "/HEALTH",
        "/health/../v1/models",
        "",
        "/ping/x",
    ],
)
@pytest.mark.usefixtures("key_file")
def test_nothing_else_is(path: str) -> None:
    start, body = ask(path)
    assert start["status"] == 401
    assert (b"www-authenticate", b"Bearer") in start["headers"]
    assert json.loads(body["body"])["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(("method", "path"), [("POST", "/health"), ("OPTIONS", "/v1/models"), ("DELETE", "/ping")])
@pytest.mark.usefixtures("key_file")
def test_other_methods_are_not(method: str, path: str) -> None:
    assert ask(path, method)[0]["status"] == 401


# fault: serving/node/vcluster_auth.py: same = raw is None or raw == str(scope["path"]).encode() → same = True
@pytest.mark.usefixtures("key_file")
def test_an_encoded_path_is_not_the_open_one() -> None:
    assert ask("/health", raw=b"/%68ealth")[0]["status"] == 401


# fault: serving/node/key_check.py: KEY (vcluster endpoint --key prints it) → KEY
@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", KEY.encode())],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", f"Basic {KEY}".encode())],
        [(b"authorization", f"Bearer {KEY}x".encode())],
        [(b"authorization", f"Bearer {KEY[:-1]}".encode())],
        [*RIGHT, (b"authorization", b"Bearer other")],
        [(b"x-api-key", KEY.encode())],
    ],
)
@pytest.mark.usefixtures("key_file")
def test_what_is_not_the_key_is_refused(headers: list[tuple[bytes, bytes]]) -> None:
    start, body = ask(headers=headers)
    assert start["status"] == 401
    assert b"(vcluster endpoint --key prints it)" in body["body"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(value=st.binary(max_size=64), path=st.text(max_size=20), method=st.sampled_from(["GET", "POST", "HEAD"]))
@pytest.mark.usefixtures("key_file")
def test_no_other_header_and_no_other_path_gets_in(value: bytes, path: str, method: str) -> None:
    if value.partition(b" ")[2].strip() != KEY.encode() and path not in ("/health", "/ping"):
        assert ask(path, method, [(b"authorization", value)])[0]["status"] == 401


@pytest.mark.usefixtures("key_file")
def test_a_websocket_needs_the_key_too() -> None:
    assert ask(kind="websocket") == [{"type": "websocket.close", "code": 1008}]
    assert ask("/health", kind="websocket") == [{"type": "websocket.close", "code": 1008}]
    assert inside(ask(kind="websocket", headers=RIGHT))


@pytest.mark.usefixtures("key_file")
def test_the_server_itself_starts_and_ends() -> None:
    assert inside(ask(kind="lifespan"))


# fault: serving/node/key_check.py: return valid_keys(self._content) → return valid_keys(self._content) or [b""]
@pytest.mark.parametrize("content", [None, "", "\n"])
def test_without_a_key_of_its_own_every_request_is_refused(key_file: Path, content: str | None) -> None:
    if content is None:
        key_file.unlink()
    else:
        key_file.write_text(content)
    for headers in (RIGHT, [(b"authorization", b"Bearer ")], []):
        start, body = ask(headers=headers)
        assert start["status"] == 503
        assert json.loads(body["body"])["error"]["code"] == "no_api_key"
    assert inside(ask("/health"))


def test_a_second_new_key_is_read_though_its_file_looks_alike(key_file: Path) -> None:
    """Docker writes the file of an archive in place, with the time that the archive names: the same for each key."""

    async def inside_(_scope: Message, _receive: object, send: Any) -> None:
        await send({"type": "inside"})

    async def status(app: RequireKey, key: str) -> int:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        headers = [(b"authorization", f"Bearer {key}".encode())]
        scope: dict[str, object] = {
            "type": "http",
            "method": "GET",
            "path": "/v1/models",
            "raw_path": b"/v1/models",
            "headers": headers,
        }
        await app(scope, cast(Any, None), send)
        return int(sent[0].get("status", 200))

    app = RequireKey(inside_)
    made = ["sk-first-key-000000", "sk-second-key-00000", "sk-third-key-000000"]
    assert len({len(key) for key in made}) == 1
    for number, key in enumerate(made):
        key_file.write_text(key)
        os.utime(key_file, (0, 0))
        assert [asyncio.run(status(app, one)) for one in made] == [200 if at == number else 401 for at in range(3)]
