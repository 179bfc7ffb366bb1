"""Check hosts and the links between them for known problems, and list what was skipped; changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from vllm_cluster.actions.assess import note_gpus, reached
from vllm_cluster.checks.finding import Finding
from vllm_cluster.checks.network import endpoint
from vllm_cluster.checks.registry import NotChecked, check_all, unseen
from vllm_cluster.errors import HostError, ShellUnusable, VclusterError
from vllm_cluster.events import Emit, Event
from vllm_cluster.explain.diagnosis import diagnose
from vllm_cluster.explain.scan import LogSource, scan
from vllm_cluster.facts.host_facts import HostFacts
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run import allreduce
from vllm_cluster.run.connection import Fleet
from vllm_cluster.run.image_contents import look_inside
from vllm_cluster.run.link_test import run_link_test
from vllm_cluster.run.node_handle import NodeHandle
from vllm_cluster.run.observe import observe
from vllm_cluster.run.runtime import SYSTEM, Runtime
from vllm_cluster.text import count


@dataclass(frozen=True)
class CheckReport:
    """All findings, errors first, what could not be checked, and how far and how long was looked."""

    findings: tuple[Finding, ...]
    unseen: tuple[NotChecked, ...]
    hosts: tuple[str, ...]
    seconds: float
    # What all ranks did together, where that was asked for.
    collective: allreduce.AllReduceReport | None = None

    @property
    def failed(self) -> bool:
        """Whether `up` or `serve` would surely fail."""
        return any(finding.error for finding in self.findings)

    @property
    def unreachable(self) -> bool:
        """Whether a host could not be reached; the findings about the others are valid."""
        return any(finding.code == "unreachable" for finding in self.findings)


def check(inventory: Inventory, emit: Emit, *, deep: bool = False, runtime: Runtime = SYSTEM) -> CheckReport:
    """Check every host that answers and the links between them; `deep` also runs an all-reduce over all ranks.

    Raises:
        VclusterError: no host can be reached, or one cannot be looked at.
    """
    began, tried = time.monotonic(), None
    with reached(inventory, emit, runtime=runtime) as (fleet, failures):
        fleet.without_lease()
        emit(Event("phase", f"inspecting {count(len(fleet.names) - len(failures), 'host')}"))
        there = [name for name in fleet.names if name not in failures]
        facts = fleet.all(lambda connection: observe(inventory, connection, deep=True), there)
        note_gpus(inventory, facts, emit)
        found, blind = [*_lost(failures), *check_all(inventory, facts)], list(unseen(inventory, facts))
        # What is known to be wrong with a host would only be reported again, in Docker's words.
        known = {finding.host for finding in found if finding.error}
        found += look_inside(fleet, inventory, facts, emit, leave=known)
        broken = any(finding.error for finding in found)
        found += _endpoint(inventory, fleet, facts)
        between, unvisited = run_link_test(fleet, inventory, facts, emit)
        found += between
        blind += unvisited
        if deep and broken:
            why = "fix the errors above first"
            blind.append(NotChecked(inventory.head_name, "all-reduce test", why))
        elif deep:
            tried = allreduce.run_allreduce(fleet, inventory, facts, emit)
            found += _explained(tried)
    found.sort(key=lambda finding: not finding.error)
    return CheckReport(tuple(found), tuple(blind), tuple(facts), time.monotonic() - began, tried)


def _lost(failures: Mapping[str, VclusterError]) -> Iterator[Finding]:
    for name, error in failures.items():
        text = error.detail if isinstance(error, HostError) else error.message
        if isinstance(error, ShellUnusable):
            yield Finding("no-shell", name, text, error.hint or "")
        else:
            yield Finding("unreachable", name, text, error.hint or "")


def _endpoint(inventory: Inventory, fleet: Fleet, facts: Mapping[str, HostFacts]) -> list[Finding]:
    """Whether `serve` would find its port taken, on a cluster that serves nothing now."""
    if inventory.head_name not in facts:
        return []
    with suppress(VclusterError):
        node = NodeHandle(fleet.connections[inventory.head_name], inventory.cluster).state()
        if node.status and (node.serving is None or node.serving.phase == "failed"):
            return list(endpoint(inventory, facts))
    return []


def _explained(tried: allreduce.AllReduceReport) -> list[Finding]:
    """The findings of the all-reduce, the first with the failure that the ranks' output matches."""
    text = "\n".join(tried.words).encode("utf-8", "replace")
    named = diagnose([scan(LogSource("the ranks", [(1, text)]))]).named if text else None
    if named is None or not tried.findings:
        return list(tried.findings)
    first, *others = tried.findings
    explained = f"{first.text}; the ranks' output matches failure {named.failure.slug}: {named.failure.cause}"
    return [replace(first, text=explained), *others]
