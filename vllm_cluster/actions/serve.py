"""Serve a model: write the request on the head, and follow its progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_cluster.actions import phases
from vllm_cluster.actions.consent import Confirm, Consent, served_on
from vllm_cluster.actions.phases import compare_again, confirm, lock, unlock
from vllm_cluster.actions.pull_plan import WantedModel
from vllm_cluster.actions.request_phases import Endpoint, RequestState, connect, follow, observe, write_request
from vllm_cluster.actions.serve_check import check_request, note_downloads, revision
from vllm_cluster.actions.serve_pull import PullFirst
from vllm_cluster.backends import vllm
from vllm_cluster.core import request
from vllm_cluster.core.cached_model import cache_place
from vllm_cluster.core.node_status import ServeStatus
from vllm_cluster.core.spec import node_name
from vllm_cluster.errors import PreflightFailed, UsageError
from vllm_cluster.events import Emit, Event, warn_once
from vllm_cluster.facts.host_facts import HostFacts
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.inventory.words import nearest
from vllm_cluster.run import serve_request
from vllm_cluster.run.node_handle import NodeHandle
from vllm_cluster.run.runtime import SYSTEM, Runtime

READ_ONCE = "vLLM reads the file of --config at its start only: if it has changed, run vcluster stop and serve again"


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
    hosts: Sequence[str] = (),
    rollback: bool = True,
    pull: bool | None = False,
    log: bool = False,
    wait: float = 0.0,
    runtime: Runtime = SYSTEM,
) -> Endpoint:
    """Serve a model, and return once it has generated a token; with `rollback`, else what was ready before is served.

    With `pull`, hosts that lack the model get it first; None asks, where the hub has it.

    Raises:
        Aborted, UsageError: another model is served, and its stop was not confirmed.
        PreflightFailed: the cluster is not up, or what is asked for cannot work; what is served continues.
        HostError: vLLM ended, or waits in vain; with the reason.
    """
    model, served = _readable(inventory, model, name)
    _ensure_allowed(inventory, model, served, extra)
    state = ServeVerbState(
        inventory=inventory,
        # What is checked again after a pull is mostly the same.
        emit=warn_once(emit, "note"),
        runtime=runtime,
        verb="serve",
        entry="serve",
        consent=Consent(confirm, inventory.cluster),
        then=f" and serve {served}",
        wait=wait,
        log=log,
        model=model,
        served=served,
        given=Given(tp, pp, _named(inventory, hosts), expose, tuple(extra), rollback, pull),
        ask=confirm,
    )
    done = phases.run(SERVE, state, report=_report)
    return Endpoint(served, done.wanted["host"], inventory.head_name, done.wanted["port"])


def _readable(inventory: Inventory, model: str, name: str | None) -> tuple[str, str]:
    """The model as vLLM finds it, whose working folder is not the cache, and the name that clients use."""
    if not model.startswith("./"):
        return model, name or model
    folder = cache_place(model).folder
    return f"{inventory.model_cache}/{folder}", name or folder


@dataclass(frozen=True)
class Given:
    """How a person wants the model served; `hosts` is empty where all are wanted."""

    tp: int | None
    pp: int | None
    hosts: tuple[str, ...]
    expose: bool
    extra: tuple[str, ...]
    rollback: bool
    pull: bool | None


@dataclass(frozen=True, kw_only=True)
class ServeVerbState(RequestState):
    """What the phases of `serve` know."""

    model: str
    served: str
    given: Given
    ask: Confirm
    layout: vllm.Parallelism = phases.LATER
    wanted: Mapping[str, Any] = phases.LATER
    serving: ServeStatus | None = None
    # The hosts without the model, with bytes; and whether it is to be brought to them first.
    lacking: Mapping[str, int] = field(default_factory=dict)
    pulls: bool = False

    def title(self) -> str:
        """What is followed."""
        if self.idle:
            return f"{self.served} is already being started; following it"
        return f"serving {self.served}: TP={self.layout.tp} × PP={self.layout.pp}"


def lay_out(state: ServeVerbState) -> ServeVerbState:
    """Lay the model over the GPUs, and compose the request."""
    layout, where = _layout(state.inventory, state.seen.plan.gpus, state.given)
    return replace(state, layout=layout, wanted=_request(state, layout, where))


def find_request(state: ServeVerbState) -> ServeVerbState:
    """Find out whether the head has this request already: then it is followed, where the model is not ready."""
    serving = state.node.state().serving
    number = _asked_already(state.node, serving, state.wanted["generation"])
    if number is None:
        return replace(state, serving=serving)
    ready = serving is not None and serving.request == number and serving.phase == "ready"
    return replace(state, serving=serving, number=number, idle=True, answers=ready)


def check(state: ServeVerbState) -> ServeVerbState:
    """Show how the model is laid out and why, and refuse what is known not to work."""
    if state.idle:
        return state
    for reason in state.layout.reasons:
        state.emit(Event("note", reason))
    facts = state.seen.facts
    if state.serving is None:
        _require_port(facts[state.inventory.head_name], state.inventory.ports.api)
    return _judged(state, pull=state.given.pull is True)


def _judged(state: ServeVerbState, *, pull: bool) -> ServeVerbState:
    wanted, facts, extra = state.wanted, state.seen.facts, state.given.extra
    found = check_request(state.fleet, state.inventory, facts, wanted, state.emit, extra=extra, pull=pull)
    if found.offline:
        # Then no host downloads unseen. Not a part of what names the request: the same model is the same request.
        state.emit(Event("note", f"{state.model} is as it was pulled on every host: serving offline"))
        wanted = {**wanted, "env": {**wanted["env"], **request.OFFLINE}}
    return replace(state, wanted={**wanted, "loading": list(found.loading)}, lacking=found.lacking)


def offer(state: ServeVerbState) -> ServeVerbState:
    """Ask whether a model that hosts lack is to be pulled first."""
    if state.idle or not state.lacking:
        return state
    given = state.given.pull
    if given or (given is None and _pull_of(state).is_wanted(state.ask)):
        return replace(state, pulls=True)
    note_downloads(state.model, state.lacking, state.emit)
    return state


def bring(state: ServeVerbState) -> ServeVerbState:
    """Pull the model, while what is served still answers, and check it as it is then."""
    if not state.pulls:
        return state
    _pull_of(state).bring()
    return replace(_judged(state, pull=False), pulls=False)


def _pull_of(state: ServeVerbState) -> PullFirst:
    asked = revision(state.given.extra)
    wanted = WantedModel(state.model, "" if asked == "main" else asked)
    return PullFirst(state.inventory, state.fleet, state.seen.facts, state.emit, wanted)


# Every question comes before the pull, which may take hours.
_ASKED = (connect, observe, lay_out, find_request, check, offer, confirm)
SERVE = (*_ASKED, bring, lock, compare_again, write_request, unlock, follow)


def _report(state: ServeVerbState) -> None:
    if state.answers:
        now = served_on(state.node).served
        state.emit(Event("result", f"already served: {now.text if now else state.served}. Nothing was changed."))
        if "config" in vllm.options(state.given.extra):
            state.emit(Event("note", READ_ONCE))


def _ensure_allowed(inventory: Inventory, model: str, served: str, extra: Sequence[str]) -> None:
    asks = next((flag for flag in extra if flag.partition("=")[0] in ("-h", "--help")), None)
    if asks:
        shown = f"on {inventory.head_name}: docker exec {node_name(inventory.cluster)} vllm serve {asks}"
        raise UsageError(f"{asks} prints vLLM's help and serves nothing", hint=shown)
    vllm.ensure_allowed(model, served, extra)


def _named(inventory: Inventory, hosts: Sequence[str]) -> tuple[str, ...]:
    """The hosts that were named, in the inventory's order; none where all were.

    Raises:
        UsageError: there is no such host.
    """
    for name in hosts:
        if name not in inventory.hosts:
            near = nearest(name, inventory.hosts)
            also = f", did you mean {near}?" if near else ""
            hint = f"hosts of the inventory: {', '.join(inventory.hosts)}"
            raise UsageError(f'--hosts: the inventory has no host "{name}"{also}', hint=hint)
    named = tuple(name for name in inventory.hosts if name in hosts)
    return () if len(named) == len(inventory.hosts) else named


def _layout(inventory: Inventory, gpus: Mapping[str, int], given: Given) -> tuple[vllm.Parallelism, dict[str, Any]]:
    """How the model is laid over the GPUs (address → number, the head first), and what the request has of them."""
    named = given.hosts
    names = {host.address: name for name, host in inventory.hosts.items()}
    there = {address: number for address, number in gpus.items() if not named or names[address] in named}
    idle = [f"{gpus[address]} of {names[address]}" for address in gpus if address not in there]
    where = ", ".join(names[address] for address in there) if named else "the cluster"
    numbers, labels = list(there.values()), [names[address] for address in there]
    layout = vllm.choose_parallelism(numbers, given.tp, given.pp, labels, where=where)
    reasons = [*layout.reasons, *([f"--hosts {','.join(named)}: GPUs stay idle: {', '.join(idle)}"] if named else [])]
    where_it_goes: dict[str, Any] = {"nodes": gpus, "ranks": vllm.place(there, layout.tp, layout.pp)}
    where_it_goes |= {"hosts": list(there)} if named else {}
    return replace(layout, reasons=tuple(reasons)), where_it_goes


def _request(state: ServeVerbState, layout: vllm.Parallelism, where: Mapping[str, Any]) -> dict[str, Any]:
    inventory, given = state.inventory, state.given
    host = inventory.hosts[inventory.head_name].address if given.expose else "127.0.0.1"
    at: dict[str, Any] = {"name": state.served, "host": host, "port": inventory.ports.api}
    argv = vllm.serve_argv(state.model, tp=layout.tp, pp=layout.pp, extra=given.extra, **at)
    by_default = given.tp is None and given.pp is None
    return request.request(argv, model=state.model, by_default=by_default, rollback=given.rollback, **at, **where)


def _require_port(head: HostFacts, port: int) -> None:
    if port in head.listening:
        text = f"{head.host}: serve: port {port} is already in use (ports.api)"
        raise PreflightFailed(
            text, hint=f"on {head.host}: ss -ltnp 'sport = :{port}', then stop that process\nor set ports.api"
        )


def _asked_already(node: NodeHandle, serving: ServeStatus | None, generation: str) -> int | None:
    """The number of the request where the head has it already and it has not failed; None where it must be written."""
    asked = serve_request.read(node) or {}
    serve, number = asked.get("serve"), asked.get("epoch")
    if not isinstance(serve, Mapping) or not isinstance(number, int) or serve.get("generation") != generation:
        return None
    if serving is None or serving.request != number:
        return number  # it has not been taken yet
    return number if serving.generation == generation and serving.phase != "failed" else None
