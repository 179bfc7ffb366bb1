"""An inventory without addresses: the hosts are asked, and the cluster is the one that it would be with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sim import lab, make, oracle
from vllm_cluster.kernel.addresses import find_addresses
from vllm_cluster.kernel.errors import Unreachable, VclusterError
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.terminal.session import Session

NAMED = make.inventory(3)
UNNAMED = NAMED.model_copy(
    update={
        "hosts": {
            name: host if name == "gpu3" else host.model_copy(update={"address": ""})
            for name, host in NAMED.hosts.items()
        }
    }
)


FIND = lab.verb(find_addresses)


def test_the_hosts_without_an_address_are_asked_once_and_shown() -> None:
    world = make.world((2, 2, 2))
    with lab.inside(world):
        asked = lab.succeed(world, UNNAMED, FIND)
        assert asked.value == NAMED
        assert (asked.script_hosts(), asked.script.changing) == ({"gpu1", "gpu2"}, [])
        notes = [event.text for event in asked.events if event.kind == "note"]
        assert notes == [
            "gpu1: address 10.0.0.1 (eth1), its only private one",
            "gpu2: address 10.0.0.2 (eth2), its only private one",
        ]
        assert lab.run(world, asked.value, lab.do_up).error is None
        oracle.converged(world, NAMED)


def test_no_host_is_asked_where_all_are_named() -> None:
    world = make.world((2, 2, 2))
    with lab.inside(world):
        asked = lab.run(world, NAMED, FIND)
    assert asked.value is NAMED
    assert asked.script.calls == []


def test_a_host_that_cannot_be_asked_is_an_error_with_what_to_write() -> None:
    world = make.world((2, 2, 2))
    world.machines["gpu2"].reachable = False
    with lab.inside(world):
        asked = lab.run(world, UNNAMED, FIND)
    assert isinstance(asked.error, Unreachable), asked.story()
    assert str(asked.error.hint).splitlines()[-1] == "write hosts.gpu2.address into the inventory"


def test_every_verb_gets_the_addresses_with_the_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "inventory.yaml"
    text = "version: 1\ncluster: lab\nimage: org/image:tag\nmodel_cache: /data\nhosts: {{gpu1: {{{}}}}}\n"
    asked: list[Inventory] = []

    def found(inventory: Inventory, *_: object) -> Inventory:
        asked.append(inventory)
        raise VclusterError("asked")

    monkeypatch.setattr("vllm_cluster.kernel.addresses.find_addresses", found)
    path.write_text(text.format("address: 10.0.0.1"))
    assert Session(path, as_json=False).load().hosts["gpu1"].address == "10.0.0.1"
    assert asked == []
    path.write_text(text.format(""))
    with pytest.raises(VclusterError, match="asked"):
        Session(path, as_json=False).load()
    assert [one.hosts["gpu1"].address for one in asked] == [""]
