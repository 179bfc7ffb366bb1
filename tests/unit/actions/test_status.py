"""What `status` makes of what was found on each host."""

from __future__ import annotations

import pytest

from tests.support.sim import make
from tests.support.views import HEAD, WORKER, view
from vllm_cluster.actions.status import MISSING, RUNNING, STOPPED, UNREACHABLE, HostState, assemble

GPUS = 8


@pytest.mark.parametrize(
    ("state", "counted"), [(RUNNING, GPUS), (STOPPED, 0), (MISSING, 0), (UNREACHABLE, GPUS)], ids=str
)
def test_a_node_that_has_just_ended_has_no_gpus(state: str, counted: int) -> None:
    """Ray on the head counts them until it misses the node; one that was not seen may still run."""
    head = HostState(RUNNING, role="head", gpus=GPUS, status=view(HEAD, WORKER).status.head)
    found = assemble(make.inventory(2), {"gpu1": head, "gpu2": HostState(state, gpus=GPUS)})
    assert [host.joined_gpus for host in found.hosts] == [GPUS, counted]
    assert found.up is (state == RUNNING)
