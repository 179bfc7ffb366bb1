"""Which files a model has: as the hub lists them, else as the manifests of the hosts do."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field

from vllm_cluster.features.pull.folder import find_folder
from vllm_cluster.features.pull.hosts import PullHosts
from vllm_cluster.features.pull.hub_listing import NoSuchModel, ensure_asked
from vllm_cluster.features.pull.models import near_cached
from vllm_cluster.features.pull.plan import WantedModel, ask_about
from vllm_cluster.kernel.errors import PreflightFailed, Unreachable, VclusterError
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.models.cache import proved
from vllm_cluster.kernel.plan.pull import HubModel, place_of
from vllm_cluster.kernel.shell_line import command_line
from vllm_cluster.kernel.text import by_hosts
from vllm_cluster.wire.pull import CacheManifest, CacheModel, CacheRow, ModelFile
from vllm_cluster.wire.values import Url

_TRUE = ("1", "true", "yes", "on")


@dataclass
class _Manifest:
    """What one host's manifest lists; empty where it has none, or a file is not as it was."""

    commit: str = ""
    digest: str = ""
    files: list[ModelFile] = field(default_factory=list)


def find_model(hosts: PullHosts, wanted: WantedModel, via: str) -> HubModel:
    """The files of the model.

    Where the hub cannot be reached, or HF_HUB_OFFLINE is set here, they are those that a host has as they were pulled.

    Raises:
        PreflightFailed: it cannot be had.
        Unreachable: the hub cannot be reached, and no host has it.
    """
    if wanted.source:
        return find_folder(hosts, wanted, via)
    why: VclusterError
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE:
        text = f"HF_HUB_OFFLINE is set here, and no host has {wanted.name} as it was pulled"
        why, reason = PreflightFailed(text, hint="unset HF_HUB_OFFLINE"), "HF_HUB_OFFLINE is set here"
    else:
        try:
            return ask_about(hosts, wanted, via)
        except Unreachable as error:
            why, reason = error, error.message
        except NoSuchModel as error:
            raise _with_meant(hosts, wanted, error) from None
    found = {name: one for name, one in _listed(hosts, wanted).items() if one.digest}
    if not found:
        raise _with_meant(hosts, wanted, why)
    # Of one commit a host may list other files: those of one become those of all, so all must agree.
    if len({one.commit for one in found.values()}) < len({one.digest for one in found.values()}):
        text = f"{reason}; {', '.join(found)} have different files of {wanted.name}"
        raise PreflightFailed(text, hint="use --via HOST with a host that reaches the hub")
    commits = by_hosts((one.commit, name) for name, one in found.items())
    if len(commits) > 1:
        text = "; ".join(f"{names}: {commit[:12]}" for commit, names in commits.items())
        hint = "\n".join(command_line("vcluster", "pull", f"{wanted.model}@{commit}") for commit in commits)
        raise PreflightFailed(f"{reason}; the hosts have different revisions of {wanted.name}: {text}", hint=hint)
    first, one = next(iter(found.items()))
    ensure_asked(wanted.revision, one.commit, f"{first}: pull: the manifest of {wanted.model}")
    hosts.emit(Event("note", f"{reason}; the files are those of the manifest on {first}"))
    return HubModel(wanted.model, one.commit, Url(""), tuple(one.files))


def _with_meant(hosts: PullHosts, wanted: WantedModel, error: VclusterError) -> VclusterError:
    """The error, with the model of the hosts that a misspelt name probably means; its other fixes have the slip."""
    with suppress(VclusterError):
        if near := near_cached(hosts, wanted.model):
            hosts.emit(Event("note", f"no host has {wanted.model}; did you mean {near}?"))
            meant = f"{near}@{wanted.revision}" if wanted.revision else near
            error.instead, error.hint = {wanted.name: meant}, None
    return error


def proved_on(hosts: PullHosts, wanted: WantedModel) -> set[tuple[str, str]]:
    """The commit of the wanted revision on each host, and the digest of a manifest that its files agree with.

    Raises:
        HostError, FleetError: a cache cannot be read.
    """
    asked = {"do": "look", **place_of(wanted.model), "revision": wanted.revision}
    found = hosts.fleet.all(lambda connection: hosts.ask(connection, asked, CacheModel))
    return {(one.commit, one.digest) for one in found.values()}


def _listed(hosts: PullHosts, wanted: WantedModel) -> dict[str, _Manifest]:
    asked = {"do": "manifest", **place_of(wanted.model), "revision": wanted.revision}

    def read(connection: HostConnection) -> _Manifest:
        found = _Manifest()

        def see(row: CacheRow) -> None:
            if row.file:
                found.files.append(row.file)

        end = hosts.ask(connection, asked, CacheManifest, see)
        found.commit, found.digest = proved(connection.name, end, found.files)
        return found

    return hosts.fleet.all(read)
