"""What every way to make one engine of a replica's parts is given, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from vllm_cluster.wire.order import Part

if TYPE_CHECKING:
    from vllm_cluster.kernel.inventory.model import Inventory, Ports

Role = Literal["head", "worker"]


@dataclass(frozen=True)
class Degrees:
    """How a model is split: tensor, pipeline and data parallel; `experts` where these are dealt, not split."""

    tp: int
    pp: int
    dp: int = 1
    experts: bool = False

    @property
    def size(self) -> int:
        """How many GPUs it takes."""
        return self.tp * self.pp * self.dp


@dataclass(frozen=True)
class Chosen:
    """The GPUs that a replica takes (host → number), of a cluster; `rendezvous` are the ports where its parts meet.

    `head` leads it. `devices` are the numbers of its GPUs on a host that it shares.
    """

    head: str
    gpus: Mapping[str, int]
    addresses: Mapping[str, str]
    rendezvous: tuple[int, int]
    devices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


class Backend(Protocol):
    """One such way, and what it has run on the nodes for it."""

    # Where it listens, as keys of the inventory's `ports`: on every node, on the head alone, and on its loopback.
    NODE_PORTS: tuple[str, ...]
    HEAD_PORTS: tuple[str, ...]
    LOOPBACK_PORTS: tuple[str, ...]
    # The range of processes that come and go.
    WORKER_PORTS: tuple[str, ...]
    # What it takes of the shared memory, beside the ranks.
    SHM_BYTES: int

    def requirements(self, inventory: Inventory) -> tuple[str, ...]:
        """Return what images that come without get (name==version)."""

    def start_argv(self, role: Role, *, address: str, head_address: str, gpus: int, ports: Ports) -> list[str]:
        """Return the command that joins a node until it ends; empty where none does."""

    def environment(self, *, head_address: str, ports: Ports, token_file: str) -> dict[str, str]:
        """Return the environment of that and of all that talks to it, the same on every node.

        The roll shows the cluster's token: its file is under `VCLUSTER_NODE_TOKEN_FILE` where no other name has it.
        """

    # Whether the head answers requests also where it gives no GPU.
    LED_BY_HEAD: bool

    # What vLLM's command gets for it, beside the degrees.
    FLAGS: tuple[str, ...]

    def take(self, nodes: Mapping[str, int], degrees: Degrees) -> dict[str, int]:
        """Choose the GPUs of each node that get ranks; `nodes` are those that may, the head first.

        Raises:
            UsageError: these cannot be laid out so; with a layout that can.
        """

    def parts(self, argv: Sequence[str], env: Mapping[str, str], chosen: Chosen, degrees: Degrees) -> tuple[Part, ...]:
        """Return what each host runs, what leads first.

        Raises:
            UsageError: it cannot run there.
        """
