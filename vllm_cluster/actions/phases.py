"""A verb as a tuple of phases, and those that every verb has that changes something: confirm, lock, compare again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

from vllm_cluster.actions.consent import Consent, Stops
from vllm_cluster.errors import FleetError, HostError, VclusterError
from vllm_cluster.events import Emit, Event, waiting
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.connection import Fleet, HostConnection
from vllm_cluster.run.lease import Lease
from vllm_cluster.run.runtime import Runtime

# What a later phase fills in.
LATER: Any = None


@dataclass(frozen=True, kw_only=True)
class VerbState:
    """What the phases of a verb know; each returns it with more filled in.

    `opened` ends with the verb, `leased` with the phase that gives the lease back.
    """

    inventory: Inventory
    emit: Emit
    runtime: Runtime
    opened: ExitStack = field(default_factory=ExitStack)
    leased: ExitStack = field(default_factory=ExitStack)
    fleet: Fleet = LATER


@dataclass(frozen=True, kw_only=True)
class ChangingState(VerbState):
    """What the phases know of a verb that changes something.

    `idle` where there is nothing to change: what begins with `confirm` and ends before the lease is given back does
    nothing then. `then` is what follows a stop, for the question.
    """

    verb: str
    consent: Consent
    then: str = ""
    wait: float = 0.0
    idle: bool = False
    lease: Lease = LATER

    def stops(self) -> Stops:
        """What the verb would stop, as the cluster was found last.

        Raises:
            ChangedError: the verb continues with another state.
        """
        raise NotImplementedError

    def hosts(self) -> Sequence[HostConnection]:
        """Where the lease is taken, in its order."""
        raise NotImplementedError

    def again(self) -> Self:
        """The state with the cluster found again, with the lease in hand."""
        return self

    def without_lease(self, error: HostError | FleetError) -> VclusterError | ChangedError:
        """What to raise where hosts do not give the lease."""
        return error


V = TypeVar("V", bound=VerbState)
S = TypeVar("S", bound=ChangingState)
Phase = Callable[[V], V]


class ChangedError(Exception):
    """The cluster is not as it was confirmed any more: the verb goes back to `confirm` with this state."""

    def __init__(self, state: VerbState) -> None:
        super().__init__()
        self.state = state


def run(
    phases: Sequence[Phase[V]],
    state: V,
    explain: Callable[[V, VclusterError], VclusterError] | None = None,
    report: Callable[[V], None] = lambda _state: None,
) -> V:
    """Go through the phases; back to `confirm` where the cluster has changed since.

    `explain` finds the cause of an error while the hosts are still connected; `report` emits the result of all phases.

    Raises:
        VclusterError: a phase failed.
    """
    at = 0
    with state.opened:
        while at < len(phases):
            try:
                with state.leased:
                    while at < len(phases):
                        state = _timed(phases[at], state)
                        at += 1
                    report(state)
            except ChangedError as changed:
                # Never asked with the lease in hand: a person who is away from the terminal would lock everybody out.
                state, at = changed.state, phases.index(confirm)  # type: ignore[assignment]  # the same kind
            except VclusterError as error:
                if explain is None:
                    raise
                raise explain(state, error) from None
    return state


def _timed(phase: Phase[V], state: V) -> V:
    began = state.runtime.clock.monotonic()
    done = phase(state)
    seconds = round(state.runtime.clock.monotonic() - began, 3)
    name = phase.__name__.replace("_", " ")
    state.emit(Event("start", f"phase {name}: {seconds:.1f} s", data={"phase": name, "seconds": seconds}))
    return done


def confirm(state: S) -> S:
    """Ask a person before anything is stopped.

    Raises:
        Aborted, UsageError, PreflightFailed: as `Consent.ask`.
    """
    if not state.idle:
        state.consent.ask(state.stops(), state.then)
    return state


def lock(state: S) -> S:
    """Take the lease of every host that the verb changes.

    Raises:
        Locked: another run holds one.
    """
    if state.idle:
        return state
    lease = state.leased.enter_context(Lease(state.hosts(), state.inventory.cluster, state.verb))
    try:
        lease.acquire(state.wait, waiting(state.emit))
    except (HostError, FleetError) as error:
        raise state.without_lease(error) from None
    return replace(state, lease=lease)


def compare_again(state: S) -> S:
    """Look again, as others may have changed the cluster; what is to be stopped beyond the answer is asked."""
    if state.idle:
        return state
    state = state.again()
    if not state.consent.covers(state.stops()):
        raise ChangedError(state)
    return state


def unlock(state: V) -> V:
    """Give the lease back."""
    state.leased.close()
    return state
