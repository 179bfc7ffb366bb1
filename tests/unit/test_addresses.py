"""The address of a host that the inventory gives none: its only private one, or an error that names them all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import world
from tests.support.inventories import load
from vllm_cluster.kernel.addresses import private_addresses, with_addresses
from vllm_cluster.kernel.errors import InventoryError
from vllm_cluster.kernel.facts.host_facts import HostFacts, Nic
from vllm_cluster.kernel.inventory.model import Inventory

CARD = Nic("eth0", ("10.0.0.7/24", "fe80::1/64", "2001:db8::7/64"), 9000, "UP")
OTHERS = (
    Nic("lo", ("127.0.0.1/8",), 65536, "UNKNOWN"),
    Nic("docker0", ("172.17.0.1/16",), 1500, "UP", "bridge"),
    Nic("br-0123456789ab", ("172.18.0.1/16",), 1500, "UP", "bridge"),
    Nic("wg1", ("10.99.0.1/24",), 1420, "UNKNOWN"),
    Nic("vpn", ("10.98.0.1/24",), 1420, "UNKNOWN", "wireguard"),
    Nic("eth9", ("203.0.113.9/24", "169.254.3.4/16", "100.64.0.9/10"), 1500, "UP"),
    Nic("eth8", (), 1500, "DOWN"),
)


def without(name: str, **entry: object) -> Inventory:
    """Two hosts, of which one names no address."""
    inventory = world.inventory(2, entries={name: entry} if entry else {})
    host = inventory.hosts[name].model_copy(update={"address": "", "line": 9})
    return inventory.model_copy(update={"path": Path("lab.yaml"), "hosts": {**inventory.hosts, name: host}})


def seen(*nics: Nic) -> HostFacts:
    """A host with these interfaces."""
    return replace(world.host(1), nics=nics)


# fault: kernel/addresses.py: if not nic.inner and nic.name → if nic.name
def test_the_only_private_address_is_taken() -> None:
    inventory = without("gpu2")
    found = with_addresses(inventory, {"gpu2": seen(*OTHERS[:6], CARD, *OTHERS[6:])})
    assert found.hosts["gpu2"].address == "10.0.0.7"
    assert found.hosts["gpu1"] == inventory.hosts["gpu1"]


def test_of_several_that_of_the_named_interface_is_taken() -> None:
    inventory = without("gpu2", interface="eth1")
    facts = {"gpu2": seen(CARD, Nic("eth1", ("10.1.0.7/24",), 9000, "UP"))}
    assert with_addresses(inventory, facts).hosts["gpu2"].address == "10.1.0.7"


# fault: kernel/addresses.py: if len(addresses) > 1: → if len(addresses) > 9:
@pytest.mark.parametrize(
    ("nics", "text"),
    [
        ((*OTHERS,), "gpu2 has no private address"),
        (
            (CARD, Nic("eth1", ("192.168.1.7/24",), 1500, "UP")),
            "gpu2 has 2 private addresses, 10.0.0.7 (eth0), 192.168.1.7 (eth1)",
        ),
        ((replace(CARD, addresses=("10.0.0.7/24", "10.0.0.8/24")),), "10.0.0.7 (eth0), 10.0.0.8 (eth0)"),
        (
            (replace(CARD, addresses=("10.0.0.1/24",)),),
            "that of gpu2, 10.0.0.1 (eth0), is also the address of hosts.gpu1",
        ),
    ],
)
def test_any_other_number_is_an_error_at_its_line(nics: tuple[Nic, ...], text: str) -> None:
    with pytest.raises(InventoryError) as error:
        with_addresses(without("gpu2"), {"gpu2": seen(*nics)})
    (line,) = str(error.value).splitlines()
    assert line.startswith("lab.yaml:9: hosts.gpu2.address: is missing, and ")
    assert text in line
    assert line.endswith(": write its IP address on the network between the hosts")


# fault: kernel/addresses.py: if others else None → if others[1:] else None
def test_two_with_one_address_are_both_reported() -> None:
    """Two hosts behind two routers, each of which is 10.0.0.7 at home."""
    inventory = without("gpu1")
    hosts = {name: host.model_copy(update={"address": ""}) for name, host in inventory.hosts.items()}
    with pytest.raises(InventoryError) as error:
        with_addresses(inventory.model_copy(update={"hosts": hosts}), {"gpu1": seen(CARD), "gpu2": seen(CARD)})
    number, *lines = str(error.value).splitlines()
    assert (number, len(lines)) == ("lab.yaml: 2 problems", 2)


def test_an_address_may_be_absent_but_not_empty_or_another_word(tmp_path: Path) -> None:
    text = "version: 1\ncluster: lab\nimage: org/image:tag\nmodel_cache: /data\nhosts:\n  gpu1: {}\n  gpu2: {}\n"
    path = tmp_path / "inventory.yaml"
    path.write_text(text)
    assert [host.address for host in load(path, cwd=tmp_path).hosts.values()] == ["", ""]
    for wrong in ('""', "CHANGE_ME", "null"):
        path.write_text(text.replace("gpu2: {}", f"gpu2: {{address: {wrong}}}"))
        with pytest.raises(InventoryError, match=r"hosts\.gpu2\.address: "):
            load(path, cwd=tmp_path)


def test_a_named_address_needs_no_look() -> None:
    assert private_addresses(world.inventory(1).hosts["gpu1"], seen(CARD)) == {"10.0.0.7": "eth0"}
