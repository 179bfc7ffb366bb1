"""The hosts that a verb works on, connected: all of them, or those that can be reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from vllm_cluster.kernel.errors import Unreachable, VclusterError, combine
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.hosts.connection import Fleet
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.text import count


@contextmanager
def connect_all(
    inventory: Inventory, emit: Emit, hosts: Sequence[str] | None = None, *, runtime: Runtime = SYSTEM
) -> Iterator[Fleet]:
    """Every host of the inventory, or these alone, connected.

    Raises:
        Unreachable, FleetError: a host could not be reached; no host was touched.
    """
    with reached(inventory, emit, hosts, runtime=runtime) as (fleet, failures):
        if failures:
            raise _with_way_on(combine(failures), inventory, failures)
        yield fleet


def _with_way_on(error: VclusterError, inventory: Inventory, failures: Mapping[str, VclusterError]) -> VclusterError:
    """The error with what the other hosts can do without those that are off; they do nothing without their head."""
    if inventory.head_name not in failures and {one.code for one in failures.values()} == {Unreachable.code}:
        out = " and ".join(failures)
        way = f"without it: take {out} out of the inventory; vcluster plan shows what stops then; vcluster up"
        error.hint = "\n".join(line for line in (error.hint, way) if line)
    return error


@contextmanager
def reached(
    inventory: Inventory, emit: Emit, hosts: Sequence[str] | None = None, *, runtime: Runtime = SYSTEM
) -> Iterator[tuple[Fleet, dict[str, VclusterError]]]:
    """The hosts of the inventory, or these alone, that can be reached, connected; and why the others cannot.

    Raises:
        Unreachable, FleetError: none can.
    """
    with Fleet(inventory, runtime, hosts) as fleet:
        emit(Event("phase", f"connecting to {count(len(hosts or inventory.hosts), 'host')}"))
        there, failures = fleet.connect(hosts)
        try:
            if not there:
                raise combine(failures)
            yield fleet, failures
        except VclusterError as error:
            error.with_hosts(hosts or inventory.hosts)
            raise
