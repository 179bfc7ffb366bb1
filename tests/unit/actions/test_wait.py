"""What `wait` looks at again and again, with a node that is made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.sim import make
from vllm_cluster.actions.wait import MISSING_SECONDS, _Head
from vllm_cluster.clock import Deadline
from vllm_cluster.core.members import Member, Record
from vllm_cluster.errors import HostError

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
