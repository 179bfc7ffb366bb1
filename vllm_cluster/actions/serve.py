"""Serve a model, or stop serving it: tell the head what is wanted, and follow what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_cluster.actions.consent import Confirm, Consent, Stops, served_on
from vllm_cluster.actions.follow import Follower, goes_on, serving_on
from vllm_cluster.actions.serve_check import check_request
from vllm_cluster.actions.survey import connected, survey
from vllm_cluster.core.errors import PreflightFailed
from vllm_cluster.core.facts import HostFacts
from vllm_cluster.core.plan import Plan, RecordMembers
from vllm_cluster.engine import request, vllm
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run import serve_request
from vllm_cluster.run.audit import record
from vllm_cluster.run.events import Emit, Event, waiting
from vllm_cluster.run.fleet import Link
from vllm_cluster.run.lease import Lease
from vllm_cluster.run.runtime import SYSTEM, Runtime
from vllm_cluster.run.secrets import Reading


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
    rollback: bool = True,
    log: bool = False,
    wait: float = 0.0,
    runtime: Runtime = SYSTEM,
) -> Endpoint:
    """Serve a model on the whole cluster; returns once it has generated a token.

    Where it cannot, the head serves again what was ready before, unless `rollback` is off.

    Raises:
        Aborted, UsageError: another model is served, and nobody confirmed that it may stop.
        PreflightFailed: the cluster is not up, or what is asked for cannot work; what is served goes on.
        HostError: the engine ended, or waits for something that does not come; and why.
    """
    served = name or model
    vllm.check(model, served, extra)
    with connected(inventory, emit, runtime=runtime) as fleet:
        seen = survey(inventory, fleet, emit, reading=Reading.NONE)
        require_up(seen.plan)
        layout = _layout(inventory, seen.plan, tp, pp, emit)
        head = fleet.links[inventory.head_name]
        host = inventory.hosts[inventory.head_name].address if expose else "127.0.0.1"
        port = inventory.ports.api
        argv = vllm.serve_argv(model, name=served, tp=layout.tp, pp=layout.pp, host=host, port=port, extra=extra)
        words = {"model": model, "name": served, "host": host, "port": port, "nodes": seen.plan.gpus}
        wanted = request.request(argv, by_default=tp is None and pp is None, rollback=rollback, **words)
        number = _asked_already(head, inventory, wanted["generation"])
        if number is None:
            if serving_on(head, inventory) is None:
                _require_port(seen.facts[head.name], port)
            check_request(fleet, inventory, seen.facts, wanted, emit, extra=extra)
            consent = Consent(confirm, inventory.cluster, then=f" and serve {served}")
            number = ask_head(inventory, head, wanted, consent, wait=wait, emit=emit, what=f"serve {model}")
        emit(Event("phase", f"serving {served}: TP={layout.tp} × PP={layout.pp}"))
        with goes_on(inventory.cluster, served):
            Follower(fleet, inventory, number, emit, log=log).follow()
        return Endpoint(served, host, head.name, port)


def _layout(inventory: Inventory, plan: Plan, tp: int | None, pp: int | None, emit: Emit) -> vllm.Layout:
    """How the model is laid over the GPUs of the plan; why, is shown."""
    names = {host.address: name for name, host in inventory.hosts.items()}
    layout = vllm.layout(list(plan.gpus.values()), tp, pp, [names[address] for address in plan.gpus])
    for reason in layout.reasons:
        emit(Event("note", reason))
    return layout


def ask_head(
    inventory: Inventory,
    head: Link,
    wanted: Mapping[str, Any] | None,
    consent: Consent,
    *,
    wait: float,
    emit: Emit,
    what: str,
) -> int:
    """Write what is wanted where the head's node program looks, once a person agrees to what it stops.

    Returns the number of the request.
    """
    verb = what.split(maxsplit=1)[0]
    while True:
        consent.ask(_stops(inventory, head, wanted))
        with Lease([head], inventory.cluster, verb) as lease:
            lease.acquire(wait, waiting(emit))
            if consent.covers(_stops(inventory, head, wanted)):
                number = serve_request.write(head, inventory.cluster, wanted)
                record(head, inventory.cluster, verb, [what], emit, request=number)
                return number


def _stops(inventory: Inventory, head: Link, wanted: Mapping[str, Any] | None) -> Stops:
    """What the request would stop: nothing where it is served or being loaded already."""
    stops = served_on(head, inventory.cluster)
    same = stops.served and wanted and stops.served.generation == wanted["generation"]
    return Stops() if same else stops


def _require_port(head: HostFacts, port: int) -> None:
    if port in head.listening:
        text = f"{head.host}: port {port} is taken (ports.api)"
        raise PreflightFailed(text, hint=f"end what listens there (ss -ltnp 'sport = {port}'), or set ports.api")


def require_up(plan: Plan) -> None:
    """Refuse what `up` must do first; what is only recorded about the members changes nothing that serves."""
    if first := next((op for op in plan.operations() if not isinstance(op, RecordMembers)), None):
        raise PreflightFailed(f"the cluster is not up: {first.host}: {first.text}", hint="vcluster up")


def _asked_already(head: Link, inventory: Inventory, generation: str) -> int | None:
    """The number of the request where the head has it already and it has not failed; None where it must be written."""
    asked = serve_request.read(head, inventory.cluster) or {}
    serve, number = asked.get("serve"), asked.get("epoch")
    if not isinstance(serve, Mapping) or not isinstance(number, int) or serve.get("generation") != generation:
        return None
    serving = serving_on(head, inventory)
    if serving is None or serving.request != number:
        return number  # it has not been taken yet
    return number if serving.generation == generation and serving.phase != "failed" else None
