"""What a person names by its path is read to its end, or refused: nothing is waited for without end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vllm_cluster.kernel import laptop
from vllm_cluster.kernel.errors import InventoryError, UsageError
from vllm_cluster.kernel.inventory import find
from vllm_cluster.kernel.transport.ssh_config import MAX_CONFIG, config_lines
from vllm_cluster.serving.api.question import content, text_of
from vllm_cluster.serving.explain.files import sources_of

READERS: dict[str, Callable[[Path], object]] = {
    "inventory": find.read,
    "text of a prompt": lambda path: content("hi", [path]),
    "JSON schema": text_of,
    "ssh_config": lambda path: list(config_lines(path)),
    "log": lambda path: [list(one.parts) for one in sources_of([path])[0]],
}
TEXT = b"hosts: {}\n"


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(laptop, "PIPE_SECONDS", 0.5)
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@contextmanager
def written(pipe: Path, *pieces: bytes, wait: float = 0.1) -> Iterator[None]:
    """Have another program write into the pipe, before it opens it and between the pieces it waits."""

    def write() -> None:
        time.sleep(wait)
        with pipe.open("wb", buffering=0) as stream:
            for piece in pieces:
                stream.write(piece)
                time.sleep(wait)

    writer = threading.Thread(target=write)
    writer.start()
    yield
    writer.join()


# fault: kernel/laptop.py: number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC) → number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
@pytest.mark.parametrize("reader", READERS.values(), ids=list(READERS))
def test_a_pipe_without_a_writer_is_not_waited_for(pipe: Path, reader: Callable[[Path], object]) -> None:
    with pytest.raises((UsageError, InventoryError, OSError), match="nothing came through this pipe") as caught:
        reader(pipe)
    assert "pipe" in str(caught.value)


@pytest.mark.parametrize("reader", READERS.values(), ids=list(READERS))
def test_a_pipe_with_a_writer_is_read(pipe: Path, reader: Callable[[Path], object]) -> None:
    with written(pipe, TEXT[:5], TEXT[5:]):
        found = str(reader(pipe))
    assert "hosts" in found and "{}" in found


# fault: kernel/inventory/find.py: in_no_folder = not file.is_file() or → in_no_folder =
# fault: kernel/inventory/find.py: ("/dev/fd", "/dev/stdin", "/proc") → ()
# fault: kernel/inventory/find.py: ("/dev/fd", "/dev/stdin", "/proc") → ("/dev", "/proc")
def test_what_an_inventory_by_a_pipe_names_is_found_from_the_current_folder(pipe: Path) -> None:
    """It was looked for beside the pipe: /dev/fd/ssh_config."""
    with written(pipe, TEXT):
        assert find.read(pipe) == (None, TEXT)
    assert find.read(Path("/dev/null")) == (None, b"")
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        assert find.read(Path(file.name)) == (Path(file.name), b"")
        opened = Path(f"/proc/self/fd/{file.fileno()}")
        assert find.read(opened) == (None, b"")


# fault: kernel/laptop.py: raise _silent(path, "no end") from None → return b""
def test_a_writer_that_does_not_end_is_refused(pipe: Path) -> None:
    hold = os.open(pipe, os.O_RDWR)
    os.write(hold, TEXT)
    try:
        with pytest.raises(InventoryError, match=r"pipe: cannot be read: no end came through this pipe in 0 s$"):
            find.read(pipe)
    finally:
        os.close(hold)


@pytest.mark.parametrize("reader", READERS.values(), ids=list(READERS))
@pytest.mark.parametrize("kind", ["folder", "socket", "missing", "link to itself"])
def test_what_has_no_content_is_refused(tmp_path: Path, kind: str, reader: Callable[[Path], object]) -> None:
    path = tmp_path / "named"
    match kind:
        case "folder":
            path.mkdir()
        case "socket":
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(path))
        case "link to itself":
            path.symlink_to(path)
    with pytest.raises((UsageError, InventoryError, OSError), match="named"):
        reader(path)


@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero", "/dev/stdin", "/proc/self/fd/0"])
def test_a_device_is_read_within_a_bound(device: str) -> None:
    program = "import sys; from pathlib import Path; from vllm_cluster.kernel.laptop import read_given"
    program += "; print(len(read_given(Path(sys.argv[1]), 100_000)))"
    words = [sys.executable, "-c", program, device]
    done = subprocess.run(words, input=b"x" * 70_000, capture_output=True, check=True, timeout=60)
    assert int(done.stdout) == {"/dev/null": 0, "/dev/zero": 100_000}.get(device, 70_000)


def test_an_ssh_config_of_terabytes_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_bytes(b"\n" * 9)
    os.truncate(file, 10**13)
    with pytest.raises(OSError, match="config"):
        list(config_lines(file))
    os.truncate(file, MAX_CONFIG)
    assert len(list(config_lines(file))) == 1
