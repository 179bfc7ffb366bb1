"""Check hosts and the links between them for known problems, and list what was skipped; changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from vllm_cluster.features.check.measure import AllReduceReport, run_allreduce
from vllm_cluster.kernel.assess import note_gpus
from vllm_cluster.kernel.checks.docker import engine_problem
from vllm_cluster.kernel.checks.finding import Finding
from vllm_cluster.kernel.checks.network import endpoint
from vllm_cluster.kernel.checks.registry import NotChecked, check_all, unseen
from vllm_cluster.kernel.errors import HostError, ShellUnusable, VclusterError
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.explain.diagnosis import diagnose
from vllm_cluster.kernel.explain.scan import LogSource, scan
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet
from vllm_cluster.kernel.hosts.observe import observe
from vllm_cluster.kernel.hosts.reach import reached
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.images.host_images import with_contents
from vllm_cluster.kernel.images.inspect import look_inside
from vllm_cluster.kernel.inventory.local_files import missing_identities
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.links.measure import run_link_test
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.node.program import program_digest
from vllm_cluster.kernel.plan.diff import other_program
from vllm_cluster.kernel.plan.identity import authority, node_of
from vllm_cluster.kernel.text import count


@dataclass(frozen=True)
class CheckReport:
    """All findings, errors first, what could not be checked, and how far and how long was looked."""

    findings: tuple[Finding, ...]
    not_checked: tuple[NotChecked, ...]
    hosts: tuple[str, ...]
    seconds: float
    # What all ranks did together, where that was asked for.
    allreduce: AllReduceReport | None = None

    @property
    def failed(self) -> bool:
        """Whether `up` or `serve` would surely fail."""
        return any(finding.error for finding in self.findings)

    @property
    def unreachable(self) -> bool:
        """Whether a host could not be reached; the findings about the others are valid."""
        return any(finding.code == "unreachable" for finding in self.findings)


def check_hosts(inventory: Inventory, emit: Emit, *, deep: bool = False, runtime: Runtime = SYSTEM) -> CheckReport:
    """Check every host that answers and the links between them; `deep` also runs an all-reduce over all ranks.

    Raises:
        VclusterError: no host can be reached, or one cannot be looked at.
    """
    began = runtime.clock.monotonic()
    for text in missing_identities(inventory):
        emit(Event("warning", text))
    with reached(inventory, emit, runtime=runtime) as (fleet, failures):
        fleet.without_lease()
        there = [name for name in fleet.names if name not in failures]
        emit(Event("phase", f"inspecting {count(len(there), 'host')}"))
        facts = fleet.all(lambda connection: observe(inventory, connection, deep=True), there)
        note_gpus(inventory, facts, emit)
        facts = with_contents(inventory, fleet, facts)
        findings = [*_lost(failures), *check_all(inventory, facts)]
        # Not where something is known to be wrong with a host: Docker would only report that again.
        known = {finding.host for finding in findings if finding.error}
        findings += look_inside(fleet, inventory, facts, emit, leave=known)
        broken = any(finding.error for finding in findings)
        findings += _endpoint(inventory, fleet, facts)
        findings += _other_programs(inventory, facts)
        findings += _stopped_nodes(inventory, facts)
        of_links, skipped = run_link_test(fleet, inventory, facts, emit)
        findings += of_links
        not_checked, tried = [*unseen(inventory, facts), *skipped], None
        if deep and broken:
            not_checked.append(NotChecked(inventory.head_name, "all-reduce test", "fix the errors above first"))
        elif deep:
            tried = run_allreduce(fleet, inventory, facts, emit)
            findings += _explained(tried)
    findings.sort(key=lambda finding: not finding.error)
    seconds = runtime.clock.monotonic() - began
    return CheckReport(tuple(findings), tuple(not_checked), tuple(facts), seconds, tried)


def _lost(failures: Mapping[str, VclusterError]) -> Iterator[Finding]:
    for name, error in failures.items():
        text = error.detail if isinstance(error, HostError) else error.message
        code = "no-shell" if isinstance(error, ShellUnusable) else "unreachable"
        yield Finding(code, name, text, error.hint or "")


def _other_programs(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
    """Nodes that run the node program of another version: what this one corrected is not there."""
    for name, seen in facts.items():
        if text := other_program(inventory.cluster, seen, program_digest()):
            yield Finding("node-outdated", name, text, "vcluster up", severity="warning")


def _stopped_nodes(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
    """Hosts whose node does not run, of a cluster that has nodes: before the first `up` it has none."""
    mine = authority(inventory, facts)
    found = {name: node_of(inventory.cluster, seen) for name, seen in facts.items() if not engine_problem(seen)}
    # A node of another cluster is a finding of its own.
    others = {name for name, node in found.items() if node and not mine.owns(node.labels)}
    nodes = {name: node for name, node in found.items() if name not in others}
    if not any(nodes.values()):
        return
    for name, node in nodes.items():
        if node is None or node.state != "running":
            text = f"its node does not run: it is {node.state if node else 'missing'}"
            yield Finding("node-stopped", name, text, "vcluster up", severity="warning")


def _endpoint(inventory: Inventory, fleet: Fleet, facts: Mapping[str, HostFacts]) -> list[Finding]:
    """Whether `serve` would find its port taken, on a cluster that serves nothing now."""
    if inventory.head_name not in facts:
        return []
    with suppress(VclusterError):
        node = NodeHandle(fleet.connections[inventory.head_name], inventory.cluster).state()
        if node.status and all(one.phase == "failed" for one in node.replicas):
            return list(endpoint(inventory, facts))
    return []


def _explained(tried: AllReduceReport) -> list[Finding]:
    """The findings of the all-reduce, the first with the failure that the ranks' output matches."""
    text = "\n".join(tried.words).encode("utf-8", "replace")
    named = diagnose([scan(LogSource("the ranks", [(1, text)]))]).named if text else None
    if named is None or not tried.findings:
        return list(tried.findings)
    first, *others = tried.findings
    explained = f"{first.message}; the ranks' output matches failure {named.failure.slug}: {named.failure.cause}"
    return [replace(first, message=explained), *others]
