"""Look for everything that is known to go wrong, and say what could not be looked at; changes nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from vllm_cluster.actions.survey import connected
from vllm_cluster.core.checks.network import endpoint
from vllm_cluster.core.errors import VclusterError
from vllm_cluster.core.facts import HostFacts
from vllm_cluster.core.finding import Finding
from vllm_cluster.core.preflight import Unseen, examine, unseen
from vllm_cluster.explain.scan import Source, scan
from vllm_cluster.explain.verdict import verdict
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run import collective
from vllm_cluster.run.barrier import look
from vllm_cluster.run.events import Emit, Event
from vllm_cluster.run.fleet import Fleet
from vllm_cluster.run.inside import look_inside
from vllm_cluster.run.mesh import mesh
from vllm_cluster.run.observe import observe


@dataclass(frozen=True)
class Report:
    """All findings, errors first, what could not be checked, and how far and how long was looked."""

    findings: tuple[Finding, ...]
    unseen: tuple[Unseen, ...]
    hosts: tuple[str, ...]
    seconds: float
    # What all ranks did together, where that was asked for.
    collective: collective.Report | None = None

    @property
    def failed(self) -> bool:
        """Whether `up` or `serve` would surely fail."""
        return any(finding.error for finding in self.findings)


def check(inventory: Inventory, emit: Emit, *, deep: bool = False) -> Report:
    """Look at every host and at the links between them; `deep` has all ranks sum numbers together besides.

    Raises:
        VclusterError: a host cannot be reached or looked at.
    """
    began, tried = time.monotonic(), None
    with connected(inventory, emit) as fleet:
        fleet.without_lease()
        emit(Event("phase", "looking closely at the hosts"))
        facts = fleet.all(lambda link: observe(inventory, link, deep=True))
        found, blind = list(examine(inventory, facts)), list(unseen(inventory, facts))
        # What is known to be wrong with a host would only be told again, in Docker's words.
        known = {finding.host for finding in found if finding.error}
        found += look_inside(fleet, inventory, facts, emit, leave=known)
        broken = any(finding.error for finding in found)
        found += _endpoint(inventory, fleet, facts)
        between, unvisited = mesh(fleet, inventory, facts, emit)
        found += between
        blind += unvisited
        if deep and broken:
            why = "there are errors to be mended first"
            blind.append(Unseen(inventory.head_name, "whether all ranks can sum numbers together", why))
        elif deep:
            tried = collective.collective(fleet, inventory, facts, emit)
            found += _explained(tried)
    found.sort(key=lambda finding: not finding.error)
    return Report(tuple(found), tuple(blind), tuple(facts), time.monotonic() - began, tried)


def _endpoint(inventory: Inventory, fleet: Fleet, facts: Mapping[str, HostFacts]) -> list[Finding]:
    """Whether `serve` would find its port taken, on a cluster that serves nothing now."""
    with suppress(VclusterError):
        node = look(fleet.links[inventory.head_name].engine, f"vcluster-{inventory.cluster}")
        serving = node.status.serve if node.status else None
        if node.status and (serving is None or serving.phase == "failed"):
            return list(endpoint(inventory, facts))
    return []


def _explained(tried: collective.Report) -> list[Finding]:
    """The findings of the collective, the first with the failure that the ranks' own words tell of."""
    text = "\n".join(tried.words).encode("utf-8", "replace")
    named = verdict([scan(Source("the ranks", [(1, text)]))]).named if text else None
    if named is None or not tried.findings:
        return list(tried.findings)
    first, *others = tried.findings
    said = f"{first.text}; the ranks' words are those of failure {named.row.number}: {named.row.cause}"
    return [replace(first, text=said), *others]
