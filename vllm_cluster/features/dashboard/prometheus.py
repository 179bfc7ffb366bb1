"""Files for Prometheus and Grafana: where vLLM's metrics are, the key in a file of its own, alerts and a dashboard."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.laptop import changed_by_others, make_private, meaning, read_own_file, real, write_whole
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.text import host_port
from vllm_cluster.serving.endpoint.endpoint import hosts_key, port_for
from vllm_cluster.serving.head import at_head, read_key
from vllm_cluster.wire.reading import RefusedDocument, document

TARGETS, KEY = "targets.json", "api-key"
FOLDERS, CONFIGURATION = "metrics.json", "prometheus.yml"
# People change these: a limit, a panel.
TEMPLATES = (CONFIGURATION, "alerts.yml", "dashboard.json")
# In characters; the dashboard has 40,000.
MAX_TEMPLATE = 1 << 20
LOOPBACK = ("127.0.0.1", "::1")


@dataclass(frozen=True)
class MetricsFiles:
    """What was written where; `kept` are files that were changed and left as they are.

    `target` is where Prometheus finds the metrics, `reached` whether it is known that something listens there.
    """

    folder: Path
    target: str
    reached: bool
    written: tuple[str, ...]
    kept: tuple[str, ...]


def write_metrics(
    inventory: Inventory,
    cache: Path,
    folder: Path,
    *,
    target: str | None = None,
    runtime: Runtime = SYSTEM,
) -> MetricsFiles:
    """Write the files for the cluster's Prometheus; the key and the target always, the others where they are new.

    Raises:
        PreflightFailed: the cluster is not up.
        VclusterError: the tunnel in the background leads to an end with another key.
        UsageError: they cannot be written there, or Prometheus would read another's configuration beside the key.
    """
    _ensure_private(folder)
    with at_head(inventory, runtime) as head:
        key = read_key(inventory, head)
        # All have one address.
        serve = next(iter(NodeHandle(head, inventory.cluster).running().replicas), None)
    exposed = serve is not None and serve.host not in LOOPBACK
    if target is None and serve is not None and exposed:
        where, reached = host_port(serve.host, serve.port), True
    elif target is None:
        tunnel = port_for(inventory, cache, key, runtime=runtime)
        where, reached = f"127.0.0.1:{tunnel or inventory.ports.api}", tunnel is not None
    else:
        where, reached = target, True
    contents = _contents(inventory.cluster, where, key)
    _ensure_own(folder, cache, contents)
    try:
        written, kept = _write(folder, contents)
    except OSError as error:
        found = meaning(error)
        raise UsageError(found.message, hint=found.hint) if found else error from None
    _note(inventory, cache, folder)
    return MetricsFiles(folder, where, reached, written, kept)


def _ensure_own(folder: Path, cache: Path, contents: dict[str, str]) -> None:
    """Refuse a configuration that came with the folder, as in a repository: it may send the key anywhere."""
    path = folder / CONFIGURATION
    if str(folder.absolute()) in _folders(cache) or not path.exists() or _content(path) == contents[CONFIGURATION]:
        return
    text = f"{path} was not written on this machine, and Prometheus would give the API key to what it names"
    hint = command_line("vcluster", "dashboard", Option("--prometheus"), f"{folder}-new")
    raise UsageError(text, hint=f"{hint}\nor remove it: {command_line('rm', str(path))}")


def _ensure_private(folder: Path) -> None:
    """Refuse a link, and what others may change.

    Where the link of a cloned repository leads, files of these names may be a person's own.
    """
    if folder.is_symlink():
        there = command_line("vcluster", "dashboard", Option("--prometheus"), str(real(folder)))
        text = f"{folder} is a link to {real(folder)}: nothing is written behind it"
        raise UsageError(text, hint=f"{command_line('rm', str(folder))}\nor name the folder itself: {there}")
    if theirs := changed_by_others(folder):
        text = f"other users may change what is in {theirs}, and Prometheus would give the API key to what they name"
        remedy = command_line("chmod", "go-w", str(theirs))
        hint = f"vcluster dashboard --prometheus FOLDER, a folder of your own\nor, where it is yours: {remedy}"
        raise UsageError(text, hint=hint)


def renew_keys(inventory: Inventory, cache: Path, emit: Emit, *, old: str, new: str | None) -> None:
    """Write a new key into the folders of this machine that hold the one that it replaces: those are this cluster's.

    Two sites may have one name for their clusters, and the same names for their hosts.
    """
    names = (inventory.cluster, hosts_key(inventory))
    for folder in (Path(name) for name, made_for in _folders(cache).items() if made_for in names):
        path, why = folder / KEY, "the tunnel leads elsewhere"
        try:
            if _content(path).strip() != old:
                continue
            if new is not None:
                _write(folder, {KEY: new})
                emit(Event("note", f"{path} has the new key too"))
                continue
        except UsageError as refused:
            emit(Event("warning", refused.message))
            continue
        except OSError as error:
            why = error.strerror or str(error)
        again = command_line("vcluster", "dashboard", Option("--prometheus"), str(folder))
        emit(Event("warning", f"{path} has the old key ({why}): {again}"))


def _folders(cache: Path) -> dict[str, str]:
    """The folders that were written, and for which cluster the last time."""
    path, found = cache / FOLDERS, None
    with suppress(OSError, RefusedDocument):
        found = document(read_own_file(path), str(path))
    rows = found.items() if isinstance(found, dict) else ()
    return {name: made_for for name, made_for in rows if isinstance(made_for, str)}


def _note(inventory: Inventory, cache: Path, folder: Path) -> None:
    """Note where the key is; without a cache a rotated key is not renewed there."""
    with suppress(OSError):
        make_private(cache)
        known = {**_folders(cache), str(folder.absolute()): inventory.cluster}
        write_whole(cache / FOLDERS, json.dumps(known))


def _contents(cluster: str, target: str, key: str) -> dict[str, str]:
    """The text of each file."""
    folder = files("vllm_cluster.features.dashboard").joinpath("monitoring")
    templates = {name: folder.joinpath(name).read_text(encoding="utf-8") for name in TEMPLATES}
    targets = [{"targets": [target], "labels": {"cluster": cluster}}]
    return {KEY: key, TARGETS: json.dumps(targets, indent=1) + "\n", **templates}


def _content(path: Path) -> str:
    """The beginning of a file; nothing of what is none, as a named pipe, which would be waited for without end."""
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MAX_TEMPLATE)
    return ""


def _write(folder: Path, contents: dict[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write the files whole, the key for its owner alone; those that were written, and those that were kept."""
    # With umask 002 it would be one that others may change.
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    _ensure_private(folder)  # another user may have made it since
    written, kept = list[str](), list[str]()
    for name, text in contents.items():
        path = folder / name
        there = _content(path) if path.exists() else None
        if name in TEMPLATES and there not in (None, text):
            kept.append(name)
            continue
        if there != text or name == KEY:
            # Prometheus reads these files at any moment.
            write_whole(path, text, 0o600 if name == KEY else 0o644)
        written.append(name)
    return tuple(written), tuple(kept)
