"""The page of failures: `python -m tests.unit.explain.page` writes docs/failures.md from the catalogue and its logs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.support.logs import PRODUCED, reported, row_of
from vllm_cluster.core.reasons import HELD_OTHERWISE, REASONS
from vllm_cluster.explain.catalogue import ROWS
from vllm_cluster.explain.row import Row

PAGE = Path(__file__).parents[3] / "docs" / "failures.md"
# Each row of these stands in the log of another one too.
WITHIN = {"69": "in the log of 40-worker-killed-after-a-stop", "72": "in the log of 71-context"}
SECTIONS = (
    ("1", "Host, SSH, Docker"),
    ("19", "Network: interface, Gloo, NCCL, RDMA"),
    ("35", "Ray"),
    ("44", "vLLM: plan, memory, life"),
    ("60", "Model and tokens"),
    ("71", "More of vLLM"),
)
HEAD = """# Failures

How a cluster of several hosts fails, as its users reported it: what is seen, why, and what mends it. The numbers are \
those that `vcluster explain` names.

*Found by* is the code of the finding with which [`vcluster check`](check.md) tells of it before anything is loaded, \
or the verb that refuses it. *Explained* is the log by which tests hold that [`vcluster explain`](explain.md) names \
it: **produced** by breaking a real cluster in that way (`tests/fixtures/logs`), or **reported** by the user of \
another. Where no log can tell, the reason stands there.

This page is written by `python -m tests.unit.explain.page`.
"""


def checked() -> dict[str, str]:
    """What finds each row before anything runs: codes of findings, or why none is needed."""
    codes: dict[str, list[str]] = {}
    for code, reason in REASONS.items():
        for row in reason.rows:
            codes.setdefault(str(row), []).append(f"`{code}`")
    held = {str(row): f"held otherwise: {why}" for row, why in HELD_OTHERWISE.items()}
    return {**held, **{row: ", ".join(names) for row, names in codes.items()}}


def shown() -> dict[str, list[str]]:
    """The logs that show each row."""
    found: dict[str, list[str]] = {row: [text] for row, text in WITHIN.items()}
    for path in PRODUCED:
        found.setdefault(row_of(path), []).append(f"produced: {path.stem}")
    for row, source, _ in reported():
        found.setdefault(row.removeprefix("note-"), []).append(f"reported: {source}")
    return found


def page() -> str:
    """The whole page."""
    found, logs, heads = checked(), shown(), dict(SECTIONS)
    lines = [HEAD]
    for number, row in ROWS.items():
        if number in heads:
            lines += ["", f"## {heads[number]}", "", "| # | seen | cause | what mends it | found by | explained |"]
            lines.append("|---|---|---|---|---|---|")
        lines.append(line(row, found.get(number, ""), logs.get(number, ())))
    return "\n".join(lines) + "\n"


def line(row: Row, found: str, logs: Sequence[str]) -> str:
    """One row as the table has it."""
    before = found or (f"`{row.before}`" if row.before else "—")
    explained = "; ".join(logs) or f"no: {row.silent}"
    cells = (row.number, row.symptom, row.cause, row.fix, before, explained)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page())
