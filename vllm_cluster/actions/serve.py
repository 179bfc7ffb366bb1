"""Serve a model, or stop serving it: tell the head what is wanted, and follow what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from vllm_cluster.actions.consent import Confirm, Consent, Stops, served_on
from vllm_cluster.actions.explain import with_cause
from vllm_cluster.actions.survey import connected, survey
from vllm_cluster.core.errors import HostError, Interrupted, PreflightFailed, VclusterError
from vllm_cluster.core.facts import HostFacts
from vllm_cluster.core.plan import Plan, RecordMembers
from vllm_cluster.engine import request, vllm
from vllm_cluster.engine.status import Failure, ServeStatus
from vllm_cluster.fit.layouts import refusal
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run import serve_request
from vllm_cluster.run.audit import record
from vllm_cluster.run.barrier import look, refuse_failing
from vllm_cluster.run.events import Emit, Event, waiting
from vllm_cluster.run.fleet import Fleet, Link
from vllm_cluster.run.lease import Lease
from vllm_cluster.run.models import cached_shape
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
    rollback: bool = True,
    wait: float = 0.0,
    runtime: Runtime = SYSTEM,
) -> Endpoint:
    """Serve a model on the whole cluster; returns once it has generated a token.

    Where it cannot, the head serves again what was ready before, unless `rollback` is off.

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
        wanted = request.request(argv, by_default=tp is None and pp is None, rollback=rollback, **words)
        number = _asked_already(head, inventory, wanted["generation"])
        if number is None:
            if serving_on(head, inventory) is None:
                _require_port(seen.facts[head.name], port)
            consent = Consent(confirm, inventory.cluster, then=f" and serve {served}")
            number = ask_head(inventory, head, wanted, consent, wait=wait, emit=emit, what=f"serve {model}")
        emit(Event("phase", f"serving {served}: TP={layout.tp} × PP={layout.pp}"))
        with _goes_on(inventory.cluster, served):
            _follow(fleet, inventory, number, emit)
        return Endpoint(served, host, head.name, port)


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


def serving_on(head: Link, inventory: Inventory) -> ServeStatus | None:
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


def _follow(fleet: Fleet, inventory: Inventory, number: int, emit: Emit) -> None:
    """Show each change of phase until the model has answered.

    Raises:
        CommandFailed: it never will, and why; and what is served in its place.
    """
    head = fleet.links[inventory.head_name]
    shown, error, ended = "", None, dict[str, int]()
    heed = fleet.runtime.after(HEED_SECONDS)
    while True:
        node = look(head.engine, f"vcluster-{inventory.cluster}")
        refuse_failing(head.name, node, ended)
        serving = node.status.serve if node.status else None
        if serving is None or serving.request != number:
            serve_request.refuse_replaced(head, inventory.cluster, number)
            if not heed.left():
                text = "the head does not take the request"
                raise HostError(head.name, text, hint="vcluster status; vcluster up")
        else:
            if serving.instead_of and error is None:
                error = _failure(fleet, inventory, serving.instead_of.model, serving.instead_of)
                text = f"{serving.instead_of.name} cannot be served; {serving.name} comes back"
                emit(Event("warning", text, data={"rollback_to": serving.name}))
            text = f"{serving.phase} {serving.detail}".strip()
            if text != shown:
                data = {"phase": serving.phase, "detail": serving.detail, "progress": serving.progress}
                emit(Event("progress", text, data=data))
                shown = text
            if serving.phase in ("ready", "failed") and error:
                raise _with_rollback(error, serving)
            if serving.phase == "ready":
                return
            if serving.phase == "failed":
                raise _failure(fleet, inventory, serving.model, serving.first_failure)
        fleet.runtime.clock.sleep(POLL)


def _with_rollback(error: VclusterError, serving: ServeStatus) -> VclusterError:
    """The failure of a request, and whether what was served before it is back."""
    if serving.phase == "ready":
        away = "" if serving.away_s is None else f", after {serving.away_s:.0f} s without it"
        error.message += f"\n{serving.name} is served again{away}"
    else:
        why = f": {serving.first_failure.what}" if serving.first_failure else ""
        error.message += f"\n{serving.name}, which was served before, has not come back{why}"
    return error


def _failure(fleet: Fleet, inventory: Inventory, model: str, failure: Failure | None) -> VclusterError:
    host = inventory.head_name
    if failure is None:
        return HostError(host, "vLLM failed and left no reason", hint="docker logs on the head has all of it")
    error = HostError(
        host,
        f"{model} cannot be served: {failure.what}",
        hint="mend the cause and serve again; vcluster status keeps this failure",
    )
    return with_cause(error, fleet, inventory, "\n" + "\n".join(failure.lines[-30:]))
