"""How vLLM is to read the weights: by what carries them on each host, and by the memory beside their size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_cluster.kernel.text import by_hosts

OVER_THE_NETWORK = (
    *("nfs", "nfs4", "lustre", "cifs", "smb3", "ceph", "beegfs", "gpfs", "9p", "virtiofs"),
    *("fuse.sshfs", "fuse.ceph-fuse", "fuse.glusterfs", "fuse.juicefs", "fuse.s3fs", "fuse.gcsfuse"),
)
# Whoever gives one of these has chosen; vLLM refuses some of them together.
OPTIONS = frozenset({"load_format", "safetensors_load_strategy", "model_loader_extra_config", "quantization"})
# Of the free memory, as in vLLM's own rule: what is more is pushed out of the page cache before it is used.
SHARE = 0.9


@dataclass(frozen=True)
class WeightsPlace:
    """Where a host has the weights: the kind of its file system, and the free memory in bytes; what is not known is
    empty, or None.
    """

    kind: str
    memory: int | None


@dataclass(frozen=True)
class Loading:
    """Flags for vLLM, none where its default is best, and why."""

    flags: tuple[str, ...]
    reason: str


def choose_loading(places: Mapping[str, WeightsPlace], size: int | None) -> Loading | None:
    """The strategy for weights of `size` bytes; None where too little is known.

    On a local disk vLLM's default, mapping the files, is the fastest of its strategies (docs/gpu-performance.md). Over
    the network it would read them page by page: by vLLM's documentation they are read into the page cache first where
    they fit, and otherwise file by file.
    """
    remote = {host: place.kind for host, place in places.items() if place.kind in OVER_THE_NETWORK}
    if not places or not all(place.kind for place in places.values()):
        return None
    if not remote:
        kinds = ", ".join(dict.fromkeys(place.kind for place in places.values()))
        return Loading((), f"weights on local disks ({kinds}): vLLM maps them into memory")
    memory = [place.memory for host, place in places.items() if host in remote]
    if size is None or not all(memory):
        return None
    carriers = "; ".join(
        f"{hosts}: {kind}" for kind, hosts in by_hosts((kind, host) for host, kind in remote.items()).items()
    )
    least = min(value for value in memory if value)
    if size <= SHARE * least:
        flag, why = "prefetch", "they fit into memory, so all are read ahead"
    else:
        flag, why = (
            "eager",
            f"{size / 1e9:.0f} GB do not fit into {least / 1e9:.0f} GB of memory, so each file is read whole",
        )
    return Loading(
        (f"--safetensors-load-strategy={flag}",),
        f"weights over the network ({carriers}): {why} ({flag}; -- --safetensors-load-strategy … overrides)",
    )
