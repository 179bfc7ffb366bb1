"""What a head is asked to serve, and what it knows of it: a deployment, and the replica that runs it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Annotated, Literal

from vllm_cluster.wire.backends import BackendName
from vllm_cluster.wire.first_order import rows_of
from vllm_cluster.wire.reading import RefusedDocument, convert, document
from vllm_cluster.wire.roll import MAX_GPUS
from vllm_cluster.wire.status import FailedRequest
from vllm_cluster.wire.values import Address, Count, Line, Name, Number, Port, RunName, ServedName, Word, between

# 1 had a command line in place of the intent; it is read as one deployment with one replica. Where not Ray joins the
# parts it is 3, which a node program of before refuses: it would start the leader's alone. Several replicas are 4, and
# several deployments 5.
FORMAT, FORMAT_OF_PARTS, FORMAT_OF_REPLICAS, FORMAT_OF_MODELS = 2, 3, 4, 5
# Files of the head's state volume: what people ask for, and what the node program took last; what it knows of that;
# what was ready, newest last, to go back to; and what became of each request.
WANTED, ACCEPTED, TAKEN, READY, RESULTS = "wanted.json", "accepted.json", "request.json", "ready.json", "results.jsonl"


def of_replica(file: str, index: int) -> str:
    """Where a replica keeps a file: the first one where earlier versions had it."""
    return f"replica-{index}/{file}" if index else file


MAX_PLACED = 64 * 64  # deployments, and replicas of each
# How long open requests may take before what they are at ends.
MAX_DRAIN_SECONDS = 3600.0
Drain = Annotated[float, between(0.0, MAX_DRAIN_SECONDS)]
Degree = Annotated[int, between(1, 1 << 16)]
# Where parts meet, unless the inventory has other ports: torch's store, and the engines of data parallel.
RENDEZVOUS = (29501, 29550)


@dataclass(frozen=True)
class Deployment:
    """What a person wants served, under one name; nothing of it is derived.

    `tp` and `pp` are None where the layout follows from the hosts, `hosts` are names and empty where any will do,
    `flags` are for vLLM. `dp` are the engines that share the requests; with `expert_parallel` experts are dealt over
    all GPUs, not split. `backend` is empty where that of the cluster will do. With `expose` other machines reach it;
    with `rollback` what was ready before is served again where this cannot be. `replicas` share its requests.
    """

    name: ServedName
    model: ServedName
    flags: tuple[Word, ...] = ()
    tp: Degree | None = None
    pp: Degree | None = None
    hosts: tuple[Name, ...] = ()
    expose: bool = False
    rollback: bool = True
    dp: Degree = 1
    expert_parallel: bool = False
    backend: Literal["", BackendName] = ""
    replicas: Degree = 1


# What every part that runs a program of its own runs.
ENGINE = ("vllm", "serve")


@dataclass(frozen=True)
class Part:
    """What one node runs of a replica, and how many GPUs it takes; no `argv` where the backend starts its ranks.

    `devices` are the numbers of these GPUs among those of the node; empty where it takes the whole node.
    """

    host: Name
    address: Address
    gpus: Annotated[int, between(0, MAX_GPUS)]
    argv: tuple[Word, ...] = ()
    env: Mapping[Name, Word] = field(default_factory=dict)
    devices: tuple[Count, ...] = ()

    def __post_init__(self) -> None:
        """Refuse another program than the engine: an order may come from a host that has taken another's place."""
        if self.argv and self.argv[:2] != ENGINE:
            raise ValueError(f"runs another program than {' '.join(ENGINE)}")

    def meets(self, other: Part) -> bool:
        """Whether both take a GPU that is the same; two that take none are in each other's place."""
        if not (self.gpus and other.gpus):
            return self.address == other.address and self.gpus == other.gpus
        whole = not (self.devices and other.devices)
        return self.address == other.address and (whole or not {*self.devices}.isdisjoint(other.devices))


@dataclass(frozen=True)
class Replica:
    """One running copy, which answers at `host` and `port`: its parts, the one that leads first.

    `loading` are the flags that follow from where the weights lie; `offline` is where every host has all files.
    `rendezvous` are the ports where its parts meet. `api` is where the one that leads answers the front, on its own
    address; None where that is on the head.
    """

    tp: Degree
    pp: Degree
    host: Address
    port: Port
    parts: tuple[Part, ...]
    loading: tuple[Word, ...] = ()
    offline: bool = False
    dp: Degree = 1
    backend: BackendName = "ray"
    rendezvous: tuple[Port, Port] = RENDEZVOUS
    api: Port | None = None

    def __post_init__(self) -> None:
        """Refuse a replica without a part that leads it."""
        if not (self.parts and self.parts[0].argv):
            raise ValueError("has no part that leads it")

    @property
    def leader(self) -> Part:
        """The part that runs the API server."""
        return self.parts[0]

    @property
    def grouped(self) -> bool:
        """Whether what joins the nodes starts its ranks, for the part that leads: the others have no command."""
        return self.backend == "ray"

    @property
    def ranks(self) -> dict[str, int]:
        """The GPUs that it takes (address → number)."""
        return {part.address: part.gpus for part in self.parts if part.gpus}

    @property
    def size(self) -> int:
        """How many GPUs its layout takes."""
        return self.tp * self.pp * self.dp

    @property
    def layout(self) -> str:
        """Its degrees, for people."""
        return " × ".join([f"TP={self.tp}", f"PP={self.pp}", *([f"DP={self.dp}"] if self.dp > 1 else [])])


@dataclass(frozen=True)
class Placement:
    """A deployment and one replica of it; `generation` names what runs, and stays where only the GPUs are others.

    `index` counts the replicas of all deployments. `asked` is the order that asked for it, where that is an earlier
    one, which left it as it was.
    """

    generation: RunName
    deployment: Deployment
    replica: Replica
    index: Count = 0
    asked: Count = 0

    def meets(self, other: Placement) -> bool:
        """Whether both take a GPU that is the same."""
        pairs = product(self.replica.parts, other.replica.parts)
        return any(one.gpus and one.meets(another) for one, another in pairs)

    def repeats(self, other: Placement) -> bool:
        """Whether both ask for the same in as many replicas; `generation` alone is the same for three and for one."""
        return (self.generation, self.deployment.replicas) == (other.generation, other.deployment.replicas)


def _conflict(placed: tuple[Placement, ...]) -> str:
    """What this version cannot serve of these; empty where it can."""
    if len(placed) > MAX_PLACED:
        return f"has more than {MAX_PLACED} replicas"
    if len({(one.replica.host, one.replica.port) for one in placed}) > 1:
        return "has models that answer at several addresses"
    if len({one.index for one in placed}) < len(placed):
        return "has a replica twice"
    return "gives a GPU to two replicas" if _share_gpus(placed) else ""


def _share_gpus(placed: tuple[Placement, ...]) -> bool:
    """Whether two of these meet: in one pass, as a document of a head may have thousands."""
    taken: dict[str, set[int]] = {}
    whole: set[str] = set()
    for one in placed:
        parts = [part for part in one.replica.parts if part.gpus]
        for at, devices in ((part.address, part.devices) for part in parts):
            if at in whole or (at in taken and not (devices and taken[at].isdisjoint(devices))):
                return True
        for part in parts:
            taken.setdefault(part.address, set()).update(part.devices)
            whole |= set() if part.devices else {part.address}
    return False


@dataclass(frozen=True)
class Order:
    """What is wanted of a head; each writer counts `epoch` one up, and `by` is who that was.

    The head refuses one that is not newer than what it took: a laptop that slept while it wrote must not undo what was
    asked for meanwhile. `back_to` is served where this cannot be: empty for nothing, None where the head chooses.
    What ends for it has `drain` seconds for its open requests, None where the head chooses. Each replica has a row.
    """

    epoch: Count = 0
    by: Line = ""
    deployments: tuple[Placement, ...] = ()
    back_to: tuple[Placement, ...] | None = None
    drain: Drain | None = None

    def __post_init__(self) -> None:
        """Refuse more than this version can serve."""
        if wrong := _conflict(self.deployments) or _conflict(self.back_to or ()):
            raise ValueError(wrong)

    @property
    def wanted(self) -> Placement | None:
        """What shall be served: its first replica."""
        return self.deployments[0] if self.deployments else None

    def of(self, index: int) -> Order:
        """Return what is wanted of one replica alone, with the number of the order that asked for it."""
        back = self.back_to
        back_to = None if back is None else tuple(one for one in back if one.index == index)
        found = next((one for one in self.deployments if one.index == index), None)
        number = found.asked or self.epoch if found else self.epoch
        return Order(number, self.by, (replace(found, asked=0),) if found else (), back_to, self.drain)

    def named(self, name: str) -> tuple[Placement, ...]:
        """Return the replicas of a deployment."""
        return tuple(one for one in self.deployments if one.deployment.name == name)

    def beside(self, name: str) -> tuple[Placement, ...]:
        """Return what a later order about this deployment leaves as it is."""
        others = (one for one in self.deployments if one.deployment.name != name)
        return tuple(replace(one, asked=one.asked or self.epoch) for one in others)

    def without(self, names: Collection[str]) -> Order:
        """Return the order as if these deployments had not been asked for."""
        return replace(self, deployments=tuple(one for one in self.deployments if one.deployment.name not in names))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the deployments, in their order."""
        return tuple(dict.fromkeys(one.deployment.name for one in self.deployments))

    @property
    def document(self) -> bytes:
        """The content of wanted.json; that nothing is wanted is written as every version reads it."""
        drain = {} if self.drain is None else {"drain": self.drain}
        if not self.deployments:
            return json.dumps({"v": 1, "epoch": self.epoch, "by": self.by, "serve": None, **drain}).encode()
        written = max(format_of(*self.deployments), format_of(*(self.back_to or ())))
        own = {name: value for name, value in asdict(self).items() if name != "drain"}
        return json.dumps({"v": written, **own, **drain}).encode()


@dataclass(frozen=True)
class Taken:
    """What a head knows of the order that it took: request.json.

    `number` is that of the order, `began` the moment in the head's own time; `back_to` is what was ready before it,
    which is served since it has `failed`, `stuck` where it does not get ready either.
    """

    number: Count = 0
    asked: Placement | None = None
    by: Line = ""
    began: tuple[Line, Number] | None = None
    back_to: Placement | None = None
    failed: FailedRequest | None = None
    ready: bool = False
    ended: bool = False
    stuck: bool = False
    away_seconds: Number | None = None

    @property
    def served(self) -> Placement | None:
        """What shall run."""
        return self.back_to if self.failed else self.asked

    @property
    def document(self) -> dict[str, object]:
        """The content of request.json."""
        return {"v": max(map(format_of, filter(None, (self.asked, self.back_to))), default=FORMAT), **asdict(self)}


@dataclass(frozen=True)
class Ready:
    """What was ready, newest last: ready.json."""

    requests: tuple[Placement, ...] = ()

    @property
    def document(self) -> dict[str, object]:
        """The content of ready.json."""
        return {"v": max(map(format_of, self.requests), default=FORMAT), **asdict(self)}


# What a node knows that is not the head: what it took when it was one is over.
FRESH = {WANTED: Order().document, ACCEPTED: b"{}", TAKEN: b"{}"}


def format_of(*placed: Placement) -> int:
    """The format in which these are written: the oldest that has all of it."""
    if any(one.asked for one in placed) or len({one.deployment.name for one in placed}) > 1:
        return FORMAT_OF_MODELS
    if any(one.index or one.deployment.replicas > 1 for one in placed):
        return FORMAT_OF_REPLICAS
    return FORMAT if all(one.replica.grouped for one in placed) else FORMAT_OF_PARTS


def name_of(deployment: Deployment, replica: Replica) -> str:
    """Name what runs by its content: the same asked for twice is one, also when a host joined meanwhile."""
    what = [deployment.model, deployment.name, deployment.flags, deployment.hosts]
    how: list[object] = [replica.tp, replica.pp, replica.host, replica.port]
    # What a version before could not ask for changes no name that it gave.
    more = [replica.backend, replica.dp, deployment.expert_parallel]
    how += more if more != ["ray", 1, False] else []
    return hashlib.sha256(json.dumps([what, how]).encode()).hexdigest()[:16]


def read_order(raw: bytes, sender: str = WANTED) -> Order:
    """Read an order, of format 1 too.

    Raises:
        RefusedDocument: it is none, or of a later format.
    """
    found = _known(raw, sender)
    if found.get("v") == 1:
        serve = found.get("serve")
        rows: dict[str, object] = {"deployments": rows_of(serve, sender)}
        rows |= {"back_to": rows_of(found["back_to"], sender)} if "back_to" in found else {}
        rows |= {"drain": found["drain"]} if "drain" in found else {}
        found = {"epoch": found.get("epoch", 0), "by": found.get("by", ""), **rows}
    return convert(Order, found, sender)


def read_taken(raw: bytes, sender: str = TAKEN) -> Taken:
    """Read what a head knows of its order, of format 1 too; without content nothing was taken.

    Raises:
        RefusedDocument: as `read_order`.
    """
    found = _known(raw, sender, first=None)
    if "v" not in found and found:
        placed = {key: rows_of(found.get(key), sender) for key in ("asked", "back_to")}
        found = {**found, **{key: rows[0] if rows else None for key, rows in placed.items()}}
    return convert(Taken, found, sender)


def read_ready(raw: bytes, sender: str = READY) -> Ready:
    """Read what was ready, of format 1 too.

    Raises:
        RefusedDocument: as `read_order`.
    """
    found = _known(raw, sender)
    if found.get("v") == 1:
        rows = found.get("requests")
        found = {"requests": [one for row in (rows if isinstance(rows, list) else ()) for one in rows_of(row, sender)]}
    return convert(Ready, found, sender)


def _known(raw: bytes, sender: str, first: int | None = 1) -> dict[str, object]:
    """The document, whose format is one that is known; `first` is how the first format is marked."""
    found = document(raw, sender)
    if not isinstance(found, dict):
        raise RefusedDocument(sender, "", "must be an object")
    known = (first, FORMAT, FORMAT_OF_PARTS, FORMAT_OF_REPLICAS, FORMAT_OF_MODELS)
    if found.get("v") not in known or isinstance(found.get("v"), bool):
        raise RefusedDocument(sender, "v", f"is of another version; this one reads {FORMAT_OF_MODELS}: run vcluster up")
    return found
