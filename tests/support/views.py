"""Views of a cluster that is made up."""

from __future__ import annotations

from dataclasses import replace

from vllm_cluster.serving.status.counters import ModelLoad
from vllm_cluster.serving.status.load import GpuLoad, HostLoad
from vllm_cluster.serving.status.status import ClusterStatus, HostStatus
from vllm_cluster.serving.status.watch import View
from vllm_cluster.wire.status import GroupNode, GroupStatus, NodeStatus, Phase, ServeStatus

GIB = 1 << 30
GPUS = tuple(GpuLoad(n, "NVIDIA H100", "", 90 + n, 70 * GIB, 80 * GIB, 500.0, 700.0, 60 + n) for n in range(8))
LOAD = HostLoad(35.2, 96, 100 * GIB, 2048 * GIB, 8, GPUS, "", 1.5e6, 2.5e8)
MODEL = ModelLoad(12, 3, 1843.2, 8.26, 4.5, 0.0, 71.4, 42.0, 0.116, 2.37, 0.0225, 0.065)
HEAD = HostStatus("gpu1", "10.0.0.1", "head", "running", "0123456789ab", 8, 8, age_seconds=7300.0)
WORKER = replace(HEAD, host="gpu2", address="10.0.0.2", role="worker")
LOST = replace(WORKER, state="unreachable", joined_gpus=None, problem="no keepalive reply for 15 s", fix="ssh gpu2")


def serving(phase: Phase = "ready") -> ServeStatus:
    """A model of the head, asked for two hours ago."""
    return ServeStatus(
        *("1", "org/model", "org/model", "10.0.0.1", 8000, phase, "", None, 1000.0, 1, (16.0, 16.0)),
        *(None, None, None, None),
    )


# Two replicas, of which one is not ready.
PAIR = (
    replace(serving(), index=0, ranks={"10.0.0.1": 8}),
    replace(serving("loading"), index=1, ranks={"10.0.0.2": 8}),
)


def view(
    *hosts: HostStatus, serve: ServeStatus | None = None, several: tuple[ServeStatus, ...] = (), **more: object
) -> View:
    """A view of these hosts; those that run report their load."""
    ray = GroupStatus("up", 0, None, "2", tuple(GroupNode(one.host, one.address, True, 8) for one in hosts))
    up = all(one.state == "running" for one in hosts)
    status = ClusterStatus(
        "lab", "id", up, hosts, NodeStatus("head", 1.0, ray, serve, replicas=several), (), now=8200.0
    )
    loads = {one.host: LOAD for one in hosts if one.state == "running"}
    return View(1_800_000_000.0, status, **{"loads": loads, **more})  # type: ignore[arg-type]
