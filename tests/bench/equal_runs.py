"""How often `vcluster bench --compare` differs where nothing does: `python -m tests.bench.equal_runs FOLDER`.

FOLDER is of a `vcluster bench --repeat 100` of one server. Each three runs in a row are one benchmark of it, and each
is compared with the next.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm_cluster.core.bench_compare import ComparedFigure, compare

RUNS = 3


def pairs(point: dict[str, Any]) -> Iterator[list[ComparedFigure]]:
    """What is found between each two benchmarks in a row."""
    runs = point["runs"]
    parts = [{**point, "runs": runs[at : at + RUNS]} for at in range(0, len(runs) - RUNS + 1, RUNS)]
    for before, after in zip(parts[::2], parts[1::2], strict=False):
        yield compare([before], [after])


if __name__ == "__main__":
    document = json.loads((Path(sys.argv[1]) / "results.json").read_text())
    found = [pair for point in document["points"] for pair in pairs(point)]
    wrong = sum(any(figure.different for figure in pair) for pair in found)
    print(f"{len(found)} pairs, {wrong} with a difference")
