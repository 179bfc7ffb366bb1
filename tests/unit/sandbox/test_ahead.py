"""What only waits for the network is had while the host image is built, and only where nothing was ever made."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from docker.client import DockerClient
from docker.errors import NotFound

from vcluster_sandbox import golden
from vllm_cluster.kernel.errors import VclusterError


class Parts:
    """The two parts in the place of those that take minutes; each waits until the block has begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.made = threading.Event(), list[str]()
        self.error: VclusterError | None = None
        monkeypatch.setattr(golden, "ensure_wheels", lambda _: self._make("wheels"))
        monkeypatch.setattr(golden, "ensure_base", lambda _, name, __: self._make(name))
        monkeypatch.setattr(golden, "connect", lambda: SimpleNamespace(close=lambda: None))

    def _make(self, name: str) -> None:
        assert self.begun.wait(30)
        self.made.append(name)
        if self.error:
            raise self.error


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Parts:
    return Parts(monkeypatch)


def engine(*, used: bool) -> DockerClient:
    """An engine that had a sandbox, or never."""

    def get(_: str) -> Any:
        if not used:
            raise NotFound("no such volume")

    return cast(DockerClient, SimpleNamespace(volumes=SimpleNamespace(get=get)))


def test_they_are_made_while_the_block_runs(parts: Parts) -> None:
    with golden.parts_ahead(engine(used=False), lambda _: None):
        parts.begun.set()
    assert sorted(parts.made) == ["cpu", "wheels"]


# fault: vcluster_sandbox/golden.py: part.result() → part.done()
def test_an_error_of_one_is_that_of_the_sandbox(parts: Parts) -> None:
    parts.error = VclusterError("no network")
    with pytest.raises(VclusterError, match="no network"), golden.parts_ahead(engine(used=False), lambda _: None):
        parts.begun.set()


def test_an_engine_that_had_a_sandbox_gets_nothing_ahead(parts: Parts) -> None:
    with golden.parts_ahead(engine(used=True), lambda _: None):
        parts.begun.set()
    assert parts.made == []
