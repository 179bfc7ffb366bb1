"""Flags of a deployment that repeat what vcluster sets: the same value is the same, another one is refused; pure."""

from __future__ import annotations

from dataclasses import replace

from vllm_cluster.kernel.backends import vllm
from vllm_cluster.kernel.plan.placement import Cluster, place_replica
from vllm_cluster.wire.order import Deployment


def without_repeats(deployment: Deployment, cluster: Cluster, layout: tuple[int, int], port: int) -> Deployment:
    """The deployment without flags that have the value which its command has anyway.

    Raises:
        UsageError: one of them has another value; or it cannot be laid out so.
    """
    kept, repeats = vllm.comparable(deployment.flags)
    if not repeats:
        return deployment
    plain = replace(deployment, flags=tuple(kept))
    vllm.ensure_same(repeats, place_replica(plain, cluster, layout, port).replica.leader.argv)
    return plain
