"""The batches that are on the head: how far each is, and the command that fetches it from this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_cluster.features.batch.head_job import HeadJob, begin
from vllm_cluster.features.batch.replies import JobEntry, JobState, read_entries, read_reply
from vllm_cluster.kernel.events import Emit
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.plan.desired import STATE_FOLDER
from vllm_cluster.kernel.shell_line import command_line
from vllm_cluster.kernel.terminal.words import quote_word

# A folder beside those of the batches, which is never made.
_FOLDER, _NONE = f"{STATE_FOLDER}/batch", "none"
# Of a head that may be stuck.
LOOK_SECONDS = 5.0


@dataclass(frozen=True)
class BatchOnHead:
    """A batch on the head, whose answers are not all fetched; None for what the head does not know.

    `state` is `sending`, `running`, `done`, `stopped`, `failed` or `killed`; `detail` is the reason.
    """

    key: str
    state: str
    detail: str
    answered: int | None
    total: int | None
    source: str | None
    output: str | None
    user: str | None
    time: float | None

    @property
    def progress(self) -> str:
        """How many are answered, where that is known."""
        return "" if self.total is None else f"{self.answered}/{self.total}"

    @property
    def text(self) -> str:
        """The batch in a question: whose it is and how far. The head's words are quoted: they must not end it."""
        what = " of ".join(command_line(quote_word(one)) for one in (self.output or self.key, self.user) if one)
        return ", ".join(filter(None, (f"{what}: {self.state}", self.progress and f"{self.progress} answered")))


def batches(inventory: Inventory, emit: Emit, *, runtime: Runtime = SYSTEM) -> list[BatchOnHead]:
    """Return the batches on the head, the oldest first.

    Raises:
        PreflightFailed: the cluster is not up.
        HostError: the head does not answer, or not with batches.
    """
    with HeadJob(inventory, _NONE, emit, 0.0, runtime) as job:
        found = job.ask("batches", read_entries)
    return sorted(map(_batch, found), key=lambda one: one.time or 0.0)


def batches_on(node: NodeHandle) -> list[BatchOnHead]:
    """Return the batches of a node that runs.

    Raises:
        HostError: they cannot be read within seconds.
    """
    deadline = node.connection.runtime.after(LOOK_SECONDS)
    with begin(node, f"{_FOLDER}/{_NONE}", deadline, LOOK_SECONDS) as running:
        running.send({"do": "batches"})
        reply = running.next(deadline)
    return [_batch(one) for one in read_reply(node.host, reply, read_entries)]


def has_batches(node: NodeHandle) -> bool:
    """Whether any batch is on a node, which need not run.

    Raises:
        HostError: Docker does not answer within seconds.
    """
    return node.connection.docker.has_files(node.name, _FOLDER, LOOK_SECONDS)


class Unfetched:
    """What is lost with the head: batches whose answers are not fetched."""

    def listed(self, node: NodeHandle) -> Mapping[str, str]:
        """What is on a node that runs: a text for each, by its key."""
        return {one.key: one.text for one in batches_on(node)}

    def is_there(self, node: NodeHandle) -> bool:
        """Whether any batch is on a node, which need not run."""
        return has_batches(node)


UNFETCHED = Unfetched()


def _batch(entry: JobEntry) -> BatchOnHead:
    asked, progress = entry.asked, entry.state.progress
    state, detail = _state(entry.state)
    return BatchOnHead(
        key=entry.key,
        state=state,
        detail=detail,
        answered=progress.answered if progress else None,
        total=progress.total if progress else None,
        source=asked.source if asked else None,
        output=asked.output if asked else None,
        user=asked.user if asked else None,
        time=asked.time if asked else None,
    )


def _state(state: JobState) -> tuple[str, str]:
    if not state.sent:
        return "sending", ""
    if state.running:
        return "running", f"waiting for the model: {state.note}" if state.note else ""
    if state.phase in ("done", "stopped", "failed"):
        return state.phase, state.error if state.phase == "failed" else ""
    return "killed", "the same command continues it"
