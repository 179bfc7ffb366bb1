"""A finding, and the type of the checks that report findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from vllm_cluster.kernel.errors import PreflightFailed
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.inventory.model import Host, Inventory
from vllm_cluster.kernel.plan.spec import node_name
from vllm_cluster.kernel.text import and_more, by_hosts

Severity = Literal["error", "warning"]
# IPv6 needs as much; no line to paste sets less, which cuts a host off.
MIN_MTU = 1280


@dataclass(frozen=True)
class Finding:
    """A problem on one host, with its fix; only errors keep `up` from starting."""

    code: str
    host: str
    message: str
    fix: str
    severity: Severity = "error"

    @property
    def error(self) -> bool:
        """Whether it keeps `up` from starting."""
        return self.severity == "error"


Check = Callable[[Inventory, Mapping[str, HostFacts]], Iterator[Finding]]
HostCheck = Callable[[Inventory, Host, HostFacts], Iterator[Finding]]


def each_host(check: HostCheck) -> Check:
    """A check of one host, made on every host that was looked at."""

    def all_hosts(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
        for name, host in inventory.hosts.items():
            if name in facts:
                yield from check(inventory, host, facts[name])

    return all_hosts


def has_node(inventory: Inventory, facts: HostFacts, *states: str) -> bool:
    """Whether this cluster's node is on the host in one of these states."""
    name = node_name(inventory.cluster)
    return any(container.name == name and container.state in states for container in facts.containers)


class Outlier(NamedTuple):
    """A host whose value differs, and what others have: `common` is the most frequent one, empty where none is."""

    host: str
    value: str
    common: str
    others: str


def outliers(values: Mapping[str, str]) -> Iterator[Outlier]:
    """Each host whose value is not the most frequent one; each host where two values are as frequent.

    Of two hosts that differ none is the one to change: what either shows must not become a setting of the other.
    """
    groups = by_hosts((value, host) for host, value in values.items())
    (common, most), (_, second) = [*Counter(values.values()).most_common(2), ("", 0), ("", 0)][:2]
    if second == most:
        common = ""
    for name, value in values.items():
        if value != common:
            rest = [f"{hosts} {other}" for other, hosts in groups.items() if other != value]
            yield Outlier(name, value, common, f"other hosts {common}" if common else and_more(rest))


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for all hosts that have it: `host` names them all, and so does `on HOST:` in the fix.

    A fix that several hosts have word by word names a host that it is for.
    """
    anywhere, every = "on \0: ", list(findings)
    alike = Counter((one.code, one.fix) for one in every)

    def fix(one: Finding) -> str:
        return one.fix if alike[one.code, one.fix] > 1 else one.fix.replace(f"on {one.host}: ", anywhere)

    same = by_hosts((replace(one, host="", fix=fix(one)), one.host) for one in every)
    return [replace(one, host=hosts, fix=one.fix.replace(anywhere, f"on {hosts}: ")) for one, hosts in same.items()]


def ensure_no_errors(findings: list[Finding]) -> None:
    """Stop before anything is touched, naming every finding with its host and remedy.

    Raises:
        PreflightFailed: there is one.
    """
    if findings:
        grouped = by_hosts((finding.message, finding.host) for finding in findings)
        lines = [f"{hosts}: {text}" for text, hosts in grouped.items()]
        # A command to paste stays one: what it names its host in is not prefixed with it.
        fixes = dict.fromkeys(one.fix if one.host in one.fix else f"{one.host}: {one.fix}" for one in merged(findings))
        raise PreflightFailed(*lines, hint="\n".join(fixes))
