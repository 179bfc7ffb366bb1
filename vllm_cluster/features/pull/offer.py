"""A model that hosts lack is pulled before it is served, while what is served still answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from vllm_cluster.features.pull.action import bring_everywhere
from vllm_cluster.features.pull.hosts import PullHosts, on_hosts, statuses
from vllm_cluster.features.pull.known import find_model
from vllm_cluster.features.pull.plan import WantedModel, ensure_room, plan_for
from vllm_cluster.kernel.errors import HostError, PreflightFailed
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.text import size
from vllm_cluster.serving.consent import Confirm


class PullFirst:
    """The pull of one model for `serve`; `facts` are of every host."""

    def __init__(
        self,
        inventory: Inventory,
        fleet: Fleet,
        facts: Mapping[str, HostFacts],
        emit: Emit,
        *,
        model: str,
        revision: str,
    ) -> None:
        self._inventory, self._fleet, self._facts = inventory, fleet, facts
        self._wanted = WantedModel(model, revision)
        # A result is what `serve` ends with.
        self._emit: Emit = lambda event: emit(replace(event, kind="note") if event.kind == "result" else event)

    @contextmanager
    def _hosts(self) -> Iterator[PullHosts]:
        with on_hosts(self._inventory, self._fleet, self._facts, self._emit) as hosts:
            yield hosts

    def is_wanted(self, confirm: Confirm) -> bool:
        """Ask a person, with the size; False too where it cannot be pulled, with a note."""
        wanted, via = self._wanted, self._inventory.head_name
        try:
            with self._hosts() as hosts:
                if any(not one.over for one in statuses(hosts).values()):
                    return bool(confirm(f"{wanted.name} is being pulled. Wait for it, then serve it?"))
                model = find_model(hosts, wanted, via)
                plan = plan_for(hosts, model, "", via)
                ensure_room(plan)
        except (HostError, PreflightFailed) as error:
            self._emit(Event("note", f"{wanted.name} cannot be pulled first: {error.message}"))
            return False
        most = max(plan.missing.values(), default=0)
        where = ", ".join(name for name, missing in plan.missing.items() if missing) or "the hosts"
        question = f"Pull {wanted.name} to {where} first ({size(most)})? Otherwise each host downloads all of it."
        return bool(confirm(question))

    def bring(self) -> None:
        """Bring the model to every host.

        Raises:
            PreflightFailed, HostError, FleetError, Locked: as `pull`; nothing of what is served was changed.
        """
        with self._hosts() as hosts:
            bring_everywhere(hosts, self._wanted)
