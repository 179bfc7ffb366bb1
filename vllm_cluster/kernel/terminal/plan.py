"""A plan, as a list for people and as a document for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from vllm_cluster.kernel.plan.plan import (
    CreateNode,
    Operation,
    Plan,
    PrepareImage,
    RemoveContainer,
    RemoveVolume,
    RestartNode,
    StartNode,
)
from vllm_cluster.kernel.terminal.output import BOLD, out, styles
from vllm_cluster.kernel.terminal.text import plain
from vllm_cluster.kernel.text import by_hosts, count


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan as JSON would have it."""
    stages = []
    for stage in plan.stages:
        operations = [{"operation": one.verb, **asdict(one), "message": one.text} for one in stage.operations]
        barriers = [{"type": barrier.type, **asdict(barrier), "message": barrier.text} for barrier in stage.barriers]
        stages.append({"title": stage.title, "operations": operations, "barriers": barriers})
    return {
        "cluster": plan.cluster,
        "id": plan.id,
        "empty": plan.empty,
        "gpus": dict(plan.gpus),
        "stages": stages,
        "lost": dict(plan.lost),
    }


def show_plan(plan: Plan, *, color: str, stops: str = "") -> None:
    """Write the plan on standard output.

    `stops` is what becomes of the served model.
    """
    bold, end = styles(color, BOLD)
    if plan.empty:
        gpus, hosts = count(sum(plan.gpus.values()), "GPU"), count(len(plan.gpus), "host")
        out(f"{plan.cluster} is up to date: {gpus} on {hosts}")
        return
    marks = _marks(plan)
    for stage in plan.stages:
        out(bold, stage.title, end)
        shown = ((_lines(one, marks[id(one)]), one.host) for one in stage.operations)
        for (mark, text, more), hosts in by_hosts(shown).items():
            out(f"{mark} {hosts}: {text}\n{more}", end="")
        for barrier in stage.barriers:
            out(f"  wait for: {plain(barrier.text)}")
    if stops:
        out(f"! {plain(stops)}")
    out(bold, _summary(plan, marks), end)


def _lines(operation: Operation, mark: str) -> tuple[str, str, str]:
    """An operation without its host: its mark, its line and what comes below it."""
    changes = operation.changes if isinstance(operation, CreateNode) else ()
    # One is in the operation's own line.
    more = [f"    {plain(change.text)}\n" for change in changes] if len(changes) > 1 else []
    return mark, plain(operation.text), "".join(more)


def _marks(plan: Plan) -> dict[int, str]:
    """What each operation does: + makes what was not there, - removes for good, ~ changes."""
    removed = {(one.host, one.name) for one in plan.operations() if isinstance(one, RemoveContainer)}
    created = {(one.host, one.spec.name) for one in plan.operations() if isinstance(one, CreateNode)}
    marks = {}
    for one in plan.operations():
        if isinstance(one, CreateNode):
            mark = "~" if (one.host, one.spec.name) in removed else "+"
        elif isinstance(one, RemoveContainer | RemoveVolume):
            mark = "~" if (one.host, one.name) in created else "-"
        else:
            mark = "+" if isinstance(one, PrepareImage) and one.pull else "~"
        marks[id(one)] = mark
    return marks


def _summary(plan: Plan, marks: Mapping[int, str]) -> str:
    """How many nodes are created, recreated, removed and started."""
    operations = list(plan.operations())
    created = [marks[id(one)] for one in operations if isinstance(one, CreateNode)]
    removed = sum(isinstance(one, RemoveContainer) and marks[id(one)] == "-" for one in operations)
    started = sum(isinstance(one, StartNode | RestartNode) for one in operations)
    starts = f", {started} to start" if started else ""
    return (
        f"Plan: {created.count('+')} to create, {created.count('~')} to recreate, {removed} to remove{starts}"
        f" ({count(len(operations), 'operation')})"
    )
