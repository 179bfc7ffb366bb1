"""Other users of a node that a job shares: who listens first at a port of it gets neither its key nor its clients."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from vllm_cluster.features.slurm.on_host import job_front, step
from vllm_cluster.serving.node import proc
from vllm_cluster.serving.node.api import Api, Question

READY = {"1": {"v": 1, "model": "org/m", "address": "127.0.0.1", "port": 1, "attempt": 1}}


@pytest.fixture(params=["127.0.0.1", "::1"])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """Where a program of this user listens."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with closing(socket.create_server((request.param, 0), family=family)) as server:
        yield request.param, server.getsockname()[1]


def be_other_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all that listens be of another user."""
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)


# fault: serving/node/proc.py: and row[7] == str(os.getuid()) →
# fault: serving/node/proc.py: row[3] == _LISTEN and → True and
def test_what_another_user_listens_at_is_not_own(place: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    address, port = place
    assert proc.is_own_listener(address, port)
    assert not proc.is_own_listener("127.0.0.2", port)
    with closing(socket.create_connection(place)) as client:
        assert not proc.is_own_listener(*client.getsockname()[:2])
    be_other_user(monkeypatch)
    assert not proc.is_own_listener(address, port)


class AskedApi(Api):
    """An API that notes how often it was asked, and answers each question."""

    asked = 0

    def healthy(self, timeout: float) -> bool:
        self.asked += 1
        return True

    def ask(self, question: Question, model: str, timeout: float, *, engine: str = "") -> None:
        self.asked += 1


# fault: features/slurm/on_host/step.py: if is_own_listener(*place) and api → if api
def test_a_start_asks_nothing_before_its_own_program_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question has the job's key, and vLLM takes a while until it listens."""
    api, place, looks = AskedApi("10.0.0.1", 20021), ("10.0.0.1", 20021), list[int]()

    def look(address: str, port: int) -> bool:
        assert (address, port) == place
        looks.append(api.asked)
        return len(looks) == 3

    monkeypatch.setattr(step, "is_own_listener", look)
    monkeypatch.setattr(step, "PAUSE_SECONDS", 0.0)
    assert step.first_token(api, "org/m", place).name == "completion"
    assert (looks, api.asked) == ([0, 0, 0], 2)


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
