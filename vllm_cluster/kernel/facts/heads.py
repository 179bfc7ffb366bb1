"""What this machine remembers of heads, beside what their hosts show."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Led:
    """A head: its address, the id of its cluster, and whether it still leads that: volumes name also an earlier one.

    It is `made` where this machine created the cluster or moved the head there, or has it from a person; else it was
    found so. While it is not `done`, it is where a move from here began to lead, and nothing may be there yet.
    """

    address: str
    id: str
    leads: bool = True
    made: bool = False
    done: bool = True


@dataclass(frozen=True)
class KnownHeads:
    """Of all clusters of a name: the one on this host, the one where the inventory has its head, and each."""

    here: Led | None = None
    head: Led | None = None
    every: tuple[Led, ...] = ()
