"""The page of failures, from the catalogue and the logs that show each one."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.corpus import CORPUS
from tests.support.logs import PRODUCED, reported, row_of
from vllm_cluster.checks.codes import CODES, PREVENTED_BY_DESIGN
from vllm_cluster.explain.catalogue import FAILURES
from vllm_cluster.explain.failure import KnownFailure

# Each row of these stands in the log of another one too.
WITHIN = {"69": "in the log of 40-worker-killed-after-a-stop", "72": "in the log of 71-context"}
SECTIONS = (
    ("1", "Host, SSH, Docker"),
    ("19", "Network: interface, Gloo, NCCL, RDMA"),
    ("35", "Ray"),
    ("44", "vLLM: plan, memory, life"),
    ("60", "Model and tokens"),
    ("71", "More of vLLM"),
    ("74", "Starts that fail at once, and what many causes share"),
    ("87", "Drivers, downloads, images, and models that vLLM does not know"),
)
HEAD = """# Failures

How a cluster of several hosts fails, as its users reported it: what is seen, why, and what repairs it. The numbers \
are those that `vcluster explain` names, and `docs/failures.md#failure-71` is failure 71.

A **symptom** has many causes, and its line does not show which: `vcluster explain` then calls it a symptom, and names \
where the cause is written.

*Found by* is the code of the finding with which [`vcluster check`](check.md) shows it before anything is loaded, \
or the verb that refuses it. *Explained* is the log by which tests hold that [`vcluster explain`](explain.md) names \
it: **produced** by breaking a real cluster in that way (`tests/fixtures/logs`), **reported** by the user of another, \
or in the **corpus** (`tests/fixtures/corpus`). Where no log can show it, the reason is there.

This page is written by `make docs`.
"""


def checked() -> dict[str, str]:
    """What finds each row before anything runs: codes of findings, or why none is needed."""
    codes: dict[str, list[str]] = {}
    for code, reason in CODES.items():
        for row in reason.rows:
            codes.setdefault(str(row), []).append(f"`{code}`")
    held = {str(row): f"held otherwise: {why}" for row, why in PREVENTED_BY_DESIGN.items()}
    return {**held, **{row: ", ".join(names) for row, names in codes.items()}}


def shown() -> dict[str, list[str]]:
    """The logs that show each row."""
    found: dict[str, list[str]] = {row: [text] for row, text in WITHIN.items()}
    for path in PRODUCED:
        found.setdefault(row_of(path), []).append(f"produced: {path.stem}")
    for row, source, _ in reported():
        found.setdefault(row.removeprefix("note-"), []).append(f"reported: {source}")
    for row in {row for case in CORPUS for row in case.rows[:1]} - set(found):
        found[row] = [f"corpus: {next(case.log for case in CORPUS if case.rows[:1] == (row,))}"]
    return found


def page() -> str:
    """The whole page: a section for each row, so that it can be linked."""
    found, logs, heads = checked(), shown(), dict(SECTIONS)
    lines = [HEAD]
    for number, row in FAILURES.items():
        if number in heads:
            lines += [f"## {heads[number]}", ""]
        lines += section(row, found.get(number, ""), logs.get(number, ()))
    return "\n".join(lines).rstrip() + "\n"


def section(row: KnownFailure, found: str, logs: Sequence[str]) -> list[str]:
    """One row under its anchor."""
    before = found or (f"`{row.before}`" if row.before else "nothing")
    explained = "; ".join(logs) or f"no: {row.silent}"
    names = ("What it means", "Where its cause is written") if row.kind == "symptom" else ("Cause", "Fix")
    parts = [("Seen", row.symptom), (names[0], row.cause), (names[1], row.fix), ("Found by", before)]
    kind = " (symptom)" if row.kind == "symptom" else ""
    cells = [f"- {name}{kind if name == 'Seen' else ''}: {text}" for name, text in (*parts, ("Explained", explained))]
    return [f"### Failure {row.number}", "", *cells, ""]
