"""Measure the served model with vLLM's own `vllm bench serve`, in the head's container."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from vllm_cluster import __version__
from vllm_cluster.features.bench.measured import (
    BenchPoint,
    BenchRun,
    HostHardware,
    Point,
    argv,
    expected_seconds,
    figures,
    order,
)
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import HostError, UsageError
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.hosts.observe import observe
from vllm_cluster.kernel.hosts.program import InNode, Message, RunningProgram, python, read_message, start
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.node.history import command_of, known_requests
from vllm_cluster.kernel.plan.spec import node_name
from vllm_cluster.kernel.text import count, duration, host_port, redact
from vllm_cluster.serving.endpoint.tunnel import address_of
from vllm_cluster.serving.head import reach_head, read_key
from vllm_cluster.serving.others import ready_model
from vllm_cluster.wire.programs import BenchCounts, BenchReply, BenchStarted
from vllm_cluster.wire.reading import RefusedDocument, read
from vllm_cluster.wire.status import ServeStatus
from vllm_cluster.wire.values import at_most

START_SECONDS, IMPORT_SECONDS, END_SECONDS = 30.0, 300.0, 5.0
# Far more loads than anybody measures: each that is compared takes a millisecond.
MAX_POINTS = 1000


@dataclass(frozen=True)
class BenchRequest:
    """What to run; each run may take `seconds`. With a `budget` no run begins that would end after so many.

    `model` may be left out where one is served.
    """

    preset: str
    points: Sequence[Point]
    repeat: int
    seconds: float
    budget: float = 0.0
    model: str | None = None


def measure_model(
    inventory: Inventory,
    wanted: BenchRequest,
    emit: Emit,
    keep: Callable[[Mapping[str, Any]], None],
    *,
    runtime: Runtime = SYSTEM,
) -> dict[str, Any]:
    """The document of all runs; `keep` gets what there is of it after each run.

    Raises:
        PreflightFailed: no model is ready.
        HostError: it was replaced or ended meanwhile, or vLLM's program failed; with what it printed.
    """
    begun_at = runtime.clock.monotonic()
    with Fleet(inventory, runtime) as fleet:
        head = reach_head(inventory, fleet)
        key = read_key(inventory, head)
        serve = ready_model(inventory, head, wanted.model, "bench")
        document = _document(inventory, fleet, head, serve, wanted)
        seed = int(runtime.clock.time() * 1000) % (1 << 31)
        # One limit for all: each run has its own below.
        seconds = IMPORT_SECONDS + wanted.seconds * len(wanted.points) * wanted.repeat
        program = python(
            "features.bench.on_host",
            "bench",
            seconds=seconds,
            needs=("wire.labels", "wire.listeners", "wire.values", "wire.reading"),
        )
        emit(Event("phase", f"starting vllm bench serve on {head.name}"))
        inside = InNode(node_name(inventory.cluster))
        with start(head, program, inside, runtime.after(START_SECONDS)) as running, _ending(running, runtime):
            api = f"http://{host_port(address_of(serve), serve.port)}"
            running.send({"key": key, "api": api})
            begun = running.read(BenchStarted, runtime.after(IMPORT_SECONDS))
            document["versions"]["vllm"] = begun.vllm
            _ensure_fit(inventory, head, serve, wanted.points, begun.context)
            measured = [BenchPoint(point) for point in wanted.points]
            for number, at in _turns(wanted, measured, begun_at, runtime, emit):
                found = _run(running, argv(at.point, serve, seed + number), runtime.after(wanted.seconds), head.name)
                _ensure_same(inventory, head, serve)
                at.runs.append(BenchRun(len(at.runs), figures(found)))
                document["points"] = [asdict(point) for point in measured if point.runs]
                keep(document)
        emit(Event("phase", "writing the results"))
        document["complete"] = True
        keep(document)
        return document


def _turns(
    wanted: BenchRequest, measured: Sequence[BenchPoint], since: float, runtime: Runtime, emit: Emit
) -> Iterator[tuple[int, BenchPoint]]:
    """Each run, with its number: shows which it is and how long all will take; ends early where the time is over."""
    clock, took = runtime.clock.monotonic, dict[int, float]()
    turns = [index for _, index in order(len(measured), wanted.repeat)]
    for number, index in enumerate(turns):
        left = expected_seconds(wanted.points, took, turns[number:])
        if wanted.budget and index in took and clock() - since + took[index] > wanted.budget:
            text = f"{number} of {len(turns)} runs fit into {duration(wanted.budget)}; --repeat measures all"
            emit(Event("note", text))
            return
        about = "" if left is None else f", about {duration(_rounded(left))} left"
        emit(Event("phase", f"run {number + 1} of {len(turns)}{about}: {_load(measured[index].point)}"))
        begun = clock()
        yield number, measured[index]
        took[index] = clock() - begun


def _rounded(seconds: float) -> int:
    """Round up to whole minutes, below that to ten seconds."""
    step = 60 if seconds > 90 else 10
    return max(1, math.ceil(seconds / step)) * step


@contextmanager
def _ending(running: RunningProgram, runtime: Runtime) -> Iterator[None]:
    """Have it end by itself, also after an error: what is killed leaves prompts and results in the head's /tmp."""
    try:
        yield
    except Exception:
        _end(running, runtime)
        raise
    _end(running, runtime)


def _end(running: RunningProgram, runtime: Runtime) -> None:
    with suppress(HostError):
        running.send({})
        running.next(runtime.after(END_SECONDS))


def _load(point: Point) -> str:
    return f"{point.concurrency} at once, {point.input} in, {point.output} out, {count(point.prompts, 'request')}"


def _ensure_fit(
    inventory: Inventory, head: HostConnection, serve: ServeStatus, points: Sequence[Point], context: int | None
) -> None:
    """Refuse prompts that the server would refuse; `context` is how many tokens it takes, None where not known.

    Raises:
        UsageError: a prompt and its answer are longer.
    """
    longest = max(points, key=lambda point: point.input + point.output)
    tokens = longest.input + longest.output
    if context and tokens > context:
        text = f"{longest.input} tokens in and {longest.output} out are {tokens}; "
        text += f"{serve.model} takes {context} tokens, prompt and answer together (--max-model-len)"
        node = NodeHandle(head, inventory.cluster)
        longer = command_of(inventory, node, serve, flag=f"--max-model-len={tokens}")
        raise UsageError(text, hint=f"use a smaller --input-len or --output-len\n{longer}")


def _run(running: RunningProgram, words: Sequence[str], deadline: Deadline, host: str) -> Message:
    running.send({"argv": list(words)})
    found = running.read(BenchReply, deadline)
    if found.result is None:
        tail = "\n".join(redact(running.stderr_tail()).strip().splitlines()[-5:])
        text = f"bench: {found.error}" + (f"\n{tail}" if tail else "")
        raise HostError(host, text, hint="vcluster status")
    counts = read_message(BenchCounts, host, "bench", found.result)
    if counts.failed or not counts.completed:
        why = "".join(f"\n{redact(reason)}" for reason in found.reasons)
        text = f"bench: {counts.failed} of {counts.asked} requests failed{why}"
        raise HostError(host, text, hint="vcluster logs --only vllm --errors\nvcluster explain")
    return found.result


def _ensure_same(inventory: Inventory, head: HostConnection, before: ServeStatus) -> None:
    """Refuse figures of two models, or of one that started again in between."""
    now = NodeHandle(head, inventory.cluster).state().replica(before.index)
    if now is None or now.generation != before.generation:
        found = f"was replaced by {now.name}" if now else "was stopped"
    elif now.attempt != before.attempt or now.phase != "ready":
        found = f"started again ({now.phase})"
    else:
        return
    raise HostError(head.name, f"bench: {before.name} {found} during the run; the runs before it are kept", again=())


def _document(
    inventory: Inventory, fleet: Fleet, head: HostConnection, serve: ServeStatus, wanted: BenchRequest
) -> dict[str, Any]:
    fleet.all(HostConnection.connect, [name for name in inventory.hosts if name != head.name])
    facts = fleet.all(lambda connection: observe(inventory, connection))
    # The environment has vcluster's own names; secrets are in neither.
    requests = known_requests(NodeHandle(head, inventory.cluster))
    asked = next((one for one in requests if one.generation == serve.generation), None)
    flags = [redact(word) for word in asked.replica.leader.argv] if asked else []
    return {
        "v": 1,
        "complete": False,
        "started": datetime.fromtimestamp(head.runtime.clock.time(), UTC).isoformat(timespec="seconds"),
        "preset": wanted.preset,
        "cluster": inventory.cluster,
        "model": serve.model,
        "name": serve.name,
        "flags": flags,
        "image": inventory.image,
        "versions": {"vcluster": __version__, "vllm": ""},
        "hosts": [asdict(hardware(name, inventory.hosts[name].address, host)) for name, host in facts.items()],
        "points": [],
    }


def hardware(name: str, address: str, facts: HostFacts) -> HostHardware:
    """What readers need to know of a host to place its figures."""
    nic = facts.interface_of(address)
    speed = f", {nic.speed_mbit / 1000:g} Gbit/s" if nic and nic.speed_mbit else ""
    return HostHardware(
        name=name,
        gpus=tuple(f"{gpu.name} ({gpu.memory_mib} MiB)" for gpu in facts.gpus),
        driver=next((gpu.driver for gpu in facts.gpus), ""),
        hcas=tuple(f"{hca.device}: {hca.link_layer}, {hca.rate}" for hca in facts.hcas if hca.active),
        interface=f"{nic.name}, MTU {nic.mtu}{speed}" if nic else "",
        architecture=facts.architecture,
    )


@dataclass(frozen=True)
class _ComparedPoint:
    point: Point
    runs: tuple[BenchRun, ...]


@dataclass(frozen=True)
class _ComparedResult:
    """What is compared of a document that `bench` wrote, here or elsewhere."""

    v: Literal[1]
    points: Annotated[tuple[_ComparedPoint, ...], at_most(MAX_POINTS)]

    def __post_init__(self) -> None:
        loads = Counter(one.point for one in self.points)
        if twice := next((load for load, number in loads.items() if number > 1), None):
            raise ValueError(f"has a load twice: {_load(twice)}")


def read_result(raw: bytes, name: str) -> dict[str, Any]:
    """Read what is compared of a document that `bench` wrote.

    Raises:
        UsageError: it is none, or has no run.
    """
    hint = "vcluster bench --help"
    try:
        found = read(_ComparedResult, raw, name)
    except RefusedDocument as refused:
        text = f"{name} is not a result of vcluster bench: {refused.field} {refused.why}"
        raise UsageError(" ".join(text.split()), hint=hint) from None
    if not found.points or not all(run.figures for point in found.points for run in point.runs):
        raise UsageError(f"{name} is not a result of vcluster bench: it has no figures", hint=hint)
    return asdict(found)
