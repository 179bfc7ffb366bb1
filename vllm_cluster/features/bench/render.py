"""Benchmarks as a table, with a bar for each load, and as a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vllm_cluster.features.bench.measured import METRICS, average, figure_name
from vllm_cluster.kernel.terminal.page import page
from vllm_cluster.kernel.terminal.printable import plain
from vllm_cluster.kernel.terminal.table import columns, table
from vllm_cluster.kernel.text import count

if TYPE_CHECKING:
    from vllm_cluster.features.bench.measured import ComparedFigure

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
# What the curves of the page show.
CURVES = ("output_throughput", *(f"{share}_{metric}_ms" for metric in METRICS for share in ("p50", "p99")))


def bench_lines(document: Mapping[str, Any]) -> Iterable[str]:
    """The table; times in ms, means over the runs."""
    points = document["points"]
    top = max((average(one, "output_throughput") for one in points), default=0.0) or 1.0
    rows = [
        {**row, "": "█" * max(1, round(average(one, "output_throughput") / top * BAR))}
        for one, row in zip(points, _rows(points), strict=True)
    ]
    figures = {figure_name(figure): rank for figure, rank in _COLUMNS.items()}
    ranks = {"at once": 0, "in/out": 4, "runs": 6, **figures, "": 7}
    return map(plain, table(ranks, rows, columns()))


def _rows(points: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Each load with the means of its figures, by the names of the columns."""
    rows = []
    for one in points:
        point = one["point"]
        row = {"at once": str(point["concurrency"]), "in/out": f"{point['input']}/{point['output']}"}
        row |= {"runs": str(len(one["runs"]))}
        rows.append(row | {figure_name(figure): _shown(average(one, figure)) for figure in _COLUMNS})
    return rows


def report(document: Mapping[str, Any]) -> str:
    """Return the page of a benchmark: its curves, the same table, and what it ran on."""
    points, versions = document["points"], document["versions"]
    about = f"{count(len(document['hosts']), 'host')}, vLLM {versions['vllm']}, vcluster {versions['vcluster']}"
    return page(
        "vllm_cluster.features.bench",
        "benchmark",
        {
            "name": document["name"],
            "about": f"{about}, image {document['image']}, started {document['started']}",
            "flags": document["flags"],
            "loads": _rows(points),
            "points": [
                {"concurrency": one["point"]["concurrency"], **{figure: average(one, figure) for figure in CURVES}}
                for one in points
            ],
            "hosts": [
                {
                    "host": one["name"],
                    "GPUs": ", ".join(one["gpus"]) or "CPU",
                    "driver": one["driver"],
                    "network": one["interface"],
                    "RDMA": ", ".join(one["hcas"]),
                }
                for one in document["hosts"]
            ],
        },
    )


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
        return f"within the noise of {row.runs[0]} and {row.runs[1]} runs"
    return "better" if row.better else "worse"


def _shown(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
