"""The folder of ssh's socket: gone with its process, however that ends, and never before."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_cluster.errors import UsageError
from vllm_cluster.transport import ssh_folder

HOLD = "from vllm_cluster.transport.ssh_folder import SshFolder\nprint(SshFolder().path, flush=True)\ninput()"


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files with a short name."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        ssh_folder.remove_leftovers.cache_clear()
        yield Path(folder)


def holder() -> tuple[subprocess.Popen[str], Path]:
    """Another process that uses a folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


# fault: transport/ssh_folder.py: shutil.rmtree(folder, ignore_errors=True) → folder.stat()
def test_what_a_killed_process_left_is_removed_and_what_a_living_one_uses_stays(place: Path) -> None:
    (dead, left), (alive, used) = holder(), holder()
    (left / "m").touch()
    (place / "vc-others").mkdir()
    try:
        assert {left.parent, used.parent} == {place}
        dead.send_signal(signal.SIGKILL)
        dead.wait(10)
        own = ssh_folder.SshFolder()
        assert not left.exists()
        assert used.exists() and own.path.stat().st_mode & 0o777 == 0o700
        assert (place / "vc-others").exists(), "a folder without our lock is somebody else's"
        own.remove()
        own.remove()
        assert not own.path.exists()
    finally:
        for process in (dead, alive):
            process.kill()
            process.communicate()


def test_a_long_name_is_refused_before_ssh_refuses_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_folder, "_parents", lambda: [place / ("x" * 80)])
    (place / ("x" * 80)).mkdir()
    with pytest.raises(UsageError, match="short enough name"):
        ssh_folder.SshFolder()
    assert not list((place / ("x" * 80)).iterdir())
