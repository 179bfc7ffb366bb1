"""The logs of all hosts as one, in the order of time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from vllm_cluster.features.logs.host import HostLogs
from vllm_cluster.features.logs.lines import LastLines, Line, LogRequest
from vllm_cluster.features.logs.merge import LogMerge
from vllm_cluster.features.logs.orders import Marks
from vllm_cluster.kernel.assess import require_name
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import VclusterError, combine
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.explain.error_lines import ErrorLines
from vllm_cluster.kernel.hosts.connection import Fleet
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory

# How long a line may be kept back for older ones of other hosts; the terminal shows nothing sooner.
TURN_SECONDS = 0.1
# In all, for the hosts whose ranks are not read yet: less than the lines of others are kept back.
SETTLE_SECONDS = 45.0
Show = Callable[[Sequence[Line]], None]


def show_logs(
    inventory: Inventory,
    asked: LogRequest,
    emit: Emit,
    show: Show,
    *,
    errors: bool = False,
    last: int | None = None,
    runtime: Runtime = SYSTEM,
) -> bool:
    """Show the lines that are asked for, to the end, or with `follow` for as long as the caller likes; whether any.

    `last` is how many of the existing ones at most; it may be more where a host is slow to answer.

    Raises:
        HostError, FleetError: a host's log could not be read, or not to its end; those of others were shown.
    """
    require_name(inventory, list(asked.hosts))
    marks = Marks(_is_error(ErrorLines())) if errors else None
    asked = replace(asked, orders=errors)
    tail = None if last is None else LastLines(last, int(runtime.clock.time() * 1e9) if asked.follow else None, emit)
    found = False
    with _reading(inventory, asked, emit, runtime) as (merge, hosts):
        while (lines := merge.take(TURN_SECONDS)) is not None:
            quiet = not lines
            if marks:
                lines = [*marks.keep(lines)]
            if tail:
                lines = [*tail.keep(lines), *(tail.rest() if quiet and asked.follow else ())]
            if lines:
                found = True
                show(lines)
            for host in merge.passed_over():
                emit(Event("note", "its log brings nothing newer: the lines of the others wait for it no more", host))
            # The merge counts them as shown from its next call on.
            del lines
            _refuse_none(hosts)
        rest = tail.rest() if tail else []
        found = found or bool(rest)
        show(rest)
    for one in hosts:
        if one.bug:
            raise one.bug
    failures = {one.host: one.failure for one in hosts if one.failure}
    if failures:
        raise combine(failures)
    if not any(one.ended for one in hosts):
        _ensure_any(asked, found=found)
    return found


def _is_error(errors: ErrorLines) -> Callable[[Line], bool]:
    return lambda line: errors((line.host, line.source, *line[4:]), line.text)


def _ensure_any(asked: LogRequest, *, found: bool) -> None:
    numbers = (("rank", asked.rank), ("replica", asked.replica))
    what = " of ".join(f"{name} {number}" for name, number in numbers if number is not None)
    if what and not found:
        narrowed = " in which such lines are" if asked.grep or asked.since or asked.previous else ""
        ranks = ": ranks count from 0, one for each GPU of the model" if asked.rank is not None else ""
        raise VclusterError(f"no host has a log of {what}{narrowed}{ranks}", hint="vcluster logs --only vllm")


def _refuse_none(hosts: Sequence[HostLogs]) -> None:
    """End where no host at all could be read at the beginning."""
    if all(one.opened.is_set() and one.failure for one in hosts):
        raise combine({one.host: one.failure for one in hosts if one.failure})


@contextmanager
def _reading(
    inventory: Inventory, asked: LogRequest, emit: Emit, runtime: Runtime
) -> Iterator[tuple[LogMerge, list[HostLogs]]]:
    """The logs of the hosts while they are read."""
    merge = LogMerge(runtime.clock, follow=asked.follow)
    with Fleet(inventory, runtime, asked.hosts) as fleet:
        hosts: dict[str, HostLogs] = {}
        patience: list[Deadline] = []

        def covered(host: str, log: object, address: str) -> bool:
            """Whether what a rank printed is read from its own file; the copy of a host that is away comes later."""
            one = hosts.get(fleet.addresses.get(address, "") if address else host)
            if one is None or asked.rank is not None:
                return False
            if asked.follow:
                return True
            if not one.settled.is_set():
                patience.append(runtime.after(SETTLE_SECONDS))
                # The lines behind it wait no more where it has not begun by then.
                with merge.waits(log):
                    one.settled.wait(patience[0].left())
                one.settled.set()
            return one.ranks_read

        for name in asked.hosts:
            of_host, at = partial(covered, name), fleet.connections[name]
            hosts[name] = HostLogs(inventory, at, asked, merge=merge, emit=emit, covered=of_host)
        try:
            for one in hosts.values():
                runtime.background(one.run, "logs")
            yield merge, list(hosts.values())
        finally:
            for one in hosts.values():
                one.stop()
            merge.close()
