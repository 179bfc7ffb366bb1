"""Serve a model: write the request on the head, and follow its progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from vllm_cluster.actions.ask_head import Endpoint, ask_head, follow, look_up, stopped_for
from vllm_cluster.actions.assess import Assessment, connect_all
from vllm_cluster.actions.consent import Confirm, Consent, served_on
from vllm_cluster.actions.pull_plan import WantedModel
from vllm_cluster.actions.serve_check import check_request, note_downloads, revision
from vllm_cluster.actions.serve_pull import PullFirst
from vllm_cluster.backends import vllm
from vllm_cluster.core import request
from vllm_cluster.core.cached_model import cache_place
from vllm_cluster.core.spec import node_name
from vllm_cluster.errors import PreflightFailed, UsageError
from vllm_cluster.events import Emit, Event, warn_once
from vllm_cluster.facts.host_facts import HostFacts
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.inventory.words import nearest
from vllm_cluster.run.connection import Fleet
from vllm_cluster.run.node_handle import NodeHandle
from vllm_cluster.run.runtime import SYSTEM, Runtime
from vllm_cluster.shell_line import command_line, listener_line
from vllm_cluster.wire.status import ServeStatus

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
    given = Given(tp, pp, _named(inventory, hosts), expose, tuple(extra), rollback)
    # What is checked again after a pull is mostly the same.
    emit, consent, then = warn_once(emit, "note"), Consent(confirm, inventory.cluster), f" and serve {served}"
    with connect_all(inventory, emit, runtime=runtime) as fleet:
        seen, names = look_up(inventory, fleet, emit), fleet.addresses
        node = NodeHandle(fleet.connections[inventory.head_name], inventory.cluster)
        layout, wanted = _request(inventory, seen.plan.gpus, model, served, given)
        endpoint = Endpoint(served, wanted["host"], inventory.head_name, wanted["port"])
        serving = node.state().serving
        number = _asked_already(node, serving, wanted["generation"])
        if serving and serving.request == number and serving.phase == "ready":
            return _report_served(node, endpoint, extra, emit)
        title = f"{served} is already being started; following it"
        if number is None:
            _show_layout(inventory, seen.facts, layout, serving, emit)
            ask = partial(_ask, consent, node, wanted, then)
            wanted = _checked(inventory, fleet, seen, wanted, emit, extra=extra, pull=pull, confirm=confirm, ask=ask)
            number = ask_head(node, wanted, emit, verb="serve", consent=consent, names=names, then=then, wait=wait)
            title = f"serving {served}: TP={layout.tp} × PP={layout.pp}"
        follow(fleet, inventory, number, wanted, emit, title=title)
    return endpoint


class Given(NamedTuple):
    """How a person wants the model served; `hosts` is empty where all are wanted."""

    tp: int | None
    pp: int | None
    hosts: tuple[str, ...]
    expose: bool
    extra: tuple[str, ...]
    rollback: bool


def _request(
    inventory: Inventory, gpus: Mapping[str, int], model: str, served: str, given: Given
) -> tuple[vllm.Parallelism, dict[str, Any]]:
    """How the model is laid over the GPUs (address → number, the head first), and the request."""
    layout, where = _layout(inventory, gpus, given)
    host = inventory.hosts[inventory.head_name].address if given.expose else "127.0.0.1"
    at: dict[str, Any] = {"name": served, "host": host, "port": inventory.ports.api}
    argv = vllm.serve_argv(model, tp=layout.tp, pp=layout.pp, extra=given.extra, **at)
    by_default = given.tp is None and given.pp is None
    return layout, request.request(argv, model=model, by_default=by_default, rollback=given.rollback, **at, **where)


def _show_layout(
    inventory: Inventory,
    facts: Mapping[str, HostFacts],
    layout: vllm.Parallelism,
    serving: ServeStatus | None,
    emit: Emit,
) -> None:
    """Show how the model is laid out and why; the port must be free where nothing is served."""
    for reason in layout.reasons:
        emit(Event("note", reason))
    if serving is None:
        _require_port(facts[inventory.head_name], inventory.ports.api)


def _ask(consent: Consent, node: NodeHandle, wanted: Mapping[str, Any], then: str) -> None:
    """Ask before anything is stopped."""
    consent.ask(stopped_for(node, wanted), then)


def _report_served(node: NodeHandle, endpoint: Endpoint, extra: Sequence[str], emit: Emit) -> Endpoint:
    now = served_on(node).served
    emit(Event("result", f"already served: {now.text if now else endpoint.model}. Nothing was changed."))
    if "config" in vllm.options(extra):
        emit(Event("note", READ_ONCE))
    return endpoint


def _checked(
    inventory: Inventory,
    fleet: Fleet,
    seen: Assessment,
    wanted: Mapping[str, Any],
    emit: Emit,
    *,
    extra: Sequence[str],
    pull: bool | None,
    confirm: Confirm,
    ask: Callable[[], None],
) -> dict[str, Any]:
    """The request, with how the weights are read; a model that hosts lack is pulled first, where that is wanted.

    `ask` asks before anything is stopped: every question comes before the pull, which may take hours.
    """
    model, asked = wanted["model"], revision(extra)
    judge = partial(check_request, fleet, inventory, seen.facts, wanted, emit, extra=extra)
    first = PullFirst(inventory, fleet, seen.facts, emit, WantedModel(model, "" if asked == "main" else asked))
    found = judge(pull=pull is True)
    if found.lacking and (pull or (pull is None and first.is_wanted(confirm))):
        ask()
        first.bring()
        found = judge(pull=False)
    elif found.lacking:
        note_downloads(model, found.lacking, emit)
    env = dict(wanted["env"])
    if found.offline:
        # Then no host downloads unseen. Not a part of what names the request: the same model is the same request.
        emit(Event("note", f"{model} is as it was pulled on every host: serving offline"))
        env |= request.OFFLINE
    return {**wanted, "env": env, "loading": list(found.loading)}


def _readable(inventory: Inventory, model: str, name: str | None) -> tuple[str, str]:
    """The model as vLLM finds it, whose working folder is not the cache, and the name that clients use."""
    if not model.startswith("./"):
        return model, name or model
    folder = cache_place(model).folder
    return f"{inventory.model_cache}/{folder}", name or folder


def _ensure_allowed(inventory: Inventory, model: str, served: str, extra: Sequence[str]) -> None:
    asks = next((flag for flag in extra if flag.partition("=")[0] in ("-h", "--help")), None)
    if asks:
        shown = command_line(
            "docker", "exec", node_name(inventory.cluster), "vllm", "serve", asks, on=inventory.head_name
        )
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
    """How the model is laid over the GPUs, and what the request has of them."""
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


def _require_port(head: HostFacts, port: int) -> None:
    if port in head.listening:
        text = f"{head.host}: serve: port {port} is already in use (ports.api)"
        raise PreflightFailed(text, hint=f"{listener_line(port, head.host)}, then stop that process\nor set ports.api")


def _asked_already(node: NodeHandle, serving: ServeStatus | None, generation: str) -> int | None:
    """The number of the request where the head has it already and it has not failed; None where it must be written."""
    asked = node.request() or {}
    serve, number = asked.get("serve"), asked.get("epoch")
    if not isinstance(serve, Mapping) or not isinstance(number, int) or serve.get("generation") != generation:
        return None
    if serving is None or serving.request != number:
        return number  # it has not been taken yet
    return number if serving.generation == generation and serving.phase != "failed" else None
