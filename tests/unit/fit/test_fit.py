"""What the hosts have, as fit counts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import world
from tests.support.models import configs
from vllm_cluster.kernel.errors import PreflightFailed, Unreachable
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.facts.host_facts import Gpu, Hca, HostFacts
from vllm_cluster.kernel.facts.parse import unified_mib
from vllm_cluster.serving.fit import fit as action
from vllm_cluster.serving.fit.layouts import FitReport, GpuPool, Workload
from vllm_cluster.serving.fit.model_config import model_config
from vllm_cluster.serving.fit.weights import spread

MIB = 1 << 20
HCA = (Hca("mlx5_0", 1, "4: ACTIVE", "InfiniBand", "400 Gb/sec", ("/dev/infiniband/uverbs0",)),)
SMALL = (Gpu(0, "GPU-a", "NVIDIA L40S", 46_068), Gpu(1, "GPU-b", "NVIDIA L40S", 46_068))


def on(monkeypatch: pytest.MonkeyPatch, facts: dict[str, HostFacts], **words: Any) -> FitReport:
    """The verdict on Llama 3.1 8B for these hosts."""

    @contextmanager
    def connected(*_: object) -> Iterator[SimpleNamespace]:
        connections = {name: SimpleNamespace(name=name) for name in facts}

        def every(work: Callable[[SimpleNamespace], HostFacts]) -> dict[str, HostFacts]:
            return {name: work(connection) for name, connection in connections.items()}

        yield SimpleNamespace(all=every, connections=connections, without_lease=lambda: None)

    made = model_config(configs.LLAMA_8B)
    monkeypatch.setattr(action, "connect_all", connected)
    monkeypatch.setattr(action, "observe", lambda _, connection: facts[connection.name])
    monkeypatch.setattr(action, "supports_pp", lambda *_: True)
    monkeypatch.setattr(action, "read", lambda *_: (made, spread(16_060_522_496, made)))
    events: list[Event] = []
    return action.fit("llama", Workload(), events.append, world.inventory(len(facts), **words))


# fault: serving/fit/fit.py: min(gpu_memory → max(gpu_memory
def test_the_smallest_gpu_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = on(monkeypatch, world.hosts(gpu2={"gpus": SMALL}))
    assert found.gpus == GpuPool((2, 2), 46_068 * MIB, rdma=False)
    assert found.model.pipelines is True


def test_rdma_counts_where_every_host_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one, both = world.hosts(gpu1={"hcas": HCA}), world.hosts(gpu1={"hcas": HCA}, gpu2={"hcas": HCA})
    assert [found.gpus and found.gpus.rdma for found in (on(monkeypatch, one), on(monkeypatch, both))] == [False, True]


def test_logical_gpus_share_a_hosts_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {
        name: replace(host, gpus=(), logical_gpus=2, memory_bytes=64 << 30) for name, host in world.hosts().items()
    }
    assert on(monkeypatch, facts, accelerator="cpu").gpus == GpuPool((2, 2), 32 << 30, rdma=False)


@pytest.mark.parametrize("gpus", [(), (Gpu(0, "GPU-a", "NVIDIA GB10", 0),)])
def test_a_host_whose_gpus_are_unknown(monkeypatch: pytest.MonkeyPatch, gpus: tuple[Gpu, ...]) -> None:
    with pytest.raises(PreflightFailed, match="gpu2: no GPU reports its memory size"):
        on(monkeypatch, world.hosts(gpu2={"gpus": gpus}))


def test_only_the_gpus_that_are_named_count(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = (*world.host(1).gpus, *(replace(gpu, index=gpu.index + 2) for gpu in SMALL))
    found = on(monkeypatch, world.hosts(1, gpu1={"gpus": mixed}), entries={"gpu1": {"gpus": [0, 1]}})
    assert found.gpus == GpuPool((2,), 143_771 * MIB, rdma=False)


def test_memory_that_gpu_and_processor_share_counts_less_a_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on GB10 and GH200, of which nvidia-smi reports no memory."""
    spark = Gpu(0, "GPU-a", "NVIDIA GB10", unified_mib(128 << 30), unified=True)
    found = on(monkeypatch, world.hosts(gpu1={"gpus": (spark,)}, gpu2={"gpus": (spark,)}))
    assert found.gpus == GpuPool((1, 1), unified_mib(128 << 30) * MIB, rdma=False)
    assert unified_mib(128 << 30) == 117_964  # less a tenth
    assert unified_mib(32 << 30) == 24 << 10  # less 8 GiB
    assert unified_mib(4 << 30) == 0


def test_a_hub_that_cannot_be_asked_names_what_reads_the_cache_of_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> object:
        raise Unreachable("hub", "cannot connect to the hub: no route", hint="set HF_ENDPOINT")

    monkeypatch.setattr(action, "read", away)
    messages = []
    for gpus in (None, GpuPool((2,), 80 * 10**9)):
        with pytest.raises(Unreachable) as failed:
            action.fit("org/m", Workload(), lambda _: None, gpus or world.inventory())
        assert failed.value.hint == "set HF_ENDPOINT"
        messages.append(failed.value.message)
    short = "hub: cannot connect to the hub: no route"
    assert messages == [f"{short}; serve reads the head's model cache and needs no hub", short]
