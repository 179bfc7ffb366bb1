"""A folder of this machine that is changed while it is hashed, and a host that lies about what it has of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_cluster.features.pull import local_folder
from vllm_cluster.features.pull.known_hashes import KnownHashes
from vllm_cluster.features.pull.local_folder import PIECE, feed, hashed, listed
from vllm_cluster.kernel.errors import HostError, UsageError
from vllm_cluster.kernel.hosts.runtime import SYSTEM
from vllm_cluster.wire.pull import ModelFile


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text("{}")
    return made


# fault: features/pull/local_folder.py: while left and (piece := stream.read(min(left, PIECE))): → while piece := stream.read(PIECE):
# fault: features/pull/local_folder.py: if left or stream.read(1): → if left:
def test_a_file_that_grows_is_not_hashed_without_end(folder: Path) -> None:
    """As one that a program writes faster than it is read."""
    path = folder / "model.safetensors"
    path.write_bytes(bytes(PIECE))

    def grow(_: int) -> None:
        assert path.stat().st_size < 8 * PIECE, "read on and on"
        os.truncate(path, path.stat().st_size + PIECE)

    with pytest.raises(UsageError, match=r"model.safetensors: changes while it is hashed"):
        hashed(folder, listed(folder, ""), grow, KnownHashes(folder.parent, folder), SYSTEM.clock)


# fault: features/pull/local_folder.py: if left or stream.read(1): → if stream.read(1):
def test_a_file_that_shrinks_is_named(folder: Path) -> None:
    files = listed(folder, "")
    (folder / "config.json").write_text("")
    with pytest.raises(UsageError, match=r"config.json: changes while it is hashed"):
        hashed(folder, files, lambda _: None, KnownHashes(folder.parent, folder), SYSTEM.clock)


# fault: features/pull/local_folder.py: stop.set() → pass
def test_ctrl_c_ends_the_hashing_of_a_file_of_terabytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads are waited for; before, they read every file that they had begun to its end."""
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(64 * PIECE)
    read: list[int] = []
    monkeypatch.setattr(local_folder, "list", _interrupted, raising=False)
    with pytest.raises(KeyboardInterrupt):
        hashed(folder, listed(folder, ""), read.append, KnownHashes(folder.parent, folder), SYSTEM.clock)
    assert sum(read) < 32 * PIECE


def _interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


# fault: features/pull/local_folder.py: os.walk(folder, onerror=_refuse) → os.walk(folder)
def test_of_a_folder_that_cannot_be_read_no_part_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "sub").mkdir()
    look = os.scandir

    def scan(path: str) -> Any:
        if os.fspath(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return look(path)

    monkeypatch.setattr(os, "scandir", scan)
    with pytest.raises(UsageError, match="sub: Permission denied"):
        listed(folder, "")


# fault: features/pull/local_folder.py: if len(files) > MAX_FILES: → if not files:
def test_a_folder_of_too_many_files_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a person's own home, with a config.json in it."""
    monkeypatch.setattr(local_folder, "MAX_FILES", 3)
    for name in "abc":
        (folder / name).touch()
    with pytest.raises(UsageError, match="has more than 3 files"):
        listed(folder, "")
    (folder / "c").unlink()
    assert len(listed(folder, "")) == 3


class _Host:
    """A host whose program prints these rows in answer to anything."""

    def __init__(self, rows: Sequence[object]) -> None:
        self.output = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        self.sent = bytearray()
        self.transport = self
        self.name, self.runtime = "gpu1", SYSTEM

    def open_changing(self, *_: object) -> Any:
        return SimpleNamespace(
            settimeout=lambda _: None,
            sendall=self.sent.extend,
            recv=self._give,
            exit_code=lambda: 0,
            stderr_tail=lambda: "",
            close=lambda: None,
        )

    def _give(self, size: int) -> bytes:
        given, self.output = self.output[:size], self.output[size:]
        return given


def send(host: _Host, folder: Path) -> None:
    files = [
        replace(file, blob=hashlib.sha256((folder / file.path).read_bytes()).hexdigest()) for file in listed(folder, "")
    ]
    feed(host, "lab", files, folder)  # type: ignore[arg-type]


# fault: features/pull/local_folder.py: if have > file.size) → if have > 1e18)
@pytest.mark.parametrize("have", [3, 4, 10**12])
def test_a_host_that_has_more_than_there_is_gets_nothing(folder: Path, have: int) -> None:
    """A negative rest was an internal error; or this machine's file was called shorter than it was."""
    host = _Host([{"have": [have], "whole": [False]}, {"done": 0}])
    with pytest.raises(HostError, match=r"gpu1: pull: has more of config.json than its 2 bytes"):
        send(host, folder)
    assert not host.sent


# fault: features/pull/local_folder.py: changes=True, max_line=MAX_ANSWER) → changes=True)
def test_the_answer_of_a_host_may_name_as_many_files_as_a_folder_may_have(folder: Path) -> None:
    files = [ModelFile("config.json", 10**13, "")] * local_folder.MAX_FILES
    host = _Host([{"have": [10**13] * len(files), "whole": [False] * len(files)}])
    host.output = host.output.replace(b"false]", b"0]")
    with pytest.raises(HostError, match=r"whole.9999 must be"):
        feed(host, "lab", files, folder)  # type: ignore[arg-type]
