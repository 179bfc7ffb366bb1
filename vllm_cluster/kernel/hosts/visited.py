"""What this machine keeps of hosts: the ways to them that its inventories have named, and which of them were heads."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.facts.heads import Led
from vllm_cluster.kernel.laptop import cache_folder, make_private, read_own_file, write_whole
from vllm_cluster.wire.reading import RefusedDocument, convert, document
from vllm_cluster.wire.values import Address, Name, Port

if TYPE_CHECKING:
    from vllm_cluster.kernel.plan.members import Way


@dataclass(frozen=True)
class _Named:
    """Rows of host, user, port and jump."""

    rows: tuple[tuple[Name, Name | None, Port | None, Name | None], ...]


@dataclass(frozen=True)
class _Heads:
    """Rows of host, user, port and jump, and of what a `Led` has."""

    rows: tuple[tuple[Name, Name | None, Port | None, Name | None, Address, Name, bool, bool, bool], ...]


_Rows = TypeVar("_Rows", _Named, _Heads)


class Visited:
    """The ways to the hosts that inventories on this machine have named, and the heads that `up` has made from here.

    There is a file for each name of a cluster. What a head remembers leads nowhere else, and what a host shows makes it
    no head: its labels are its own word.
    """

    def of(self, cluster: str) -> frozenset[Way]:
        """The ways that inventories of this cluster had here; none where the file cannot be read."""
        return frozenset(_read("hosts", cluster, _Named).rows)

    def add(self, cluster: str, ways: Iterable[Way]) -> None:
        """Remember these too. Where that cannot be written, a host that leaves later must be named by a person."""
        before = self.of(cluster)
        if now := frozenset(ways) - before:
            _write("hosts", cluster, before | now)

    def heads(self, cluster: str) -> Mapping[Way, Led]:
        """The heads of clusters of this name that `up` has made or found from here, by the way to each."""
        return {row[:4]: Led(*row[4:]) for row in _read("heads", cluster, _Heads).rows}

    def lead(self, cluster: str, way: Way, now: Led, members: Collection[Way] = ()) -> None:
        """Remember that the head of a cluster is there; with its `members`, that no other host leads it any more.

        They are of no other cluster of this name: a host has one node of a name.
        Where that cannot be written, a head that moves later is one that this machine does not know.
        """
        before = self.heads(cluster)
        ended = {one for one, led in before.items() if members and led.id == now.id}
        kept = {one: led for one, led in before.items() if led.id == now.id or one not in members}
        others = {one: replace(led, leads=led.leads and one not in ended) for one, led in kept.items()}
        self._keep(cluster, {**others, way: now})

    def forget(self, cluster: str, identity: str, members: Collection[Way]) -> None:
        """Forget the heads of a cluster that was removed from these hosts."""
        kept = {way: led for way, led in self.heads(cluster).items() if led.id != identity or way not in members}
        self._keep(cluster, kept)

    def _keep(self, cluster: str, heads: Mapping[Way, Led]) -> None:
        if heads != self.heads(cluster):
            _write("heads", cluster, ((*way, *astuple(led)) for way, led in heads.items()))


def _read(kind: str, cluster: str, rows: type[_Rows]) -> _Rows:
    with suppress(OSError, RefusedDocument, UsageError):
        path = _file(kind, cluster)
        return convert(rows, {"rows": document(read_own_file(path), str(path))}, str(path))
    return rows(())


def _write(kind: str, cluster: str, rows: Iterable[tuple[object, ...]]) -> None:
    with suppress(OSError, UsageError):
        path = _file(kind, cluster)
        make_private(path.parent)
        write_whole(path, json.dumps(sorted(rows, key=str)), mode=0o600)


def _file(kind: str, cluster: str) -> Path:
    return cache_folder() / kind / f"{cluster}.json"
