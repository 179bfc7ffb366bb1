"""Which GPUs a host gives is shown before a node has them."""

from __future__ import annotations

from dataclasses import replace

from tests.support import world
from vllm_cluster.kernel.assess import note_gpus
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.facts.host_facts import Gpu, HostFacts
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.desired import desired

LINKS = (("X", "SYS", "NV4"), ("SYS", "X", "SYS"), ("NV4", "SYS", "X"))


def notes(words: Inventory, facts: HostFacts) -> list[tuple[str, str | None, str]]:
    """What is shown."""
    events: list[Event] = []
    note_gpus(words, {"gpu1": facts}, events.append)
    return [(event.kind, event.host, event.text) for event in events]


def test_it_is_shown_until_the_node_runs() -> None:
    gpus = tuple(Gpu(n, f"GPU-{n}", "NVIDIA A40", 46_068, numa=0, topology=links) for n, links in enumerate(LINKS))
    facts = replace(world.host(1), gpus=gpus)
    some = world.inventory(1, entries={"gpu1": {"gpus": 2}})
    shown = [("note", "gpu1", "GPU 0, 2 of 3 are chosen")]
    assert notes(some, facts) == shown
    (spec,) = desired(some, {"gpu1": facts}, world.INPUTS)
    assert spec.gpus is not None
    assert spec.gpus.ids == ("0", "2")
    assert notes(some, replace(facts, containers=(world.running(spec, state="created"),))) == shown
    assert notes(some, replace(facts, containers=(world.running(spec),))) == []
    assert notes(world.inventory(1), facts) == []
