"""Many logs as one: in the order of time, in bounded memory, without waiting for idle ones."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from tests.support.clock import Clock
from tests.support.waiting import until
from vllm_cluster.features.logs import merge as log_merge
from vllm_cluster.features.logs.lines import Line
from vllm_cluster.features.logs.merge import LogMerge
from vllm_cluster.kernel.clock import SYSTEM_CLOCK


def line(at: int, host: str = "gpu1", text: str = "x") -> Line:
    """A line of a host."""
    return Line(at, host, "node", text)


class Today(Clock):
    """A clock by which all lines of these tests have been printed."""

    def time(self) -> float:
        return 2e9 + self.now


def taken(merge: LogMerge) -> list[Line]:
    """All lines, to the end."""
    found: list[Line] = []
    while (lines := merge.take(0.05)) is not None:
        found += lines
    return found


@pytest.mark.parametrize("seed", range(50))
def test_lines_of_any_logs_come_in_the_order_of_time(seed: int) -> None:
    chance = random.Random(seed)
    logs = [sorted(chance.randint(0, 100) for _ in range(chance.randint(0, 60))) for _ in range(4)]
    merge = LogMerge(SYSTEM_CLOCK, follow=False)
    for number in range(4):
        merge.add(number)

    def write(number: int) -> None:
        rows = [line(at, f"gpu{number}", str(n)) for n, at in enumerate(logs[number])]
        while rows:
            size = random.Random(len(rows)).randint(1, 9)
            merge.put(number, rows[:size])
            rows = rows[size:]
        merge.end(number)

    for number in range(4):
        threading.Thread(target=write, args=(number,)).start()
    found = taken(merge)
    assert [one.at for one in found] == sorted(at for log in logs for at in log)
    for number in range(4):
        own = [one.text for one in found if one.host == f"gpu{number}"]
        assert own == [str(n) for n in range(len(logs[number]))]


def test_a_log_whose_times_go_back_keeps_its_order() -> None:
    merge = LogMerge(SYSTEM_CLOCK, follow=False)
    merge.add(1)
    merge.put(1, [line(5, text="a"), line(2, text="b"), line(6, text="c")])
    merge.end(1)
    assert [one.text for one in taken(merge)] == ["a", "b", "c"]


def test_whoever_writes_faster_than_is_read_waits() -> None:
    merge, written = LogMerge(SYSTEM_CLOCK, follow=False), list[int]()
    merge.add("fast")
    merge.add("slow")

    def write() -> None:
        for number in range(100):
            merge.put("fast", [line(number, text="x" * (1 << 20))])
            written.append(number)
        merge.end("fast")

    threading.Thread(target=write).start()
    most = log_merge.MAX_WAITING // 2 // (1 << 20) + 2
    until(lambda: len(written) >= most - 3)
    assert len(written) <= most
    merge.end("slow")
    assert len(taken(merge)) == 100


def test_one_that_is_followed_and_idle_holds_nothing_back_and_one_that_begins_does() -> None:
    merge = LogMerge(SYSTEM_CLOCK, follow=True)
    for log in ("busy", "idle", "away"):
        merge.add(log)
    merge.put("busy", [line(1)])
    assert merge.take(0.01) == []
    merge.begin("idle")
    merge.pause("away")
    found: list[Line] = []

    def shown() -> bool:
        found.extend(merge.take(0.05) or [])
        return bool(found)

    until(shown)
    assert found == [line(1)]


def shown_of(merge: LogMerge, clock: Clock, lies: Callable[[int], None], turns: int = 4000) -> dict[str, float]:
    """When each line of the first host is shown, while `lies` does what another host does."""
    shown: dict[str, float] = {}
    for number in range(turns):
        lies(number)
        shown.update({one.text: clock.now for one in merge.take(0) or [] if one.host == "gpu1"})
        clock.sleep(0.1)
    return shown


# fault: features/logs/merge.py: - self.rose > MAX_HELD_SECONDS → - self.rose > 10**9
# fault: features/logs/merge.py: queue.late = queue.late or (longest → queue.late = queue.late or (False
# fault: features/logs/merge.py: if newest > queue.newest: → if newest >= queue.newest:
@pytest.mark.parametrize(
    ("rises", "every", "most"), [(0, 50, 31), (None, 1, 31), (1, 50, 61)], ids=["1970", "nothing", "rises a little"]
)
def test_a_log_that_ends_is_not_kept_back_by_one_that_does_not(rises: int | None, every: int, most: float) -> None:
    """A line of 1970 each 5 s, or a byte a second of one line: none of the others' was shown."""
    clock = Today()
    merge = LogMerge(clock, follow=False)
    for log, host in (("honest", "gpu1"), ("lies", "gpu2")):
        merge.add(log, host)
    merge.put("honest", [line(10**18, text="a"), line(10**18 + 1, text="b")])
    begin = clock.now

    def lies(number: int) -> None:
        if number == 1100:
            merge.put("honest", [line(10**18 + 2, text="later")])
        if number % every == 0:
            merge.put("lies", [] if rises is None else [line(6 + number * rises, "gpu2")])

    shown = shown_of(merge, clock, lies)
    assert most - 2 <= shown["a"] - begin == shown["b"] - begin <= most
    assert shown["later"] - begin < 112, "it is not waited for again"
    assert "gpu2" in merge.passed_over()
    assert merge.passed_over() == []


# fault: features/logs/merge.py: queue.rose, queue.blocked = queue.rose + self._now() - began, None → queue.blocked = None
# fault: features/logs/merge.py: began = queue.blocked = self._now() → began = self._now()
def test_a_log_whose_reader_waited_for_room_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, full, taken = Today(), iter([True] * 250), list[Line]()
    merge = LogMerge(clock, follow=False)
    for log in ("waits", "other"):
        merge.add(log, log)
    monkeypatch.setattr(merge, "_is_full", lambda queue: queue is merge._queues["waits"] and next(full, False))

    def wait(seconds: float) -> None:
        clock.sleep(seconds)
        if seconds and clock.now > 31:  # the other one has its lines by then
            taken.extend(merge.take(0) or ())

    monkeypatch.setattr(merge._changed, "wait", wait)
    merge.put("other", [line(2, text="later")])
    merge.put("waits", [line(1)])
    assert clock.now > 70
    merge.put("other", [line(3, text="later")])
    taken += merge.take(0) or ()
    assert [one.at for one in taken] == [1]
    assert merge.passed_over() == []


# fault: features/logs/merge.py: min(passed, SHOW_SECONDS)) → passed)
@pytest.mark.parametrize("pause", [31.0, 310.0, 3600.0])
def test_no_log_is_late_because_a_person_reads(pause: float) -> None:
    """A pager took nothing for 60 s: a log was late for good, and the order of those behind it was lost."""
    clock, shown = Today(), list[int]()
    merge = LogMerge(clock, follow=False)
    for log in ("gpu1", "gpu2"):
        merge.add(log, log)
    merge.put("gpu1", [line(at, "gpu1") for at in range(0, 1000, 2)])
    for number in range(1, 1000, 10):
        merge.put("gpu2", [line(number + at, "gpu2") for at in range(0, 10, 2)])
        shown += [one.at for one in merge.take(0) or ()]
        clock.sleep(pause if number in (101, 201) else 0.01)
        shown += [one.at for one in merge.take(0) or ()]
    assert shown == [*range(999)]
    assert merge.passed_over() == []


# fault: features/logs/merge.py: else min(passed, SHOW_SECONDS)) → else 0.0)
def test_who_sends_lines_without_end_makes_time_pass() -> None:
    """Between two of its portions nothing is waited for."""
    clock, shown = Today(), list[Line]()
    merge = LogMerge(clock, follow=False)
    for log in ("gpu1", "gpu2"):
        merge.add(log, log)
    merge.put("gpu1", [line(10**18)])
    for _ in range(40):
        merge.put("gpu2", [line(6, "gpu2")])
        shown += [one for one in merge.take(0) or () if one.host == "gpu1"]
        clock.sleep(1)
    assert len(shown) == 1


# fault: features/logs/merge.py: newest if seen is None else max(newest, min(seen, latest)), self._now() → newest, self._now()
def test_a_log_of_whose_lines_none_is_asked_for_is_waited_for_while_it_is_read() -> None:
    """It was named as one that brings nothing newer, and its older lines came after newer ones of others."""
    clock, shown = Today(), list[int]()
    merge = LogMerge(clock, follow=False)
    for log in ("gpu1", "gpu2"):
        merge.add(log, log)
    merge.put("gpu2", [line(900, "gpu2")])
    merge.end("gpu2")
    for number in range(90):
        merge.put("gpu1", [line(800)] if number == 80 else [], number * 10)
        shown += [one.at for one in merge.take(0) or ()]
        clock.sleep(0.5)
    merge.end("gpu1")
    assert [*shown, *(one.at for one in taken(merge))] == [800, 900]
    assert merge.passed_over() == []


# fault: features/logs/merge.py: now + FIRST_SECONDS, now, queue.late → now + FIRST_SECONDS, queue.rose, queue.late
def test_a_log_has_its_time_from_when_it_is_read() -> None:
    clock = Today()
    merge = LogMerge(clock, follow=False)
    for log in ("gpu1", "gpu2"):
        merge.add(log, log)
    for moment in range(50):
        if moment == 25:  # it took so long to connect
            merge.begin("gpu1")
        merge.put("gpu2", [line(900 + moment, "gpu2")])
        assert merge.take(0) == []
        clock.sleep(1)
    assert merge.passed_over() == []


# fault: features/logs/merge.py: held = queue.held(now - MAX_HELD_SECONDS) if self._follow else 0 → held = 0
# fault: features/logs/merge.py: self.came.appendleft((moment, number - count)) → self.came.appendleft((moment, number))
def test_a_host_that_prints_old_lines_without_end_hides_those_of_no_other() -> None:
    clock = Today()
    merge = LogMerge(clock, follow=True)
    for log in ("honest", "lies"):
        merge.add(log)
    merge.put("honest", [line(5, text="early"), line(10**18, text="now")])
    shown: dict[str, float] = {}
    for number in range(600):
        if number == 200:
            merge.put("honest", [line(10**18, text="later")])
        merge.put("lies", [line(6 + number, "gpu2")])
        shown.update({one.text: number / 10 for one in merge.take(0) or [] if one.host == "gpu1"})
        clock.sleep(0.1)
    assert shown["early"] == 0
    assert 29 < shown["now"] < 31
    assert 49 < shown["later"] < 51


def test_nothing_is_taken_any_more_after_the_end() -> None:
    merge = LogMerge(SYSTEM_CLOCK, follow=True)
    merge.add(1)
    merge.close()
    with pytest.raises(EOFError):
        merge.put(1, [line(1)])


# fault: features/logs/merge.py: max(newest, min(line.at, latest)) → max(newest, line.at)
@pytest.mark.parametrize("at", [1 << 63, 253_402_300_799_999_999_999])
@pytest.mark.parametrize("follow", [False, True])
def test_a_line_of_any_year_is_shown(at: int, follow: bool) -> None:
    """A host's clock may show any: one of the year 9999 is of when it was read, and what comes later is after it."""
    clock = Today()
    merge = LogMerge(clock, follow=follow)
    for log in ("gpu1", "gpu2"):
        merge.add(log)
    merge.put("gpu1", [line(5, text="a"), line(at, text="b")])
    clock.sleep(1)
    merge.put("gpu2", [line(int(clock.time() * 1e9), text="c")])
    for log in ("gpu1", "gpu2"):
        merge.end(log)
    found = merge.take(1) or ()
    assert [one.text for one in found] == ["a", "b", "c"]
    assert [one.at // 10**9 for one in found] == [0, 2_000_000_000, 2_000_000_001]
    assert merge.take(1) is None


# fault: features/logs/merge.py: max(newest, min(seen, latest)) → max(newest, seen)
def test_a_line_of_a_year_to_come_that_is_not_asked_for_moves_no_other() -> None:
    clock = Today()
    merge = LogMerge(clock, follow=False)
    merge.add("gpu1")
    merge.put("gpu1", [], 1 << 63)
    merge.put("gpu1", [line(10**18, text="a")])
    merge.end("gpu1")
    assert [one.at for one in merge.take(1) or ()] == [2 * 10**18]
