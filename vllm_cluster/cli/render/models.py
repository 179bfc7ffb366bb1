"""The models of the hosts, a row each for people and as a document for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from vllm_cluster.actions.models import CachedModels
from vllm_cluster.cli.render.table import columns, cut, table
from vllm_cluster.cli.render.text import plain, wants_color
from vllm_cluster.facts.models import CachedModel
from vllm_cluster.text import age, size

TITLES = {"model": 0, "revision": 3, "size": 2, "hosts": 1, "last read": 4, "state": 0}


def models_document(found: CachedModels) -> dict[str, Any]:
    """The `--json` document."""
    hosts = {name: [asdict(model) for model in models] for name, models in found.hosts.items()}
    return {"v": 1, "hosts": hosts, "unreachable": {name: error.message for name, error in found.failures.items()}}


def show_models(found: CachedModels, cache: str, *, color: str) -> None:
    """Write a row for each model, and for each state of it: hosts that have the same share one."""
    yellow, end = ("\x1b[33m", "\x1b[0m") if wants_color(color, stdout=True) else ("", "")
    groups: dict[tuple[str, str, str], dict[str, CachedModel]] = {}
    for host, models in found.hosts.items():
        for model in models:
            groups.setdefault((model.name, model.commit, model.problem), {})[host] = model
    if not groups:
        print(f"No models in {cache} of {', '.join(found.hosts)}.")
        return
    rows = [_row(found, held) for _, held in sorted(groups.items())]
    width = columns()
    for line in table(TITLES, rows, width):
        sys.stdout.write(f"{line}\n")
    for text in _lacking(found):
        sys.stdout.write(f"{yellow}{cut(text, width)}{end}\n")


def _row(found: CachedModels, held: dict[str, CachedModel]) -> dict[str, str]:
    one = next(iter(held.values()))
    used = max((model.used for model in held.values() if model.used), default=None)
    return {
        "model": plain(one.name),
        "revision": plain(one.commit[:12]),
        "size": size(max(model.size for model in held.values())),
        "hosts": f"all {len(held)}" if len(held) == len(found.hosts) > 1 else ", ".join(held),
        "last read": f"{age(time.time() - used)} ago" if used else "",
        "state": plain(f"incomplete: {one.problem}") if one.problem else "complete",
    }


def _lacking(found: CachedModels) -> Iterator[str]:
    """Models that are complete on some hosts alone: there every rank downloads before it loads."""
    complete = {host: {model.name for model in models if not model.problem} for host, models in found.hosts.items()}
    for name in sorted(set().union(*complete.values())):
        if lacking := [host for host, names in complete.items() if name not in names]:
            yield plain(f"{name} is not complete on {', '.join(lacking)}")
