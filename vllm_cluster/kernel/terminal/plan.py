"""A plan, as a list for people and as a document for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from vllm_cluster.kernel.plan.plan import (
    CreateNode,
    MoveHead,
    Operation,
    Plan,
    PrepareImage,
    RemoveContainer,
    RemoveVolume,
    RestartNode,
    StartNode,
)
from vllm_cluster.kernel.plan.spec import CHANGED, FieldChange
from vllm_cluster.kernel.terminal.output import BOLD, END, out, styles, with_ends
from vllm_cluster.kernel.terminal.printable import plain
from vllm_cluster.kernel.text import by_hosts, count


def plan_document(plan: Plan) -> dict[str, object]:
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


def show_plan(plan: Plan, *, color: str, stops: str = "", verbosity: int = 0) -> None:
    """Write the plan on standard output; a head that moves in a line a host, unless more is asked for.

    `stops` is what becomes of the served model.
    """
    bold, end = styles(color, BOLD)
    if plan.empty:
        gpus, hosts = count(sum(plan.gpus.values()), "GPU"), count(len(plan.gpus), "host")
        out(f"{plan.cluster} is up to date: {gpus} on {hosts}")
        return
    marks = _marks(plan)
    moved = next((one for one in plan.operations() if isinstance(one, MoveHead)), None)
    if moved and verbosity < 1:
        for line in _moved_head(plan, moved, marks):
            out(plain(line))
    for stage in () if moved and verbosity < 1 else plan.stages:
        out(bold, stage.title, end)
        shown = ((_lines(one, marks[id(one)]), one.host) for one in stage.operations)
        for (mark, text, more), hosts in by_hosts(shown).items():
            out(f"{mark} {hosts}: {text}", END, *with_ends(more), end="")
        for barrier in stage.barriers:
            out(f"  wait for: {plain(barrier.text)}")
    if stops:
        out(f"! {plain(stops)}")
    out(bold, _summary(plan, marks) + ("; -v shows each" if moved and verbosity < 1 else ""), end)


def _moved_head(plan: Plan, moved: MoveHead, marks: Mapping[int, str]) -> Iterator[str]:
    """What becomes of each host where the head moves, and what else changes there."""
    removed = [one for one in plan.operations() if isinstance(one, RemoveContainer) and marks[id(one)] == "~"]
    for one in plan.operations():
        if isinstance(one, CreateNode):
            yield f"{marks[id(one)]} {one.host}: {_becomes(one, moved)}"
            yield from (f"    {change.text}" for change in _else(one))
        elif one is not moved and one not in removed:
            yield f"{marks[id(one)]} {one.host}: {one.text}"


def _becomes(one: CreateNode, moved: MoveHead) -> str:
    """The new part of a host."""
    if one.host == moved.host:
        return f"becomes the head: key, history and what is served move there from {moved.source}"
    roles = [change for change in one.changes if change.field == "role"]
    return "becomes a worker" if roles else f"joins the new head: {one.spec.role} {one.spec.name} is recreated"


def _else(one: CreateNode) -> Iterator[FieldChange]:
    """The changes of a node that do not follow from where the head is."""
    heads = [word for change in one.changes if change.field == "head_address" for word in (change.before, change.after)]
    for change in one.changes:
        section = change.field.partition(".")[0]
        follows = change.after == CHANGED or any(head in f"{change.before} {change.after}" for head in heads)
        if section not in ("role", "head_address", "command", "secrets") and not follows:
            yield change


def _lines(operation: Operation, mark: str) -> tuple[str, str, tuple[str, ...]]:
    """An operation without its host: its mark, its line and what comes below it."""
    changes = operation.changes if isinstance(operation, CreateNode) else ()
    # One is in the operation's own line.
    more = [f"    {plain(change.text)}" for change in changes] if len(changes) > 1 else []
    return mark, plain(operation.text), tuple(more)


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
