"""Other users of a node that a job shares: who listens first at a port of it gets neither its key nor its clients."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

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
