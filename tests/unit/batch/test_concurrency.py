"""The level that is found, against servers that are made up: their batch is full, and the queue is short."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.paths import FIXTURES
from vllm_cluster.batch.runner import CEILING, START, Concurrency, Load, read_load


def settle(batch: int, samples: int, offered: int = CEILING) -> list[int]:
    """The levels over so many samples of a server that runs at most `batch` at once; so many lines are there."""
    found, levels = Concurrency(), []
    for _ in range(samples):
        open_now = min(found.level, offered)
        found.add(Load(min(open_now, batch), max(0, open_now - batch)), open_now)
        levels.append(found.level)
    return levels


@settings(deadline=None)
@given(batch=st.integers(1, 2048))
def test_the_servers_batch_is_full_and_its_queue_no_longer(batch: int) -> None:
    levels = settle(batch, 20)
    assert len({*levels[10:]}) == 1
    assert min(batch, CEILING) <= levels[-1] <= min(2 * batch + 2, CEILING)


def test_it_grows_only_where_all_that_is_allowed_is_open() -> None:
    assert settle(1024, 20, offered=100) == [START] * 20


# fault: batch/runner.py: if waits: → if True:
def test_requests_that_came_together_do_not_count_as_a_queue() -> None:
    found = Concurrency()
    for _ in range(10):
        found.add(Load(8, 120), START)
        found.add(Load(128, 0), 4)
    assert found.level == START


def test_it_falls_where_other_work_takes_the_servers_places() -> None:
    found = Concurrency()
    for load in [Load(1024, 0)] * 3 + [Load(16, 500)] * 6:
        found.add(load, found.level)
    assert found.level == 34


def test_the_load_is_read_from_vllms_own_page() -> None:
    text = (FIXTURES / "metrics" / "vllm-0.32.0.txt").read_text()
    assert read_load(text) is not None
    two = "".join(
        f'vllm:num_requests_{what}{{engine="{at}"}} {at + 1}\n' for at in (0, 1) for what in ("running", "waiting")
    )
    assert read_load(two) == Load(3, 3)
    for wrong in ("", "vllm:num_requests_running 1\n", two.replace("} 1", "} x")):
        assert read_load(wrong) is None
