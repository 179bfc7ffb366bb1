"""The way to a batch on a head whose container is away for a while."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.sim import make
from vllm_cluster.features.batch import head_job
from vllm_cluster.features.batch.head_job import TRIES, HeadJob
from vllm_cluster.features.batch.jobs import batches
from vllm_cluster.features.batch.replies import read_size
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.hosts.runtime import SYSTEM


class Program:
    """A program on a head, which is reached once its container runs."""

    def __init__(self, away: list[str]) -> None:
        self.away, self.asked, self.longest = away, list[str](), 0.0

    def send(self, row: dict[str, Any]) -> None:
        self.asked.append(row["do"])

    def next(self, deadline: Deadline) -> dict[str, Any]:
        self.longest = max(self.longest, deadline.left())
        if self.away:
            raise HostError("gpu1", self.away.pop())
        return {"size": 7}


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    """A program that any head starts."""
    program = Program([])

    def begin(*_: object) -> AbstractContextManager[Program]:
        return nullcontext(program)

    monkeypatch.setattr(head_job, "Fleet", lambda *_: nullcontext(SimpleNamespace(connections={"gpu1": None})))
    monkeypatch.setattr(head_job, "open_node", lambda *_: SimpleNamespace(ensure_running=lambda: None))
    monkeypatch.setattr(head_job, "begin", begin)
    monkeypatch.setattr(head_job, "AGAIN_SECONDS", 0.0)
    return program


# fault: features/batch/head_job.py: running.send({"do": "batches"}) → return running
def test_a_container_that_is_away_for_longer_than_some_tries_is_waited_for(program: Program) -> None:
    events: list[str] = []
    with HeadJob(make.inventory(1), "k", lambda event: events.append(event.text), 60.0, SYSTEM) as job:
        program.away = ["container exited"] * 4 * TRIES
        assert job.ask("put", read_size) == 7
    assert events == ["waiting for gpu1: container exited; the batch runs on there"]


# fault: features/batch/jobs.py: emit, 0.0, runtime) → emit, 3600.0, runtime)
# fault: features/batch/head_job.py: max(wait, SHORT_REPLY_SECONDS)) → max(wait, REPLY_SECONDS))
def test_a_list_of_batches_waits_for_no_head_that_is_away(program: Program) -> None:
    """Of an hour, in which each answer had five minutes."""
    program.away = ["container exited"] * 2
    with pytest.raises(HostError, match="container exited"):
        batches(make.inventory(1), lambda _: None)
    assert (len(program.away), program.longest <= 30.0) == (1, True)
