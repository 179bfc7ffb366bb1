"""The hosts as a recipe of vLLM's book distinguishes them: how many GPUs, of which kind, and what joins them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vllm_cluster.serving.translate.node import YamlNode

# Names of drivers, the longer ones first, with the recipes' word for that GPU and for its generation.
_GPUS = (
    ("GB300", "gb300", "blackwell"),
    ("GB200", "gb200", "blackwell"),
    ("GB10", "dgx_spark_gb10", "blackwell"),
    ("GH200", "gh200", "hopper"),
    ("B300", "b300", "blackwell"),
    ("B200", "b200", "blackwell"),
    ("H200", "h200", "hopper"),
    ("H100", "h100", "hopper"),
    ("H800", "h800", "hopper"),
    ("H20", "h20", "hopper"),
    ("RTX PRO 6000", "rtx_pro_6000", "blackwell"),
    ("RTX PRO 5000", "rtx_pro_5000", "blackwell"),
    ("RTX 5090", "rtx_5090", "blackwell"),
    ("RTX 4090", "rtx_4090", "ada"),
)


@dataclass(frozen=True)
class RecipeHosts:
    """The GPUs of each host, the bytes of the smallest, whether RDMA joins all hosts, and the name of the GPUs.

    `name` is the driver's, empty where hosts have unlike ones; "cpu" where the hosts emulate GPUs.
    """

    gpus: tuple[int, ...]
    memory_bytes: int
    rdma: bool
    name: str

    @property
    def total(self) -> int:
        """All GPUs."""
        return sum(self.gpus)

    @property
    def known(self) -> tuple[str, str]:
        """The recipes' word for the GPU, and that for its generation; empty where they have none."""
        if self.name == "cpu":
            return "", "cpu"
        for words, gpu, generation in _GPUS:
            if re.search(rf"\b{words}\b", self.name, re.IGNORECASE):
                return gpu, generation
        return "", ""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys by which a recipe may name these GPUs, the closest first."""
        gpu, generation = self.known
        # Some cards are named with their number in a host.
        exact = (f"{gpu}_{max(self.gpus)}x", gpu) if gpu else ()
        brand = () if self.name == "cpu" else ("nvidia",)
        return (*exact, *((generation,) if generation else ()), *brand)

    def closest(self, node: YamlNode, *more: str) -> YamlNode | None:
        """Return what a mapping has for these GPUs, by the closest key; None where it has nothing."""
        found = node.mapping()
        key = next((key for key in (*self.keys, *more) if found.get(key) is not None), None)
        return node.get(key) if key else None

    def exact(self, node: YamlNode) -> YamlNode:
        """Return what a mapping has for just this GPU."""
        gpu, _ = self.known
        found = node.mapping()
        return node.get(next((key for key in self.keys if gpu and gpu in key and key in found), ""))

    def of_kind(self, node: YamlNode) -> YamlNode:
        """Return what a mapping has for the generation of these GPUs, else for their brand."""
        gpu, _ = self.known
        found = node.mapping()
        return node.get(next((key for key in self.keys if not (gpu and gpu in key) and key in found), ""))
