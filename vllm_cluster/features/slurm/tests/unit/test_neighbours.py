"""Other users of a node that a job shares: who listens first at a port of it gets neither its key nor its clients."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from vllm_cluster.features.slurm.jobs import JobReady, LoginNode, SlurmJob
from vllm_cluster.features.slurm.on_host import job_front

READY = {"1": {"v": 1, "model": "org/m", "address": "127.0.0.1", "port": 1, "attempt": 1}}


@pytest.fixture
def place() -> Iterator[tuple[str, int]]:
    """Where a program of this user listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield "127.0.0.1", server.getsockname()[1]


def be_other_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all that listens be of another user."""
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)


# fault: features/slurm/on_host/job_front.py: return is_own_listener(own["address"], own["port"]) and → return
def test_clients_are_sent_to_no_front_of_another_user(
    place: tuple[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"node": "n1", "address": place[0], "port": place[1], "replicas": 2}
    with monkeypatch.context() as patch:
        be_other_user(patch)
        assert not job_front.show(tmp_path, READY, own)
        assert not (tmp_path / "ready.json").exists()
    assert job_front.show(tmp_path, READY, own)
    assert json.loads((tmp_path / "ready.json").read_text())["port"] == place[1]
    assert job_front.show(tmp_path, {}, own)
    assert not (tmp_path / "ready.json").exists()


class Requeued(LoginNode):
    """A login node whose job is ready on another node once it was looked at twice."""

    looked = 0

    def look(self, job: str) -> SlurmJob:
        self.looked += 1
        address = "10.0.0.1" if self.looked <= 2 else "10.0.0.2"
        return SlurmJob(job, "ready", "", ready=replace(AT, address=address))


AT = JobReady("m", "n1", "10.0.0.1", 20021, 1, 1.0, 1.0)


# fault: features/slurm/jobs.py: (now.ready.address, now.ready.port) == (at.address, at.port) → now.ready.port == at.port
def test_a_tunnel_does_not_outlive_the_job_on_its_node() -> None:
    """A job has the same ports wherever it runs; at its place before others may listen."""
    transport = SimpleNamespace(require_alive=lambda: None, host="login")
    sleep = SimpleNamespace(sleep=lambda _: None if node.looked < 9 else pytest.fail("it is held on"))
    node: Requeued = Requeued(cast(Any, transport), cast(Any, SimpleNamespace(clock=sleep)), "")
    now = node.hold("7", AT)
    assert now.ready is not None
    assert (now.ready.address, node.looked) == ("10.0.0.2", 3)
