"""How Slurm ends a step or a job: by request, or as a task failed; what is far below the end of a job is another's."""

from __future__ import annotations

from vllm_cluster.kernel.explain import progress
from vllm_cluster.kernel.explain.evidence import LogPosition, SignMatch

# Slurm kills what is left of a cancelled job after KillWait, 30 s.
ENDING = 300.0


class SlurmEnds:
    """The ends that one host has seen of its own step and of jobs."""

    def __init__(self) -> None:
        self._step: LogPosition | None = None
        self._job: float | None = None

    def note_job(self, words: str, time: float | None) -> None:
        """Keep when a job was cancelled, for any reason."""
        if progress.JOB_ENDED.search(words):
            self._job = time

    def is_another(self, time: float | None) -> bool:
        """Whether a line is too late for the job that was cancelled: many jobs append to one file."""
        another = self._job is not None and time is not None and time > self._job + ENDING
        if another:
            self._job = None
        return another

    def step(self, place: LogPosition) -> LogPosition | None:
        """Take one of the two lines by which Slurm ends a step, and return the first once both are there."""
        first = self._step = self._step or place
        both = bool(progress.STEP_ABORTED.match(first.text)) != bool(progress.STEP_ABORTED.match(place.text))
        return first if both else None

    def clear(self) -> None:
        """Forget the step: another run begins."""
        self._step = None


def cancels(hit: SignMatch) -> bool:
    """Whether a match is that of the line by which Slurm ends a step."""
    return bool(hit.lines and progress.STEP_CANCELLED.search(hit.lines[-1].parsed.words))
