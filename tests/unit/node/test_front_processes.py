"""The front in several processes: to clients, to the node's program and to Prometheus it is one."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.fronted import KEY, Fronted, fronted, request
from tests.support.ports import free_port
from tests.support.waiting import until
from vllm_cluster.serving.node.front_processes import CORES, MAX_PROCESSES, listeners, process_count, total
from vllm_cluster.serving.node.front_settings import MAX_BODY, FrontSettings
from vllm_cluster.wire.front import FrontCount, FrontStatus

COMPLETIONS = "/v1/completions"


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Fronted]:
    with fronted(tmp_path, "a", "b", options=["--processes=2", "--grace=20"]) as made:
        yield made


def parts(made: Fronted) -> list[int]:
    """The processes below the first."""
    assert made.process
    return [int(one) for one in Path(f"/proc/{made.process.pid}/task/{made.process.pid}/children").read_text().split()]


def streams(made: Fronted, count: int) -> list[socket.socket]:
    """Open streams, each on a connection of its own, of which the first token has come."""
    found = [made.connect() for _ in range(count)]
    for number, one in enumerate(found):
        body = {"model": "m", "stream": True, "max_tokens": 100_000, "prompt": f"{number}"}
        one.sendall(request("POST", COMPLETIONS, body))
    for one in found:
        data = b""
        while b"data: {" not in data:
            data += one.recv(1 << 16)
    return found


def by_part(made: Fronted) -> list[FrontStatus]:
    """What each has written of itself."""
    return [Fronted.status_of(made.status_file.with_name(f"{made.status_file.name}.{number}")) for number in range(2)]


# fault: serving/node/front_processes.py: one.open + row.open → row.open
def test_each_takes_a_part_and_the_status_has_all(front: Fronted) -> None:
    assert front.process
    open_ = streams(front, 24)
    until(lambda: front.status().open == 24, 10, every=0.05)
    assert all(part.open > 0 for part in by_part(front)), "one of them has all connections"
    status = front.status()
    assert (status.pid, status.routes) == (front.process.pid, by_part(front)[0].routes)
    assert sum(row.open for row in status.replicas.values()) == 24
    for one in open_:
        one.close()
    until(lambda: front.status().open == 0, 10, every=0.05)
    assert sum(row.requests for row in front.status().replicas.values()) == 24


# fault: serving/node/front.py: return await self._metrics.answer(total or self.status()) → return await self._metrics.answer(self.status())
def test_metrics_are_of_all(front: Fronted) -> None:
    """Whichever process is asked: each new connection may be dealt to another."""
    streams(front, 12)
    until(lambda: front.status().open == 12, 10, every=0.05)
    for _ in range(6):
        text = front.ask("GET", "/metrics").body.decode()
        running = re.search(r"^vcluster_front_requests_running (\d+)$", text, re.M)
        assert running and int(running[1]) == 12


# fault: serving/node/front_processes.py: signal.SIGKILL if code else signal.SIGTERM → 0
def test_the_end_of_one_is_the_end_of_all(front: Fronted) -> None:
    """The node's program starts the front again; half of one would answer half of the clients."""
    assert front.process
    one, other = parts(front)
    os.kill(one, signal.SIGKILL)
    assert front.process.wait(5) == 9
    assert not Path(f"/proc/{other}").exists()
    with pytest.raises(ConnectionRefusedError):
        front.connect()


# fault: serving/node/front.py: loop.add_reader(lives, os._exit, 1) → pass
def test_none_outlives_the_first(front: Fronted) -> None:
    """What lived on would keep the port from the front that is started next."""
    assert front.process
    left = parts(front)
    front.process.kill()
    try:
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left), 5, every=0.02)
    finally:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


# fault: serving/node/front_processes.py: if other is not own: → if False:
def test_a_signal_lets_streams_end(front: Fronted) -> None:
    assert front.process
    connections = [front.connect() for _ in range(8)]
    for one in connections:
        one.sendall(request("POST", COMPLETIONS, {"model": "m", "stream": True, "max_tokens": 300}))
    until(lambda: front.status().open == 8, 10, every=0.02)
    front.process.terminate()
    until(lambda: refused(front), 2, every=0.02)
    for one in connections:
        data = b""
        while piece := one.recv(1 << 16):
            data += piece
        assert data.count(b"data: {") == 300
        assert data.endswith(b"0\r\n\r\n")
    assert front.process.wait(5) == 0
    assert front.status().open == 0


# fault: serving/node/front_processes.py: for number in (how, signal.SIGKILL): → for number in (how,):
def test_one_that_is_stopped_ends_with_the_others(tmp_path: Path) -> None:
    """The first waited for its end without end."""
    with fronted(tmp_path, "a", options=["--processes=2", "--grace=0.1"]) as made:
        assert made.process
        stopped, _ = parts(made)
        os.kill(stopped, signal.SIGSTOP)
        made.process.terminate()
        assert made.process.wait(20) == 0
        assert not Path(f"/proc/{stopped}").exists()


def refused(made: Fronted) -> bool:
    """Whether the port is closed."""
    try:
        made.connect()
    except ConnectionError:
        return True
    return False


# fault: serving/node/front_processes.py: alone.bind(at) → pass
def test_a_port_that_another_shares_is_taken() -> None:
    """Beside another program of the same user that shares it each would get a part of the clients."""
    port = free_port()
    with socket.create_server(("127.0.0.1", port), reuse_port=True), pytest.raises(OSError, match="in use"):
        listeners(("127.0.0.1", port), 2)


def test_a_front_without_a_port_names_it(tmp_path: Path) -> None:
    made = Fronted(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        made.port = other.getsockname()[1]
        with pytest.raises(AssertionError, match="cannot listen"):
            made.start("--processes=2")
    made.close()


def test_a_sum_of_statuses() -> None:
    """Routes are in force once every process has them: what is open elsewhere is not known before."""
    one = FrontStatus(1, 5, 1.0, 2, 1, 7, {"200": 6, "503": 1}, {"a": FrontCount(1, 6, 0)}, "", 4)
    other = FrontStatus(1, 6, 2.0, 1, 1, 2, {"200": 2}, {"a": FrontCount(1, 1, 1), "b": FrontCount(0, 1, 0)}, "late", 3)
    assert total([one, other], 4) == FrontStatus(
        1, 4, 0.0, 3, 2, 9, {"200": 8, "503": 1}, {"a": FrontCount(2, 7, 1), "b": FrontCount(0, 1, 0)}, "late", 3
    )


# fault: serving/node/front_settings.py: held=max(self.held // of, min(self.held, 2 * MAX_BODY)) → held=self.held // of
def test_limits_are_of_all_together(tmp_path: Path) -> None:
    whole = FrontSettings(("127.0.0.1", 1), tmp_path / "routes", tmp_path / "status", KEY, processes=4)
    shares = [whole.share(number) for number in range(4)]
    for name in ("connections", "unproved"):
        assert sum(getattr(one, name) for one in shares) == getattr(whole, name)
    assert {one.held for one in shares} == {2 * MAX_BODY}, "or one of the largest would be all"
    assert {one.streams for one in shares} == {1280}, "1,024 on average"
    assert len({one.status for one in shares} | {whole.status}) == 5


@pytest.mark.parametrize(("cores", "count"), [(1, 1), (15, 1), (16, 2), (32, MAX_PROCESSES), (256, MAX_PROCESSES)])
def test_a_small_host_has_one(monkeypatch: pytest.MonkeyPatch, cores: int, count: int) -> None:
    assert CORES == 8
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert process_count() == count


def test_memory_of_four(tmp_path: Path) -> None:
    """In MB, what they share counted once: the front may take 150."""
    with fronted(tmp_path, "a", options=["--processes=4"]) as made:
        streams(made, 32)
        assert made.process
        pids = [made.process.pid, *parts(made)]
        assert len(pids) == 5
        lines = [line for pid in pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
        size = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
        print(f"{size:.0f} MB")
        assert size < 150
