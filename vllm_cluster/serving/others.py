"""The models beside the one that a request is about: which stay, which end for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from vllm_cluster.kernel.errors import HostError, PreflightFailed, UsageError
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.inventory.words import nearest
from vllm_cluster.kernel.node.handle import NodeHandle, NodeState
from vllm_cluster.kernel.node.history import last_start
from vllm_cluster.kernel.node.named_files import NamedFiles
from vllm_cluster.kernel.plan.placement import serve_command
from vllm_cluster.kernel.shell_line import command_line
from vllm_cluster.kernel.text import count
from vllm_cluster.serving.consent import served_on
from vllm_cluster.serving.head import first_ready, replicas_served
from vllm_cluster.serving.stops import Served, Stops
from vllm_cluster.wire.order import Order, Placement
from vllm_cluster.wire.reading import RefusedDocument
from vllm_cluster.wire.status import ServeStatus


@dataclass(frozen=True)
class Succession:
    """What becomes of the models of a head by a request: what it asks for, what stays beside that, and what goes."""

    wanted: tuple[Placement, ...]
    stays: tuple[Placement, ...]
    goes: frozenset[str]

    @property
    def rows(self) -> tuple[Placement, ...]:
        """What the order has."""
        return (*self.stays, *self.wanted)


def change(node: NodeHandle, wanted: tuple[Placement, ...], goes: Collection[str] | None) -> Succession:
    """What a request changes by the order that is there now; `goes` are the models that end for it, None for all.

    Another person may have asked for one meanwhile: what has GPUs that are wanted goes, too. One that has failed keeps
    neither its GPUs nor its number.

    Raises:
        PreflightFailed: one was given a number that is wanted, and has other GPUs: it need not go.
    """
    own = {one.deployment.name for one in wanted}
    order, state = _order_and_state(node)
    others = [one for one in order.beside("") if one.deployment.name not in own]
    leaving = {
        one.deployment.name
        for one in others
        if goes is None or one.deployment.name in goes or any(one.meets(other) for other in wanted)
    }
    leaving |= in_the_way_of(wanted, others, failed_models(state))
    for one in others:
        if one.deployment.name not in leaving and one.index in {other.index for other in wanted}:
            text = f"{node.host}: {one.deployment.name} was asked for meanwhile; nothing was changed"
            raise PreflightFailed(text, again=())
    return Succession(wanted, tuple(one for one in others if one.deployment.name not in leaving), frozenset(leaving))


def failed_models(state: NodeState | None) -> frozenset[str]:
    """The models that no replica serves or starts: each has failed, and nothing is served in its place."""
    rows = state.replicas if state else ()
    return frozenset(one.name for one in rows) - {one.name for one in rows if one.phase != "failed"}


def in_the_way_of(wanted: Iterable[Placement], others: Iterable[Placement], failed: Collection[str]) -> frozenset[str]:
    """The models that have failed, and hold GPUs or a number that are wanted."""
    rows = [one for one in others if one.deployment.name in failed]
    asked = [*wanted]
    return frozenset(
        one.deployment.name for one in rows if any(one.meets(new) or one.index == new.index for new in asked)
    )


def stopped_for(node: NodeHandle, made: Succession) -> Stops:
    """What the request would stop: what goes, and another version of itself, unless one replica of that serves on."""
    found = served_on(node)
    own = {one.deployment.name: one.generation for one in made.wanted}
    kept = {one.deployment.name for one in made.stays}

    def stops(one: Served) -> bool:
        if one.name in own:
            return one.generation != own[one.name] and not _rolls(node, made.wanted)
        return one.name not in kept

    return replace(found, served=tuple(filter(stops, found.served)))


def _rolls(node: NodeHandle, wanted: tuple[Placement, ...]) -> bool:
    """Whether a replica of the same deployment answers at each moment: they change one after another."""
    name = wanted[0].deployment.name
    ready = {one.index for one in node.state().replicas if one.phase == "ready" and one.name == name}
    return len(ready & {one.index for one in wanted}) > 1


def order_in_force(node: NodeHandle) -> Order:
    """What the head was asked last, with what it serves in place of a request that failed.

    Nothing where that cannot be read. One that failed is not wanted any more: another order would try it again.
    """
    return _order_and_state(node)[0]


def _order_and_state(node: NodeHandle) -> tuple[Order, NodeState | None]:
    """The order in force, and the state that it was judged by; of no order none is read."""
    try:
        order = node.order() or Order()
    except RefusedDocument:
        return Order(), None
    state = node.state_if_running() if order.deployments else None
    status = {one.index: one for one in state.replicas} if state else {}
    numbers = {one.index: one.asked or order.epoch for one in order.deployments}
    failed = [at for at, now in status.items() if now.instead_of and now.request == numbers.get(at)]
    back = dict(_back(node, failed)) if failed else {}
    rows = [replace(back.get(one.index) or one, index=one.index, asked=one.asked) for one in order.deployments]
    try:
        return replace(order, deployments=tuple(rows)), state
    except ValueError as error:
        text = f"what it serves in place of requests that failed {error}"
        raise HostError(node.host, text, hint="vcluster explain") from None


def _back(node: NodeHandle, indexes: Iterable[int]) -> Iterator[tuple[int, Placement | None]]:
    """What is served in place of a request that failed, of each of these replicas."""
    files = NamedFiles(node)
    for index in indexes:
        yield index, files.taken(index).back_to


def and_serve(node: NodeHandle, order: Order, wanted: tuple[Placement, ...], names: Mapping[str, str]) -> str:
    """What follows a stop, for the question: what is served then, how that differs, and how long nothing answers."""
    deployment = wanted[0].deployment
    seconds = last_start(node, deployment)
    what = serve_command(deployment, names).removeprefix("vcluster serve ")
    more = [*_differs(order.named(deployment.name), wanted)]
    more += [f"ready after {seconds:.0f} s the last time"] if seconds else []
    return f" and serve {what}" + (f" ({', '.join(more)})" if more else "")


def _differs(before: tuple[Placement, ...], wanted: tuple[Placement, ...]) -> Iterator[str]:
    """How a model is laid out otherwise than before, where it was served."""
    if before and len(before) != len(wanted):
        yield f"{count(len(before), 'replica')} become{'s' if len(before) == 1 else ''} {len(wanted)}"
    if before and before[0].replica.layout != wanted[0].replica.layout:
        yield f"{before[0].replica.layout} becomes {wanted[0].replica.layout}"


def the_model(names: Collection[str], name: str | None, verb: str) -> str:
    """The model that a verb is about: the one that is named, or the only one there is; empty where there is none.

    Raises:
        UsageError: there is no such model, or it is not known which.
    """
    if name and name not in names:
        near = nearest(name, names)
        meant = f" (did you mean {near}?)" if near else ""
        there = ", ".join(names) or "none"
        text = f"{name} is not served{meant}; served: {there}"
        raise UsageError(text, hint=command_line("vcluster", verb, near) if near else "vcluster status")
    if name is None and len(names) > 1:
        lines = [command_line("vcluster", verb, one) for one in names]
        raise UsageError(f"several models are served: {', '.join(names)}", hint="\n".join(lines))
    return name or next(iter(names), "")


def ready_model(inventory: Inventory, head: HostConnection, name: str | None, verb: str) -> ServeStatus:
    """What is served on this head under a name, or all there is: a replica that is ready.

    Raises:
        UsageError: there is no such model, or it is not known which.
        PreflightFailed: none is ready, or the head's node does not run.
    """
    rows = replicas_served(inventory, head)
    model = the_model(dict.fromkeys(one.name for one in rows), name, verb)
    return first_ready([one for one in rows if one.name == model])
