"""Where serving asks features: what they give has these types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from vllm_cluster.kernel.events import Emit
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hooks import Hook
from vllm_cluster.kernel.hosts.connection import Fleet
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.handle import NodeHandle


class FirstPull(Protocol):
    """A pull of a model before it is served."""

    def is_wanted(self, confirm: Callable[[str], bool | None]) -> bool:
        """Ask a person."""

    def bring(self) -> None:
        """Bring it to every host."""


class MakePull(Protocol):
    """Makes the pull of a model, of a revision or of the newest one."""

    def __call__(
        self,
        inventory: Inventory,
        fleet: Fleet,
        facts: Mapping[str, HostFacts],
        emit: Emit,
        *,
        model: str,
        revision: str,
    ) -> FirstPull: ...


class KeptOnHead(Protocol):
    """What is lost with the head."""

    def listed(self, node: NodeHandle) -> Mapping[str, str]:
        """What is on a node that runs: a text for each, by its key."""

    def is_there(self, node: NodeHandle) -> bool:
        """Whether anything is on a node, which need not run."""


PULL_FIRST = Hook[MakePull]("pull-first")
KEPT_ON_HEAD = Hook[KeptOnHead]("kept-on-head")


class KeyChanged(Protocol):
    """Renews a rotated key where this machine keeps it, with the folder of its caches; events name what was done.

    `new` is None where the tunnel of this machine leads to an end without it: what would give it there keeps the old.
    Another cluster may have the same name and hosts of the same names: the key `old` alone is of this one.
    """

    def __call__(self, inventory: Inventory, cache: Path, emit: Emit, *, old: str, new: str | None) -> None: ...


KEY_CHANGED = Hook[KeyChanged]("key-changed")
