"""Whether two benchmarks differ by more than their own runs do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, variance
from typing import Any

from vllm_cluster.core.bench import figure_values

# Two equal benchmarks are called different in one of twenty comparisons, over all rows together.
ALPHA = 0.05
# What is compared, and whether more of it is better. Few: each more row asks more of all others.
COMPARED = {"output_throughput": True, "p50_ttft_ms": False, "p50_tpot_ms": False, "p99_e2el_ms": False}
STEPS = 400


@dataclass(frozen=True)
class ComparedFigure:
    """One figure at one load, before and after; `different` is whether it is more than noise."""

    concurrency: int
    figure: str
    before: float
    after: float
    change_percent: float
    p_value: float | None
    different: bool
    better: bool


def compare(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[ComparedFigure]:
    """The figures of the points that both documents have, by Welch's test, corrected for their number (Holm)."""
    rows = [row for one in before for other in after if _same(one, other) for row in _figures(one, other)]
    ranked = sorted((row for row in rows if row[3] is not None), key=lambda row: row[3] or 0.0)
    different = set()
    for place, row in enumerate(ranked):
        if (row[3] or 0.0) > ALPHA / (len(ranked) - place):
            break
        different.add(row[:2])
    return [_compared(row, row[:2] in different) for row in rows]


_Row = tuple[int, str, tuple[float, float], float | None]


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(one["point"] == other["point"])


def _figures(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[_Row]:
    rows: list[_Row] = []
    for name in COMPARED:
        first, second = figure_values(one, name), figure_values(other, name)
        if first and second:
            rows.append((one["point"]["concurrency"], name, (mean(first), mean(second)), welch(first, second)))
    return rows


def _compared(row: _Row, different: bool) -> ComparedFigure:
    level, name, (before, after), p = row
    change = (after / before - 1) * 100 if before else 0.0
    return ComparedFigure(level, name, before, after, change, p, different, (after > before) == COMPARED[name])


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
