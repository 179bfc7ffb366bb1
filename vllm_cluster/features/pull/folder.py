"""A model that is in a folder, of this machine or of a host, as the source of a pull."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from vllm_cluster.features.pull.hosts import PullHosts
from vllm_cluster.features.pull.known_hashes import KnownHashes
from vllm_cluster.features.pull.local_folder import feed, hashed, listed, pull_line, refused_links
from vllm_cluster.features.pull.plan import WantedModel, hashing
from vllm_cluster.kernel.errors import PreflightFailed, UsageError
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.laptop import cache_folder, expanded, real
from vllm_cluster.kernel.plan.cached_model import cache_place, fitting_name
from vllm_cluster.kernel.plan.pull import HubModel, choose_files, unfit_path
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.text import size
from vllm_cluster.wire.pull import HERE, CacheManifest, CacheRow, ModelFile
from vllm_cluster.wire.values import Url

ASK_SECONDS = 30.0
SHOW_SECONDS = 1.0
_ON_HOST = re.compile(r"(?P<host>[\w.-]+):(?P<path>/.*)")


def is_folder(source: str) -> bool:
    """Whether these words name a folder of this machine, or HOST:/PATH, and not a repository of the hub."""
    return source.startswith((".", "/", "~")) or bool(_ON_HOST.fullmatch(source))


def wanted_folder(source: str, name: str, via: str, *, detach: bool) -> WantedModel:
    """A folder as the source, to be ./NAME below the cache of each host; without a name, that of the folder.

    Raises:
        UsageError: it is not a folder, or the name cannot be.
    """
    there = _ON_HOST.fullmatch(source)
    folder = Path(there["path"]) if there else real(expanded(source))
    if not there and not folder.is_dir():
        raise UsageError(f"{source}: no such folder here", hint="vcluster pull ORG/NAME\nvcluster pull HOST:/FOLDER")
    if not there and detach:
        raise UsageError("--detach: this machine sends the files", hint=pull_line(source, name))
    if there and via not in ("", there["host"]):
        raise UsageError(f"--via: the files are on {there['host']}", hint=pull_line(source, name))
    if there and folder == Path("/"):
        raise UsageError(f"{source}: must be the folder of one model", hint=pull_line(f"{there['host']}:/FOLDER", name))
    model = f"./{name.removeprefix('./') or folder.name}"
    ensure_name(source, model)
    if not there:
        # What is wrong here is known before a host is asked.
        listed(folder, name)
    return WantedModel(model, "", there["host"] if there else via, detach, folder, sent_from_here=not there)


def ensure_name(source: str, model: str) -> None:
    """Refuse a name that no folder of the cache may have, with one that it may."""
    hint = command_line("vcluster", "pull", source, Option("--as"), fitting_name(model))
    try:
        kind = cache_place(model).kind
    except UsageError:
        text = f"{model} cannot be the name of a folder below model_cache: use letters, digits and . _ + -"
        raise UsageError(text, hint=hint) from None
    if kind != "folder":
        raise UsageError(f"{model} is a folder of the cache itself", hint=hint)


def find_folder(hosts: PullHosts, wanted: WantedModel, via: str) -> HubModel:
    """The files of the folder, hashed where they are.

    Raises:
        PreflightFailed, UsageError: it is not a model.
    """
    assert wanted.source  # noqa: S101
    if not wanted.sent_from_here:
        return _on_host(hosts, wanted, str(wanted.source), via)
    show = _Shown(hosts, None)
    hosts.emit(Event("phase", f"hashing {wanted.source}"))
    known, clock = KnownHashes(cache_folder(), wanted.source), hosts.fleet.runtime.clock
    files = hashed(wanted.source, listed(wanted.source, _own_name(wanted)), show.add, known, clock)
    known.save()
    return HubModel(wanted.model, "", Url(""), files, origin=HERE)


def _own_name(wanted: WantedModel) -> str:
    """The name that was given with `--as`; empty where the folder keeps its own."""
    name = wanted.model.removeprefix("./")
    return "" if wanted.source and name == wanted.source.name else name


def _on_host(hosts: PullHosts, wanted: WantedModel, path: str, via: str) -> HubModel:
    connection = hosts.fleet.connections[via]
    if Path(path) == Path(hosts.inventory.model_cache):
        text = f"{via}: pull: {path} is the model cache itself, not one model"
        raise PreflightFailed(text, hint=command_line("vcluster", "pull", f"{via}:{path}/FOLDER"))
    test = connection.transport.run(["test", "-d", path], connection.runtime.after(ASK_SECONDS))
    if test.returncode:
        # Docker would create it.
        raise PreflightFailed(
            f"{via}: pull: no such folder, or none that {connection.ssh or 'this user'} can see: {path}",
            hint=command_line("stat", path, str(Path(path).parent), on=via),
        )
    hosts.emit(Event("phase", f"hashing {path}", via))
    files: list[ModelFile] = []
    stamps: dict[str, str] = {}
    lost: list[tuple[str, str]] = []

    def see(row: CacheRow) -> None:
        if row.file:
            files.append(row.file)
            stamps[row.file.path] = row.stamp
        elif row.lost:
            lost.append((row.lost, row.to))
        else:
            hosts.emit(hashing(via, row))

    def question(do: str, rows: list[ModelFile]) -> None:
        asked = {"do": do, "root": path, "folder": "", "kind": "folder", "files": [vars(file) for file in rows]}
        hosts.ask(connection, asked, CacheManifest, see)

    question("list", [])
    if lost:
        _refuse_links(via, path, lost)
    if not any(file.path == "config.json" for file in files):
        _refuse_no_model(via, path, files, _own_name(wanted))
    if (wrong := unfit_path(files)) is not None:
        raise PreflightFailed(
            f"{via}: pull: {path}: a file's name cannot be on every host: {wrong[:80]!a}",
            hint=f"rename that file on {via}",
        )
    chosen, others = choose_files(files)
    known = _known(connection, path)
    same = [replace(file, blob=blob) for file in chosen if (blob := known.find(stamps[file.path]))]
    left, files = [file for file in chosen if file.path not in {one.path for one in same}], []
    if left:
        question("hash", left)
    for file in files:
        known.keep(stamps[file.path], file.blob)
    known.save()
    return HubModel(wanted.model, "", Url(""), (*same, *files, *others), origin=path)


def _known(connection: HostConnection, path: str) -> KnownHashes:
    """Find what is known of a folder by where SSH leads, and not by what the host reports of itself, as any can."""
    words = [connection.name, connection.ssh, connection.machine, path]
    return KnownHashes(cache_folder(), json.dumps(words))


def _refuse_links(via: str, path: str, lost: Sequence[tuple[str, str]]) -> NoReturn:
    """The container that copies has the folder and the cache: elsewhere it would read files of its own."""
    text, hint = refused_links(path, lost, via)
    raise PreflightFailed(f"{via}: pull: {text}", hint=hint)


def _refuse_no_model(via: str, path: str, files: Sequence[ModelFile], name: str) -> NoReturn:
    """Refuse a folder without a config, with one below it that has one."""
    below = sorted(file.path.rpartition("/")[0] for file in files if file.path.endswith("/config.json"))
    inside = below[0] if below else "FOLDER"
    text = f"{via}: pull: {path} has no config.json: not a model"
    raise PreflightFailed(text, hint=pull_line(f"{via}:{path}/{inside}", name))


class _Shown:
    """Emits how many bytes were hashed, once a second; several threads add to it."""

    def __init__(self, hosts: PullHosts, host: str | None) -> None:
        self._hosts, self._host, self._bytes = hosts, host, 0
        self._lock, self._due = threading.Lock(), hosts.fleet.runtime.after(SHOW_SECONDS)

    def add(self, count: int) -> None:
        with self._lock:
            self._bytes += count
            if not self._due.left():
                self._due = self._hosts.fleet.runtime.after(SHOW_SECONDS)
                data = {"bytes": self._bytes}
                self._hosts.emit(Event("progress", f"hashed {size(self._bytes)}", self._host, data))


class Feeding:
    """Sends the files of a folder of this machine to the source, on a thread of its own."""

    def __init__(self, hosts: PullHosts, model: HubModel, folder: Path, to: str) -> None:
        self._error: Exception | None = None
        connection = hosts.fleet.connections[to]

        def send() -> None:
            try:
                feed(connection, hosts.inventory.cluster, model.files, folder)
            except Exception as error:
                self._error = error

        self._thread = hosts.fleet.runtime.background(send, "feed")

    def check(self) -> None:
        """Raise what ended it.

        Raises:
            HostError, UsageError: the files cannot be sent.
        """
        if self._error:
            raise self._error
