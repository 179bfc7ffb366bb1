"""A plan, as a list for people and as a document for programs."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

from vllm_cluster.cli.render.text import plain, wants_color
from vllm_cluster.core.plan import CreateNode, Plan
from vllm_cluster.docker.create_line import MISSING, create_line
from vllm_cluster.text import count


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan as JSON would have it."""
    stages = []
    for stage in plan.stages:
        operations = []
        for operation in stage.operations:
            row: dict[str, Any] = {"operation": operation.verb, **asdict(operation), "text": operation.text}
            if isinstance(operation, CreateNode):
                row["docker_create"] = create_line(operation.spec)
            operations.append(row)
        stages.append({"title": stage.title, "operations": operations, "barrier": stage.barrier})
    return {
        "cluster": plan.cluster,
        "id": plan.id,
        "empty": plan.empty,
        "gpus": dict(plan.gpus),
        "stages": stages,
        "lost": dict(plan.lost),
    }


def show_plan(plan: Plan, *, color: str, verbosity: int) -> None:
    """Write the plan on standard output; with -v each container as a `docker create` line."""
    bold, dim, end = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if wants_color(color, stdout=True) else ("", "", "")
    out = sys.stdout
    if plan.empty:
        gpus, hosts = count(sum(plan.gpus.values()), "GPU"), count(len(plan.gpus), "host")
        out.write(f"{plan.cluster} is up to date: {gpus} on {hosts}\n")
        return
    for stage in plan.stages:
        out.write(f"{bold}{stage.title}{end}\n")
        for operation in stage.operations:
            out.write(f"  {operation.host}: {plain(operation.text)}\n")
            changes = operation.changes if isinstance(operation, CreateNode) else ()
            # One is in the operation's own line.
            for change in changes if len(changes) > 1 else ():
                out.write(f"    {plain(change.text)}\n")
            if isinstance(operation, CreateNode) and verbosity > 0:
                out.write(f"{dim}    the container, {MISSING}:\n")
                out.write(f"    {plain(create_line(operation.spec))}{end}\n")
        if stage.barrier:
            out.write(f"  then wait until {stage.barrier}\n")
