"""The program of each host, as it runs in the containers: real processes on addresses of loopback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.models.repositories import PullHub, pull_hub
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.pulls import MODEL, Part, contents, model_files, plan_of, repository
from tests.support.spread import folder_plan
from tests.support.waiting import until
from vllm_cluster.kernel.spread import main
from vllm_cluster.kernel.spread.store import Store
from vllm_cluster.wire.pull import HostPlan, ModelFile

FILES = model_files(8 << 20)
SIZE = sum(map(len, FILES.values()))
NAMES = ("a", "b", "c")


@contextmanager
def parts(hub: PullHub, folder: Path, token: str = "") -> Iterator[dict[str, Part]]:
    """Three hosts that bring the model; the first one downloads."""
    port = free_port()
    hosts = [(name, f"127.0.0.{number}", port) for number, name in enumerate(NAMES, 11)]
    with ExitStack() as ends:
        made = {}
        for name in NAMES:
            plan = plan_of(hub, folder / name / "cache", name, hosts)
            made[name] = Part(folder / name / "own", plan, token if name == "a" else "")
            ends.callback(made[name].end)
        yield made


def finished(there: dict[str, Part]) -> bool:
    """Whether all have all."""
    return all(part.status().get("phase") in ("serving", "done") for part in there.values())


def on_disk(plan: HostPlan) -> dict[str, int]:
    """The bytes of each file that a download has written so far."""
    store = Store(plan)
    return {file.path: max(0, store.have(file)) for file in plan.files}


@pytest.fixture
def hub() -> Iterator[PullHub]:
    with pull_hub("127.0.0.1", repositories={MODEL: repository(FILES)}) as made:
        yield made


@pytest.mark.slow
def test_one_downloads_and_all_have_it(hub: PullHub, tmp_path: Path) -> None:
    hub.repositories[MODEL].gated = True
    with parts(hub, tmp_path, "hf_right") as there:
        until(lambda: finished(there), 60)
        for part in there.values():
            assert part.process.wait(60) == 0
            assert contents(part.plan) == FILES
            # The key and the token are gone, and how it ended is there.
            assert [path.name for path in part.folder.iterdir()] == ["vcluster-status.json"]
        assert len({part.status()["digest"] for part in there.values()}) == 1
    assert hub.sent == SIZE


@pytest.mark.slow
@pytest.mark.parametrize("victim", NAMES)
def test_a_killed_part_takes_up_what_it_had(hub: PullHub, tmp_path: Path, victim: str) -> None:
    hub.rate = 6e6
    with parts(hub, tmp_path) as there:
        until(lambda: there[victim].status().get("bytes", 0) > 4 << 20, 60)
        there[victim].process.send_signal(signal.SIGKILL)
        there[victim].process.wait(10)
        before, kept = len(hub.begins), on_disk(there["a"].plan)
        there[victim].start()
        until(lambda: finished(there), 120)
        assert all(contents(part.plan) == FILES for part in there.values())
    if victim == "a":
        # It asks for nothing that lies on its disk.
        assert sum(kept.values()) > 2 << 20
        assert all(begin >= kept.get(name, 0) for name, begin in hub.begins[before:])
    else:
        assert hub.sent == SIZE


@pytest.mark.slow
def test_a_source_that_is_refused_has_the_reason_in_its_status(hub: PullHub, tmp_path: Path) -> None:
    hub.repositories[MODEL].gated = True
    with parts(hub, tmp_path) as there:
        assert there["a"].process.wait(60) == 0
        status = there["a"].status()
        assert (status["phase"], status["source"]) == ("failed", True)
        assert "the hub answers 401" in status["error"]
        with pytest.raises(subprocess.TimeoutExpired):
            there["b"].process.wait(0.1)


def test_a_program_that_comes_back_after_its_end_ends_again(tmp_path: Path) -> None:
    """Docker starts it again where Docker was killed meanwhile; its plan went with its end."""
    argv = [sys.executable, "-m", "vllm_cluster.kernel.spread.main"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "VCLUSTER_PULL": str(tmp_path)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# fault: kernel/spread/main.py: + self.plan.total / HASHED_BYTES_PER_SECOND →
def test_a_receiver_waits_as_long_as_its_source_may_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that verifies what it has sends no byte meanwhile: 200 MB take two seconds."""
    left = list[float]()
    for name, value in {"FOLDER": tmp_path, "BEAT_SECONDS": 0.02, "IDLE_SECONDS": 0.1}.items():
        monkeypatch.setattr(main, name, value)

    def leave() -> None:
        left.append(time.monotonic())
        pull._over.set()

    pull = main.Pull(folder_plan(tmp_path / "cache", [ModelFile("weights", 200_000_000, "0" * 64)]), leave)
    pull.phase, began = "receiving", time.monotonic()
    beat = threading.Thread(target=pull._beat, daemon=True)
    beat.start()
    beat.join(60)
    assert left[0] - began >= 2.1
    assert pull.error == "no byte came for 2 s: no source"


@pytest.mark.slow
def test_two_pulls_do_not_write_into_one_cache(hub: PullHub, tmp_path: Path) -> None:
    """Two clusters on one shared cache: the second one ends with the reason, and the first is whole."""
    hub.busy = 1000
    cache = tmp_path / "cache"
    first = Part(tmp_path / "first", plan_of(hub, cache))
    try:
        until(lambda: first.status().get("phase") == "downloading")
        second = Part(tmp_path / "second", plan_of(hub, cache))
        assert second.process.wait(60) == 0
        assert second.status()["error"].startswith("another program writes this model in this cache")
        hub.busy = 0
        assert first.process.wait(60) == 0
        assert first.status()["phase"] == "done"
    finally:
        first.end()
