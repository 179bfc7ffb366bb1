"""Hash a model on every host, and repair what is damaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_cluster.actions.pull import bring
from vllm_cluster.actions.pull_hosts import PullHosts, looked_at, refuse_running
from vllm_cluster.actions.pull_plan import WantedModel, ask_about
from vllm_cluster.core.pull import HubModel, place_of
from vllm_cluster.errors import PreflightFailed
from vllm_cluster.events import Emit, Event
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.connection import HostConnection
from vllm_cluster.run.model_cache import ask, file_of, proved
from vllm_cluster.run.runtime import SYSTEM, Runtime
from vllm_cluster.text import by_hosts, count, size
from vllm_cluster.wire.pull import ModelFile


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
        PreflightFailed: a host has no manifest, or the hosts have different revisions; nothing was changed.
        HostError, FleetError: a file could not be brought again.
    """
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
        model = HubModel(wanted.model, some.commit, "", tuple(some.files))
        if len(damaged) == len(found):
            model = _from_origin(hosts, wanted, model, via)
        for name in damaged:
            _drop(hosts, name, wanted, found[name])
        if not bring(hosts, model, "", wanted, via):
            refuse_running(hosts)


def _from_origin(hosts: PullHosts, wanted: WantedModel, model: HubModel, via: str) -> HubModel:
    """The model with the hub that has the files, where no host has all undamaged.

    Raises:
        PreflightFailed: it is a folder, and only who brought it knows from where.
        HostError: the hub does not give it.
    """
    if place_of(wanted.model)["kind"] == "folder":
        text = f"{wanted.model}: no host has all of it undamaged; nothing was changed"
        raise PreflightFailed(text, hint=f"vcluster pull FOLDER --as {wanted.model.removeprefix('./')}")
    at_commit = replace(wanted, revision=model.commit)
    return replace(ask_about(hosts, at_commit, via), files=model.files)


def _verified(hosts: PullHosts, connection: HostConnection, wanted: WantedModel) -> Verified:
    found = Verified()

    def see(row: Mapping[str, Any]) -> None:
        if "file" in row:
            found.files.append(file_of(connection.name, row["file"]))
        elif "damaged" in row:
            found.damaged[file_of(connection.name, row["damaged"]).path] = str(row["damaged"]["why"])
        else:
            data = {"bytes": row["bytes"], "total_bytes": row["total"]}
            text = f"hashing {size(row['bytes'])} of {size(row['total'])}"
            hosts.emit(Event("progress", text, connection.name, data))

    asked = {"do": "verify", **place_of(wanted.model), "revision": wanted.revision}
    end = ask(connection, hosts.inventory, hosts.facts[connection.name], asked, see)
    found.commit, found.digest = proved(connection.name, end, found.files)
    found.bytes = int(end.get("bytes", 0))
    return found


def _drop(hosts: PullHosts, name: str, wanted: WantedModel, found: Verified) -> None:
    """Take what is damaged out of the way, once it is known from where it comes again."""
    rows = [vars(file) for file in found.files if file.path in found.damaged]
    asked = {"do": "drop", **place_of(wanted.model), "commit": found.commit, "files": rows}
    hosts.ask(hosts.fleet.connections[name], asked)


def _ensure_comparable(wanted: WantedModel, found: Mapping[str, Verified]) -> None:
    if lacking := [name for name, one in found.items() if not one.digest]:
        text = f"verify: {wanted.name} has no manifest there: vcluster has not pulled it"
        raise PreflightFailed(f"{', '.join(lacking)}: {text}", hint=f"vcluster pull {wanted.name}")
    commits = by_hosts((one.commit[:12], name) for name, one in found.items())
    if len({one.digest for one in found.values()}) > 1:
        text = "; ".join(f"{names}: {commit}" for commit, names in commits.items())
        raise PreflightFailed(
            f"the hosts have different files of {wanted.name}: {text}", hint=f"vcluster pull {wanted.name}"
        )
