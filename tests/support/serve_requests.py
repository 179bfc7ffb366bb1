"""Deployments on hosts, as `vcluster serve` places them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_cluster.kernel.plan.placement import Cluster, place_replica
from vllm_cluster.wire.order import Deployment, Placement

ADDRESSES = {f"gpu{number}": f"10.0.0.{number}" for number in range(1, 10)}


def cluster(gpus: Mapping[str, int], known: Mapping[str, str] | None = None, **addresses: str) -> Cluster:
    """Hosts with GPUs, the head first; gpuN has the address 10.0.0.N, where no other is given."""
    return Cluster(gpus, {name: addresses.get(name, ADDRESSES[name]) for name in gpus}, known or {})


def placed(gpus: Mapping[str, int], tp: int, pp: int, hosts: Sequence[str] = (), **more: Any) -> Placement:
    """A deployment as `serve` places it; its layout is asked for with `by_default=False`."""
    sizes = {} if more.pop("by_default", True) else {"tp": tp, "pp": pp}
    given = {"name": "llama", "model": "org/llama", "hosts": tuple(hosts), **sizes, **more}
    return place_replica(Deployment(**given), cluster(gpus), (tp, pp), 8000)
