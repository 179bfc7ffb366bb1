"""What a node says about itself, read from its status.json; and Ray's nodes against the plan."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from vllm_cluster.core.errors import VclusterError

VERSION = 1
RayState = Literal["waiting", "starting", "up", "down"]
Phase = Literal["waiting", "starting", "loading", "profiling", "probing", "ready", "failed", "backoff", "stopping"]


@dataclass(frozen=True)
class RayNode:
    """One node as Ray lists it; a dead one stays in the list."""

    id: str
    address: str
    alive: bool
    gpus: float


@dataclass(frozen=True)
class RayStatus:
    """Ray on one node; `nodes` are known on the head only."""

    state: RayState
    restarts: int
    error: str | None
    version: str | None
    nodes: tuple[RayNode, ...]


@dataclass(frozen=True)
class Failure:
    """How one run of vLLM ended; the first line is the root cause where it could be told."""

    at: float
    what: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class ServeStatus:
    """What is served and how far it is; `gpus` are those that Ray has and those that are wanted."""

    generation: str
    model: str
    name: str
    phase: Phase
    detail: str
    progress: tuple[int, int] | None
    since: float
    attempt: int
    gpus: tuple[float, float]
    first_failure: Failure | None
    failure: Failure | None
    ready_at: float | None
    seconds_to_ready: float | None


@dataclass(frozen=True)
class NodeStatus:
    """One node's status.json; `error` is about what it was told, not about what it runs."""

    role: str
    updated: float
    ray: RayStatus
    serve: ServeStatus | None
    error: str | None


@dataclass(frozen=True)
class Membership:
    """Ray's living nodes against the plan, by address."""

    missing: tuple[str, ...]
    foreign: tuple[str, ...]
    wrong: tuple[str, ...]
    have: int
    want: int

    @property
    def complete(self) -> bool:
        """Whether exactly the planned GPUs are there, at the planned addresses."""
        return not (self.missing or self.foreign or self.wrong)


class UnknownStatus(VclusterError):
    """A status file that this vcluster cannot read."""


def membership(planned: Mapping[str, int], nodes: Sequence[RayNode]) -> Membership:
    """Compare what is planned (GPUs by address) with Ray's living nodes.

    Two living nodes at one address (one has just died, unnoticed, the other has taken its place) count as wrong.
    """
    alive: dict[str, float] = {}
    for node in nodes:
        if node.alive:
            alive[node.address] = alive.get(node.address, 0) + node.gpus
    return Membership(
        missing=tuple(address for address in planned if address not in alive),
        foreign=tuple(address for address in alive if address not in planned),
        wrong=tuple(address for address in planned if address in alive and alive[address] != planned[address]),
        have=int(sum(count for address, count in alive.items() if address in planned)),
        want=sum(planned.values()),
    )


def parse_status(raw: bytes) -> NodeStatus:
    """Read a status.json.

    Raises:
        UnknownStatus: it is of another version, or not what a node writes.
    """
    try:
        data = json.loads(raw)
        version = data["v"]
        if version == VERSION:
            return _status(data)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnknownStatus(f"a node's status.json cannot be read: {error!r}", hint="run vcluster up again") from error
    raise UnknownStatus(
        f"a node's status.json has version {version}; this vcluster reads version {VERSION}",
        hint="use the vcluster that started the cluster, or run vcluster up again with this one",
    )


def _status(data: Mapping[str, object]) -> NodeStatus:
    ray, serve = _mapping(data["ray"]), data["serve"]
    return NodeStatus(
        role=str(data["role"]),
        updated=_number(data["updated"]),
        ray=RayStatus(
            state=cast(RayState, _one_of(ray["state"], get_args(RayState))),
            restarts=int(_number(ray["restarts"])),
            error=_text(ray["error"]),
            version=_text(ray["version"]),
            nodes=tuple(_node(_mapping(node)) for node in _sequence(ray["nodes"])),
        ),
        serve=None if serve is None else _serve(_mapping(serve)),
        error=_text(data.get("error")),
    )


def _node(node: Mapping[str, object]) -> RayNode:
    return RayNode(str(node["id"]), str(node["address"]), node["alive"] is True, _number(node["gpus"]))


def _serve(serve: Mapping[str, object]) -> ServeStatus:
    have, want = _sequence(serve["gpus"])
    return ServeStatus(
        generation=str(serve["generation"]),
        model=str(serve["model"]),
        name=str(serve["name"]),
        phase=cast(Phase, _one_of(serve["phase"], get_args(Phase))),
        detail=str(serve["detail"]),
        progress=_progress(serve["progress"]),
        since=_number(serve["since"]),
        attempt=int(_number(serve["attempt"])),
        gpus=(_number(have), _number(want)),
        first_failure=_failure(serve["first_failure"]),
        failure=_failure(serve["failure"]),
        ready_at=None if serve["ready_at"] is None else _number(serve["ready_at"]),
        seconds_to_ready=None if serve["seconds_to_ready"] is None else _number(serve["seconds_to_ready"]),
    )


def _failure(value: object) -> Failure | None:
    if value is None:
        return None
    failure = _mapping(value)
    lines = tuple(str(line) for line in _sequence(failure["lines"]))
    return Failure(_number(failure["at"]), str(failure["what"]), lines)


def _progress(value: object) -> tuple[int, int] | None:
    if value is None:
        return None
    done, total = _sequence(value)
    return int(_number(done)), int(_number(total))


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is no mapping")
    return value


def _sequence(value: object) -> Sequence[object]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return value


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _one_of(value: object, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ValueError(f"{value!r} is none of {', '.join(known)}")
    return str(value)
