"""Hash a model on every host, and repair what is damaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from vllm_cluster.features.pull.action import bring
from vllm_cluster.features.pull.hosts import PullHosts, looked_at, refuse_running
from vllm_cluster.features.pull.plan import WantedModel, ask_about, hashing
from vllm_cluster.kernel.errors import PreflightFailed
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.models.cache import proved
from vllm_cluster.kernel.plan.cached_model import cache_place
from vllm_cluster.kernel.plan.pull import HubModel, place_of
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.text import by_hosts, count, size
from vllm_cluster.wire.pull import CacheManifest, CacheRow, ModelFile
from vllm_cluster.wire.values import Url


@dataclass
class Verified:
    """What one host has: the files of its manifest, and those that are damaged, with the reason."""

    commit: str = ""
    digest: str = ""
    bytes: int = 0
    files: list[ModelFile] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)


def verify(inventory: Inventory, emit: Emit, wanted: WantedModel, *, runtime: Runtime = SYSTEM) -> None:
    """Hash every file on every host, and bring those again that are damaged.

    Raises:
        UsageError: no model can have this name.
        PreflightFailed: a host has no manifest, or the hosts have different revisions; nothing was changed.
        HostError, FleetError: a file could not be brought again.
    """
    cache_place(wanted.model)
    with looked_at(inventory, emit, runtime) as hosts:
        refuse_running(hosts)
        emit(Event("phase", f"hashing {wanted.name} on {count(len(inventory.hosts), 'host')}"))
        found = hosts.fleet.all(lambda connection: _verified(hosts, connection, wanted))
        _ensure_comparable(wanted, found)
        for name, one in found.items():
            for path, why in one.damaged.items():
                emit(Event("warning", f"{path}: {why}", name, {"code": "file-damaged", "path": path}))
        damaged = {name for name, one in found.items() if one.damaged}
        some = next(iter(found.values()))
        if not damaged:
            total = f"{some.commit[:12]}, " if some.commit else ""
            total += f"{count(len(some.files), 'file')}, {size(some.bytes)}"
            emit(
                Event(
                    "result",
                    f"{wanted.name} is undamaged on {', '.join(found)}: {total}.",
                    data={"model": wanted.name, "changed": False},
                )
            )
            return
        via = wanted.via or inventory.head_name
        model = HubModel(wanted.model, some.commit, Url(""), tuple(some.files))
        if len(damaged) == len(found):
            model = _from_origin(hosts, wanted, model, via)
        # Each host drops its own: it is known now from where they come again.
        wrong = {name: set(one.damaged) for name, one in found.items()}
        if not bring(hosts, model, "", wanted, via, damaged=wrong):
            refuse_running(hosts)


def _from_origin(hosts: PullHosts, wanted: WantedModel, model: HubModel, via: str) -> HubModel:
    """The model with the hub that has the files, where no host has all undamaged.

    Raises:
        PreflightFailed: it is a folder, and only who brought it knows from where.
        HostError: the hub does not give it.
    """
    if place_of(wanted.model)["kind"] == "folder":
        text = f"{wanted.model}: no host has all of it undamaged; nothing was changed"
        raise PreflightFailed(
            text, hint=command_line("vcluster", "pull", "FOLDER", Option("--as"), wanted.model.removeprefix("./"))
        )
    at_commit = replace(wanted, revision=model.commit)
    return replace(ask_about(hosts, at_commit, via), files=model.files)


def _verified(hosts: PullHosts, connection: HostConnection, wanted: WantedModel) -> Verified:
    found = Verified()

    def see(row: CacheRow) -> None:
        if row.file:
            found.files.append(row.file)
        elif row.damaged:
            found.damaged[row.damaged.path] = row.damaged.why
        else:
            hosts.emit(hashing(connection.name, row))

    asked = {"do": "verify", **place_of(wanted.model), "revision": wanted.revision}
    end = hosts.ask(connection, asked, CacheManifest, see)
    found.commit, found.digest = proved(connection.name, end, found.files)
    found.bytes = end.bytes
    return found


def _ensure_comparable(wanted: WantedModel, found: Mapping[str, Verified]) -> None:
    if lacking := [name for name, one in found.items() if not one.digest]:
        text = f"verify: {wanted.name} has no manifest there: vcluster has not pulled it"
        raise PreflightFailed(f"{', '.join(lacking)}: {text}", hint=command_line("vcluster", "pull", wanted.name))
    commits = by_hosts((one.commit[:12], name) for name, one in found.items())
    if len({one.digest for one in found.values()}) > 1:
        text = "; ".join(f"{names}: {commit}" for commit, names in commits.items())
        raise PreflightFailed(
            f"the hosts have different files of {wanted.name}: {text}",
            hint=command_line("vcluster", "pull", wanted.name),
        )
