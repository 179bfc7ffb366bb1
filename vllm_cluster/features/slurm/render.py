"""A job, for people and as a document for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from vllm_cluster.features.slurm.jobs import SlurmJob
from vllm_cluster.kernel.explain.diagnosis import Diagnosis
from vllm_cluster.kernel.explain.evidence import LogPosition
from vllm_cluster.kernel.shell_line import command_line
from vllm_cluster.kernel.terminal.text import plain
from vllm_cluster.kernel.text import host_port

MAX_LINES = 3
Explained = tuple[Diagnosis, int] | None


def state_document(state: SlurmJob) -> dict[str, Any]:
    """The state of a job."""
    shown = {key: getattr(state, key) for key in ("job", "phase", "reason", "folder", "attempts")}
    ready = asdict(state.ready) if state.ready else None
    return {"v": 1, **shown, "ready": ready, "ends": [asdict(one) for one in state.ends]}


def state_lines(state: SlurmJob, login: Sequence[str]) -> Iterator[str]:
    """The state of a job, and what can be done next."""
    yield plain(f"job {state.job} is {state.phase}: {state.reason}")
    if at := state.ready:
        if at.replicas > 1:
            yield f"replicas: {at.ready} of {at.replicas} ready"
        yield plain(f"model:   {at.model} at http://{host_port(at.address, at.port)}/v1 on {at.node}")
        yield plain(f"start:   {at.attempt}, ready after {at.start_seconds:.0f} s")
        yield f"clients: {command_line('vcluster', 'slurm', 'endpoint', state.job, *login)}"
    if first := state.first_failure:
        yield plain(f"first failure: start {first.attempt}, {first.how}")
        yield f"why:     {command_line('vcluster', 'slurm', 'explain', state.job, *login)}"
    if state.folder:
        yield plain(f"folder:  {state.folder}")


def cause_document(state: SlurmJob, found: Explained) -> dict[str, Any]:
    """Why a start of a job failed; no start where none has."""
    about = {"v": 1, "job": state.job, "phase": state.phase, "reason": state.reason}
    if found is None:
        return {**about, "start": None}
    seen, number = found
    known = {key: getattr(seen.named.failure, key) if seen.named else None for key in ("slug", "cause", "fix")}
    return {**about, "start": number, "result": seen.result, **known, "lines": [asdict(one) for one in _places(seen)]}


def cause_lines(state: SlurmJob, found: Explained) -> Iterator[str]:
    """Why a start of a job failed, with the lines that show it."""
    yield plain(f"job {state.job} is {state.phase}: {state.reason}")
    if found is None:
        yield "No start of it has failed."
        return
    seen, number = found
    if seen.named:
        yield plain(
            f"start {number}: {seen.named.failure.kind} ({seen.named.failure.slug}): {seen.named.failure.cause}"
        )
    else:
        yield f"start {number}: no known failure; its last error lines:"
    yield from (plain(f"  {one.source}:{one.line}: {one.text}") for one in _places(seen))
    if seen.named:
        yield plain(f"fix: {seen.named.failure.fix}")


def _places(seen: Diagnosis) -> Sequence[LogPosition]:
    """The lines that show it best."""
    if seen.named:
        return seen.named.places[:MAX_LINES]
    raised = [seen.raised.line] if seen.raised else []
    return [*raised, *seen.error_lines, *([seen.last_line] if seen.last_line else [])][:MAX_LINES]
