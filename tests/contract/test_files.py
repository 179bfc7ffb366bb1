"""Files: whole or not at all."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from vllm_cluster.clock import Deadline
from vllm_cluster.errors import CommandFailed
from vllm_cluster.transport.base import Transport


def soon() -> Deadline:
    return Deadline.after(20)


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755, 0o400])
def test_a_file_has_its_bytes_and_its_mode(host: Transport, tmp_path: Path, mode: int) -> None:
    file, data = tmp_path / "a file 'with' $odd\nname", os.urandom(200_000)
    host.put(data, str(file), soon(), mode=mode)
    assert file.read_bytes() == data
    assert stat.S_IMODE(file.stat().st_mode) == mode
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_an_empty_file(host: Transport, tmp_path: Path) -> None:
    host.put(b"", str(tmp_path / "empty"), soon())
    assert (tmp_path / "empty").read_bytes() == b""


def test_readers_see_the_old_or_the_new_and_nothing_between(host: Transport, tmp_path: Path) -> None:
    file, done = tmp_path / "file", threading.Event()
    contents = [bytes([65 + n]) * 300_000 for n in range(4)]
    host.put(contents[0], str(file), soon())
    seen: set[bytes] = set()

    def watch() -> None:
        while not done.is_set():
            seen.add(file.read_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    for data in contents[1:]:
        host.put(data, str(file), soon())
    done.set()
    watcher.join()
    assert seen <= set(contents)


@pytest.mark.parametrize("name", ["missing/file", "folder"])
def test_what_cannot_be_written_says_why_and_leaves_nothing(host: Transport, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(CommandFailed) as failure:
        host.put(b"x", str(tmp_path / name), soon())
    assert failure.value.host == "gpu1"
    assert failure.value.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert not list((tmp_path / "folder").iterdir())
