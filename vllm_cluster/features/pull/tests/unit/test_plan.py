"""What a pull refuses before anything is moved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support import world
from vllm_cluster.features.pull.hosts import PullHosts
from vllm_cluster.features.pull.plan import ensure_ports, summarize_plan, warn_of_stale
from vllm_cluster.kernel.errors import PreflightFailed
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.plan.pull import Held, HubModel, plan_pull
from vllm_cluster.kernel.plan.spec import ContainerSpec
from vllm_cluster.wire.pull import HERE, ModelFile
from vllm_cluster.wire.values import Url

INVENTORY = world.inventory(3, ports={"pull": 7000})
MODEL = HubModel("lab/model", "c" * 40, Url("http://hub"), (ModelFile("model.safetensors", 10**9, "a" * 64),))
WHOLE = Held(whole=1, bytes=MODEL.size, digest="d")


def ensure(listening: dict[str, int], held: dict[str, Held], pulls: tuple[str, ...] = ()) -> None:
    """Look at the ports of three hosts on which other programs listen, and pulls were found."""
    facts = world.hosts(3)
    specs: tuple[ContainerSpec, ...] = world.converged(INVENTORY)[0]
    for name, port in listening.items():
        there = (replace(world.running(specs[0]), name="vcluster-lab-pull"),) if name in pulls else ()
        facts[name] = replace(facts[name], listening=frozenset({port}), containers=there)
    fleet: Any = None
    plan = plan_pull(INVENTORY, MODEL, "main", {name: held.get(name, Held()) for name in INVENTORY.hosts}, "gpu1")
    ensure_ports(PullHosts(INVENTORY, fleet, facts, lambda _: None), plan)


def test_a_port_that_another_program_has_is_reported_before_anything_is_moved() -> None:
    with pytest.raises(
        PreflightFailed, match=r"gpu2, gpu3: pull: port 7000 is already in use \(ports.pull\)"
    ) as refused:
        ensure({"gpu1": 6384, "gpu2": 7000, "gpu3": 7000}, {})
    assert refused.value.hint == "on gpu2: ss -ltnp 'sport = :7000', then stop that process\nor set ports.pull"


def test_only_hosts_that_take_part_need_it() -> None:
    ensure({"gpu2": 7000}, {"gpu2": WHOLE, "gpu1": WHOLE})
    ensure({"gpu2": 7000}, {}, pulls=("gpu2",))


def test_a_single_host_listens_on_nothing() -> None:
    ensure({"gpu2": 7000}, {"gpu1": WHOLE, "gpu2": Held(bytes=5), "gpu3": WHOLE}, pulls=("gpu2",))


def test_every_host_of_the_transfer_uses_the_pinned_port() -> None:
    held = dict.fromkeys(INVENTORY.hosts, Held())
    document = plan_pull(INVENTORY, MODEL, "main", held, "gpu1").for_host("id", "key", "gpu1")
    assert {host.port for host in document.hosts} == {7000}


def test_a_host_that_lacks_no_byte_comes_with_what_is_done_there() -> None:
    """Sizes agree with what is damaged too: its content is known once it is hashed."""
    unproved, moved = Held(whole=1, bytes=MODEL.size), replace(WHOLE, named=False)
    plan = plan_pull(INVENTORY, MODEL, "main", {"gpu1": WHOLE, "gpu2": unproved, "gpu3": moved}, "gpu1")
    assert summarize_plan(plan).splitlines()[2:] == [
        "  gpu1: has all, and sends it",
        "  gpu2: has all by size: hashes it, and receives what is damaged from the others",
        "  gpu3: has all, and notes that main is this revision",
    ]


# fault: kernel/plan/pull.py: not (named or again) → not again
# fault: kernel/plan/pull.py: if model.origin else inventory.hf_token is not None → or inventory.hf_token is not None
@pytest.mark.parametrize(
    ("token", "origin", "named", "source"),
    [
        (None, "", False, "gpu2"),
        (None, "", True, "gpu1"),
        ("env:LAB_TOKEN", "", False, "gpu1"),
        ("env:LAB_TOKEN", HERE, False, "gpu2"),
        ("env:LAB_TOKEN", "/folder", False, "gpu1"),
    ],
)
def test_the_host_from_which_what_is_damaged_can_come_again_is_the_source(
    token: str | None, origin: str, named: bool, source: str
) -> None:
    inventory = world.inventory(2, hf_token=token)
    held = {"gpu1": Held(), "gpu2": Held(whole=1, bytes=MODEL.size)}
    plan = plan_pull(inventory, replace(MODEL, origin=origin), "main", held, "gpu1", named=named)
    assert (plan.chain[0], plan.downloads) == (source, True)
    assert plan_pull(inventory, MODEL, "main", held, "gpu2", named=True).chain[0] == "gpu2"


def test_a_repair_of_a_small_file_is_not_nothing() -> None:
    held = {"gpu1": WHOLE, "gpu2": Held(bytes=MODEL.size - 612), "gpu3": WHOLE}
    lines = summarize_plan(plan_pull(INVENTORY, MODEL, "", held, "gpu1")).splitlines()
    assert lines[3] == "  gpu2: receives 0.6 kB from the others (0.0 MB free)"


def test_weights_of_an_earlier_folder_are_listed_with_the_hosts_that_have_them() -> None:
    events: list[Event] = []
    fleet: Any = None
    model = replace(MODEL, name="./mine", commit="", endpoint=Url(""), origin="laptop")
    held = {
        "gpu1": Held(stale=("a.safetensors", "b.bin")),
        "gpu2": Held(),
        "gpu3": Held(stale=("a.safetensors", "b.bin")),
    }
    warn_of_stale(PullHosts(INVENTORY, fleet, {}, events.append), plan_pull(INVENTORY, model, "", held, "gpu1"))
    (event,) = events
    assert event.host == "gpu1, gpu3" and event.text.startswith("./mine keeps a.safetensors and 1 more, which is not")
    assert "vcluster models rm ./mine, then vcluster pull FOLDER --as mine" in event.text
