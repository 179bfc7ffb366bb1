"""The way to a batch on a head whose container is away for a while."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.sim import make
from vllm_cluster.features.batch import head_job
from vllm_cluster.features.batch.head_job import TRIES, HeadJob
from vllm_cluster.features.batch.replies import read_size
from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.hosts.runtime import SYSTEM


class Program:
    """A program on a head, which is reached once its container runs."""

    def __init__(self, away: list[str]) -> None:
        self.away, self.asked = away, list[str]()

    def send(self, row: dict[str, Any]) -> None:
        self.asked.append(row["do"])

    def next(self, _deadline: object) -> dict[str, Any]:
        if self.away:
            raise HostError("gpu1", self.away.pop())
        return {"size": 7}


# fault: features/batch/head_job.py: running.send({"do": "batches"}) → return running
def test_a_container_that_is_away_for_longer_than_some_tries_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program([])

    def begin(*_: object) -> AbstractContextManager[Program]:
        return nullcontext(program)

    monkeypatch.setattr(head_job, "Fleet", lambda *_: nullcontext(SimpleNamespace(connections={"gpu1": None})))
    monkeypatch.setattr(head_job, "open_node", lambda *_: SimpleNamespace(ensure_running=lambda: None))
    monkeypatch.setattr(head_job, "begin", begin)
    monkeypatch.setattr(head_job, "AGAIN_SECONDS", 0.0)
    events: list[str] = []
    with HeadJob(make.inventory(1), "k", lambda event: events.append(event.text), 60.0, SYSTEM) as job:
        program.away = ["container exited"] * 4 * TRIES
        assert job.ask("put", read_size) == 7
    assert events == ["waiting for gpu1: container exited; the batch runs on there"]
