"""Look for everything that is known to go wrong, and say what could not be looked at; changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from vllm_cluster.actions.survey import connected
from vllm_cluster.core.facts import HostFacts
from vllm_cluster.core.finding import Finding
from vllm_cluster.core.preflight import Unseen, examine, unseen
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.events import Emit, Event
from vllm_cluster.run.fleet import Fleet
from vllm_cluster.run.observe import observe


@dataclass(frozen=True)
class Answer:
    """What one source of findings found, and what it could not look at."""

    findings: Iterable[Finding] = ()
    unseen: Iterable[Unseen] = ()


# Where findings come from: each is asked in turn, after the facts are there.
Source = Callable[[Fleet, Inventory, Mapping[str, HostFacts], Emit], Answer]


@dataclass(frozen=True)
class Report:
    """All findings, errors first, what could not be checked, and how far and how long was looked."""

    findings: tuple[Finding, ...]
    unseen: tuple[Unseen, ...]
    hosts: tuple[str, ...]
    seconds: float

    @property
    def failed(self) -> bool:
        """Whether `up` or `serve` would surely fail."""
        return any(finding.error for finding in self.findings)


def of_facts(_: Fleet, inventory: Inventory, facts: Mapping[str, HostFacts], __: Emit) -> Answer:
    """What the facts of all hosts tell."""
    return Answer(examine(inventory, facts), unseen(inventory, facts))


def check(inventory: Inventory, emit: Emit, sources: Sequence[Source] = (of_facts,)) -> Report:
    """Ask every source.

    Raises:
        VclusterError: a host cannot be reached or looked at.
    """
    began = time.monotonic()
    with connected(inventory, emit) as fleet:
        emit(Event("phase", "looking closely at the hosts"))
        facts = fleet.all(lambda link: observe(inventory, link, deep=True))
        answers = [source(fleet, inventory, facts, emit) for source in sources]
    findings = sorted((finding for answer in answers for finding in answer.findings), key=lambda one: not one.error)
    blind = tuple(one for answer in answers for one in answer.unseen)
    return Report(tuple(findings), blind, tuple(facts), time.monotonic() - began)
