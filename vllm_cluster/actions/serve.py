"""Serve a model, or stop serving it: tell the head what is wanted, and follow what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from vllm_cluster.actions.consent import Confirm, Consent, Stops, served_on
from vllm_cluster.actions.explain import with_cause
from vllm_cluster.actions.survey import connected, refuse, survey
from vllm_cluster.core.checks.docker import engine_problem, foreign
from vllm_cluster.core.errors import HostError, Interrupted, PreflightFailed, VclusterError
from vllm_cluster.core.facts import Container, HostFacts
from vllm_cluster.core.plan import Plan, RecordMembers
from vllm_cluster.core.spec import CLUSTER, HEAD_ADDRESS, ROLE
from vllm_cluster.engine import request, vllm
from vllm_cluster.engine.status import ServeStatus
from vllm_cluster.fit.layouts import refusal
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run import serve_request
from vllm_cluster.run.audit import record
from vllm_cluster.run.barrier import look
from vllm_cluster.run.events import Emit, Event, waiting
from vllm_cluster.run.fleet import Fleet, Link
from vllm_cluster.run.lease import Lease
from vllm_cluster.run.models import cached_shape
from vllm_cluster.run.observe import observe
from vllm_cluster.run.runtime import SYSTEM, Runtime
from vllm_cluster.run.secrets import Reading

POLL = 0.3
STOP_SECONDS = 90.0
# The node program looks at what is wanted several times a second; silence for this long means it does not.
HEED_SECONDS = 30.0


@dataclass(frozen=True)
class Endpoint:
    """Where the model answers; on the head's loopback unless exposed."""

    model: str
    host: str
    head: str
    port: int

    @property
    def exposed(self) -> bool:
        """Whether other machines can reach it without a tunnel."""
        return self.host != "127.0.0.1"


def serve(
    inventory: Inventory,
    emit: Emit,
    *,
    model: str,
    name: str | None,
    tp: int | None,
    pp: int | None,
    expose: bool,
    extra: Sequence[str],
    confirm: Confirm,
    wait: float = 0.0,
    runtime: Runtime = SYSTEM,
) -> Endpoint:
    """Serve a model on the whole cluster; returns once it has generated a token.

    Raises:
        Aborted, UsageError: another model is served, and nobody confirmed that it may stop.
        PreflightFailed: the cluster is not up, or the model cannot be split so.
        CommandFailed: the engine ended, and why.
    """
    served = name or model
    vllm.check(model, served, extra)
    with connected(inventory, emit, runtime=runtime) as fleet:
        seen = survey(inventory, fleet, emit, reading=Reading.NONE)
        _require_up(seen.plan)
        layout = vllm.layout(list(seen.plan.gpus.values()), tp, pp)
        for reason in layout.reasons:
            emit(Event("note", reason))
        head = fleet.links[inventory.head_name]
        host = inventory.hosts[inventory.head_name].address if expose else "127.0.0.1"
        port = inventory.ports.api
        argv = vllm.serve_argv(model, name=served, tp=layout.tp, pp=layout.pp, host=host, port=port, extra=extra)
        refuse_split(head, inventory, model, layout, extra)
        words = {"model": model, "name": served, "host": host, "port": port, "nodes": seen.plan.gpus}
        wanted = request.request(argv, by_default=tp is None and pp is None, **words)
        current = _serving(head, inventory)
        if current is None:
            _require_port(seen.facts[head.name], port)
        if current and current.phase == "failed" and current.generation.startswith(wanted["generation"]):
            # The same wish again is a new one: under the old name the head would take it for the one that failed.
            wanted["generation"] += f"-{runtime.token(8)}"
        if current is None or current.generation != wanted["generation"]:
            consent = Consent(confirm, inventory.cluster, then=f" and serve {served}")
            _tell(inventory, head, wanted, consent, wait=wait, emit=emit, what=f"serve {model}")
        emit(Event("phase", f"serving {served}: TP={layout.tp} × PP={layout.pp}"))
        with _goes_on(inventory.cluster, served):
            _follow(fleet, inventory, wanted["generation"], emit)
        return Endpoint(served, host, head.name, port)


def stop(inventory: Inventory, emit: Emit, *, confirm: Confirm, wait: float = 0.0, runtime: Runtime = SYSTEM) -> bool:
    """End serving and leave the nodes; returns whether anything was served.

    Needs the head alone: what must be stopped is often a model that fails because a worker is gone.

    Raises:
        Aborted, UsageError: nobody confirmed that what is served may stop.
        PreflightFailed: the head's Docker cannot be used, or the node there is not this cluster's head.
    """
    with connected(inventory, emit, [inventory.head_name], runtime=runtime) as fleet:
        head = fleet.links[inventory.head_name]
        node = _head_container(inventory, observe(inventory, head))
        runs = node is not None and node.state == "running"
        serving = _serving(head, inventory) if runs else None
        if node is None or not (serving or _requested(head, inventory)):
            emit(Event("result", "nothing is served", data={"stopped": False}))
            return False
        consent = Consent(confirm, inventory.cluster)
        _tell(inventory, head, None, consent, wait=wait, emit=emit, what="stop")
        emit(Event("phase", "stopping"))
        deadline = runtime.after(STOP_SECONDS)
        while runs and _serving(head, inventory) is not None:
            if not deadline.left():
                raise HostError(head.name, f"vLLM has not ended within {STOP_SECONDS:.0f} s", hint="vcluster status")
            runtime.clock.sleep(POLL)
        emit(Event("result", _stopped(inventory, head, serving), data={"stopped": True}))
        return True


def _head_container(inventory: Inventory, facts: HostFacts) -> Container | None:
    """The container of this cluster's head, None where there is none.

    Raises:
        PreflightFailed: as `stop`.
    """
    name = f"vcluster-{inventory.cluster}"
    own = tuple(c for c in facts.containers if c.name == name and c.labels.get(CLUSTER) == inventory.cluster)
    problem = engine_problem(facts)
    refuse([problem] if problem else list(foreign(inventory, {facts.host: replace(facts, containers=own)})))
    for container in own:
        if container.labels.get(ROLE) == "worker":
            text = f"{facts.host}: the node there is a worker of the head at {container.labels.get(HEAD_ADDRESS)}"
            raise PreflightFailed(text, hint="set head: to that host in the inventory, or run vcluster up first")
        return container
    return None


def _requested(head: Link, inventory: Inventory) -> bool:
    """Whether the head would serve: it may not have begun, or its container may have ended meanwhile."""
    asked = serve_request.read(head, inventory.cluster)
    # Unreadable: an empty request in its place is what is asked for.
    return asked is not None and asked.get("serve", True) is not None


def _stopped(inventory: Inventory, head: Link, serving: ServeStatus | None) -> str:
    """What is left, in words, as far as the head knows."""
    status = look(head.engine, f"vcluster-{inventory.cluster}").status if serving else None
    if serving is None or status is None:
        return "the request to serve is withdrawn"
    have, want = sum(node.gpus for node in status.ray.nodes if node.alive), serving.gpus[1]
    rest = "the cluster is still up" if have == want else "vcluster status shows what is missing"
    return f"stopped {serving.name}; {rest} ({have:g}/{want:g} GPUs)"


def refuse_split(head: Link, inventory: Inventory, model: str, layout: vllm.Layout, extra: Sequence[str]) -> None:
    """Refuse what vLLM would refuse minutes later, where the head has the model's config.

    Raises:
        PreflightFailed: the model cannot be split so.
    """
    shape = cached_shape(head, inventory, model, extra)
    problem = refusal(shape, layout.tp, layout.pp) if shape else ""
    if shape and problem:
        total = layout.tp * layout.pp
        others = [(tp, total // tp) for tp in range(total, 0, -1) if total % tp == 0]
        good = next((f"--tp {tp} --pp {pp}" for tp, pp in others if not refusal(shape, tp, pp)), "fewer GPUs")
        raise PreflightFailed(f"{model} cannot be split so: {problem}", hint=f"try {good}; vcluster fit shows the rest")


def _tell(
    inventory: Inventory,
    head: Link,
    wanted: Mapping[str, Any] | None,
    consent: Consent,
    *,
    wait: float,
    emit: Emit,
    what: str,
) -> None:
    """Write what is wanted where the head's node program looks, once whoever can be asked agrees to what it stops."""
    verb = what.split(maxsplit=1)[0]
    while True:
        consent.ask(_stops(inventory, head, wanted))
        with Lease([head], inventory.cluster, verb) as lease:
            lease.acquire(wait, waiting(emit))
            if consent.covers(_stops(inventory, head, wanted)):
                serve_request.write(head, inventory.cluster, wanted)
                record(head, inventory.cluster, verb, [what], emit)
                return


def _stops(inventory: Inventory, head: Link, wanted: Mapping[str, Any] | None) -> Stops:
    """What the request would stop: nothing where it is served or being loaded already."""
    stops = served_on(head, inventory.cluster)
    same = stops.served and wanted and stops.served.generation == wanted["generation"]
    return Stops() if same else stops


def _serving(head: Link, inventory: Inventory) -> ServeStatus | None:
    status = look(head.engine, f"vcluster-{inventory.cluster}").status
    return status.serve if status else None


def _require_port(head: HostFacts, port: int) -> None:
    if port in head.listening:
        text = f"{head.host}: port {port} is taken (ports.api)"
        raise PreflightFailed(text, hint=f"end what listens there (ss -ltnp 'sport = {port}'), or set ports.api")


def _require_up(plan: Plan) -> None:
    """Refuse what `up` must do first; what is only recorded about the members changes nothing that serves."""
    if first := next((op for op in plan.operations() if not isinstance(op, RecordMembers)), None):
        raise PreflightFailed(f"the cluster is not up: {first.host}: {first.text}", hint="run vcluster up first")


@contextmanager
def _goes_on(cluster: str, served: str) -> Iterator[None]:
    """Ctrl-C ends this program, and not the start on the hosts."""
    try:
        yield
    except KeyboardInterrupt:
        text = f"Interrupted. {cluster} goes on starting {served}; the same command follows it again."
        raise Interrupted(text, hint="vcluster status\nvcluster stop", again=()) from None


def _follow(fleet: Fleet, inventory: Inventory, generation: str, emit: Emit) -> None:
    """Tell each change of phase until the model has answered.

    Raises:
        CommandFailed: it never will, and why.
    """
    head = fleet.links[inventory.head_name]
    shown = ""
    heed = fleet.runtime.after(HEED_SECONDS)
    while True:
        serving = _serving(head, inventory)
        if serving is None or serving.generation != generation:
            serve_request.refuse_replaced(head, inventory.cluster, generation)
            if not heed.left():
                raise HostError(
                    head.name, "the head does not heed what it was told", hint="vcluster status; vcluster up"
                )
        else:
            text = f"{serving.phase} {serving.detail}".strip()
            if text != shown:
                data = {"phase": serving.phase, "detail": serving.detail, "progress": serving.progress}
                emit(Event("progress", text, data=data))
                shown = text
            if serving.phase == "ready":
                return
            if serving.phase == "failed":
                raise _failure(fleet, inventory, serving)
        fleet.runtime.clock.sleep(POLL)


def _failure(fleet: Fleet, inventory: Inventory, serving: ServeStatus) -> VclusterError:
    host, failure = inventory.head_name, serving.first_failure
    if failure is None:
        return HostError(host, "vLLM failed and left no reason", hint="docker logs on the head has all of it")
    error = HostError(
        host,
        f"{serving.model} cannot be served: {failure.what}",
        hint="mend the cause and serve again; vcluster status keeps this failure",
    )
    return with_cause(error, fleet, inventory, "\n" + "\n".join(failure.lines[-30:]))
