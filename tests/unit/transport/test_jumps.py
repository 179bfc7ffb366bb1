"""The one connection to a jump host, that many hosts share."""

from __future__ import annotations

import pytest

from tests.support.clock import Clock
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import Unreachable
from vllm_cluster.kernel.transport.jumps import AGAIN_SECONDS, Jumps
from vllm_cluster.kernel.transport.ssh_config import SshEndpoint


class Connection:
    """A connection that lives."""

    def alive(self) -> bool:
        return True

    def close(self) -> None:
        pass


# fault: kernel/transport/jumps.py: return clock.monotonic() - self._failed[key] > AGAIN_SECONDS → return False
def test_a_jump_host_that_failed_is_tried_again_by_who_comes_later() -> None:
    """A network that was gone for a moment; the hosts of one burst share the failure."""
    jumps, clock, tries, network = Jumps(), Clock(), list[str](), False

    def connect() -> Connection:
        tries.append("up" if network else "down")
        if not network:
            raise Unreachable("bastion", "no route")
        return Connection()

    def through(name: str) -> Connection:
        at = SshEndpoint(name, "bastion", "10.0.0.1", 22, "u")
        return jumps.through(at, connect, Deadline.after(15, clock))

    for name in ("gpu1", "gpu2"):
        with pytest.raises(Unreachable, match=f"{name}: no route"):
            through(name)
    assert tries == ["down"]
    network = True
    clock.sleep(AGAIN_SECONDS + 0.1)
    assert through("gpu1") is through("gpu2")
    assert tries == ["down", "up"]
