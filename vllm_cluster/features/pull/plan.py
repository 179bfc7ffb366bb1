"""What a pull would bring: asked of the hub, of every cache, and refused where it cannot be."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vllm_cluster.features.pull.hosts import PullHosts
from vllm_cluster.features.pull.hub_listing import ask_hub
from vllm_cluster.kernel.errors import PreflightFailed
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.hosts.program import RunningProgram
from vllm_cluster.kernel.models.cache import LINE_SECONDS, locate_cache, running, taken
from vllm_cluster.kernel.plan.pull import (
    SPARE,
    Held,
    HubModel,
    PullPlan,
    choose_files,
    container_name,
    place_of,
    plan_pull,
    share_writers,
)
from vllm_cluster.kernel.shell_line import Option, command_line, listener_line
from vllm_cluster.kernel.text import and_more, by_hosts, count, size
from vllm_cluster.serving.fit.fit import host_token
from vllm_cluster.wire.pull import HERE, CacheMarks, CacheModel, CacheRow

ID_BYTES = 8
# Of each host the files that were hashed and are wrong.
Damaged = Mapping[str, Collection[str]]
NOTHING: Damaged = {}


@dataclass(frozen=True)
class WantedModel:
    """The model as it was asked for, and how it is to be brought."""

    model: str
    revision: str = ""
    via: str = ""
    detach: bool = False
    # A folder in place of the hub: of this machine, or of the host `via`.
    source: Path | None = None
    # This machine sends the files of that folder.
    sent_from_here: bool = False

    @property
    def name(self) -> str:
        """As a person writes it."""
        return f"{self.model}@{self.revision}" if self.revision else self.model


def ask_about(hosts: PullHosts, wanted: WantedModel, via: str) -> HubModel:
    """What the hub has of the model, asked from the host that would download it.

    Raises:
        PreflightFailed: it cannot be had.
    """
    inventory = hosts.inventory
    endpoint = inventory.environment.get("HF_ENDPOINT") or os.environ.get("HF_ENDPOINT", "")
    hosts.emit(Event("phase", f"asking the hub for {wanted.name} from {via}"))
    question: dict[str, Any] = {"model": wanted.model, "revision": wanted.revision, "endpoint": endpoint}
    question["token"] = host_token(inventory)
    found = ask_hub(hosts.fleet.connections[via], locate_cache(inventory, hosts.facts[via]), question)
    if found.name != wanted.model:
        # The cache names its folder after the word that is asked for: serve would look for the other one.
        now = replace(wanted, model=found.name).name
        raise PreflightFailed(
            f"{wanted.model} is {found.name} on {found.endpoint}", hint=command_line("vcluster", "pull", now)
        )
    return found


def plan_for(
    hosts: PullHosts, model: HubModel, reference: str, via: str, damaged: Damaged = NOTHING, *, named: bool = False
) -> PullPlan:
    """The plan by what the caches hold.

    Raises:
        PreflightFailed: a cache cannot be written.
    """
    plan = plan_pull(hosts.inventory, model, reference, _held(hosts, model, reference, damaged), via, named=named)
    if not plan.chain:
        return plan
    shares = share_writers(_seen(hosts, plan), via)
    held = {name: replace(one, shares=shares.get(name, "")) for name, one in plan.held.items()}
    plan = plan_pull(hosts.inventory, model, reference, held, via, named=named)
    if wrong := [name for name in plan.chain if not held[name].writable]:
        text = f"pull: {hosts.inventory.model_cache} cannot be written by the user of the containers"
        hint = command_line("stat", Option("-c"), "%u:%g", hosts.inventory.model_cache, on=wrong[0])
        hint += '\nset user: "UID:GID" in the inventory'
        hint += "\nor, where hosts share the cache, --via HOST: one that can write to it"
        raise PreflightFailed(f"{', '.join(wrong)}: {text}", hint=hint)
    return plan


def _held(hosts: PullHosts, model: HubModel, reference: str, damaged: Damaged) -> dict[str, Held]:
    """What each cache has of the files."""
    files = choose_files(model.files)[0]
    asked = {"do": "look", **place_of(model.name), "commit": model.commit, "reference": reference}

    def look(connection: HostConnection) -> Held:
        wrong = damaged.get(connection.name, ())
        rows = [vars(file) for file in files if file.path not in wrong]
        found = Held(**vars(hosts.ask(connection, {**asked, "files": rows}, CacheModel)))
        # Without those, what else is there looks like weights of an earlier folder.
        return replace(found, damaged=tuple(sorted(wrong)), digest="", stale=()) if wrong else found

    return hosts.fleet.all(look)


def _seen(hosts: PullHosts, plan: PullPlan) -> dict[str, list[str]]:
    """Of each host whose marks it sees in its cache."""
    names = list(plan.held)
    marks = {name: f"{hosts.fleet.runtime.token(ID_BYTES)}" for name in names}
    asked = {"do": "seek", **place_of(plan.model.name), "commit": plan.model.commit}
    by_mark = {mark: name for name, mark in marks.items()}
    with ExitStack() as open_until_all_have_looked:
        runtime = hosts.fleet.runtime

        def leave(connection: HostConnection) -> RunningProgram:
            question = {**asked, "mark": marks[connection.name]}
            there = running(connection, hosts.inventory, hosts.facts[connection.name], question)
            found = open_until_all_have_looked.enter_context(there)
            found.next(runtime.after(LINE_SECONDS))
            return found

        programs = hosts.fleet.all(leave, names)

        def look(connection: HostConnection) -> list[str]:
            program = programs[connection.name]
            program.send({"others": list(by_mark)})
            found = taken(CacheMarks, connection.name, program.next(runtime.after(LINE_SECONDS)))
            return [by_mark[mark] for mark in found.seen if mark in by_mark]

        seen = hosts.fleet.all(look, names)

        def clear(connection: HostConnection) -> None:
            # Its end alone would not do: it is killed with its channel.
            programs[connection.name].send({})
            programs[connection.name].next(runtime.after(LINE_SECONDS))

        hosts.fleet.all(clear, names)
        return seen


def hashing(host: str, row: CacheRow) -> Event:
    """How far a host is with hashing files."""
    data = {"bytes": row.bytes, "total_bytes": row.total}
    return Event("progress", f"hashing {size(row.bytes)} of {size(row.total)}", host, data)


def ensure_room(plan: PullPlan) -> None:
    """Refuse what does not fit on a disk.

    Raises:
        PreflightFailed: it names each host.
    """
    lines = []
    for name, missing in plan.missing.items():
        free = plan.held[name].free
        if missing and missing + SPARE > free:
            needed = f"{size(missing)} are needed, beside {size(SPARE)} for logs"
            lines.append((f"pull: {needed}, and {size(free)} are free in {plan.cache}", name))
    if lines:
        # Where no model is there, none can be removed.
        fix = "model_cache in the inventory, on a larger disk, then vcluster up\nvcluster models"
        raise PreflightFailed(*(f"{hosts}: {what}" for what, hosts in by_hosts(lines).items()), hint=fix)


def warn_of_stale(hosts: PullHosts, plan: PullPlan) -> None:
    """Name weights of an earlier folder of this name, which stay: vLLM may read them too."""
    found = by_hosts((tuple(one.stale), name) for name, one in plan.held.items() if one.stale and not one.shares)
    for paths, names in found.items():
        text = (
            f"{plan.model.name} keeps {and_more(paths)}, which is not among the files that are pulled: vLLM may read it"
        )
        remove = command_line("vcluster", "models", "rm", plan.model.name)
        fix = f"{remove}, then {command_line('vcluster', 'pull', 'FOLDER', Option('--as'), plan.model.name[2:])}"
        hosts.emit(Event("warning", f"{text}; {fix}", names, {"code": "stale-weights", "paths": list(paths)}))


def ensure_ports(hosts: PullHosts, plan: PullPlan) -> None:
    """Refuse a port of the transfer that another program has.

    Raises:
        PreflightFailed: it names each host.
    """
    name = container_name(hosts.inventory.cluster)

    def is_taken(host: str) -> bool:
        # What an earlier pull had when the host was looked at has been removed since.
        facts = hosts.facts[host]
        return plan.port in facts.listening and all(container.name != name for container in facts.containers)

    taken = [host for host in plan.chain if is_taken(host)] if len(plan.chain) > 1 else []
    if taken:
        text = f"{', '.join(taken)}: pull: port {plan.port} is already in use (ports.pull)"
        fix = f"{listener_line(plan.port, taken[0])}, then stop that process\nor set ports.pull"
        raise PreflightFailed(text, hint=fix)


def what(model: HubModel) -> str:
    """What is brought, in short."""
    commit = f"{model.commit[:12]}, " if model.commit else ""
    return f"{commit}{count(len(model.files), 'file')}, {size(model.size)}"


def _brings(plan: PullPlan, missing: int) -> str:
    if plan.model.origin == HERE:
        return f"gets {size(missing)} from this machine"
    if plan.model.origin:
        return f"copies {size(missing)} from {plan.model.origin}"
    return f"downloads {size(missing)} from {plan.model.endpoint}"


def summarize_plan(plan: PullPlan) -> str:
    """The plan for people."""
    lines = [f"{plan.model.name}{f' {plan.reference}' if plan.reference else ''}: {what(plan.model)}"]
    for place_, name in enumerate(plan.chain):
        missing = plan.missing[name]
        room = f" ({size(plan.held[name].free)} free)"
        if place_ == 0 and not missing:
            proves = " once its files are hashed" if plan.downloads else ""
            lines.append(f"{name}: has all, and sends it{proves}")
        elif place_ == 0:
            lines.append(f"{name}: {_brings(plan, missing)}{room}")
        elif missing:
            lines.append(f"{name}: receives {size(missing)} from the others{room}")
        elif plan.held[name].digest:
            lines.append(f"{name}: has all, and notes that {plan.reference} is this revision")
        else:
            lines.append(f"{name}: has all by size: hashes it, and receives what is damaged from the others")
    lines += [f"{name}: has all" for name in plan.idle]
    lines += [f"{name}: shares the cache of {one.shares}" for name, one in plan.held.items() if one.shares]
    if plan.skipped:
        skipped = sum(file.size for file in plan.skipped)
        names = and_more([file.path for file in plan.skipped])
        lines.append(
            f"not pulled: {count(len(plan.skipped), 'file')} that vLLM does not read, {size(skipped)}: {names}"
        )
    return "\n".join(["Plan:", *(f"  {line}" for line in lines)])
