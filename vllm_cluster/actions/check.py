"""Check hosts and the links between them for known problems, and list what was skipped; changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from vllm_cluster.actions import phases
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
from vllm_cluster.run.allreduce import AllReduceReport, run_allreduce
from vllm_cluster.run.connection import Fleet
from vllm_cluster.run.host_images import with_contents
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


def check(inventory: Inventory, emit: Emit, *, deep: bool = False, runtime: Runtime = SYSTEM) -> CheckReport:
    """Check every host that answers and the links between them; `deep` also runs an all-reduce over all ranks.

    Raises:
        VclusterError: no host can be reached, or one cannot be looked at.
    """
    began = runtime.clock.monotonic()
    done = phases.run(CHECK, CheckState(inventory=inventory, emit=emit, runtime=runtime, deep=deep))
    findings = sorted(done.findings, key=lambda finding: not finding.error)
    seconds = runtime.clock.monotonic() - began
    return CheckReport(tuple(findings), done.not_checked, tuple(done.facts), seconds, done.tried)


@dataclass(frozen=True, kw_only=True)
class CheckState(phases.VerbState):
    """What the phases of `check` know: what was found so far, and what could not be checked."""

    deep: bool
    failures: Mapping[str, VclusterError] = phases.LATER
    facts: Mapping[str, HostFacts] = phases.LATER
    findings: tuple[Finding, ...] = ()
    not_checked: tuple[NotChecked, ...] = ()
    # Whether something is wrong with a host: then no ranks are started.
    broken: bool = False
    tried: AllReduceReport | None = None

    def plus(self, findings: Iterable[Finding], skipped: Iterable[NotChecked] = ()) -> CheckState:
        """The state with these too."""
        return replace(self, findings=(*self.findings, *findings), not_checked=(*self.not_checked, *skipped))


def connect(state: CheckState) -> CheckState:
    """Connect to the hosts; one that cannot be reached is a finding."""
    fleet, failures = state.opened.enter_context(reached(state.inventory, state.emit, runtime=state.runtime))
    fleet.without_lease()
    return replace(state, fleet=fleet, failures=failures).plus(_lost(failures))


def look(state: CheckState) -> CheckState:
    """Look at every host."""
    there = [name for name in state.fleet.names if name not in state.failures]
    state.emit(Event("phase", f"inspecting {count(len(there), 'host')}"))
    facts = state.fleet.all(lambda connection: observe(state.inventory, connection, deep=True), there)
    note_gpus(state.inventory, facts, state.emit)
    return replace(state, facts=with_contents(state.inventory, state.fleet, facts))


def judge(state: CheckState) -> CheckState:
    """Find the known problems of the hosts."""
    return state.plus(check_all(state.inventory, state.facts), unseen(state.inventory, state.facts))


def look_into_image(state: CheckState) -> CheckState:
    """Look into the image, where nothing is known to be wrong with a host: Docker would only report that again."""
    known = {finding.host for finding in state.findings if finding.error}
    seen = state.plus(look_inside(state.fleet, state.inventory, state.facts, state.emit, leave=known))
    return replace(seen, broken=any(finding.error for finding in seen.findings))


def try_port(state: CheckState) -> CheckState:
    """Find out whether `serve` would find its port taken."""
    return state.plus(_endpoint(state.inventory, state.fleet, state.facts))


def measure_links(state: CheckState) -> CheckState:
    """Measure every host's links to the others."""
    return state.plus(*run_link_test(state.fleet, state.inventory, state.facts, state.emit))


def reduce_over_ranks(state: CheckState) -> CheckState:
    """Run an all-reduce over all ranks, where that was asked for and could succeed."""
    if not state.deep:
        return state
    if state.broken:
        why = "fix the errors above first"
        return state.plus((), [NotChecked(state.inventory.head_name, "all-reduce test", why)])
    tried = run_allreduce(state.fleet, state.inventory, state.facts, state.emit)
    return replace(state, tried=tried).plus(_explained(tried))


CHECK = (connect, look, judge, look_into_image, try_port, measure_links, reduce_over_ranks)


def _lost(failures: Mapping[str, VclusterError]) -> Iterator[Finding]:
    for name, error in failures.items():
        text = error.detail if isinstance(error, HostError) else error.message
        code = "no-shell" if isinstance(error, ShellUnusable) else "unreachable"
        yield Finding(code, name, text, error.hint or "")


def _endpoint(inventory: Inventory, fleet: Fleet, facts: Mapping[str, HostFacts]) -> list[Finding]:
    """Whether `serve` would find its port taken, on a cluster that serves nothing now."""
    if inventory.head_name not in facts:
        return []
    with suppress(VclusterError):
        node = NodeHandle(fleet.connections[inventory.head_name], inventory.cluster).state()
        if node.status and (node.serving is None or node.serving.phase == "failed"):
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
