"""What hosts saw of each other becomes few findings, each where the fault is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support import world
from vllm_cluster.kernel.checks.links import (
    EPHEMERAL,
    HostAddress,
    LinkResult,
    link_findings,
    parse_link_result,
    ports_of,
)

# On a machine that other work keeps busy no single case has a time.
calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
GCS, NODE = "6379 (gcs)", "6380 (node manager)"
ALL = frozenset({NODE, EPHEMERAL})
NAMES = {6380: NODE, 40000: EPHEMERAL, 40001: EPHEMERAL}
Broken = Mapping[tuple[str, str], Mapping[str, Any]]


def seen(hosts: int, broken: Broken) -> list[LinkResult]:
    """Every way between hosts, some of them with something else seen than the rest."""
    names = [f"gpu{n}" for n in range(1, hosts + 1)]
    fine: dict[str, Any] = {"mtu": 1500, "passes": 1500, "block": "ok", "ms": 0.1}
    ways = []
    for one, other in permutations(names, 2):
        tried = ALL | {GCS} if other == "gpu1" else ALL
        ways.append(LinkResult(one, other, **{"tried": tried, **fine, **broken.get((one, other), {})}))
    return ways


PLACES = {f"gpu{n}": HostAddress(f"10.0.0.{n}", "eth1") for n in range(1, 9)}
DOWN = {"bad": {NODE: "silent", EPHEMERAL: "silent"}, "mtu": None, "passes": None, "block": None}
HEAD_DOWN = {**DOWN, "bad": {**DOWN["bad"], GCS: "silent"}}  # type: ignore[dict-item]


def down(one: str, other: str) -> Mapping[str, Any]:
    """A way on which no port answers."""
    return HEAD_DOWN if other == "gpu1" else DOWN


def test_sound_links_have_no_findings() -> None:
    assert link_findings(seen(4, {}), PLACES) == []


def test_a_port_that_is_closed_one_way_is_reported_with_its_direction() -> None:
    (found,) = link_findings(seen(2, {("gpu2", "gpu1"): {"bad": {GCS: "silent"}}}), PLACES)
    assert (found.code, found.host, found.error) == ("link-silent", "gpu1", True)
    assert found.message == "gpu2 → gpu1: port 6379 (gcs): no answer (a firewall drops it); gpu1 → gpu2: all answer"
    assert "on gpu1: sudo ufw allow from 10.0.0.2\n" in found.fix


@pytest.mark.parametrize(
    ("word", "code"),
    [
        ("silent", "link-silent"),
        ("refused", "link-refused"),
        ("unreachable", "link-unreachable"),
        ("mute", "link-intercepted"),
        ("foreign", "link-intercepted"),
    ],
)
def test_each_way_to_fail_has_its_code(word: str, code: str) -> None:
    (found,) = link_findings(seen(2, {("gpu1", "gpu2"): {"bad": {EPHEMERAL: word}}}), PLACES)
    assert (found.code, found.host) == (code, "gpu2")
    assert "ports that the kernel chooses" in found.message


@pytest.mark.parametrize(
    ("pairs", "host", "text"),
    [
        ([("gpu1", "gpu3"), ("gpu2", "gpu3"), ("gpu4", "gpu3")], "gpu3", "from every other host to gpu3"),
        ([("gpu3", "gpu1"), ("gpu3", "gpu2"), ("gpu3", "gpu4")], "gpu3", "from gpu3 to every other host"),
        ([pair for pair in permutations(PLACES, 2) if "gpu3" in pair], "gpu3", "between gpu3 and every other host"),
        ([("gpu1", "gpu2"), ("gpu2", "gpu1")], "gpu2", "gpu1 ↔ gpu2"),
        (list(permutations(PLACES, 2)), "gpu1", "between all hosts"),
    ],
)
def test_equal_failures_are_one_finding(pairs: list[tuple[str, str]], host: str, text: str) -> None:
    (found,) = link_findings(seen(4, {pair: down(*pair) for pair in pairs}), PLACES)
    assert found.message.startswith(f"{text}")
    assert "every port" in found.message
    if text != "between all hosts":
        assert found.host == host


# fault: kernel/checks/links.py: *collapse_addresses(one for one in every if isinstance(one, IPv4Network)) → ip_network("10.0.0.0/24")
# fault: kernel/checks/links.py: {places[peer].address for peer, _ in ends} → {one.address for one in places.values()}
@pytest.mark.parametrize(
    ("addresses", "closed", "sources"),
    [
        (("10.0.0.1", "10.0.0.2"), "gpu2", ["10.0.0.1"]),
        (("10.0.0.1", "10.0.0.7", "10.0.0.9", "10.0.0.3"), "gpu3", ["10.0.0.1", "10.0.0.3", "10.0.0.7"]),
        (("10.0.0.4", "10.0.0.5", "10.0.0.1", "10.0.0.7", "10.0.0.6"), "gpu3", ["10.0.0.4/30"]),
        (("fd00::1", "10.0.0.1", "fd00::9"), "gpu3", ["10.0.0.1", "fd00::1"]),
    ],
)
def test_a_firewall_lets_in_the_other_hosts_and_no_more(
    addresses: tuple[str, ...], closed: str, sources: list[str]
) -> None:
    """By one host's word another was to let in all machines of a network of theirs."""
    places = {f"gpu{number}": HostAddress(address, "eth1") for number, address in enumerate(addresses, 1)}
    broken = {pair: down(*pair) for pair in permutations(places, 2) if pair[1] == closed}
    (found,) = link_findings(seen(len(places), broken), places)
    lines = found.fix.splitlines()[:-1]
    allow = [line for line in lines if " ufw allow " in line]
    assert allow == [f"on {closed}: sudo ufw allow from {source}" for source in sources]
    rules = [line.split(": sudo ")[1] for line in lines if "without ufw" in line]
    assert rules == [f"ip{'6' * (':' in one)}tables -I INPUT -s {one} -j ACCEPT" for one in sources]


def test_the_rules_for_many_hosts_are_few() -> None:
    places = {f"gpu{n}": HostAddress(f"10.0.0.{n}", "eth1") for n in range(1, 65)}
    pairs = [*permutations(places, 2)]
    (found,) = link_findings([LinkResult(*pair, ALL, {NODE: "silent", EPHEMERAL: "silent"}) for pair in pairs], places)
    assert found.message.startswith("between all hosts")
    assert len([line for line in found.fix.splitlines() if " ufw allow " in line]) == 7


# fault: kernel/checks/links.py: elif until >= MIN_MTU and → elif
@pytest.mark.parametrize("passes", [1, 68, 576, 1279])
def test_no_mtu_that_cuts_a_host_off_is_set(passes: int) -> None:
    broken = {("gpu1", other): {"block": "hangs", "passes": passes} for other in ("gpu2", "gpu3")}
    (found,) = link_findings(seen(3, broken), PLACES)
    assert f"packets of {passes} bytes arrive" in found.message
    assert "sudo" not in found.fix


# fault: kernel/checks/links.py: if each.block == "hangs" or (small and each.block == "ok"): → if small and each.block == "ok":
def test_lost_large_packets_are_distinct_from_a_closed_port() -> None:
    (found,) = link_findings(seen(2, {("gpu1", "gpu2"): {"block": "hangs", "mtu": 9000, "passes": 1500}}), PLACES)
    assert (found.code, found.host, found.error) == ("link-mtu", "gpu1", True)
    assert "packets of 1500 bytes arrive, of 9000 do not" in found.message


# fault: kernel/checks/links.py: several = len(self.pairs) > 1 and len(common) == 1 → several = False
# fault: kernel/checks/links.py: tuple(common if several else → tuple([self.pairs[0][0]] if several else
@pytest.mark.parametrize("block", ["ok", "hangs"])
@pytest.mark.parametrize(
    "pairs",
    [
        # It takes no larger packet, sends none, or both.
        [("gpu1", "gpu3"), ("gpu2", "gpu3")],
        [("gpu3", "gpu1"), ("gpu3", "gpu2")],
        [("gpu1", "gpu3"), ("gpu2", "gpu3"), ("gpu3", "gpu1"), ("gpu3", "gpu2")],
    ],
)
def test_an_mtu_is_set_on_the_host_that_fails_with_all_others(block: str, pairs: list[tuple[str, str]]) -> None:
    """One host that took no larger packets had an MTU set on the first of those that sent them."""
    (found,) = link_findings(seen(3, {pair: {"passes": 1300, "block": block} for pair in pairs}), PLACES)
    assert found.host == "gpu3"
    assert found.fix.endswith("; until then on gpu3: sudo ip link set dev eth1 mtu 1300")


# fault: kernel/checks/links.py: if len(group.hosts) == 2: → if False:
@pytest.mark.parametrize("hosts", [2, 3])
@pytest.mark.parametrize("pairs", [[("gpu1", "gpu2")], [("gpu1", "gpu2"), ("gpu2", "gpu1")]])
def test_what_one_of_two_hosts_lets_pass_sets_nothing_on_the_other(hosts: int, pairs: list[tuple[str, str]]) -> None:
    (found,) = link_findings(seen(hosts, {pair: {"passes": 1300} for pair in pairs}), PLACES)
    assert "on gpu1: ip link show dev eth1, on gpu2: ip link show dev eth1" in found.fix
    assert "sudo" not in found.fix


# fault: kernel/checks/links.py: and len(devices) == 1: → :
@pytest.mark.parametrize(("names", "line"), [({}, True), ({"gpu2": "eth0"}, False)])
def test_one_mtu_is_set_on_all_where_it_fails_between_all(names: dict[str, str], line: bool) -> None:
    places = {name: replace(place, interface=names.get(name, "eth1")) for name, place in PLACES.items()}
    broken = {pair: {"passes": 1300} for pair in permutations(["gpu1", "gpu2", "gpu3"], 2)}
    (found,) = link_findings(seen(3, broken), places)
    assert ("on every host: sudo ip link set dev eth1 mtu 1300" in found.fix, "sudo" in found.fix) == (line, line)


def test_a_smaller_mtu_that_tcp_copes_with_is_a_warning() -> None:
    (found,) = link_findings(seen(2, {("gpu1", "gpu2"): {"mtu": 9000, "passes": 1500}}), PLACES)
    assert (found.code, found.error) == ("link-mtu-differs", False)


def test_a_network_without_udp_shows_nothing_of_its_mtu() -> None:
    assert link_findings(seen(2, {("gpu1", "gpu2"): {"passes": None}}), PLACES) == []


def test_another_source_address_is_one_finding_for_all_who_see_it() -> None:
    broken = {("gpu3", other): {"seen": "10.0.9.9"} for other in ("gpu1", "gpu2")}
    (found,) = link_findings(seen(3, broken), PLACES)
    assert (found.code, found.host, found.error) == ("link-source-address", "gpu3", False)
    assert "10.0.9.9, inventory expects 10.0.0.3" in found.message


hosts_and_faults = st.integers(2, 6).flatmap(
    lambda count: st.tuples(
        st.just(count), st.sets(st.sampled_from(list(permutations([f"gpu{n}" for n in range(1, count + 1)], 2))))
    )
)


@calm
@given(hosts_and_faults)
def test_a_fault_is_never_lost_and_never_invented(drawn: tuple[int, set[tuple[str, str]]]) -> None:
    """However faults lie, every broken way is in some finding's words, and no finding is without one."""
    count, pairs = drawn
    found = link_findings(seen(count, {pair: down(*pair) for pair in pairs}), PLACES)
    told: set[tuple[str, str]] = set()
    names = {f"gpu{n}" for n in range(1, count + 1)}
    for finding in found:
        where = finding.message.partition(":")[0]
        words = where.replace("→", " ").replace("↔", " ").replace(",", " ").split()
        named = [word for word in words if word in names]
        if not named:
            assert where == "between all hosts"
            told |= set(permutations(names, 2))
        elif len(named) == 2:
            told |= {(named[0], named[1])} | ({(named[1], named[0])} if "↔" in where else set())
        else:
            others = names - {named[0]}
            told |= {(other, named[0]) for other in others if "from" not in where or "to gpu" in where}
            told |= {(named[0], other) for other in others if "between" in where or where.startswith("from gpu")}
    assert told == pairs
    assert len(found) <= max(len(pairs), 1)


words = st.sampled_from(["6380", "40000", "7", "silent", "ok", "hangs", "10.0.0.9", "::", "\x1b[2J", "²", "a" * 999])
simple = st.none() | st.booleans() | st.floats() | st.integers() | words
json_values = simple | st.lists(simple, max_size=3) | st.dictionaries(words, simple, max_size=3)


# fault: kernel/checks/links.py: if not {*map(int, found.bad)} <= names.keys() → if False
@calm
@example({"bad": {"7": "silent"}})
@example({"bad": {"6380": []}})
@example({"bad": {}, "ms": 10**400})
@example({"bad": {"9" * 5000: "silent"}})
@given(st.dictionaries(st.sampled_from(["bad", "seen", "ms", "mtu", "passes", "block"]), json_values))
def test_any_output_of_a_host_is_a_link_result_or_refused(row: dict[str, Any]) -> None:
    try:
        found = parse_link_result("gpu1", "gpu2", NAMES, row)
    except ValueError:
        return
    assert found.bad.keys() <= set(NAMES.values())
    for finding in link_findings([found], PLACES):
        assert len(finding.message) < 400


def test_the_head_is_visited_on_more_ports() -> None:
    inventory = world.inventory()
    head, worker = (set(ports_of(inventory, name)) for name in ("gpu1", "gpu2"))
    assert head - worker == {6379, 6386, 10001}
    assert {6380, 6381, 6384, 10002, 19999} <= worker
    assert 8265 not in head  # on loopback
