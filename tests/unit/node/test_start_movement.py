"""What counts as movement of a start, and what does not."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from vllm_cluster.serving.node import start_movement
from vllm_cluster.serving.node.start_movement import Movement, download_folder
from vllm_cluster.serving.node.timing import Timing

PACE = Timing(still=100.0, busy=400.0, unseen=1000.0, movement=5.0)


class Clock:
    """time.monotonic, turned by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(start_movement, "time", made)
    return made


# fault: serving/node/start_movement.py: wording = _NUMBERS.sub("#", text)[:300] → wording = text[:300]
def test_a_line_moves_once_however_its_numbers_change(clock: Clock) -> None:
    moving = Movement(list, None, PACE)
    for minute in range(10):
        clock.now += 20
        moving.line(
            f"INFO 11-21 10:{minute:02} [shm_broadcast.py:{minute}] No available block found in {minute} seconds"
        )
    assert moving.stalled() == (
        "nothing has moved for 100 s: no new line in the log, no shard, nothing downloaded or read, no CPU time used"
    )
    moving.line("INFO Loading weights took 61.2 seconds")
    assert moving.stalled() is None


def test_a_download_that_grows_has_no_deadline(clock: Clock, tmp_path: Path) -> None:
    folder = tmp_path / "models--org--model"
    (folder / "blobs").mkdir(parents=True)
    part = folder / "blobs" / "abc.incomplete"
    moving = Movement(list, folder, PACE)
    for _ in range(20):
        clock.now += 90
        with part.open("ab") as file:
            file.write(os.urandom(3 << 20))
        assert (moving.look() or "").endswith(" MB/s")
        assert moving.stalled() is None
    clock.now += 101
    assert moving.look() is None
    assert "nothing downloaded" in (moving.stalled() or "")


@pytest.mark.promise("P37")
def test_another_host_may_download_for_longer(clock: Clock) -> None:
    """The head has the model already, and sees nothing of what its workers do."""
    moving = Movement(list, None, PACE)
    clock.now += 800
    assert moving.stalled()
    assert moving.stalled(unseen=True) is None
    clock.now += 201
    assert "nothing has moved" in (moving.stalled(unseen=True) or "")


@pytest.mark.promise("P37")
def test_cpu_time_alone_counts_for_a_while(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler is silent and busy; so is a collective that hangs, and spins without end."""
    monkeypatch.setattr(start_movement, "cpu_seconds", lambda _: clock.now)
    monkeypatch.setattr(start_movement, "read_bytes", lambda _: 0)
    moving, began = Movement(list, None, PACE), clock.now
    while moving.stalled() is None:
        clock.now += 10
        moving.look()
        assert clock.now - began < 1000
    assert clock.now - began == 410
    assert (moving.stalled() or "").startswith("only CPU time was used for 7 min: no new line")


def test_the_processes_are_measured() -> None:
    began = start_movement.cpu_seconds([os.getpid()])
    end = time.monotonic() + 60
    while start_movement.cpu_seconds([os.getpid()]) - began < 0.05:
        assert time.monotonic() < end
    assert start_movement.read_bytes([os.getpid(), 2**22 + 1]) >= 0
    assert start_movement.cpu_seconds([2**22 + 1]) == 0


@pytest.mark.parametrize(
    ("model", "argv", "environment", "folder"),
    [
        ("org/model", [], {"HF_HOME": "/models"}, "/models/hub/models--org--model"),
        ("org/model", ["--download-dir=/d"], {"HF_HOME": "/models"}, "/d/models--org--model"),
        ("org/model", [], {"HOME": "/home/vllm"}, "/home/vllm/.cache/huggingface/hub/models--org--model"),
        ("/models/llama", [], {}, None),
        ("./a/b", [], {}, None),
    ],
)
def test_where_a_model_is_downloaded_to(
    model: str, argv: list[str], environment: dict[str, str], folder: str | None
) -> None:
    assert download_folder(model, argv, environment) == (Path(folder) if folder else None)
