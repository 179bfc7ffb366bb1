"""What a benchmark runs and what came of it: points, the words for `vllm bench serve`, and results over repetitions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import mean, variance
from typing import Annotated, Any

from vllm_cluster.wire.status import ServeStatus

METRICS = ("ttft", "tpot", "itl", "e2el")
PERCENTILES = ("p50", "p90", "p95", "p99")
# So that a level is held for a while: this many requests for each that is open, and no fewer than the second.
ROUNDS, MIN_PROMPTS = 4, 8
MAX_WARMUPS = 16
_RATES = {"request_throughput": "requests/s", "output_throughput": "tokens/s"}
# Two equal benchmarks are called different in one of twenty comparisons, over all rows together.
ALPHA = 0.05
# What is compared, and whether more of it is better. Few: each more row asks more of all others.
COMPARED = {"output_throughput": True, "p50_ttft_ms": False, "p50_tpot_ms": False, "p99_e2el_ms": False}
STEPS = 400
# vLLM's are times in ms and tokens a second. No float holds the squares of others.
MIN_FIGURE, MAX_FIGURE = 1e-9, 1e18


@dataclass(frozen=True)
class Preset:
    """The points of runs that guides print: tokens in, tokens out, and how many requests are open at once."""

    input: int
    output: int
    concurrency: tuple[int, ...]
    about: str
    rounds: int = ROUNDS
    least: int = MIN_PROMPTS
    # After so many seconds no run begins that would end later; 0 for no limit.
    budget: float = 0.0


PRESETS: Mapping[str, Preset] = {
    "guides": Preset(128, 128, (1, 16, 256), "128 tokens in and out; 1, 16 and 256 at once"),
    "vllm": Preset(1024, 128, (1, 10, 100), "vllm bench serve's default lengths: 1024 in, 128 out; 1, 10, 100 at once"),
    "one": Preset(128, 128, (1,), "128 tokens in and out, one at a time"),
    # A model of the sandbox took 4 s for 16 tokens while its machine was busy.
    "cpu": Preset(16, 16, (1, 4), "16 tokens in and out; 1 and 4 at once, within 3 minutes", 2, 4, 150.0),
}


@dataclass(frozen=True)
class Point:
    """One load: requests open at once, tokens in and out of each, and the number of requests."""

    concurrency: int
    input: int
    output: int
    prompts: int


@dataclass(frozen=True)
class HostHardware:
    """What a host is, without its addresses."""

    name: str
    gpus: tuple[str, ...]
    driver: str
    hcas: tuple[str, ...]
    interface: str
    architecture: str


def _figure(number: float) -> float:
    if number and not MIN_FIGURE <= number <= MAX_FIGURE:
        raise ValueError(f"must be 0, or from {MIN_FIGURE:g} to {MAX_FIGURE:g}")
    return number


Figure = Annotated[float, _figure]


@dataclass(frozen=True)
class BenchRun:
    """One run of a point: vLLM's own figures by name; times in ms, rates per second."""

    repetition: int
    figures: Mapping[str, Figure]


@dataclass
class BenchPoint:
    """A point with its runs."""

    point: Point
    runs: list[BenchRun] = field(default_factory=list)


def points(
    preset: Preset,
    *,
    concurrency: Sequence[int] = (),
    tokens_in: int | None = None,
    tokens_out: int | None = None,
) -> list[Point]:
    """The points of a preset, with what is given in its place."""
    levels = tuple(dict.fromkeys(concurrency)) or preset.concurrency
    into, out = tokens_in or preset.input, tokens_out or preset.output
    return [Point(level, into, out, max(preset.least, preset.rounds * level)) for level in levels]


def expected_seconds(points: Sequence[Point], took: Mapping[int, float], todo: Sequence[int]) -> float | None:
    """How long the runs of these points will take, by those that are over; None before the first is.

    A point that has not been run yet is judged by its number of requests: rather too long, since more are open at once.
    """
    if not took:
        return None
    each = sum(took.values()) / sum(points[index].prompts for index in took)
    return sum(took.get(index, each * points[index].prompts) for index in todo)


def argv(point: Point, serve: ServeStatus, seed: int) -> list[str]:
    """The arguments of `vllm bench serve`; another seed is other prompts, which no prefix cache holds."""
    words = ["--backend", "openai", "--host", serve.host, "--port", str(serve.port)]
    words += ["--model", serve.model, "--served-model-name", serve.name]
    words += ["--dataset-name", "random", "--random-input-len", str(point.input)]
    words += ["--random-output-len", str(point.output)]
    words += ["--num-prompts", str(point.prompts), "--max-concurrency", str(point.concurrency)]
    words += ["--num-warmups", str(min(point.concurrency, MAX_WARMUPS)), "--seed", str(seed)]
    words += ["--temperature", "0", "--ignore-eos", "--disable-tqdm"]
    return [*words, "--percentile-metrics", ",".join(METRICS), "--metric-percentiles", "50,90,95,99"]


def figure_name(figure: str) -> str:
    """What a figure is called in every table: ttft p50 (ms), tokens/s (of the answers)."""
    kind, _, metric = figure.removesuffix("_ms").partition("_")
    return _RATES.get(figure) or f"{'e2e' if metric == 'e2el' else metric} {kind}"


def figures(result: Mapping[str, object]) -> dict[str, float]:
    """vLLM's figures that are kept: those that a file of results may have."""
    names = ("duration", "completed", "failed", "request_throughput", "output_throughput", "total_token_throughput")
    times = (f"{kind}_{metric}_ms" for metric in METRICS for kind in ("mean", *PERCENTILES))
    found = dict[str, float]()
    for name in (*names, *times):
        value = result.get(name)
        if isinstance(value, int | float):
            # NaN too is beyond what a figure can be, and an int may be no float.
            with suppress(ValueError, OverflowError):
                found[name] = _figure(float(value))
    return found


def order(count: int, repetitions: int) -> Iterator[tuple[int, int]]:
    """Repetition and point, in turns: what drifts meanwhile is then spread over all points."""
    return ((repetition, point) for repetition in range(repetitions) for point in range(count))


def figure_values(point: Mapping[str, Any], figure: str) -> list[float]:
    """A figure of each run, of a point as the document of a benchmark has it."""
    return [run["figures"][figure] for run in point["runs"] if figure in run["figures"]]


def average(point: Mapping[str, Any], figure: str) -> float:
    """The mean of a figure over the runs; 0 where none has it."""
    return mean(figure_values(point, figure) or [0.0])


@dataclass(frozen=True)
class ComparedFigure:
    """One figure at one load, before and after, of so many `runs`; `different` is whether it is more than noise."""

    concurrency: int
    figure: str
    before: float
    after: float
    change_percent: float
    p_value: float | None
    different: bool
    better: bool
    runs: tuple[int, int]


def compare(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[ComparedFigure]:
    """The figures of the points that both documents have, by Welch's test, corrected for their number (Holm)."""
    there = {_load(other): other for other in after}
    rows = [row for one in before if (other := there.get(_load(one))) for row in _figures(one, other)]
    ranked = sorted((row for row in rows if row[3] is not None), key=lambda row: row[3] or 0.0)
    different = set[tuple[Point, str]]()
    for place, row in enumerate(ranked):
        if (row[3] or 0.0) > ALPHA / (len(ranked) - place):
            break
        different.add(row[:2])
    return [_compared(row, row[:2] in different) for row in rows]


_Row = tuple[Point, str, tuple[float, float], float | None, tuple[int, int]]


def _load(point: Mapping[str, Any]) -> Point:
    return Point(**point["point"])


def _figures(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[_Row]:
    rows: list[_Row] = []
    for name in COMPARED:
        first, second = figure_values(one, name), figure_values(other, name)
        if first and second:
            rows.append(
                (_load(one), name, (mean(first), mean(second)), welch(first, second), (len(first), len(second)))
            )
    return rows


def _compared(row: _Row, different: bool) -> ComparedFigure:
    load, name, (before, after), p, runs = row
    change = (after / before - 1) * 100 if before else 0.0
    return ComparedFigure(
        load.concurrency, name, before, after, change, p, different, (after > before) == COMPARED[name], runs
    )


def welch(first: Sequence[float], second: Sequence[float]) -> float | None:
    """The probability of a difference of means as large as this by chance; None where one side has a single run."""
    if min(len(first), len(second)) < 2:
        return None
    parts = [variance(values) / len(values) for values in (first, second)]
    total, apart = sum(parts), abs(mean(first) - mean(second))
    if total == 0:
        return 0.0 if apart else 1.0
    freedom = total**2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True) if part
    )
    return two_sided(apart / math.sqrt(total), freedom)


def two_sided(t: float, freedom: float) -> float:
    """The probability that Student's t is farther from 0 than `t`: by Simpson's rule, over its angle."""
    end = math.atan(t / math.sqrt(freedom))
    width = end / STEPS
    inner = sum((4 if step % 2 else 2) * math.cos(step * width) ** (freedom - 1) for step in range(1, STEPS))
    area = (1 + inner + math.cos(end) ** (freedom - 1)) * width / 3
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return min(1.0, max(0.0, float(1 - 2 * scale * area)))
