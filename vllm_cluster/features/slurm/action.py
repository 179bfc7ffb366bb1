"""Submit a job, follow it, and read why it ended."""

from __future__ import annotations

from vllm_cluster.features.slurm.jobs import LoginNode, SlurmJob
from vllm_cluster.features.slurm.sbatch import JobRequest
from vllm_cluster.features.slurm.script import laid_out
from vllm_cluster.kernel.errors import PreflightFailed, WaitTimedOut
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.explain.diagnosis import Diagnosis, diagnose
from vllm_cluster.kernel.explain.scan import LogSource, scan_all
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.shell_line import last_value
from vllm_cluster.kernel.text import count, number_of
from vllm_cluster.serving.fit.fit import fit, gpu_memory_bytes
from vllm_cluster.serving.fit.layouts import GpuPool, Layout, Workload
from vllm_cluster.wire.order import Deployment

POLL = 2.0
MAX_LINES = 20_000


def ensure_fits(asked: Deployment, job: JobRequest, memory: str, emit: Emit) -> Layout:
    """Refuse a model that the GPUs of the job cannot hold.

    Raises:
        PreflightFailed: they cannot; with what would fit.
        VclusterError: the model cannot be read.
    """
    replica = laid_out(asked, job)
    workload = Workload(number_of(last_value(asked.flags, "--max-model-len") or "") or 0)
    nodes, gpus = job.of_replica
    pool = GpuPool((gpus,) * nodes, gpu_memory_bytes(memory))
    found = fit(asked.model, workload, emit, pool, dp=asked.dp, experts=asked.expert_parallel)
    degrees = (replica.tp, replica.pp, replica.dp)
    this = next((one for one in found.layouts if (one.tp, one.pp, one.dp) == degrees), None)
    if this and this.fits:
        return this
    why = f": {this.problem or this.reason}" if this else ""
    text = (
        f"{asked.model} does not fit on {count(nodes, 'node')} × {count(gpus, 'GPU')} of {memory} as {replica.layout}"
    )
    instead = f"use --tp {best.tp} --pp {best.pp}" if (best := found.recommended) else "\n".join(found.suggestions)
    raise PreflightFailed(text + why, hint=instead or None)


def await_ready(node: LoginNode, job: str, seconds: float, emit: Emit, runtime: Runtime = SYSTEM) -> SlurmJob:
    """Follow a job until its model is ready or never will be.

    Raises:
        WaitTimedOut: it was not so in time.
    """
    deadline, shown = runtime.after(seconds), ""
    while True:
        state = node.look_where(job)
        if state.phase not in ("waiting", "starting", "degraded"):
            return state
        if (text := state.head) != shown:
            emit(Event("progress", text))
            shown = text
        if not deadline.left():
            raise WaitTimedOut(f"timed out after {seconds:.0f} s: {text}", hint=None)
        runtime.clock.sleep(min(POLL, max(deadline.left(), 0.01)))


def first_cause(node: LoginNode, state: SlurmJob) -> tuple[Diagnosis | None, int]:
    """Diagnose the first start that failed, with its number; None where none has, or has a log."""
    failed = [one for one in state.ends if not one.wanted]
    number = failed[0].attempt if failed else state.attempts if state.phase == "failed" else 0
    if not number:
        return None, 0
    logs = node.logs(state.job, number, "*", MAX_LINES)
    # Where srun itself has failed, only what the batch script prints holds it.
    seen = scan_all(LogSource(name, [(1, content)]) for name, content in logs.items())
    return diagnose(seen, together=True) if seen else None, number
