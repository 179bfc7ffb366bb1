"""Inventories for machines that many people have, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllm_cluster.kernel.inventory.template import HostSeed


@dataclass(frozen=True)
class InventoryPreset:
    """The hosts where none are given, how many GPUs each has, values of optional keys, and what to know."""

    about: str
    hosts: tuple[HostSeed, ...]
    gpus: int
    values: Mapping[str, str]
    notes: Sequence[str]


PRESETS: Mapping[str, InventoryPreset] = {
    "spark": InventoryPreset(
        "two DGX Spark (GB10), joined by their ConnectX-7 ports",
        (HostSeed("spark1", None, "192.168.100.1"), HostSeed("spark2", None, "192.168.100.2")),
        1,
        # The same memory as the GPU's.
        {"shm_size": "8g"},
        (
            "Two DGX Spark: set each host's address on the 200 Gb/s link between them, and `ssh:` where its name does",
            "not lead there. The processor is arm64: `vcluster check` names an image that is for another one.",
            "GPU and CPU share the memory: leave room for other programs, and try a layout over the link:",
            "vcluster serve MODEL --tp 2 --pp 1 --backend mp -- --enforce-eager --gpu-memory-utilization 0.8",
        ),
    ),
}
