"""The results of the link test, and the problems of the links between hosts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_address, ip_network
from typing import Annotated, Literal

from vllm_cluster.kernel.backends import joining
from vllm_cluster.kernel.checks.finding import MIN_MTU, Finding
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.text import plural
from vllm_cluster.wire.reading import convert
from vllm_cluster.wire.values import Address, Count, between, shaped

EPHEMERAL = "ephemeral"
# How a port failed: the finding's code and message.
Failed = Literal["silent", "refused", "unreachable", "mute", "foreign"]
_FAILED: Mapping[str, tuple[str, str]] = {
    "silent": ("link-silent", "no answer (a firewall drops it)"),
    "refused": ("link-refused", "refused (a firewall rejects it, or another machine has this address)"),
    "unreachable": ("link-unreachable", "unreachable (the network reports no route)"),
    "mute": ("link-intercepted", "connected, but no reply (proxy, NAT or another machine)"),
    "foreign": ("link-intercepted", "another program replied (proxy, NAT or another machine with this address)"),
}


@dataclass(frozen=True)
class HostAddress:
    """A host's end of its links: its address in the inventory, and the interface that holds it."""

    address: str
    interface: str = "eth0"


@dataclass(frozen=True)
class LinkResult:
    """The result of testing one link; `bad` maps a port's name to how it failed.

    `mtu` is the largest packet that the source would send, `passes` the largest that arrived; None: not known.
    `block` is whether a large block arrives over TCP ("ok", "hangs"), None if it was not tried.
    """

    source: str
    target: str
    tried: frozenset[str]
    bad: Mapping[str, str] = field(default_factory=dict)
    seen: str | None = None
    ms: float | None = None
    mtu: int | None = None
    passes: int | None = None
    block: str | None = None


def ports_of(inventory: Inventory, host: str) -> dict[int, str]:
    """The pinned ports that other hosts reach on this one, with their names."""
    way = joining(inventory)
    # The first and the last port of the workers' range represent all of it.
    everywhere = (*way.NODE_PORTS, "pull", *way.WORKER_PORTS)
    keys = everywhere + (("nodes", *way.HEAD_PORTS) if host == inventory.head_name else ())
    return {getattr(inventory.ports, key): f"{getattr(inventory.ports, key)} ({_shown(key)})" for key in keys}


def _shown(key: str) -> str:
    return "workers" if key.startswith("worker_") else key.replace("_", " ")


@dataclass(frozen=True)
class _LinkRow:
    """A line of a link test, by a program on a host: of each port that failed how, and what the target saw."""

    bad: Mapping[Annotated[str, shaped("[0-9]{1,5}", "a port")], Failed]
    seen: Address | None = None
    ms: Annotated[float, between(0.0, 1e9)] | None = None
    mtu: Count | None = None
    passes: Count | None = None
    block: Literal["ok", "hangs"] | None = None


def parse_link_result(source: str, target: str, names: Mapping[int, str], row: Mapping[str, object]) -> LinkResult:
    """Read one line of a link test.

    Raises:
        ValueError: not a line of a link test.
    """
    found = convert(_LinkRow, row, "a line")
    if not {*map(int, found.bad)} <= names.keys():
        raise ValueError("a line with a port that was not tested")
    return LinkResult(
        source,
        target,
        _words(tuple(names.values())),
        {names[int(port)]: word for port, word in found.bad.items()},
        str(ip_address(found.seen)) if found.seen else None,
        found.ms,
        _size(found.mtu),
        _size(found.passes),
        found.block,
    )


@cache
def _words(names: tuple[str, ...]) -> frozenset[str]:
    """Most hosts are asked about the same ports, and of 256 hosts there are 65,280 pairs."""
    return frozenset(names)


def _size(value: int | None) -> int | None:
    return value if value and value <= 65535 else None


Pair = tuple[str, str]


@dataclass(frozen=True)
class _Group:
    """Pairs that fail alike, and the text for where that is."""

    where: str
    pairs: tuple[Pair, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Where the fault may be: the one host that every pair has, both of a pair, or all.

        Of two hosts either may be the one: what it measures, or lets pass, must not become a setting of the other.
        """
        common = set.intersection(*map(set, self.pairs))
        several = len(self.pairs) > 1 and len(common) == 1
        return tuple(common if several else dict.fromkeys(host for pair in self.pairs for host in pair))


def link_findings(ways: Iterable[LinkResult], places: Mapping[str, HostAddress]) -> list[Finding]:
    """All problems, each reported once: for a pair, for a host that fails with all others, or for all hosts."""
    known = {(each.source, each.target): each for each in ways}
    hosts = {host for pair in known for host in pair}
    closed: dict[tuple[str, frozenset[str]], set[Pair]] = {}
    cut: dict[tuple[str | None, int | None, int | None], set[Pair]] = {}
    for pair, each in known.items():
        for kind in dict.fromkeys(each.bad.values()):
            names = frozenset(name for name, word in each.bad.items() if word == kind)
            # The empty set means every port: head and workers differ in theirs.
            closed.setdefault((kind, frozenset() if names == each.tried else names), set()).add(pair)
        small = each.mtu is not None and each.passes is not None and each.passes < each.mtu
        if each.block == "hangs" or (small and each.block == "ok"):
            cut.setdefault((each.block, each.mtu, each.passes), set()).add(pair)
    return [
        *(_closed(*what, group, known, places) for what, pairs in closed.items() for group in _grouped(pairs, hosts)),
        *(_cut(*what, group, places) for what, pairs in cut.items() for group in _grouped(pairs, hosts)),
        *_sources(known.values(), places),
    ]


def _grouped(pairs: set[Pair], hosts: set[str]) -> Iterator[_Group]:
    """The pairs of one fault in the fewest groups."""
    left = set(pairs)
    many = len(hosts) > 2
    if many and len(left) == len(hosts) * (len(hosts) - 1):
        yield _Group("between all hosts", tuple(sorted(left)))
        return
    for host in sorted(hosts) if many else ():
        to = {(other, host) for other in hosts - {host}}
        of = {(host, other) for other in hosts - {host}}
        if to | of <= left:
            yield _Group(f"between {host} and every other host, both ways", tuple(sorted(to)))
            left -= to | of
        elif to <= left:
            yield _Group(f"from every other host to {host}", tuple(sorted(to)))
            left -= to
        elif of <= left:
            yield _Group(f"from {host} to every other host", tuple(sorted(of)))
            left -= of
    for source, target in sorted(left):
        if (target, source) not in left:
            yield _Group(f"{source} → {target}", ((source, target),))
        elif source < target:
            yield _Group(f"{source} ↔ {target}", ((source, target), (target, source)))


def _closed(
    kind: str, ports: frozenset[str], group: _Group, known: Mapping[Pair, LinkResult], places: Mapping[str, HostAddress]
) -> Finding:
    code, problem = _FAILED[kind]
    source, target = group.pairs[0]
    what = _listed(ports) if ports else "every port"
    text = f"{group.where}: {what}: {problem}"
    back = known.get((target, source))
    if len(group.pairs) == 1 and back and not back.bad:
        text += f"; {target} → {source}: all answer"
    # A host that reaches no other is where to look; else the one that does not answer.
    host = source if len(group.pairs) > 1 and {one for one, _ in group.pairs} == {source} else target
    if code == "link-intercepted":
        fix = command_line("ip", "neigh", "show", places[target].address, on=source)
        fix += "; remove NAT and proxies from this path"
    elif code == "link-unreachable":
        fix = command_line("ip", "route", "get", places[target].address, on=source)
        fix += f"; then check the firewall of {target}"
    else:
        several = len({one for _, one in group.pairs}) > 1 and host == target
        where = "both hosts" if len(group.pairs) == 2 and several else "every host" if several else host
        ends = [(a, b) for pair in group.pairs for a, b in (pair, pair[::-1]) if several or b == host]
        fix = _open(where, _let_in({places[peer].address for peer, _ in ends}))
    return Finding(code, host, text, fix)


def _let_in(addresses: Collection[str]) -> list[str]:
    """These addresses of the inventory, in as few networks as hold no other.

    What hosts show of their networks is not asked: behind these ports is pickle, and a network has other machines.
    """
    every = [ip_network(address) for address in addresses]
    found: list[IPv4Network | IPv6Network] = [
        *collapse_addresses(one for one in every if isinstance(one, IPv4Network)),
        *collapse_addresses(one for one in every if isinstance(one, IPv6Network)),
    ]
    return [str(one if one.num_addresses > 1 else one.network_address) for one in found]


def _open(where: str, sources: Iterable[str]) -> str:
    lines = []
    for source in sources:
        tool = "ip6tables" if ":" in source else "iptables"
        rule = command_line("sudo", tool, Option("-I"), "INPUT", Option("-s"), source, Option("-j"), "ACCEPT")
        allow = command_line("sudo", "ufw", "allow", "from", source, on=where)
        lines += [allow, f"on {where}, without ufw: {rule}"]
    return "\n".join([*lines, "in a cloud: let the hosts' security group reach itself on every port"])


def _listed(ports: frozenset[str]) -> str:
    names = sorted(ports - {EPHEMERAL}, key=lambda name: (len(name.split(" ")[0]), name))
    known = [f"{plural(len(names), 'port')} {', '.join(names)}"] if names else []
    return " and ".join(known + ["ports that the kernel chooses (NCCL, Gloo, vLLM)"] * (EPHEMERAL in ports))


def _cut(
    block: str | None, mtu: int | None, passes: int | None, group: _Group, places: Mapping[str, HostAddress]
) -> Finding:
    less = passes if passes and mtu and passes < mtu else None
    size = f"packets of {less} bytes arrive, of {mtu} do not" if less else f"its interface's MTU is {mtu or 'unknown'}"
    host, until, devices = group.hosts[0], less or 1400, {places[one].interface for one in group.hosts}
    fix = "one MTU on all hosts and on the switches between them"
    if len(group.hosts) == 2:
        fix += "; look at the interfaces of both, "
        fix += ", ".join(
            command_line("ip", "link", "show", "dev", places[one].interface, on=one) for one in group.hosts
        )
    elif until >= MIN_MTU and len(devices) == 1:
        where = host if len(group.hosts) == 1 else "every host"
        set_to = command_line("sudo", "ip", "link", "set", "dev", places[host].interface, "mtu", str(until), on=where)
        fix += f"; until then {set_to}"
    if block == "hangs":
        return Finding("link-mtu", host, f"{group.where}: small messages pass, large ones hang: {size}", fix)
    text = f"{group.where}: {size}; TCP tolerates this, RDMA does not"
    return Finding("link-mtu-differs", host, text, fix, severity="warning")


def _sources(ways: Iterable[LinkResult], places: Mapping[str, HostAddress]) -> Iterator[Finding]:
    reported: set[Pair] = set()
    for each in ways:
        planned = places[each.source].address
        if each.seen is None or each.seen == str(ip_address(planned)) or (each.source, each.seen) in reported:
            continue
        reported.add((each.source, each.seen))
        text = f"{each.target} sees source address {each.seen}, inventory expects {planned}: another interface, or NAT"
        fix = command_line("ip", "route", "get", places[each.target].address, on=each.source)
        fix += "; one interface a network, and no NAT"
        yield Finding("link-source-address", each.source, text, fix, severity="warning")
