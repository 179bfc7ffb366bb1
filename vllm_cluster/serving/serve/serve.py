"""Serve a model: write the request on the head, and follow its progress."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial

from vllm_cluster.kernel.assess import Assessment
from vllm_cluster.kernel.backends import vllm
from vllm_cluster.kernel.errors import PreflightFailed, UsageError
from vllm_cluster.kernel.events import Emit, Event, warn_once
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet
from vllm_cluster.kernel.hosts.reach import connect_all
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.inventory.words import nearest
from vllm_cluster.kernel.node.handle import NodeHandle, NodeState
from vllm_cluster.kernel.plan.cached_model import cache_place
from vllm_cluster.kernel.plan.placement import (
    Cluster,
    choose_layout,
    idle_gpus,
    most_replicas,
    place_replicas,
    serve_command,
)
from vllm_cluster.kernel.plan.room import Room, rooms
from vllm_cluster.kernel.plan.shares import MAX
from vllm_cluster.kernel.shell_line import Option, command_line, listener_line, typed_words
from vllm_cluster.kernel.text import count, printable, redact
from vllm_cluster.serving.ask_head import Endpoint, ask_head, follow, models_by_name
from vllm_cluster.serving.consent import Confirm, Consent, Spare, served_on
from vllm_cluster.serving.hooks import PULL_FIRST
from vllm_cluster.serving.look_up import look_up
from vllm_cluster.serving.others import and_serve, change, failed_models, in_the_way_of, order_in_force, stopped_for
from vllm_cluster.serving.serve.base import Fit
from vllm_cluster.serving.serve.check import CheckedRequest, check_request, note_downloads, revision
from vllm_cluster.serving.serve.repeats import without_repeats
from vllm_cluster.wire.order import Deployment, Order, Placement
from vllm_cluster.wire.reading import MAX_BYTES, RefusedDocument, read
from vllm_cluster.wire.status import ServeStatus

READ_ONCE = "vLLM reads the file of --config at its start only: if it has changed, run vcluster stop and serve again"
# Of a word that is refused: enough to find it.
MAX_SHOWN = 40


def serve_model(
    inventory: Inventory,
    emit: Emit,
    asked: Deployment,
    *,
    confirm: Confirm,
    pull: bool | None = False,
    wait: float = 0.0,
    drain: float | None = None,
    fit: Fit | None = None,
    runtime: Runtime = SYSTEM,
) -> Endpoint:
    """Serve what a person asks for, and return once it has generated a token; without a name, under that of the model.

    With `pull`, hosts that lack the model get it first; None asks, where the hub has it. `fit` is asked for another
    layout, where that one is not this program's own.

    Raises:
        Aborted, UsageError: another model is served, and its stop was not confirmed.
        PreflightFailed: the cluster is not up, or what is asked for cannot work; what is served continues.
        HostError: vLLM ended, or waits in vain; with the reason.
    """
    deployment = _understood(inventory, asked)
    # What is checked again after a pull is mostly the same.
    emit = warn_once(emit, "note")
    with connect_all(inventory, emit, runtime=runtime) as fleet:
        seen = look_up(inventory, fleet, emit)
        node = NodeHandle(fleet.connections[inventory.head_name], inventory.cluster)
        cluster = Cluster.of(inventory, gpus := seen.plan.gpus)
        order, failed = order_in_force(node), failed_models(state := node.state()) - {deployment.name}
        chosen = _chosen(deployment, cluster, left := order.without(failed), inventory.ports.api, fit)
        deployment, wanted, served = chosen.deployment, chosen.wanted, chosen.deployment.name
        endpoint = chosen.endpoint(inventory.head_name)
        number = _asked_already(order, state, wanted)
        if [(one.request, one.phase) for one in chosen.rows(state)] == [(number, "ready")] * len(wanted):
            return _report_served(node, endpoint, deployment.flags, emit)
        title = chosen.title if number is None else f"{served} is already being started; following it"
        if number is None:
            gone = in_the_way_of(wanted, order.beside(served), failed)
            _show_layout(inventory, seen.facts, chosen, state.replicas, emit, order=left, failed=gone)
            consent = Consent(confirm, inventory.cluster, chosen.room.why, (*_spares(left, chosen, cluster),))
            then = and_serve(node, order, wanted, fleet.addresses)
            ask = partial(_ask, consent, node, chosen, then)
            found = _checked(inventory, fleet, seen, wanted, emit, pull=pull, confirm=confirm, ask=ask)
            # The same, and so with the same name: how the weights are read does not count.
            wanted = chosen.placed(found.loading, offline=found.offline)
            asks = partial(ask_head, verb="serve", consent=consent, names=fleet.addresses, gpus=gpus, wait=wait)
            number = asks(node, wanted, emit, then=then, goes=chosen.room.goes, drain=drain)
        follow(fleet, inventory, number, wanted, emit, title=title, drain=drain)
    return endpoint


@dataclass(frozen=True)
class Laid:
    """Where a deployment goes, how it is laid out there, and its replicas."""

    deployment: Deployment
    room: Room
    layout: vllm.Parallelism
    wanted: tuple[Placement, ...]
    port: int

    @property
    def title(self) -> str:
        """What is served and how, for people."""
        times = f"{len(self.wanted)} replicas of " if len(self.wanted) > 1 else ""
        return f"serving {self.deployment.name}: {times}TP={self.layout.tp} × PP={self.layout.pp}"

    def endpoint(self, head: str) -> Endpoint:
        """Where it answers, once it does."""
        replica = self.wanted[0].replica
        served = models_by_name(*self.room.stays, *self.wanted)
        return Endpoint(self.deployment.name, replica.host, head, replica.port, served)

    def rows(self, state: NodeState) -> list[ServeStatus]:
        """What the head serves or starts under its name."""
        return [one for one in state.replicas if one.name == self.deployment.name]

    def placed(self, loading: tuple[str, ...], *, offline: bool) -> tuple[Placement, ...]:
        """Its replicas where they are, with how the weights are read."""
        layout, before = (self.layout.tp, self.layout.pp), self.wanted
        place = partial(place_replicas, self.deployment, self.room.cluster, layout, self.port)
        return place(before=before, beside=self.room.stays, loading=loading, offline=offline)


def _chosen(deployment: Deployment, cluster: Cluster, order: Order, port: int, fit: Fit | None) -> Laid:
    """The room where the least goes for it; another layout is asked for in the last one alone.

    Raises:
        UsageError: it fits nowhere.
    """
    (*others, last), refused = rooms(deployment, cluster, order, port), None
    for room in others:
        try:
            return _in_room(room, deployment, port)
        except UsageError as error:
            refused = error
    fits = fit(deployment, last.cluster) if fit else deployment
    try:
        return _in_room(last, fits, port)
    except UsageError as error:
        raise _fits_nowhere(error, refused, last) from None


def _in_room(room: Room, deployment: Deployment, port: int) -> Laid:
    """A deployment in a room.

    Raises:
        UsageError: it does not fit.
    """
    there, layout = _laid_out(deployment, room.cluster, port)
    place = partial(place_replicas, there, room.cluster, (layout.tp, layout.pp), port)
    return Laid(there, room, layout, place(before=room.own, beside=room.stays), port)


def _fits_nowhere(error: UsageError, beside: UsageError | None, last: Room) -> UsageError:
    """The refusal: what fits `beside` other models, and what would fit where those that are in its way have stopped."""
    # Where it fits beside nothing, what is in its way is asked about once it fits at all.
    if not last.goes or error.hint is None or beside is None:
        return error
    stops = ", ".join(command_line("vcluster", "stop", name) for name in last.goes)
    after = f"{stops}, then {error.hint}"
    return UsageError(beside.message, hint="\n".join(filter(None, (beside.hint, after))))


def _laid_out(deployment: Deployment, cluster: Cluster, port: int) -> tuple[Deployment, vllm.Parallelism]:
    """The layout of a deployment; and it without the flags that have the value which vcluster sets for that anyway."""
    every = deployment.replicas == MAX
    if every:
        deployment = replace(deployment, replicas=max(most_replicas(deployment, cluster), 1))
    layout = choose_layout(deployment, cluster)
    if every:
        layout = replace(layout, reasons=(*layout.reasons, f"as many as fit: {count(deployment.replicas, 'replica')}"))
    return without_repeats(deployment, cluster, (layout.tp, layout.pp), port), layout


def _show_layout(
    inventory: Inventory,
    facts: Mapping[str, HostFacts],
    chosen: Laid,
    serving: Sequence[ServeStatus],
    emit: Emit,
    *,
    order: Order,
    failed: Collection[str],
) -> None:
    """Show how the model is laid out and why, and what ends for it; the port must be free where nothing is served."""
    # --yes asks nothing.
    for name in chosen.room.goes:
        placed = order.named(name)
        hosts = dict.fromkeys(chosen.room.cluster.name(at) for one in placed for at in one.replica.ranks)
        emit(Event("note", f"in place of {name}: {count(len(placed), 'replica')} on {', '.join(hosts)} will stop"))
    for gone in sorted(failed):
        emit(Event("note", f"in place of {gone}, which has failed"))
    beside = dict.fromkeys(one.deployment.name for one in chosen.room.stays)
    idle = idle_gpus(chosen.wanted, chosen.room.cluster)
    for reason in filter(None, (*chosen.layout.reasons, idle, f"beside {', '.join(beside)}" if beside else "")):
        emit(Event("note", reason))
    if not serving:
        _require_port(facts[inventory.head_name], inventory.ports.api)


def _spares(order: Order, chosen: Laid, cluster: Cluster) -> Iterator[Spare]:
    """Commands that stop nothing, or make room and stop less than all that would go."""
    yield from _elsewhere(order, chosen, cluster)
    goes, then = chosen.room.goes, "makes room: repeat this command then"

    def fits(there: Order) -> bool:
        with suppress(UsageError):
            return not _chosen(chosen.deployment, cluster, there, chosen.port, None).room.goes
        return False

    for name in goes:
        placed = order.named(name)
        asked, own = placed[0].deployment, placed[0].replica
        fewer = (number for number in range(len(placed) - 1, 0, -1) if fits(_shrunk(order, name, number)))
        if number := next(fewer, 0):
            # One alone takes all hosts where its layout is not named.
            command = serve_command(replace(asked, replicas=number, tp=own.tp, pp=own.pp), {})
            yield Spare(command, f"keeps {number} of the {len(placed)} replicas of {name}, and {then}")
        elif len(goes) > 1 and fits(order.without((name,))):
            yield Spare(command_line("vcluster", "stop", name), f"stops {name} alone, and {then}")


def _shrunk(order: Order, name: str, number: int) -> Order:
    """The order with the first replicas of a deployment alone."""
    left = tuple(one for one in order.deployments if one.deployment.name != name or one.index < number)
    return replace(order, deployments=left)


def _elsewhere(order: Order, chosen: Laid, cluster: Cluster) -> Iterator[Spare]:
    """The command without the hosts, where that would stop nothing."""
    if chosen.deployment.hosts:
        anywhere = replace(chosen.deployment, hosts=())
        with suppress(UsageError):
            found = _chosen(anywhere, cluster, order, chosen.port, None)
            names = [one.generation for one in found.wanted]
            own = [one.generation for one in order.named(anywhere.name)]
            if not found.room.goes and own in ([], names):
                yield Spare(serve_command(anywhere, {}), "leaves out --hosts, and stops nothing")


def _ask(consent: Consent, node: NodeHandle, chosen: Laid, then: str) -> None:
    """Ask before anything is stopped."""
    consent.ask(stopped_for(node, change(node, chosen.wanted, chosen.room.goes)), then)


def _report_served(node: NodeHandle, endpoint: Endpoint, extra: Sequence[str], emit: Emit) -> Endpoint:
    now = next((one for one in served_on(node).served if one.name == endpoint.model), None)
    emit(Event("result", f"already served: {now.text if now else endpoint.model}. Nothing was changed."))
    if "config" in vllm.options(extra):
        emit(Event("note", READ_ONCE))
    return endpoint


def _checked(
    inventory: Inventory,
    fleet: Fleet,
    seen: Assessment,
    wanted: tuple[Placement, ...],
    emit: Emit,
    *,
    pull: bool | None,
    confirm: Confirm,
    ask: Callable[[], None],
) -> CheckedRequest:
    """How the weights are read; a model that hosts lack is pulled first, where that is wanted.

    `ask` asks before anything is stopped: every question comes before the pull, which may take hours.
    """
    deployment = wanted[0].deployment
    model, asked = deployment.model, revision(deployment.flags)
    judge = partial(check_request, fleet, inventory, seen.facts, wanted, emit)
    newest = "" if asked == "main" else asked
    makers = PULL_FIRST.given()
    pulls = [make(inventory, fleet, seen.facts, emit, model=model, revision=newest) for make in makers]
    first = pulls[0] if pulls else None
    found = judge(pull=pull is True)
    if found.lacking and first and (pull or (pull is None and first.is_wanted(confirm))):
        ask()
        first.bring()
        found = judge(pull=False)
    elif found.lacking:
        note_downloads(model, found.lacking, emit)
    if found.offline:
        # Then no host downloads unseen. Not a part of what names it: the same model is the same.
        emit(Event("note", f"{model} is as it was pulled on every host: serving offline"))
    return found


def _understood(inventory: Inventory, asked: Deployment) -> Deployment:
    """What is asked for with the model as vLLM finds it, whose working folder is not the cache, and with a name.

    Raises:
        UsageError: there is no such host, or a flag undoes what vcluster does.
    """
    model = name = asked.model
    if model.startswith("./"):
        name = cache_place(model).folder
        model = f"{inventory.model_cache}/{name}"
    found = replace(asked, model=model, name=asked.name or name, hosts=_named(inventory, asked.hosts))
    asks = next((flag for flag in asked.flags if flag.partition("=")[0] in ("-h", "--help")), None)
    if asks:
        shown = command_line("vcluster", "exec", Option("--head"), Option("--"), "vllm", "serve", *typed_words([asks]))
        raise UsageError(f"{asks} prints vLLM's help and serves nothing", hint=shown)
    # The others may be what vcluster sets anyway, which the hosts show.
    vllm.ensure_allowed(model, found.name, vllm.comparable(asked.flags)[0])
    _ensure_readable(found)
    return found


def _ensure_readable(asked: Deployment) -> None:
    """Refuse what the head would refuse: it takes no order that it cannot read, and this machine would wait for it.

    Raises:
        UsageError: a word of it cannot be one; with the place of that.
    """
    try:
        # The order has the flags a second time, as the words of a command.
        read(Deployment, json.dumps(asdict(asked)).encode(), "serve", MAX_BYTES // 3)
    except RefusedDocument as refused:
        what, _, at = refused.field.partition(".")
        word = asked.flags[int(at)] if at else getattr(asked, what, "")
        shown = f": {printable(redact(str(word)))[:MAX_SHOWN]}" if word else ""
        hint = "write it in UTF-8, and give what is long to vLLM in a file on every host"
        raise UsageError(f"{refused}{shown}", hint=hint) from None


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


def _require_port(head: HostFacts, port: int) -> None:
    if port in head.listening:
        text = f"{head.host}: serve: port {port} is already in use (ports.api)"
        raise PreflightFailed(text, hint=f"{listener_line(port, head.host)}, then stop that process\nor set ports.api")


def _asked_already(order: Order, state: NodeState, wanted: tuple[Placement, ...]) -> int | None:
    """The number of the order that asks for this already and has not failed; None where one must be written."""
    own, generation = order.named(wanted[0].deployment.name), wanted[0].generation
    if [(one.index, one.generation) for one in own] != [(one.index, generation) for one in wanted]:
        return None
    number, now = own[0].asked or order.epoch, state.replica(own[0].index)
    if now is None or now.request != number:
        return number  # it has not been taken yet
    return number if now.generation == generation and now.phase != "failed" else None
