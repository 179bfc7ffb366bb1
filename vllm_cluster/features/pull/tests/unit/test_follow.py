"""What is shown while a pull runs, also where a host does not answer."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.clock import Clock
from vllm_cluster.features.pull import follow as pull_follow
from vllm_cluster.features.pull.follow import PullEnd, follow
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Background, Runtime
from vllm_cluster.kernel.models.weights import PullStatus

HOSTS = ("gpu1", "gpu2")
DONE = PullStatus("done", total=10, bytes=10, digest="d")


def at_once(work: Callable[[], None], _name: str) -> Background:
    """The answer is there before anything else happens."""
    work()
    return threading.Thread()


def followed(monkeypatch: pytest.MonkeyPatch, answer: Any, emit: Any, runtime: Runtime = SYSTEM) -> PullEnd:
    """Follow two hosts that answer so."""
    monkeypatch.setattr(pull_follow, "status", lambda connection, _cluster: answer(connection.name))
    monkeypatch.setattr(pull_follow, "POLL_SECONDS", 0.01 if runtime is SYSTEM else 1.0)
    connections = {name: SimpleNamespace(name=name, runtime=runtime) for name in HOSTS}
    fleet: Any = SimpleNamespace(connections=connections, runtime=runtime)
    return follow(fleet, "lab", HOSTS, emit)


# fault: features/pull/follow.py: return not self._thread.is_alive() → return self._thread.join() is None
def test_a_frozen_host_keeps_no_other_from_being_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_follow, "SILENT_SECONDS", 0.05)
    named, texts = threading.Event(), list[str]()

    def answer(name: str) -> PullStatus:
        # It answers again once a person has seen that the other one is done, and that this one is silent.
        assert name == "gpu1" or named.wait(30)
        return DONE

    def emit(event: Event) -> None:
        texts.append(f"{event.host}: {event.text}")
        if "gpu1: has all 0.0 kB" in texts and any("gpu2: starting (it has not answered for" in one for one in texts):
            named.set()

    ended = followed(monkeypatch, answer, emit)
    assert named.is_set() and not ended.failed and not ended.lost


def test_a_host_that_never_answers_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_follow, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(pull_follow, "LOST_SECONDS", 0.1)
    over = threading.Event()

    def answer(name: str) -> PullStatus:
        assert name == "gpu1" or over.wait(60)
        return DONE

    ended = followed(monkeypatch, answer, lambda _: None)
    over.set()
    assert ended.lost == ("gpu2",) and ended.hosts["gpu2"].phase == "failed"


def test_what_a_container_without_a_plan_waits_for_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    ended = followed(
        monkeypatch,
        lambda name: DONE if name == "gpu1" else PullStatus("starting"),
        lambda event: texts.append(f"{event.host}: {event.text}"),
        Runtime(Clock(), background=at_once),
    )
    waits = "gpu2: starting (waiting for its plan: the command that made its container may have ended, 30 s left)"
    assert texts.index("gpu2: starting") < texts.index(waits)
    assert ended.hosts["gpu2"].error == "its program was never started"


def test_the_total_of_all_hosts_is_the_same_from_the_first_moment_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host begins later than another, and one whose program ended has no total any more."""
    runtime, totals = Runtime(Clock(), background=at_once), set[object]()
    late = [PullStatus("starting"), PullStatus("receiving", total=10, bytes=5), PullStatus("failed", error="killed")]

    def answer(name: str) -> PullStatus:
        second = int(runtime.clock.monotonic())
        return PullStatus("serving", total=10, bytes=10) if name == "gpu1" else late[min(second, 2)]

    def emit(event: Event) -> None:
        if event.host is None and event.kind == "progress":
            totals.add(event.data["total_bytes"])

    assert followed(monkeypatch, answer, emit, runtime).failed
    assert totals == {20}


# fault: features/pull/follow.py: if rate < SLOW → if rate < 0
@pytest.mark.parametrize(("rate", "text"), [(0, ""), (1_000, ", 1.0 kB/s"), (43e6, ", 43 MB/s, 1 min left")])
def test_the_time_of_many_small_files_is_not_taken_from_their_bytes(rate: float, text: str) -> None:
    """A thousand files of 4 bytes had 13 h left, which were 9 s."""
    assert pull_follow._left(3_000_000_000, rate) == text


# fault: features/pull/follow.py: most = max(one.most, min( → one.most, most = 0, max(0, min(
# fault: features/pull/follow.py: min(found.bytes, one.total)) → found.bytes)
# fault: features/pull/follow.py: (most - one.most) / SLOWEST) → (most > one.most) * STILL_SECONDS)
@pytest.mark.promise("P46")
@pytest.mark.parametrize("amount", [lambda second: second % 7, lambda second: second, lambda second: 3_000 * second])
def test_a_host_that_receives_without_end_has_failed(
    monkeypatch: pytest.MonkeyPatch, amount: Callable[[int], int]
) -> None:
    """What it has goes up and down, and its phase too; or it is a byte more each second, or more than there is."""
    runtime = Runtime(Clock(), background=at_once)

    def answer(name: str) -> PullStatus:
        second = int(runtime.clock.monotonic())
        assert second < 10_000
        phase: Any = ("receiving", "verifying")[second // 100 % 2]
        return DONE if name == "gpu1" else PullStatus(phase, bytes=amount(second), total=1_000_000)

    ended = followed(monkeypatch, answer, lambda _: None, runtime)
    assert re.match("less than 1.0 kB/s came for 3[0-9] min", ended.hosts["gpu2"].error)


# fault: features/pull/follow.py: else min(now + STILL_SECONDS, one.due → else min(now + 9, one.due
def test_a_slow_host_that_pauses_has_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the hub is gone for 25 minutes in each hour."""
    runtime, total = Runtime(Clock(), background=at_once), 10_000_000

    def answer(name: str) -> PullStatus:
        hours, seconds = divmod(int(runtime.clock.monotonic()), 3600)
        there = min(total, 2_000 * (2100 * hours + min(seconds, 2100)))
        if name == "gpu1" or there == total:
            return DONE
        return PullStatus("receiving", bytes=there, total=total)

    assert not followed(monkeypatch, answer, lambda _: None, runtime).failed
