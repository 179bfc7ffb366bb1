"""The members of the cluster as the head's state has them, and which of their nodes a run of `up` makes again."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Collection
from pathlib import Path

from vllm_cluster.wire.inside import beginning
from vllm_cluster.wire.parts import MAX_REPLACING, RECORD_FILE, REPLACING, CountedMembers, Replacing
from vllm_cluster.wire.reading import MAX_BYTES, RefusedDocument, read

# The longest that a run may take to pull an image and begin again with nodes.
RUN_SECONDS = 7200.0
# A node dials from its own address; from one that no host has, as that of a router; from that of another member.
OWN, UNKNOWN, OTHERS = 2, 1, 0


class HeadMembers:
    """Their GPUs and names, by address."""

    def __init__(self, state: Path) -> None:
        self._state, self._known = state, ""
        self.gpus: dict[str, int] = {}
        self.names: dict[str, str] = {}

    def look(self) -> None:
        """Read them again: hosts join and leave while a model is served."""
        try:
            raw = beginning(self._state / RECORD_FILE, MAX_BYTES + 1)
            rows = read(CountedMembers, raw, RECORD_FILE).members
        except (OSError, RefusedDocument):
            return  # perhaps half written, or about to be: what was read before holds
        self.gpus = {row.address: row.gpus for row in rows if not row.leaving}
        self.names = {row.address: row.name for row in rows}

    def claim(self, host: str, address: str, peer: str) -> tuple[bool, int]:
        """How well a node shows that it is this host of the cluster, by its name there and by where it dials from."""
        source = OWN if _same(peer, address) else OTHERS if peer in self.names else UNKNOWN
        return self.names.get(address) == host, source

    def replaced_by(self, addresses: Collection[str]) -> str:
        """Return who makes nodes at some of these addresses again, and which; empty where no run does.

        Once for each run, and not long after it began: one that breaks off leaves its note here.
        """
        path = self._state / REPLACING
        try:
            # Not the time of its content, which is that of an archive.
            if time.time() - path.stat().st_ctime > RUN_SECONDS:
                return ""
            found = read(Replacing, beginning(path, MAX_REPLACING + 1), REPLACING, MAX_REPLACING)
        except (OSError, RefusedDocument):
            return ""
        names = [self.names.get(one, one) for one in found.addresses if one in addresses]
        if not names or found.run == self._known:
            return ""
        self._known = found.run
        return f"{found.by} makes the node of {', '.join(names)} again by vcluster up"


def _same(one: str, other: str) -> bool:
    """Whether two texts are one address."""
    return one == other or (":" in one and ipaddress.ip_address(one) == ipaddress.ip_address(other))
