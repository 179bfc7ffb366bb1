"""How `wait` ends where it cannot look."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.sim import lab, make
from tests.support.views import PAIR
from vllm_cluster.kernel.errors import (
    ConnectionLost,
    HostKeyRejected,
    NodeMissing,
    OpenSshNeeded,
    TimedOut,
    Unreachable,
    VclusterError,
)
from vllm_cluster.serving.status import wait as action
from vllm_cluster.serving.status.wait import MISSING_SECONDS
from vllm_cluster.wire.status import GroupStatus, NodeStatus

INVENTORY = make.inventory(1)


# fault: serving/status/wait.py: raise away if isinstance(away, Unreachable) else → raise away or
@pytest.mark.parametrize(
    ("trouble", "code", "seconds"),
    [
        (ConnectionLost("gpu1", "the connection broke"), 124, 60.0),
        (TimedOut("gpu1", "no answer after 20 s"), 124, 60.0),
        (Unreachable("gpu1", "no route to host"), 4, 60.0),
        (HostKeyRejected("gpu1", "another host key"), 4, 0.0),
        (OpenSshNeeded("gpu1", "another transport"), 4, 0.0),
        (NodeMissing("gpu1: no node"), 3, MISSING_SECONDS),
    ],
)
def test_it_ends_with_the_code_of_what_keeps_it_waiting(
    trouble: VclusterError, code: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*_: object) -> None:
        raise trouble

    monkeypatch.setattr(action, "open_node", asked)
    world = make.world((2,))
    with lab.inside(world), pytest.raises(VclusterError) as end:
        assert world.runtime
        action.wait(INVENTORY, lambda _: None, 60.0, runtime=world.runtime)
    assert end.value.exit_code == code
    assert str(getattr(trouble, "detail", trouble)) in end.value.message
    assert world.clock.monotonic() == pytest.approx(seconds, abs=2.0)


# fault: serving/status/wait.py: if len(replicas) == 1: → if replicas:
def test_of_several_replicas_the_one_that_is_waited_for_is_named() -> None:
    """Without it the phases of two went back and forth."""
    status = NodeStatus("head", 1.0, GroupStatus("up", 0, None, "2", ()), PAIR[0], replicas=PAIR)
    assert action._awaited_model("gpu1", status) == "org/model: replica 1: loading; 1 of 2 ready"
    assert action._awaited_model("gpu1", replace(status, replicas=PAIR[1:])) == "org/model: loading"
    assert action._awaited_model("gpu1", replace(status, replicas=PAIR[:1])) == ""
