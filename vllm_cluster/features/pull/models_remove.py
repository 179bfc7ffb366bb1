"""Remove a model from the caches of hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from vllm_cluster.features.pull.hosts import PullHosts, looked_at, statuses
from vllm_cluster.features.pull.models import near_cached
from vllm_cluster.kernel.assess import facts_of, require_name
from vllm_cluster.kernel.errors import Locked, PreflightFailed, VclusterError
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.lease.lease import Lease, in_order
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.plan.cached_model import CachePlace, cache_place
from vllm_cluster.kernel.plan.identity import authority, find_foreign, node_of
from vllm_cluster.kernel.plan.node_status import UnreadableStatus
from vllm_cluster.kernel.plan.spec import ROLE
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.text import size
from vllm_cluster.serving.consent import Confirm, ask_removal, served_by
from vllm_cluster.wire.pull import CacheSize
from vllm_cluster.wire.reading import RefusedDocument

RUNS = ("running", "paused", "restarting")


def remove_model(
    inventory: Inventory,
    emit: Emit,
    *,
    model: str,
    hosts: Sequence[str] = (),
    confirm: Confirm,
    runtime: Runtime = SYSTEM,
) -> int:
    """Remove a model from the caches of these hosts, or of all; returns the bytes that this freed.

    Raises:
        UsageError, Aborted: no such name can be, or it was not confirmed.
        PreflightFailed: it is being served.
        Locked: it is being pulled, or another run holds the lease.
    """
    place = cache_place(model)
    require_name(inventory, list(hosts))
    names = [name for name in inventory.hosts if not hosts or name in hosts]
    with looked_at(inventory, emit, runtime) as there:
        _refuse_others(there, names)
        _refuse_used(there, place)
        found = _sizes(there, place, names)
        freed = 0
        if found:
            _ask(place, found, confirm)
            with Lease(in_order(there.fleet, there.facts), inventory.cluster, "models rm") as lease:
                lease.acquire()
                # Another person may have begun to serve or to pull it before the answer, also in a new container.
                now = replace(there, facts=facts_of(inventory, there.fleet))
                _refuse_others(now, names)
                _refuse_used(now, place)
                freed = _remove(now, place, found)
        gone = f"Removed {model} from {', '.join(found)}: {size(freed)}."
        text = gone if found else f"{model} is not on {', '.join(names)}. Nothing was changed."
        text += "" if found else _meant(there, model, names)
        emit(Event("result", text, data={"model": model, "hosts": list(found), "removed_bytes": freed}))
        return freed


def _refuse_others(hosts: PullHosts, names: Sequence[str]) -> None:
    """Refuse where a node of another cluster runs: it alone knows what it serves, and the caches may be one."""
    containers = ((name, one) for name in names for one in hosts.facts[name].containers)
    running = {(name, one.name) for name, one in containers if one.state in RUNS}
    for other in find_foreign(hosts.inventory, hosts.facts):
        if (other.host, other.name) in running:
            text = f"{other.host}: a node of {other.cluster} runs, and may serve it"
            raise PreflightFailed(text, hint="use the inventory of that cluster: its node is asked")


def _refuse_used(hosts: PullHosts, place: CachePlace) -> None:
    pulled = {name: one.model for name, one in statuses(hosts).items() if not one.over}
    # One that has just begun does not yet name its model.
    if {place.model, ""} & {*pulled.values()}:
        raise Locked(
            f"{place.model} is being pulled to {', '.join(pulled)}",
            hint=command_line("vcluster", "pull", place.model, Option("--cancel")),
        )
    inventory, facts = hosts.inventory, hosts.facts
    heads = authority(inventory, facts).heads
    served = served_by(inventory.cluster, {name: seen.containers for name, seen in facts.items()}, hosts.fleet, heads)
    if served.unknown:
        raise PreflightFailed(f"the model of {inventory.cluster} is unknown: {served.unknown}", hint="vcluster status")
    for name in heads:
        node = node_of(inventory.cluster, facts[name])
        if node is None or node.labels.get(ROLE) != "head" or node.state not in RUNS:
            continue
        for served_name, words in _words(NodeHandle(hosts.fleet.connections[name], inventory.cluster)).items():
            if place.is_named_in(words, inventory.model_cache):
                # By its name: beside other models `stop` alone is refused.
                stop = command_line("vcluster", "stop", served_name)
                raise PreflightFailed(f"{name}: {place.model} is being served", hint=stop)


def _words(head: NodeHandle) -> dict[str, list[str]]:
    """By name the words of what a head is asked to serve, and the model that it still serves after that was withdrawn.

    Raises:
        PreflightFailed: they cannot be read.
    """
    try:
        order, rows = head.order(), head.state().replicas
    except UnreadableStatus as error:
        raise PreflightFailed(error.message, hint="vcluster status") from error
    except RefusedDocument as refused:
        text = f"{head.host}: what is to be served cannot be read: {refused.why}"
        raise PreflightFailed(text, hint="vcluster stop") from refused
    words: dict[str, list[str]] = {}
    for one in order.deployments if order else ():
        words.setdefault(one.deployment.name, []).extend(one.replica.leader.argv)
    for row in rows:
        words.setdefault(row.name, []).append(row.model)
    return words


def _of_cache(hosts: PullHosts, host: str, place: CachePlace, do: str) -> CacheSize:
    """Ask for the size of a model, or remove it.

    Raises:
        Locked: it is being pulled; the containers of another cluster are not looked for.
        HostError: the cache cannot be read, or what is there is no model.
    """
    asked = {"do": do, "folder": place.folder, "kind": place.kind}
    found = hosts.ask(hosts.fleet.connections[host], asked, CacheSize)
    if found.locked:
        text = f"{place.model} is being pulled into the cache of {host}, by another cluster that shares it"
        again = command_line("vcluster", "models", "rm", place.model)
        raise Locked(text, hint=f"wait for that pull, then run:\n{again}")
    return found


def _sizes(hosts: PullHosts, place: CachePlace, names: Sequence[str]) -> dict[str, int]:
    """The bytes that it takes on each host that has it.

    Raises:
        HostError, FleetError, Locked: as `_of_cache`.
    """
    found = hosts.fleet.all(lambda connection: _of_cache(hosts, connection.name, place, "size"), names)
    return {name: row.size for name, row in found.items() if row.there}


def _meant(hosts: PullHosts, model: str, names: Sequence[str]) -> str:
    """The question whether another model was meant: the folder of that name, or one that is spelt nearly so.

    Where there is none, what lists the models.
    """
    with suppress(VclusterError):
        if "/" not in model and _sizes(hosts, cache_place(f"./{model}"), names):
            return f" Did you mean ./{model}?"
        if near := near_cached(hosts, model, names):
            return f" Did you mean {near}?"
    return " vcluster models lists what is there."


def _ask(place: CachePlace, found: Mapping[str, int], confirm: Confirm) -> None:
    rows = ", ".join(f"{name} ({size(number)})" for name, number in found.items())
    ask_removal(f"{place.model} from {rows}", confirm)


def _remove(hosts: PullHosts, place: CachePlace, found: Mapping[str, int]) -> int:
    """One host after the other: of hosts that share a cache the second one finds nothing."""
    freed = 0
    for name in found:
        hosts.emit(Event("start", f"removing {place.model}", name))
        number = _of_cache(hosts, name, place, "remove").size
        hosts.emit(Event("done", f"removed {size(number)}", name))
        freed += number
    return freed
