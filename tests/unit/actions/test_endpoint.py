"""The tunnel in the background: what it waits out, and what ends it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.sim import make
from vllm_cluster.actions import endpoint
from vllm_cluster.actions.endpoint import RETRY_SECONDS, keep_open, state
from vllm_cluster.errors import (
    AuthenticationFailed,
    CommandFailed,
    ConnectionLost,
    HostKeyRejected,
    NodeMissing,
    PreflightFailed,
    TimedOut,
    Unreachable,
    VclusterError,
)
from vllm_cluster.events import Event
from vllm_cluster.run.runtime import Runtime

INVENTORY = make.inventory(1)
OPENED = Event("result", "forwards", data={"port": 4321})
AWAY = [
    ConnectionLost("gpu1", "tunnel: no keepalive"),
    Unreachable("gpu1", "no route"),
    TimedOut("gpu1", "no answer"),
    CommandFailed("gpu1", "Docker is away", exit_code=1, stderr=""),
    NodeMissing("cluster lab is not running on gpu1"),
]
FINAL = [
    HostKeyRejected("gpu1", "another key"),
    AuthenticationFailed("gpu1", "no key was accepted"),
    PreflightFailed("gpu1: a node of another cluster"),
]


class Tunnels:
    """Opens a tunnel each time that it is asked, or raises the next of these errors."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: VclusterError | None) -> None:
        self.errors, self.ports, self.clock = list(errors), list[int](), Clock()
        self.runtime = Runtime(self.clock, repeat=lambda *_: SimpleNamespace(stop=lambda: None))
        monkeypatch.setattr(endpoint, "tunnel", self.tunnel)

    def tunnel(self, _inventory: object, emit: Callable[[Event], None], *, port: int, **given: Any) -> None:
        assert given["runtime"] is self.runtime
        self.ports.append(port)
        error = self.errors.pop(0) if len(self.errors) > 1 else self.errors[0]
        if error:
            raise error
        emit(OPENED)
        raise ConnectionLost("gpu1", "tunnel: no keepalive")

    def keep(self, folder: Path) -> None:
        keep_open(INVENTORY, folder, lambda _: None, port=0, runtime=self.runtime)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    state(INVENTORY, tmp_path).path.parent.mkdir(parents=True)
    return tmp_path


# fault: actions/endpoint.py: except (HostError, NodeMissing):  # → except HostError:  #
@pytest.mark.parametrize("away", AWAY, ids=lambda error: type(error).__name__)
def test_what_is_away_for_a_while_is_waited_for_at_the_same_port(
    away: VclusterError, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Tunnels(monkeypatch, None, away, away, None, FINAL[0])
    with pytest.raises(HostKeyRejected):
        made.keep(cache)
    assert made.ports == [0, 4321, 4321, 4321, 4321]
    assert not state(INVENTORY, cache).path.exists()


@pytest.mark.parametrize("final", FINAL, ids=lambda error: type(error).__name__)
def test_what_no_new_try_changes_ends_it(final: VclusterError, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Tunnels(monkeypatch, None, final)
    with pytest.raises(type(final)):
        made.keep(cache)
    assert made.ports == [0, 4321]


def test_what_stays_away_ends_it_after_an_hour(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Tunnels(monkeypatch, None, AWAY[-1])
    with pytest.raises(NodeMissing):
        made.keep(cache)
    assert RETRY_SECONDS <= made.clock.now < RETRY_SECONDS + 10


@pytest.mark.parametrize("away", AWAY, ids=lambda error: type(error).__name__)
def test_a_tunnel_that_never_opened_ends_at_once(
    away: VclusterError, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Tunnels(monkeypatch, away)
    with pytest.raises(type(away)):
        made.keep(cache)
    assert len(made.ports) == 1
