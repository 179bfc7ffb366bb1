"""Serve again what was ready before what is served now."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial

from vllm_cluster.kernel.errors import PreflightFailed, UsageError
from vllm_cluster.kernel.events import Emit
from vllm_cluster.kernel.hosts.reach import connect_all
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.node.history import last_ready_request, ready_request, ready_requests
from vllm_cluster.kernel.plan.cached_model import REPOSITORY
from vllm_cluster.kernel.plan.followed import fitted
from vllm_cluster.kernel.plan.placement import Cluster, place_replicas, serve_command
from vllm_cluster.kernel.plan.room import beside, ensure_one_address
from vllm_cluster.kernel.shell_line import command_line
from vllm_cluster.kernel.text import number_of
from vllm_cluster.serving.ask_head import Endpoint, ask_head, follow, models_by_name
from vllm_cluster.serving.consent import Confirm, Consent
from vllm_cluster.serving.look_up import look_up
from vllm_cluster.serving.others import and_serve, order_in_force, the_model
from vllm_cluster.wire.order import Order, Placement


def serve_previous(
    inventory: Inventory,
    emit: Emit,
    name: str | None = None,
    *,
    confirm: Confirm,
    runtime: Runtime = SYSTEM,
) -> Endpoint:
    """Serve the last ready request before the current one of a model; returns once it has generated a token.

    `name` is that model, which may have been stopped since, or the number of a request in the history.

    Raises:
        Aborted, UsageError: a model is served, and its stop was not confirmed; or it is not known which is meant.
        PreflightFailed: the cluster is not up, there is nothing to go back to, or it needs more GPUs than there are.
        HostError: as `serve`.
    """
    consent = Consent(confirm, inventory.cluster)
    with connect_all(inventory, emit, runtime=runtime) as fleet:
        gpus, names = look_up(inventory, fleet, emit).plan.gpus, fleet.addresses
        node = NodeHandle(fleet.connections[inventory.head_name], inventory.cluster)
        order, cluster = order_in_force(node), Cluster.of(inventory, gpus)
        away = name if name and name not in order.names else None
        if away and (given := number_of(away)) is not None:
            model, wanted = _numbered(node, cluster, order, given)
        elif away and (last := last_ready_request(node, (), away)):
            # It was stopped: what ran under that name comes back beside what is served now.
            model, wanted = "", _fitted(last[1], cluster, (), order.beside(""), away)
        else:
            model = the_model(order.names, name, "rollback")
            wanted = _before(node, cluster, order, model)
        now, replica = wanted[0].deployment.name, wanted[0].replica
        asks = partial(ask_head, verb="rollback", entry="rollback to", consent=consent, names=names, gpus=gpus)
        goes = (model,) if model not in ("", now) else ()
        then = and_serve(node, order, wanted, names)
        number = asks(node, wanted, emit, goes=goes, then=then)
        follow(fleet, inventory, number, wanted, emit, title=f"serving {now} again", again=False)
        served = models_by_name(*order.beside(model), *wanted)
    return Endpoint(now, replica.host, inventory.head_name, replica.port, served)


def _before(node: NodeHandle, cluster: Cluster, order: Order, model: str) -> tuple[Placement, ...]:
    """What was ready last in place of a model and is not what is served or loaded now, for the hosts as they are now.

    Raises:
        PreflightFailed: there is none, or the hosts cannot carry it.
    """
    own, others = order.named(model), order.beside(model)
    index = own[0].index if own else 0
    serving = node.state().replica(index)
    now = serving.generation if serving else own[0].generation if own else ""
    # Where an earlier request is served in place of the order's, the number of its replicas is not known here.
    asked = next((one for one in own if one.generation == now), None)
    elsewhere = {one.deployment.name for one in others}
    for found in reversed(ready_requests(node, index)):
        # What is served now may be it, in the layout that other hosts asked for.
        known = _is_now(found, now, asked) or found.deployment.name in elsewhere
        if not known and not _is_now((there := _fitted(found, cluster, own, others, model))[0], now, asked):
            return there
    raise _none_before(node, cluster, order, model, now)


def _none_before(node: NodeHandle, cluster: Cluster, order: Order, model: str, now: str) -> PreflightFailed:
    """Why there is nothing to go back to, and the last request of any model that a number goes back to."""
    text = f"{node.host}: rollback: {f'{model} had' if model else 'there was'} no earlier request that was ready"
    hint = "vcluster status --history\nvcluster serve MODEL"
    last = last_ready_request(node, {now, *(one.generation for one in order.deployments)})
    with suppress(PreflightFailed):
        if last:
            number, placed = last
            # Only what would not be refused.
            _numbered(node, cluster, order, number)
            text += f"; the last one of any model is {number}: {serve_command(placed.deployment, {})}"
            hint = f"{command_line('vcluster', 'rollback', str(number))}\n{hint}"
    return PreflightFailed(text, hint=hint)


def _is_now(found: Placement, generation: str, asked: Placement | None) -> bool:
    return found.repeats(asked) if asked else found.generation == generation


def _numbered(node: NodeHandle, cluster: Cluster, order: Order, number: int) -> tuple[str, tuple[Placement, ...]]:
    """The model that goes for the request of a number, and what was ready by it, for the hosts as they are now.

    Raises:
        PreflightFailed: it never was, is kept no more, or is served now; or the hosts cannot carry it.
    """
    found, end = ready_request(node, number)
    text = f"{node.host}: rollback: request {number} "
    if end is None or end.result != "ready":
        text += "is not in the history" if end is None else f"never was ready ({end.result})"
        raise PreflightFailed(text, hint="vcluster status --history")
    if found is None:
        text += "is kept no more: the head keeps the last requests of a model that were ready"
        # A line of the head may have any text there, and a path would be what this laptop or another host has.
        model = end.model if REPOSITORY.fullmatch(end.model) else "MODEL"
        raise PreflightFailed(text, hint=command_line("vcluster", "serve", model))
    name = found.deployment.name
    own = order.named(name) or tuple(one for one in order.deployments if one.index == end.replica)
    model = own[0].deployment.name if own else ""
    wanted = _fitted(found, cluster, own, order.beside(model), str(number))
    serving = node.state().replica(wanted[0].index)
    asked = next((one for one in own if serving and one.generation == serving.generation), None)
    if serving and _is_now(wanted[0], serving.generation, asked):
        raise PreflightFailed(f"{text}is what is served now: {name}", hint="vcluster status")
    return model, wanted


def _fitted(
    found: Placement, cluster: Cluster, own: tuple[Placement, ...], others: tuple[Placement, ...], name: str
) -> tuple[Placement, ...]:
    """What was ready, for the hosts as they are now; `name` is how it was asked for.

    Raises:
        PreflightFailed: they cannot carry it; with what makes room.
    """
    try:
        return _laid(found, cluster, own, others)
    except UsageError as error:
        hint = _makes_room(found, cluster, own, others, name)
        text = f"{found.deployment.name} cannot be served as it was before: {error.message}"
        raise PreflightFailed(text, hint=hint) from error


def _laid(
    found: Placement, cluster: Cluster, own: tuple[Placement, ...], others: tuple[Placement, ...]
) -> tuple[Placement, ...]:
    before, deployment = found.replica, cluster.renamed(found.deployment)
    if deployment.replicas == 1 and not others:
        return (replace(fitted(found, cluster), index=own[0].index if own else 0),)
    ensure_one_address(deployment, before.port, others)
    how = partial(place_replicas, loading=before.loading, offline=before.offline, before=own, beside=others)
    there = beside(cluster.keeping(before.backend), others)
    return how(deployment, there, (before.tp, before.pp), before.port)


def _makes_room(
    found: Placement, cluster: Cluster, own: tuple[Placement, ...], others: tuple[Placement, ...], name: str
) -> str:
    """Commands, one after another, by which it fits: those that stop the fewest models; or it is laid out again."""
    names = tuple(dict.fromkeys(one.deployment.name for one in others))
    for goes in [*((one,) for one in names), names] if names else ():
        with suppress(UsageError):
            _laid(found, cluster, own, tuple(one for one in others if one.deployment.name not in goes))
            words = [*(("stop", one) for one in goes), ("rollback", name)]
            return "\n".join(command_line("vcluster", *more) for more in words)
    asked = cluster.renamed(found.deployment)
    there = tuple(host for host in asked.hosts if host in cluster.gpus)
    return serve_command(replace(asked, hosts=there), {}, layout=False)
