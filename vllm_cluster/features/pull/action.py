"""Pull a model: fetched once from a hub, spread from host to host, and proved the same everywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from vllm_cluster.features.pull.folder import Feeding
from vllm_cluster.features.pull.follow import PullEnd, follow
from vllm_cluster.features.pull.hosts import PullHosts, looked_at, remove_pull, statuses
from vllm_cluster.features.pull.known import find_model, proved_on
from vllm_cluster.features.pull.plan import (
    NOTHING,
    Damaged,
    WantedModel,
    ensure_ports,
    ensure_room,
    plan_for,
    summarize_plan,
    warn_of_stale,
    what,
)
from vllm_cluster.kernel.assess import require_name
from vllm_cluster.kernel.errors import HostError, Interrupted, Locked, UsageError, VclusterError, combine
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.laptop import expanded
from vllm_cluster.kernel.models import weights
from vllm_cluster.kernel.plan.cached_model import REPOSITORY
from vllm_cluster.kernel.plan.identity import Owner, decide_cluster_id
from vllm_cluster.kernel.plan.pull import MAKER, PULLED, HubModel, PullPlan, choose_files, has_weights, outside
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.text import size
from vllm_cluster.serving.fit.fit import host_token
from vllm_cluster.wire.pull import HERE, digest_of

ID_BYTES, KEY_BYTES = 8, 32
# Another person's pull may end, and its containers go, between two looks.
ROUNDS = 3


def pull_model(inventory: Inventory, emit: Emit, wanted: WantedModel, *, runtime: Runtime = SYSTEM) -> None:
    """Bring a model to every host; one that is being brought is looked at.

    Raises:
        PreflightFailed: it cannot be had, or does not fit; nothing was changed.
        Locked: another model is being pulled.
        HostError, FleetError: some hosts do not have it; the others do, and another pull continues.
    """
    if not wanted.source:
        _ensure_repository(wanted.model)
    require_name(inventory, [wanted.via] if wanted.via else [])
    with looked_at(inventory, emit, runtime) as hosts:
        bring_everywhere(hosts, wanted)


def bring_everywhere(hosts: PullHosts, wanted: WantedModel) -> None:
    """Bring a model to these hosts; as `pull`."""
    for _ in range(ROUNDS):
        if _bring_once(hosts, wanted):
            return
    raise VclusterError(f"{wanted.name}: other pulls came and went meanwhile", again=())


def cancel_pull(inventory: Inventory, emit: Emit, wanted: str = "", *, runtime: Runtime = SYSTEM) -> None:
    """Stop the pull that runs, where it is of the wanted model; what is on the disks stays for another pull.

    Raises:
        HostError, FleetError: on some hosts it could not be stopped.
    """
    with looked_at(inventory, emit, runtime) as hosts:
        there = statuses(hosts)
        model = next((one.model for one in there.values() if one.model), "")
        if wanted and model and model != wanted:
            text = f"No pull of {wanted} runs: {model} is being pulled to {', '.join(there)}"
            raise Locked(text, hint=command_line("vcluster", "pull", model, Option("--cancel")))
        remove_pull(hosts, there)
        text = f"Stopped the pull of {model or 'a model'}. What arrived is kept." if there else "No pull runs."
        emit(Event("result", text, data={"model": model, "changed": bool(there)}))


def _bring_once(hosts: PullHosts, wanted: WantedModel) -> bool:
    """Whether the model is on every host now, or is on its way there."""
    there = statuses(hosts)
    # Whoever sent the files of that one does so no more: it continues with what is there.
    left = wanted.sent_from_here and any(one.unfed and one.model == wanted.model for one in there.values())
    if any(not one.over for one in there.values()) and not left:
        return _look_on(hosts, wanted, there)
    remove_pull(hosts, there)
    via = wanted.via or hosts.inventory.head_name
    with hosts.fleet.runtime.pool(1) as pool:
        # Beside the hub's answer: most often every host has all of it.
        proved = None if wanted.source else pool.submit(proved_on, hosts, wanted)
        model = find_model(hosts, wanted, via)
        brought = replace(model, files=choose_files(model.files)[0])
        if proved and proved.result() == {(model.commit, digest_of(brought.files))}:
            _nothing_to_do(hosts, wanted, brought)
            return True
    named = not wanted.source and wanted.revision != model.commit
    return bring(hosts, model, (wanted.revision or "main") if named else "", wanted, via)


def bring(
    hosts: PullHosts, model: HubModel, reference: str, wanted: WantedModel, via: str, *, damaged: Damaged = NOTHING
) -> bool:
    """Bring these files to the hosts that lack them, or on which they are `damaged`.

    False where another pull was there first.

    Raises:
        PreflightFailed: a disk has no room.
        HostError, FleetError: some hosts do not have them.
    """
    emit = hosts.emit
    plan = plan_for(hosts, model, reference, via, damaged, named=bool(wanted.via))
    warn_of_stale(hosts, plan)
    if not plan.chain:
        _nothing_to_do(hosts, wanted, plan.model)
        return True
    ensure_room(plan)
    ensure_ports(hosts, plan)
    token = host_token(hosts.inventory) if plan.downloads and not plan.model.origin else None
    emit(Event("note", summarize_plan(plan), data={"commit": plan.model.commit, "size_bytes": plan.model.size}))
    if not has_weights(plan.model.files):
        emit(Event("warning", f"{wanted.name} has no weights: vLLM cannot serve it"))
    if not _start(hosts, plan, token):
        return False
    _finish(hosts, wanted, plan.chain, plan)
    return True


def _ensure_repository(model: str) -> None:
    if not REPOSITORY.fullmatch(model):
        hint = command_line("vcluster", "pull", f"./{model}") if expanded(model).is_dir() else "vcluster pull ORG/NAME"
        raise UsageError(f"{model or 'the model'}: must be ORG/NAME or ORG/NAME@REVISION", hint=hint)


def _look_on(hosts: PullHosts, wanted: WantedModel, there: Mapping[str, weights.PullStatus]) -> bool:
    """Follow another person's pull of this model; False where it is to be compared afterwards."""
    one = next((one for one in there.values() if one.model), None)
    revision = wanted.revision or "main"
    same = one is None or bool(wanted.source) or revision in (one.reference, one.commit)
    if one and (one.model != wanted.model or not same):
        raise Locked(f"{one.name} is being pulled to {', '.join(there)}", hint=one.follow)
    if wanted.detach:
        _result(hosts, wanted, f"{wanted.name} is already being pulled. Nothing was changed.")
        return True
    hosts.emit(Event("note", f"{wanted.name} is already being pulled to {', '.join(there)}: following it"))
    # It may be from another folder.
    return _finish(hosts, wanted, tuple(there), None, compare=bool(wanted.source))


def _start(hosts: PullHosts, plan: PullPlan, token: str | None) -> bool:
    """Create the containers and start them, the one that downloads with the token; False where another pull has one."""
    fleet, asked = hosts.fleet, list[str]()
    identity, key = fleet.runtime.token(ID_BYTES), fleet.runtime.token(KEY_BYTES)
    labels = _labels(hosts, plan, identity)
    try:
        # One after another in one order: of two people who begin at once, one is refused at the first host.
        for name in sorted(plan.chain):
            reads = _reads(hosts.inventory, plan) if name == plan.chain[0] else ""
            asked.append(name)
            if not weights.create(fleet.connections[name], hosts.inventory, hosts.facts[name], labels, reads):
                remove_pull(hosts, asked, labels[MAKER])
                return False

        def begin(connection: HostConnection) -> None:
            document = plan.for_host(identity, key, connection.name)
            given = token if connection.name == plan.chain[0] else None
            weights.begin(connection, hosts.inventory.cluster, document, given)

        fleet.all(begin, plan.chain)
    except BaseException:
        # Also where the answer to the last one did not arrive.
        with suppress(VclusterError):
            remove_pull(hosts, asked, labels[MAKER])
        raise
    return True


def _labels(hosts: PullHosts, plan: PullPlan, identity: str) -> dict[str, str]:
    inventory = hosts.inventory
    owner = Owner(
        inventory.cluster, decide_cluster_id(inventory, hosts.facts), inventory.hosts[inventory.head_name].address
    )
    return {**owner.labels, PULLED: json.dumps(plan.pulled), MAKER: identity}


def _reads(inventory: Inventory, plan: PullPlan) -> str:
    """The folder outside of the cache from which the source copies."""
    origin = plan.model.origin if plan.downloads and plan.model.origin.startswith("/") else ""
    return outside(inventory.model_cache, origin) if origin else ""


def _finish(
    hosts: PullHosts, wanted: WantedModel, names: Sequence[str], plan: PullPlan | None, *, compare: bool = False
) -> bool:
    """Follow it to its end, and take the containers away, where no other person has done so.

    With `compare` the files are still to be compared where it ended well; then it is False, and no result is emitted.
    """
    if wanted.detach:
        text = f"{wanted.name} is being pulled to {', '.join(names)}. The same command follows it."
        _result(hosts, wanted, text, changed=True)
        return True
    feeding = None
    if plan and wanted.source and plan.model.origin == HERE and plan.downloads:
        feeding = Feeding(hosts, plan.model, wanted.source, plan.chain[0])
    try:
        check = feeding.check if feeding else lambda: None
        ended = follow(hosts.fleet, hosts.inventory.cluster, names, hosts.emit, check)
    except VclusterError:
        remove_pull(hosts, names)
        raise
    except KeyboardInterrupt:
        if feeding:
            text = "Interrupted. This machine sends no more files; what arrived is kept."
            raise Interrupted(text, again=()) from None
        text = f"Interrupted. The pull of {wanted.name} continues on the hosts; run the same command to follow it."
        raise Interrupted(text, hint="vcluster pull --cancel", again=()) from None
    if any(one.phase == "gone" for one in ended.hosts.values()) and not ended.failed:
        _taken_away(hosts, wanted)
        return True
    reached = [name for name in names if name not in ended.lost]
    remove_pull(hosts, reached)
    _ensure_same(hosts, wanted, ended, plan)
    if not compare:
        _report(hosts, wanted, ended, plan)
    return not compare


def _taken_away(hosts: PullHosts, wanted: WantedModel) -> None:
    """Another person has taken the containers away: at the end of the pull, or before, and then nothing is begun."""
    model = find_model(hosts, wanted, wanted.via or hosts.inventory.head_name)
    plan = plan_for(hosts, model, "", wanted.via or hosts.inventory.head_name)
    if plan.chain:
        raise VclusterError(f"the pull of {wanted.name} was stopped; what arrived is kept", again=())
    _result(hosts, wanted, f"{wanted.name} is on {_everywhere(hosts)}: {what(plan.model)}.", changed=True)


def _ensure_same(hosts: PullHosts, wanted: WantedModel, ended: PullEnd, plan: PullPlan | None) -> None:
    """Raise what failed on some hosts; a manifest that differs is a failure too."""
    failures: dict[str, VclusterError] = {
        name: HostError(name, f"pull: {one.error or 'failed'}", again=())
        for name, one in ended.hosts.items()
        if one.phase == "failed"
    }
    if failures:
        raise combine(failures).with_hosts(hosts.inventory.hosts)
    digests = {one.digest for one in ended.hosts.values()}
    digests |= {plan.held[name].digest for name in plan.idle} if plan else set()
    if len(digests) > 1:
        raise VclusterError(
            f"{wanted.name}: the hosts hold different files",
            hint=command_line("vcluster", "pull", Option("--verify"), wanted.name),
        )


def _report(hosts: PullHosts, wanted: WantedModel, ended: PullEnd, plan: PullPlan | None) -> None:
    total = max(one.total for one in ended.hosts.values())
    seconds = f" in {ended.seconds:.0f} s" if plan else ""
    where = f"{', '.join(ended.hosts)}: {size(total)}{seconds}, the same on {_everywhere(hosts)}"
    _result(hosts, wanted, f"Pulled {wanted.name} to {where}.", changed=True)


def _result(hosts: PullHosts, wanted: WantedModel, text: str, *, changed: bool = False) -> None:
    hosts.emit(Event("result", text, data={"model": wanted.name, "changed": changed}))


def _nothing_to_do(hosts: PullHosts, wanted: WantedModel, model: HubModel) -> None:
    _result(hosts, wanted, f"{wanted.name} is on {_everywhere(hosts)}: {what(model)}. Nothing was changed.")


def _everywhere(hosts: PullHosts) -> str:
    number = len(hosts.inventory.hosts)
    return f"all {number} hosts" if number > 1 else next(iter(hosts.inventory.hosts))
