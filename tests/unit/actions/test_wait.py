"""What `wait` looks at again and again, with a node that is made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.sim import lab, make
from vllm_cluster.actions import wait as action
from vllm_cluster.actions.wait import MISSING_SECONDS, _Head
from vllm_cluster.clock import Deadline
from vllm_cluster.core.members import Member, Record
from vllm_cluster.errors import (
    ConnectionLost,
    HostError,
    HostKeyRejected,
    NodeMissing,
    TimedOut,
    Unreachable,
    VclusterError,
)

INVENTORY = make.inventory(1)


class Machine:
    """A connection, its runtime and the node there."""

    name = "gpu1"

    def __init__(self, address: str) -> None:
        self.clock = Clock()
        self.record = Record("lab", "id", (Member("gpu1", address, "m1", 2, 0.0, "gpu1"),))

    @property
    def runtime(self) -> Machine:
        return self

    def after(self, seconds: float) -> Deadline:
        return Deadline.after(seconds, self.clock)

    def read(self, _file: str) -> bytes:
        return self.record.document.encode()


def gpus(head: _Head, machine: Any) -> str:
    status: Any = SimpleNamespace(group=SimpleNamespace(nodes=()))
    return head._gpus(machine, status)


def test_a_head_with_another_address_is_given_the_time_of_an_up_and_no_more() -> None:
    """What waits for it would wait for its whole time-out."""
    machine: Any = Machine("10.9.9.9")
    head = _Head(INVENTORY, machine)
    assert "gpu1 not in Ray" in gpus(head, machine)
    machine.clock.sleep(MISSING_SECONDS)
    address = INVENTORY.hosts["gpu1"].address
    with pytest.raises(HostError, match=f"gpu1: wait: the cluster runs without the head's address {address}"):
        gpus(head, machine)
    # An `up` has given it its address.
    machine.record = Machine(address).record
    assert "gpu1 not in Ray" in gpus(head, machine)


# fault: actions/wait.py: raise away if isinstance(away, Unreachable) else → raise away or
@pytest.mark.parametrize(
    ("trouble", "code", "seconds"),
    [
        (ConnectionLost("gpu1", "the connection broke"), 124, 60.0),
        (TimedOut("gpu1", "no answer after 20 s"), 124, 60.0),
        (Unreachable("gpu1", "no route to host"), 4, 60.0),
        (HostKeyRejected("gpu1", "another host key"), 4, 0.0),
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
