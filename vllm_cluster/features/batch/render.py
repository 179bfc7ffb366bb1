"""The batches on the head, a row each for people and as a document for programs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from vllm_cluster.features.batch.jobs import BatchOnHead
from vllm_cluster.kernel.terminal.output import out
from vllm_cluster.kernel.terminal.printable import plain
from vllm_cluster.kernel.terminal.table import columns, table
from vllm_cluster.kernel.text import age

TITLES = {"input": 1, "output": 0, "answered": 0, "state": 0, "by": 3, "began": 2}


def batches_document(host: str, found: Sequence[BatchOnHead]) -> dict[str, Any]:
    """The `--json` document."""
    return {"v": 1, "host": host, "batches": [asdict(one) for one in found]}


def show_batches(host: str, found: Sequence[BatchOnHead]) -> None:
    """Write a row for each batch."""
    if not found:
        out(f"No batches on {host}: what was answered there is fetched.")
        return
    for line in table(TITLES, [_row(one) for one in found], columns()):
        out(line)


def _row(one: BatchOnHead) -> dict[str, str]:
    return {
        "input": plain(one.source or "?"),
        "output": plain(one.output or "?"),
        "answered": one.progress,
        "state": plain(f"{one.state}: {one.detail}" if one.detail else one.state),
        "by": plain(one.user or ""),
        "began": f"{age(max(0.0, time.time() - one.time))} ago" if one.time else "",
    }
