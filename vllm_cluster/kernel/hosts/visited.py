"""What this machine keeps of hosts: the ways to them that its inventories have named."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.laptop import cache_folder, make_private, read_own_file, write_whole
from vllm_cluster.wire.reading import RefusedDocument, convert, document
from vllm_cluster.wire.values import Name, Port

if TYPE_CHECKING:
    from vllm_cluster.kernel.plan.members import Way


@dataclass(frozen=True)
class _Named:
    """Rows of host, user, port and jump."""

    ways: tuple[tuple[Name, Name | None, Port | None, Name | None], ...]


class Visited:
    """The ways to the hosts that inventories on this machine have named, in a file for each cluster.

    What a head remembers leads nowhere else.
    """

    def of(self, cluster: str) -> frozenset[Way]:
        """The ways that inventories of this cluster had here; none where the file cannot be read."""
        with suppress(OSError, RefusedDocument, UsageError):
            path = _file(cluster)
            rows = document(read_own_file(path), str(path))
            return frozenset(convert(_Named, {"ways": rows}, str(path)).ways)
        return frozenset()

    def add(self, cluster: str, ways: Iterable[Way]) -> None:
        """Remember these too. Where that cannot be written, a host that leaves later must be named by a person."""
        before = self.of(cluster)
        if now := frozenset(ways) - before:
            with suppress(OSError, UsageError):
                path = _file(cluster)
                make_private(path.parent)
                write_whole(path, json.dumps(sorted(before | now, key=str)), mode=0o600)


def _file(cluster: str) -> Path:
    return cache_folder() / "hosts" / f"{cluster}.json"
