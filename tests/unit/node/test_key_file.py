"""The file of the API key: what the laptop writes is what the head reads, also while it is being written."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_cluster.serving.node.key_check import KEY_FILE
from vllm_cluster.serving.node.vcluster_auth import RequireKey
from vllm_cluster.wire.keys import MAX_KEYS, KeyFile, valid_keys

KEYS = st.text("0123456789abcdef", min_size=1, max_size=64)


def identify(key: str) -> str:
    """An id that a key alone has."""
    return f"id{key}"


@given(first=KEYS, older=st.dictionaries(KEYS, st.integers(0, 2_000_000_000), max_size=3))
def test_both_sides_read_what_a_rotation_writes(first: str, older: dict[str, int]) -> None:
    written = KeyFile(first, identify(first), {key: float(until) for key, until in older.items()})
    assert KeyFile.read(written.text()) == written
    valid = [key for key, until in older.items() if until > 1_000_000_000]
    assert valid_keys(written.text().encode(), 1_000_000_000) == [key.encode() for key in (first, *valid)]
    assert KeyFile.read(written.text()).is_whole("any name", identify)


# fault: wire/keys.py: return identify(self.key) == (identity if self.identity is None else self.identity) → return self.identity is None or identify(self.key) == self.identity
@given(first=KEYS, cut=st.integers(0, 100))
def test_a_key_that_was_cut_off_is_refused(first: str, cut: int) -> None:
    """But for the lines of older keys, which are lost with it."""
    text = KeyFile(first, identify(first), {}).text()
    part = text[: min(cut, len(text) - 1)]
    assert not KeyFile.read(part).is_whole(identify(first), identify)
    assert first.encode() not in valid_keys(part.encode())


@pytest.mark.parametrize("key", ["sk-0123", "a key with spaces", "two words"])
def test_a_key_that_a_person_thought_up_is_the_whole_file(key: str) -> None:
    assert KeyFile.read(key) == KeyFile(key)
    assert valid_keys(f"{key}\n".encode()) == [key.encode()]
    assert KeyFile.read(key).is_whole(identify(key), identify)


class Server:
    """The middleware as vLLM makes it: once."""

    def __init__(self) -> None:
        self._middleware = RequireKey(self._application)
        self._sent: list[MutableMapping[str, Any]] = []

    async def _application(self, _scope: object, _receive: object, send: Any) -> None:
        await send({"type": "inside"})

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        self._sent.append(message)

    async def _receive(self) -> MutableMapping[str, Any]:
        raise AssertionError("nothing is read before the key is known")

    def opens(self, key: str) -> bool:
        """Whether a request with this key gets in."""
        self._sent.clear()
        headers = [(b"authorization", f"Bearer {key}".encode())]
        scope: dict[str, object] = {
            "type": "http",
            "method": "GET",
            "path": "/v1/models",
            "raw_path": b"/v1/models",
            "headers": headers,
        }
        asyncio.run(self._middleware(scope, self._receive, self._send))
        return self._sent == [{"type": "inside"}]


def with_old_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Server]:
    """A server, and the file of its key, which is `old`."""
    path = folder / "key"
    path.write_text("old")
    monkeypatch.setenv(KEY_FILE, str(path))
    server = Server()
    assert server.opens("old")
    return path, server


def test_a_rotation_needs_no_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, server = with_old_key(tmp_path, monkeypatch)
    assert not server.opens("new")
    path.write_text(KeyFile("new", "id", {}).text())
    assert (server.opens("old"), server.opens("new")) == (False, True)
    path.write_text(KeyFile("newer", "id", {"new": 4e9, "old": 1e9}).text())
    assert [server.opens(key) for key in ("old", "new", "newer")] == [False, True, True]
    # Docker removes a file before it writes it: what was read last holds.
    path.unlink()
    assert (server.opens("newer"), server.opens("old")) == (True, False)
    path.write_text("#vcluster-keys\nne")
    assert (server.opens("newer"), server.opens("ne")) == (True, False)


# fault: wire/keys.py: return beginning(path, MAX_KEYS + 1) → return path.read_bytes()
def test_a_named_pipe_in_the_keys_place_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, server = with_old_key(tmp_path, monkeypatch)
    path.unlink()
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    os.write(writer, b"new")
    opened: list[tuple[bool, bool]] = []
    asked = threading.Thread(target=lambda: opened.append((server.opens("old"), server.opens("new"))), daemon=True)
    asked.start()
    asked.join(10)
    # Where it waits, this ends it.
    os.close(writer)
    assert opened == [(True, False)]
    path.unlink()
    path.write_text("new")
    assert (server.opens("old"), server.opens("new")) == (False, True)


# fault: wire/keys.py: if len(content) > MAX_KEYS: → if len(content) > MAX_KEYS and not content:
def test_a_file_that_is_too_long_has_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no more than its beginning is read: one of 64 MB took 225 MB."""
    path, server = with_old_key(tmp_path, monkeypatch)
    with path.open("wb") as file:
        file.truncate(20_000_000_000)
    assert (server.opens("old"), server.opens("\0" * MAX_KEYS)) == (True, False)
    path.write_text("k" * (MAX_KEYS + 1))
    assert (server.opens("old"), server.opens("k" * (MAX_KEYS + 1))) == (True, False)
