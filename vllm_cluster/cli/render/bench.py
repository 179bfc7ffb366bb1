"""Benchmarks as tables, with a bar for each load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vllm_cluster.cli.render.table import columns, table
from vllm_cluster.cli.render.text import plain
from vllm_cluster.core.bench import average, figure_name

if TYPE_CHECKING:
    from vllm_cluster.core.bench_compare import ComparedFigure

BAR = 24
# The figures, and how soon each is left out on a narrow terminal.
_COLUMNS = {
    "request_throughput": 5,
    "output_throughput": 0,
    "p50_ttft_ms": 1,
    "p99_ttft_ms": 3,
    "p50_tpot_ms": 1,
    "p99_tpot_ms": 4,
    "p99_itl_ms": 6,
    "p50_e2el_ms": 2,
    "p99_e2el_ms": 3,
}


def bench_lines(document: Mapping[str, Any]) -> Iterable[str]:
    """The table; times in ms, means over the runs."""
    points = document["points"]
    top = max((average(one, "output_throughput") for one in points), default=0.0) or 1.0
    rows = []
    for one in points:
        point = one["point"]
        row = {"at once": str(point["concurrency"]), "in/out": f"{point['input']}/{point['output']}"}
        row |= {"runs": str(len(one["runs"]))}
        row |= {figure_name(figure): _shown(average(one, figure)) for figure in _COLUMNS}
        rows.append({**row, "": "█" * max(1, round(average(one, "output_throughput") / top * BAR))})
    figures = {figure_name(figure): rank for figure, rank in _COLUMNS.items()}
    ranks = {"at once": 0, "in/out": 4, "runs": 6, **figures, "": 7}
    return map(plain, table(ranks, rows, columns()))


def compared_lines(rows: Sequence[ComparedFigure]) -> Iterable[str]:
    """What differs, and what does not."""
    cells = [
        {
            "at once": str(row.concurrency),
            "figure": figure_name(row.figure),
            "before": _shown(row.before),
            "after": _shown(row.after),
            "change": f"{row.change_percent:+.1f} %",
            "verdict": _verdict(row),
        }
        for row in rows
    ]
    ranks = {"at once": 0, "figure": 0, "before": 1, "after": 1, "change": 0, "verdict": 0}
    return map(plain, table(ranks, cells, columns()))


def _verdict(row: ComparedFigure) -> str:
    if row.p_value is None:
        return "one run: unknown"
    if not row.different:
        return "no difference"
    return "better" if row.better else "worse"


def _shown(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
