"""The batches that are on the head: how far each is, and the command that fetches it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from vllm_cluster.core.desired import STATE_FOLDER
from vllm_cluster.errors import HostError, UsageError
from vllm_cluster.events import Emit
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.head_job import HeadJob, begin
from vllm_cluster.run.node_handle import NodeHandle
from vllm_cluster.run.runtime import SYSTEM, Runtime

# A folder beside those of the batches, which is never made.
_FOLDER, _NONE = f"{STATE_FOLDER}/batch", "none"
# Of a head that may be stuck.
LOOK_SECONDS = 5.0


@dataclass(frozen=True)
class BatchOnHead:
    """A batch on the head, whose answers are not all fetched; what an earlier version did not write is None.

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
    repeat: int
    fields: Mapping[str, Any]

    @property
    def command(self) -> str:
        """What fetches it, on the machine that began it."""
        repeat = ("--repeat", str(self.repeat)) if self.repeat > 1 else ()
        fields = [word for name, value in self.fields.items() for word in ("--set", f"{name}={json.dumps(value)}")]
        words = ["vcluster", "batch", self.source or "IN", "-o", self.output or "OUT", *repeat, *fields, "--on-head"]
        return shlex.join(words)

    @property
    def progress(self) -> str:
        """How many are answered, where that is known."""
        return "" if self.total is None else f"{self.answered}/{self.total}"

    @property
    def text(self) -> str:
        """The batch in a question: whose it is and how far."""
        what = " of ".join(filter(None, (self.output or self.key, self.user)))
        return ", ".join(filter(None, (f"{what}: {self.state}", self.progress and f"{self.progress} answered")))


def batches(inventory: Inventory, emit: Emit, *, wait: float, runtime: Runtime = SYSTEM) -> list[BatchOnHead]:
    """The batches on the head, the oldest first.

    Raises:
        PreflightFailed: the cluster is not up.
        HostError: the head does not answer.
    """
    with HeadJob(inventory, _NONE, emit, wait, runtime) as job:
        return batches_of(job)


def batches_of(job: HeadJob) -> list[BatchOnHead]:
    """The batches beside this one, and itself."""
    return _read(job.ask("batches"))


def batches_on(node: NodeHandle) -> list[BatchOnHead]:
    """The batches of a node that runs.

    Raises:
        HostError: they cannot be read within seconds.
    """
    deadline = node.connection.runtime.after(LOOK_SECONDS)
    with begin(node, f"{_FOLDER}/{_NONE}", deadline, LOOK_SECONDS) as running:
        running.send({"do": "batches"})
        reply = running.next(deadline)
    try:
        return _read(reply)
    except (LookupError, TypeError):
        why = reply.get("error") or "the answer cannot be read"
        raise HostError(node.host, f"batches: {why}") from None


def has_batches(node: NodeHandle) -> bool:
    """Whether any batch is on a node, which need not run.

    Raises:
        HostError: Docker does not answer within seconds.
    """
    return node.connection.engine.has_files(node.name, _FOLDER, LOOK_SECONDS)


def ensure_own_output(known: Sequence[BatchOnHead], asked: Mapping[str, Any], key: str) -> None:
    """Refuse an output into which another batch of the head is to be fetched.

    Raises:
        UsageError: with what differs between the two.
    """
    for one in known:
        if one.key != key and one.user == asked["user"] and one.output == asked["output"]:
            text = f"{one.output} is the output of another batch on the head, with {_differences(one, asked)}"
            raise UsageError(text, hint=f"{one.command}\nname another output with -o")


def _differences(one: BatchOnHead, asked: Mapping[str, Any]) -> str:
    """What makes it another batch."""
    found = []
    if one.source != asked["source"]:
        found.append(f"input {one.source}")
    if one.repeat != asked["copies"]:
        found.append(f"--repeat {one.repeat}")
    for name in sorted({*one.fields, *asked["fields"]}):
        if one.fields.get(name) != asked["fields"].get(name):
            found.append(f"{name} {json.dumps(one.fields[name])}" if name in one.fields else f"no {name}")
    return ", ".join(found) or f"an earlier content of {one.source}"


def _read(reply: Mapping[str, Any]) -> list[BatchOnHead]:
    found = []
    for row in reply["batches"]:
        # A row of an earlier version has no words of who asked for it.
        with suppress(KeyError, TypeError, ValueError, AttributeError):
            found.append(_one(row))
    return sorted(found, key=lambda one: one.time or 0.0)


def _one(row: Mapping[str, Any]) -> BatchOnHead:
    asked, options, status = row["asked"] or {}, row["options"] or {}, row["status"] or {}
    counts = status.get("result") or status.get("progress") or {}
    state, detail = _state(row, status)
    return BatchOnHead(
        key=str(row["key"]),
        state=state,
        detail=detail,
        answered=counts.get("answered"),
        total=counts.get("total"),
        source=asked.get("source"),
        output=asked.get("output"),
        user=asked.get("user"),
        time=asked.get("time"),
        repeat=int(asked.get("copies") or options.get("copies") or 1),
        fields=dict(asked.get("fields") or options.get("fields") or {}),
    )


def _state(row: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[str, str]:
    phase = str(status.get("phase", ""))
    if not row["input"]:
        return "sending", ""
    if row["running"]:
        note = str(status.get("note") or "")
        return "running", f"waiting for the model: {note}" if note else ""
    if phase in ("done", "stopped", "failed"):
        return phase, str(status.get("error") or "") if phase == "failed" else ""
    return "killed", "the same command continues it"
