"""Heartbeats to several hosts: none of them costs another its lease, and the one that does is the one that is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.support.clock import Clock
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import ConnectionLost, LeaseLost
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.hosts.runtime import SYSTEM
from vllm_cluster.kernel.lease.lease import TIME_TO_LIVE, Lease
from vllm_cluster.kernel.transport.base import Target
from vllm_cluster.kernel.transport.local import LocalTransport


class Host:
    """A host, and its side of the lease: it takes `late` seconds for each beat, and gives up without one."""

    def __init__(self, clock: Clock, late: float) -> None:
        self.clock, self.late, self.seconds = clock, late, 0.0
        self.beats = [0.0]
        self.ready = [0.0]
        self.read = 0
        self.gone, self.stuck = "", 0.0

    def answers(self) -> bytes | None:
        """What has come by now: the first is that it is held; None while nothing has."""
        if self.gone:
            raise ConnectionLost("gpu", self.gone)
        if self.given_up:
            return b""
        if self.read < len(self.ready) and self.ready[self.read] <= self.clock.now:
            self.read += 1
            return b".\n" if self.read > 1 else b"vcluster-lease held\n"
        return None

    @property
    def given_up(self) -> bool:
        # Beats that it has not come to yet are there.
        return self.clock.now - max(self.beats[-1], self.ready[-1]) > TIME_TO_LIVE

    def recv(self, _size: int, /) -> bytes:
        until = self.clock.now + self.seconds
        while (came := self.answers()) is None:
            if self.clock.now >= until:
                raise TimeoutError("timed out")
            self.clock.now += 0.0005
        return came

    def sendall(self, data: bytes, /) -> None:
        if self.gone:
            raise ConnectionLost("gpu", self.gone)
        if self.given_up:
            raise BrokenPipeError
        self.clock.now += self.stuck
        if data == b"\n" and not self.stuck:
            self.beats.append(self.clock.now)
            self.ready.append(max(self.clock.now, self.ready[-1]) + self.late)

    def settimeout(self, seconds: float, /) -> None:
        self.seconds = seconds

    def close(self) -> None:
        pass

    def longest(self) -> float:
        """The longest time without a beat."""
        return max(after - before for before, after in zip(self.beats, self.beats[1:], strict=False))


class Transport(LocalTransport):
    def __init__(self, name: str, host: Host) -> None:
        super().__init__(Target(name, name))
        self._far = host

    def open_stream(self, _argv: Sequence[str], _deadline: Deadline) -> Any:
        return self._far


class Idle:
    """Work that the test does itself, or has done."""

    def stop(self) -> None:
        pass

    def join(self, _timeout: float | None = None) -> None:
        pass

    def is_alive(self) -> bool:
        return False


RHYTHM: list[tuple[Callable[[], bool], float]] = []


def begin(work: Callable[[], bool], seconds: float, _name: str) -> Idle:
    RHYTHM[:] = [(work, seconds)]
    return Idle()


def passes(clock: Clock, seconds: float) -> bool:
    """Beat for so long; False where the beats ended."""
    ((work, every),) = RHYTHM
    until = clock.now + seconds
    while clock.now < until:
        clock.sleep(every)
        if not work():
            return False
    return True


@contextmanager
def held(*late: float) -> Iterator[tuple[Clock, list[Host], Lease]]:
    """The lease of hosts that take so many seconds for each beat."""
    clock = Clock()
    hosts = [Host(clock, seconds) for seconds in late]

    def beside(work: Callable[[], None], _name: str) -> Idle:
        began = clock.now
        work()
        clock.now = began
        return Idle()

    runtime = replace(SYSTEM, clock=clock, repeat=begin, background=beside)
    links = [HostConnection(f"gpu{n}", Transport(f"gpu{n}", host), runtime) for n, host in enumerate(hosts)]
    for link in links:
        link.open_docker("1.41", link.name)
    lease = Lease(links, "lab", "down")
    lease.acquire()
    yield clock, hosts, lease
    lease.release()


def loser(lease: Lease) -> str:
    """Who is named where the lease is lost, and why."""
    with pytest.raises(LeaseLost) as error:
        lease.check()
    return error.value.message.partition(";")[0]


# fault: kernel/lease/lease.py: LOOK, MOMENT = 0.5, 0.001 → LOOK, MOMENT = 0.5, 11.0
@pytest.mark.promise("P34")
def test_hosts_that_answer_late_cost_no_other_its_lease() -> None:
    with held(0.1, 10.6, 21.2, 0.1) as (clock, hosts, lease):
        assert not passes(clock, 60)
        assert [host.longest() < 5 for host in (hosts[0], hosts[3])] == [True, True]
        assert not any(host.given_up for host in hosts)
        assert loser(lease) == "gpu2: lost the lease (no heartbeat reply for 15 s)"


# fault: kernel/lease/lease.py: runtime.background(self._send, "beat") → self._send()
@pytest.mark.promise("P34")
def test_a_host_that_takes_no_packets_costs_no_other_its_lease() -> None:
    with held(0.1, 0.1, 0.1) as (clock, hosts, lease):
        assert passes(clock, 10)
        hosts[1].stuck = 14.0
        assert not passes(clock, 60)
        assert [host.longest() < 5 for host in (hosts[0], hosts[2])] == [True, True]
        assert loser(lease) == "gpu1: lost the lease (no heartbeat reply for 15 s)"
        hosts[1].stuck = 0.0


# fault: kernel/lease/lease.py: if not self.waiting and now - self.sent >= HEARTBEAT: → if now - self.sent >= HEARTBEAT:
@pytest.mark.promise("P34")
def test_a_host_that_takes_long_for_each_beat_keeps_the_lease() -> None:
    """Beats that it has not come to would be ever more: it gets one at a time."""
    with held(0.1, 6.0) as (clock, hosts, lease):
        for _ in range(600):
            assert passes(clock, 0.5)
            lease.check()
            assert len(hosts[1].beats) - hosts[1].read <= 1
        assert hosts[0].longest() < 5


# fault: kernel/lease/lease.py: key=lambda hold: (not hold.broken, hold.answered) → key=lambda hold: hold.answered
@pytest.mark.promise("P34")
def test_who_was_sent_nothing_any_more_is_not_named_as_the_cause() -> None:
    """The first host is slower, and in order, until the third one breaks and no beats are sent for it."""
    with held(5.0, 0.1, 0.1) as (clock, hosts, lease):
        assert passes(clock, 10)
        hosts[2].gone = "no route to host"
        assert not passes(clock, 10)
        clock.sleep(TIME_TO_LIVE + 5)
        assert [host.given_up for host in hosts[:2]] == [True, True]
        assert loser(lease).startswith("gpu2: lost the lease")


# fault: kernel/lease/lease.py: for hold in sorted(self._holds, key= → for hold in list(self._holds) or sorted([], key=
@pytest.mark.promise("P34")
def test_of_several_silent_hosts_the_one_that_is_silent_longest_is_named() -> None:
    with held(0.1, 0.1, 0.1) as (clock, hosts, lease):
        assert passes(clock, 10)
        hosts[1].late = 1000
        assert passes(clock, 6)
        clock.sleep(TIME_TO_LIVE)
        assert loser(lease).startswith("gpu1: lost the lease (no heartbeat reply for ")


# fault: kernel/lease/lease.py: if now() - self.sent > TIME_TO_LIVE: → if False:
@pytest.mark.promise("P34")
def test_hosts_that_gave_up_while_this_process_slept_are_not_blamed() -> None:
    with held(0.1, 0.1) as (clock, hosts, lease):
        assert passes(clock, 10)
        clock.sleep(TIME_TO_LIVE + 5)
        assert [host.given_up for host in hosts] == [True, True]
        assert not passes(clock, 1)
        assert "was suspended for more than 15 s" in loser(lease)
