"""The level that is found, against servers that are made up: near the best fixed one, and a short queue."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_cluster.batch.concurrency import START, Concurrency, Load, read_load


@dataclass
class Server:
    """A server whose rate grows with what runs, up to `knee`, and falls beyond it, the steeper the greater `slope`.

    It runs at most `batch` requests at once; the others wait.
    """

    batch: int
    knee: int
    slope: float

    def rate(self, level: int) -> float:
        running = min(level, self.batch)
        useful = min(running, self.knee)
        return float(100.0 * useful**0.8) * max(0.3, 1 - self.slope * max(0, running - self.knee) / self.knee)

    def load(self, level: int, at: float, tokens: float) -> Load:
        return Load(at, min(level, self.batch), max(0, level - self.batch), tokens)


def settle(server: Server, seconds: int, noise: tuple[float, ...] = (1.0,)) -> tuple[Concurrency, float]:
    """The controller after so many seconds, and the mean rate of the last third."""
    found, tokens, late = Concurrency(), 0.0, 0.0
    for second in range(seconds):
        rate = server.rate(found.level) * noise[second % len(noise)]
        tokens += rate
        late += rate if second >= seconds * 2 // 3 else 0.0
        found.add(server.load(found.level, float(second), tokens), found.level)
    return found, late / (seconds - seconds * 2 // 3)


@settings(max_examples=200, deadline=None)
@given(batch=st.integers(1, 1024), knee=st.integers(START, 1024), slope=st.floats(0, 1), noise=st.floats(0, 0.04))
def test_the_rate_is_within_a_tenth_of_the_best_fixed_one(batch: int, knee: int, slope: float, noise: float) -> None:
    """The best one of a sweep by factors of two, as a person does it."""
    server = Server(batch, knee, slope)
    best = max(server.rate(1 << power) for power in range(11))
    _, rate = settle(server, 240, (1 - noise, 1.0, 1 + noise, 1.0))
    assert rate >= 0.9 * best


@settings(deadline=None)
@given(batch=st.integers(1, 1000))
def test_the_queue_in_the_server_stays_short(batch: int) -> None:
    found, _ = settle(Server(batch, batch, 0), 240)
    assert batch <= found.level <= batch * 2 + 3


def test_the_level_follows_a_server_that_gets_room() -> None:
    found, tokens = Concurrency(), 0.0
    for second in range(400):
        server = Server(20 if second < 100 else 200, 1000, 0)
        tokens += server.rate(found.level)
        found.add(server.load(found.level, float(second), tokens), found.level)
        if second == 99:
            assert found.level <= 42
    assert found.level >= 200


def test_it_does_not_grow_beyond_what_is_there_to_ask() -> None:
    found = Concurrency()
    for second in range(100):
        found.add(Load(float(second), 5, 0, second * 100.0), 5)
    assert found.level == START


def test_a_server_that_starts_again_is_measured_again() -> None:
    found = Concurrency()
    for second, tokens in enumerate((0, 1000, 0, 1000)):
        found.add(Load(float(second), 16, 0, float(tokens)), START)
    assert found.level == START


# Measured rates with so many open requests: tokens per second of the sandbox's model on an idle machine, and requests
# per second of a model with 8 billion parameters on two H200 hosts (docs/gpu-performance.md; up to 32 by its slope).
SANDBOX = ((1, 150), (32, 2500), (64, 3400), (128, 4730), (256, 5820), (500, 6270))
GPUS = ((1, 1.8), (32, 50), (128, 138), (256, 217), (500, 282))


def measured_rate(level: int, measured: tuple[tuple[int, float], ...]) -> float:
    for (low, less), (high, more) in pairwise(measured):
        if level <= high:
            return less + (more - less) * (level - low) / (high - low)
    return measured[-1][1]


def part_of_best(
    seconds: float,
    power: Callable[[float], float] = lambda _: 1.0,
    measured: tuple[tuple[int, float], ...] = SANDBOX,
    batch: int = 256,
) -> float:
    """The tokens of a run that looks twice a second ÷ those of 500 open requests, on a machine with so much power."""
    found, at, tokens, most = Concurrency(ceiling=500), 0.0, 0.0, 0.0
    while at < seconds:
        now = power(at) / 2
        tokens += measured_rate(found.level, measured) * now
        most += measured_rate(500, measured) * now
        at += 0.5
        found.add(Load(at, min(found.level, batch), max(0, found.level - batch), tokens), found.level)
    return tokens / most


def test_a_short_run_has_nine_tenths_of_the_best_rate() -> None:
    assert part_of_best(21) >= 0.9


def test_a_batch_of_a_quarter_of_a_minute_on_gpus_has_nine_tenths_of_the_best_rate() -> None:
    """They run 1024 at once, so the growth is all that it costs: from 32 it was three of the sixteen seconds."""
    assert part_of_best(16, measured=GPUS, batch=1024) >= 0.9


@pytest.mark.parametrize("begin", [2.0, 3.0, 4.0, 5.0, 6.0, 12.0])
def test_other_work_on_the_machine_does_not_end_the_growth(begin: float) -> None:
    """What is slower for two seconds was no worse level."""
    assert part_of_best(60, lambda at: 0.5 if begin <= at < begin + 2 else 1.0) >= 0.9


# fault: batch/concurrency.py: if doubted.rate < WORSE * now.rate: → if doubted.rate:
@pytest.mark.parametrize("begin", [2.0, 3.0, 4.0, 5.0])
def test_a_machine_that_gets_slower_for_good_does_not_end_the_growth(begin: float) -> None:
    """The best rate of before is compared with nothing: the best level is slower now too."""
    assert part_of_best(60, lambda at: 0.5 if at >= begin else 1.0) >= 0.92


@pytest.mark.parametrize("seed", range(20))
def test_a_busy_machine_costs_little(seed: int) -> None:
    """Its power changes by a tenth from look to look."""
    noise = random.Random(seed)
    assert part_of_best(60, lambda _: max(0.1, noise.gauss(1, 0.1))) >= 0.9


METRICS = """# HELP vllm:num_requests_running Number of requests
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:prompt_tokens_total{engine="0",model_name="a b"} 100.0
vllm:generation_tokens_total{engine="0",model_name="m"} 1e+03
"""


def test_the_load_is_summed_over_engines() -> None:
    assert read_load(METRICS, 5.0) == Load(5.0, 7.0, 2.0, 1100.0)


@pytest.mark.parametrize("text", ["", "vllm:num_requests_running 3", METRICS.replace("2.0", "x")])
def test_other_metrics_are_not_load(text: str) -> None:
    assert read_load(text, 0.0) is None
