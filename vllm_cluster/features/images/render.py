"""The images of the hosts, a row each for people and as a document for programs."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from vllm_cluster.features.images.action import FoundImages
from vllm_cluster.features.images.use import ClusterImage
from vllm_cluster.kernel.terminal.output import out
from vllm_cluster.kernel.terminal.printable import plain
from vllm_cluster.kernel.terminal.table import columns, table
from vllm_cluster.kernel.text import age

TITLES = {"image": 0, "id": 1, "ray": 4, "vllm": 4, "size": 2, "created": 5, "hosts": 1, "state": 0}


def images_document(found: FoundImages) -> dict[str, Any]:
    """The `--json` document."""
    hosts = {name: [asdict(image) for image in images] for name, images in found.hosts.items()}
    return {"v": 1, "hosts": hosts, "unreachable": {name: error.message for name, error in found.failures.items()}}


def show_images(found: FoundImages) -> None:
    """Write a row for each image and each state of it: hosts that have the same share one."""
    groups: dict[tuple[str, str], dict[str, ClusterImage]] = {}
    for host, images in found.hosts.items():
        for image in images:
            # Each host builds its own node image: by its name it is the same.
            key = image.names[0] if image.base and image.names else image.id
            groups.setdefault((image.state, key), {})[host] = image
    if not groups:
        out(f"No images of this cluster on {', '.join(found.hosts)}.")
        return
    order = ("in-use", "desired", "previous", "unused")
    rows = [_row(found, held) for key, held in sorted(groups.items(), key=lambda row: order.index(row[0][0]))]
    for line in table(TITLES, rows, columns()):
        out(line)


def _row(found: FoundImages, held: dict[str, ClusterImage]) -> dict[str, str]:
    one = next(iter(held.values()))
    names = [name for name in one.names if not (one.ray and not one.base and name.startswith("vcluster-node:"))]
    return {
        "image": plain(", ".join(names) or one.digest or "(no name)"),
        "id": "" if one.base and one.names else one.id.removeprefix("sha256:")[:12],
        # Of an image that brings its own it is known where `up` has looked.
        "ray": plain(", ".join(sorted({image.ray for image in held.values()} - {""}))),
        "vllm": plain(one.vllm),
        "size": f"{one.size_bytes / 1e9:.1f} GB",
        "created": f"{age(max(0.0, time.time() - one.created))} ago" if one.created else "",
        "hosts": f"all {len(held)}" if len(held) == len(found.hosts) > 1 else ", ".join(held),
        "state": one.state,
    }
