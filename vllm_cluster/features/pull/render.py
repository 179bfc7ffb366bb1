"""The models of the hosts, a row each for people and as a document for programs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from vllm_cluster.features.pull.models import CachedModels, RunningPull
from vllm_cluster.kernel.models.listed import CachedModel
from vllm_cluster.kernel.shell_line import shell_line
from vllm_cluster.kernel.terminal.output import YELLOW, out, styles
from vllm_cluster.kernel.terminal.printable import plain
from vllm_cluster.kernel.terminal.table import columns, cut, table
from vllm_cluster.kernel.text import age, size

TITLES = {"model": 0, "revision": 3, "size": 2, "hosts": 1, "last read": 4, "state": 0}


def models_document(found: CachedModels) -> dict[str, Any]:
    """The `--json` document."""
    hosts = {name: [asdict(model) for model in models] for name, models in found.hosts.items()}
    pulls = {name: asdict(one) for name, one in found.pulls.items()}
    unreachable = {name: error.message for name, error in found.failures.items()}
    return {"v": 1, "hosts": hosts, "pulls": pulls, "unreachable": unreachable}


def show_models(found: CachedModels, cache: str, *, color: str) -> None:
    """Write a row for each model, and for each state of it: hosts that have the same share one."""
    yellow, end = styles(color, YELLOW)
    groups: dict[tuple[str, str, str], dict[str, CachedModel]] = {}
    for host, models in found.hosts.items():
        for model, state in _states(models, found.pulls.get(host)):
            groups.setdefault((model.name, model.commit, state), {})[host] = model
    if not groups:
        if found.hosts:
            out(f"No models in {cache} of {', '.join(found.hosts)}. Where it is full, give model_cache a larger disk.")
        return
    rows = [_row(found, state, held) for (_, _, state), held in sorted(groups.items())]
    width = columns()
    for line in table(TITLES, rows, width):
        out(line)
    for text in _lacking(found):
        out(yellow, cut(text, width), end)


def _states(models: tuple[CachedModel, ...], pull: RunningPull | None) -> Iterator[tuple[CachedModel, str]]:
    """The models of a host and how complete each is; one that is being pulled may not be listed yet."""
    arriving = pull if pull and pull.phase != "serving" else None
    for model in models:
        # What it has of another commit is complete for as long.
        if arriving and model.name == arriving.model and model.problem:
            continue
        yield model, f"incomplete: {model.problem}" if model.problem else "complete"
    if arriving:
        text = f"being pulled: {size(arriving.pulled_bytes)} of {size(arriving.total_bytes)}"
        yield CachedModel(arriving.model, arriving.commit, arriving.pulled_bytes, None, text), text


def _row(found: CachedModels, state: str, held: dict[str, CachedModel]) -> dict[str, str]:
    one = next(iter(held.values()))
    used = max((model.last_read for model in held.values() if model.last_read), default=None)
    return {
        "model": plain(one.name),
        "revision": plain(one.commit[:12]),
        "size": size(max(model.size_bytes for model in held.values())),
        "hosts": f"all {len(held)}" if len(held) == len(found.hosts) > 1 else ", ".join(held),
        "last read": f"{age(max(0.0, time.time() - used))} ago" if used else "",
        "state": plain(state),
    }


def _lacking(found: CachedModels) -> Iterator[str]:
    """Models that are complete on some hosts alone: there every rank downloads before it loads."""
    complete = {host: {model.name for model in models if not model.problem} for host, models in found.hosts.items()}
    there = {host: {model.name for model in models} for host, models in found.hosts.items()}
    arriving = {host: one.model for host, one in found.pulls.items()}
    for name in sorted(set().union(*complete.values())):
        lacking = [host for host, names in complete.items() if name not in names and arriving.get(host) != name]
        if none := [host for host in lacking if name not in there[host]]:
            yield plain(f"{shell_line([name])} is not on {', '.join(none)}")
        if part := [host for host in lacking if name in there[host]]:
            yield plain(f"{shell_line([name])} is not complete on {', '.join(part)}")
