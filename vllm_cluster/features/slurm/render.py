"""A job, for people and as a document for programs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

from vllm_cluster.features.slurm.jobs import SlurmJob
from vllm_cluster.kernel.explain.diagnosis import Diagnosis
from vllm_cluster.kernel.explain.failure import KnownFailure
from vllm_cluster.kernel.shell_line import Option, Paste
from vllm_cluster.kernel.terminal.output import to_paste
from vllm_cluster.kernel.terminal.printable import plain
from vllm_cluster.kernel.text import host_port

# What a fix for a cluster is in a job.
_IN_JOB = (
    (r"vcluster serve\b", "vcluster slurm"),
    (r'(?:set )?(\w+): "?([\w.]+)"? in environment:(?: of the inventory)?', r"export \1=\2 before sbatch"),
    (r"hf_token: env:HF_TOKEN in the inventory, then vcluster up", "hf auth login on the login node"),
    (r"vcluster pull MODEL(?: --verify| \(all files of the model\))?", "hf download MODEL on the login node"),
    (r"vcluster fit MODEL", "vcluster fit MODEL --gpus 2x8 --gpu-memory 80GB"),
    (r"vcluster status\b", "vcluster slurm status JOB"),
    (r", then vcluster up$", ", then submit the job again"),
    (r"another version of (?:the image|`?image:`?)", "another version of vLLM"),
)
# What a job does not have.
_NOT_THERE = re.compile(
    r"\bvcluster (?!slurm|fit|explain)|inventory|/tmp/ray|docker|kubectl"
    r"|\b(?:environment|image|ports|gpus|model_cache|hcas|interface):"
)


def state_document(state: SlurmJob) -> dict[str, Any]:
    """The state of a job."""
    shown = {key: getattr(state, key) for key in ("job", "phase", "reason", "folder", "attempts")}
    ready = asdict(state.ready) if state.ready else None
    return {"v": 1, **shown, "ready": ready, "ends": [asdict(one) for one in state.ends]}


def state_lines(state: SlurmJob, line: Callable[[str, str], str], paste: Paste) -> Iterator[str]:
    """The state of a job, and what can be done next; `line` is the command for a verb on a job."""
    yield plain(state.head)
    if at := state.ready:
        if at.replicas > 1:
            yield f"replicas: {at.ready} of {at.replicas} ready"
        yield plain(f"model:   {at.model} at http://{host_port(at.address, at.port)}/v1 on {at.node}")
        yield plain(f"start:   {at.attempt}, ready after {at.start_seconds:.0f} s")
        yield to_paste("clients: ", paste(line("endpoint", state.job)))
    if first := state.first_failure:
        yield plain(f"first failure: start {first.attempt}, {first.how}")
    if first or state.phase == "failed":
        yield f"why:     {line('explain', state.job)}"
    if state.folder:
        yield plain(f"folder:  {state.folder}")


def without_log(
    state: SlurmJob, start: int, line: Callable[[str, str, str], str], there: Callable[..., str], paste: Paste
) -> Iterator[str]:
    """A job of which no start has failed, or one without a log; and what can be done where the job itself has.

    `there` is the line of a command where Slurm's own are.
    """
    yield plain(state.head)
    yield f"Its start {start} has no log." if start else "No start of it has failed."
    if state.phase == "failed" and state.queued:
        yield to_paste("fix:     ", paste(there("sinfo", Option("-o"), "%P %l %D %G")))
        yield to_paste("fix:     ", paste(line("stop", state.job, Option("--yes"))))
    elif (start or state.phase == "failed") and state.output.startswith("/"):  # as Slurm shows each
        yield to_paste("fix:     ", paste(there("tail", Option("--"), state.output)))


def in_job(found: Diagnosis, job: str, logs: str) -> Diagnosis:
    """The same with a fix that can be done in a job; `logs` prints the log of its first rank."""
    if (named := found.named) is None:
        return found
    fix = (job_fix(named.failure) or logs).replace("JOB", job)
    named = replace(named, failure=replace(named.failure, fix=fix, found_by=""))
    return replace(found, cause=found.cause and named, symptom=None if found.cause else named)


def job_fix(failure: KnownFailure) -> str:
    """What can be done in a job; nothing where the fix is for a cluster alone."""
    if failure.job:
        return failure.job
    text = failure.fix
    for pattern, instead in _IN_JOB:
        text = re.sub(pattern, instead, text, flags=re.MULTILINE)
    lines = ("; ".join(one for one in line.split("; ") if not _NOT_THERE.search(one)) for line in text.splitlines())
    return "\n".join(filter(None, lines))
