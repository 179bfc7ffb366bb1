"""What `up` will do, as data: the object that `plan` prints is the object that `up` runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from vllm_cluster.kernel.plan.members import Record
from vllm_cluster.kernel.plan.placement import Cluster
from vllm_cluster.kernel.plan.spec import ContainerSpec, FieldChange
from vllm_cluster.kernel.text import count


@dataclass(frozen=True)
class PrepareImage:
    """Have the image on a host, and a node image from it that meets the requirements.

    `base` is its id, empty where the head lacks it; `digest` is how a registry knows it, `source` a host that has it.
    Where the head lacks it, `offered` is the id of what the source has, and `content` what that is wherever it is.
    """

    verb: ClassVar[str] = "prepare image"
    past: ClassVar[str] = "the image is ready"
    host: str
    image: str
    requirements: tuple[str, ...]
    pull: bool
    base: str = ""
    digest: str = ""
    source: str = ""
    offered: str = ""
    content: str = ""

    @property
    def text(self) -> str:
        """What happens, for people."""
        fetch = f"{self._fetch}, then " if self.pull else ""
        return f"{fetch}add {' '.join(self.requirements)} to {self.image} unless it has one that fits"

    @property
    def _fetch(self) -> str:
        if not self.source:
            return f"pull {self.image}"
        if self.offered:
            return f"pull {self.image} (or send {self.offered[:19]} from {self.source})"
        if not self.digest:
            return f"send {self.image} ({self.base[:19]}) from {self.source}"
        return f"pull {self.digest} (or send it from {self.source})"


@dataclass(frozen=True)
class _ContainerOperation:
    """An operation on an existing container of the cluster."""

    verb: ClassVar[str]
    past: ClassVar[str]
    host: str
    id: str
    name: str
    reason: str

    @property
    def text(self) -> str:
        """What happens, for people."""
        return f"{self.verb} container {self.name} ({self.id[:12]}): {self.reason}"


class RemoveContainer(_ContainerOperation):
    """Stop it and remove it."""

    verb: ClassVar[str] = "remove"
    past: ClassVar[str] = "removed"


class StartNode(_ContainerOperation):
    """Start it: it is stopped."""

    verb: ClassVar[str] = "start"
    past: ClassVar[str] = "started"


class RestartNode(_ContainerOperation):
    """Restart it, so that it joins again."""

    verb: ClassVar[str] = "restart"
    past: ClassVar[str] = "restarted"


@dataclass(frozen=True)
class CreateNode:
    """Create a node's container with its files and secrets, and start it."""

    verb: ClassVar[str] = "create"
    past: ClassVar[str] = "created and started"
    host: str
    spec: ContainerSpec
    reason: str
    # Where it replaces a node: what differs from that one.
    changes: tuple[FieldChange, ...] = ()

    @property
    def text(self) -> str:
        """What happens, for people."""
        spec = self.spec
        return f"create {spec.role} {spec.name} with {count(spec.gpu_count, 'GPU')} on {spec.address}: {self.reason}"


@dataclass(frozen=True)
class RemoveVolume:
    """Remove a volume of a node that is gone."""

    verb: ClassVar[str] = "remove volume"
    past: ClassVar[str] = "removed"
    host: str
    name: str
    reason: str

    @property
    def text(self) -> str:
        """What happens, for people."""
        return f"remove volume {self.name}: {self.reason}"


@dataclass(frozen=True)
class MoveHead:
    """Copy what the head keeps to the host that will be the head; what is served there follows the `change`."""

    verb: ClassVar[str] = "move head"
    past: ClassVar[str] = "has what the head kept"
    host: str
    source: str
    record: Record
    change: Cluster

    @property
    def text(self) -> str:
        """What happens, for people."""
        return f"move the head here from {self.source}: copy what it serves, its members and its history"


@dataclass(frozen=True)
class RecordMembers:
    """Write on the head who the members are, and what is served from now on where that follows.

    `request` is that as it was planned. A load may have failed since: with a `change` it follows again, without one
    `MoveHead` has written it.
    """

    verb: ClassVar[str] = "record members"
    past: ClassVar[str] = "members are recorded"
    host: str
    record: Record
    changed: str
    # Whether an earlier record was there to compare with.
    seen: bool
    request: str
    request_text: str
    change: Cluster | None

    @property
    def text(self) -> str:
        """What happens, for people."""
        return "record on the head: " + "; ".join(filter(None, (self.changed, self.request_text)))


Operation = (
    PrepareImage | RemoveContainer | CreateNode | StartNode | RestartNode | RemoveVolume | MoveHead | RecordMembers
)


@dataclass(frozen=True)
class SameImage:
    """Every node runs one image, also where a tag differs between hosts, and where nothing is done to it."""

    type: ClassVar[str] = "same-image"
    image: str
    # Its id, where a host has it already.
    base: str = ""

    @property
    def text(self) -> str:
        """What holds, for people."""
        return f"{self.image} is the same image on every host"


@dataclass(frozen=True)
class SecretsWritten:
    """The secrets of new nodes are in their volumes: what was generated outlives any failure after this."""

    type: ClassVar[str] = "secrets-written"
    hosts: tuple[str, ...]

    @property
    def text(self) -> str:
        """What holds, for people."""
        return f"the secrets are written on {', '.join(self.hosts)}"


@dataclass(frozen=True)
class HeadReady:
    """The head answers: Ray, or without Ray the node's own program."""

    type: ClassVar[str] = "head-ready"
    host: str

    @property
    def text(self) -> str:
        """What holds, for people."""
        return "the head answers"


@dataclass(frozen=True)
class GpusJoined:
    """Exactly these GPUs have joined, by address, as Ray counts them or without Ray the roll."""

    type: ClassVar[str] = "gpus-joined"
    gpus: Mapping[str, int]

    @property
    def text(self) -> str:
        """What holds, for people."""
        return "exactly the planned GPUs have joined"


Barrier = SameImage | SecretsWritten | HeadReady | GpusJoined


@dataclass(frozen=True)
class Stage:
    """Operations that may run side by side, and what must hold before the next stage."""

    title: str
    operations: tuple[Operation, ...]
    barriers: tuple[Barrier, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Stages in order, and the GPUs that Ray must count in the end, by address."""

    cluster: str
    id: str
    stages: tuple[Stage, ...]
    gpus: Mapping[str, int]
    head: str
    # Members that left the inventory and whose node is not removed, address → name; and the remedy for those of them
    # that are left alone.
    lost: Mapping[str, str] = field(default_factory=dict)
    alone: Mapping[str, str] = field(default_factory=dict)
    head_address: str = ""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not any(stage.operations for stage in self.stages)

    def operations(self) -> Iterator[Operation]:
        """Every operation, in order of stages."""
        for stage in self.stages:
            yield from stage.operations
