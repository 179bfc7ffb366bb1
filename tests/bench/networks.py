"""Hosts as network namespaces on a bridge of their own, each behind a link of a given rate both ways."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=60).stdout


@dataclass(frozen=True)
class Network:
    """Hosts 0 to count - 1; what is done to a link is done to host `index` alone."""

    tag: str
    count: int

    def namespace(self, index: int) -> str:
        """The namespace of a host."""
        return f"vs-{self.tag}-{index}"

    @property
    def _switch(self) -> str:
        # The bridge has a namespace too: Docker's firewall drops what this machine itself would forward.
        return f"vs-{self.tag}-switch"

    def address(self, index: int) -> str:
        """The address of a host."""
        return f"10.209.{sum(self.tag.encode()) % 250}.{index + 1}"

    def argv(self, index: int, command: Sequence[str]) -> list[str]:
        """The command, to be run on a host."""
        return ["ip", "netns", "exec", self.namespace(index), *command]

    def shape(self, index: int, rate: str) -> None:
        """Give a host's link another rate, both ways."""
        for namespace, device in ((self.namespace(index), "e0"), (self._switch, f"p{index}")):
            shaping = ["rate", rate, "burst", "64kb", "latency", "30ms"]
            subprocess.run(
                ["tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", *shaping],
                check=True,
                capture_output=True,
                timeout=60,
            )

    def cut(self, index: int) -> None:
        """Drop every packet of a host; its interface stays up."""
        self._bridge("link", "set", "dev", f"p{index}", "state", "0")

    def heal(self, index: int) -> None:
        """Undo a cut."""
        self._bridge("link", "set", "dev", f"p{index}", "state", "3")

    def sent(self, index: int) -> int:
        """The bytes that a host has sent so far."""
        (row,) = json.loads(_ip("-n", self.namespace(index), "-s", "-j", "link", "show", "dev", "e0"))
        return int(row["stats64"]["tx"]["bytes"])

    def _bridge(self, *words: str) -> None:
        subprocess.run(["bridge", "-n", self._switch, *words], check=True, capture_output=True, timeout=60)

    def make(self, rate: str | None) -> None:
        """Make the bridge, the hosts and their links."""
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "br0", "up", "type", "bridge")
        for index in range(self.count):
            own = self.namespace(index)
            _ip("netns", "add", own)
            _ip("-n", self._switch, "link", "add", f"p{index}", "type", "veth", "peer", "name", "e0", "netns", own)
            _ip("-n", self._switch, "link", "set", f"p{index}", "master", "br0", "up")
            _ip("-n", own, "link", "set", "lo", "up")
            _ip("-n", own, "address", "add", f"{self.address(index)}/24", "dev", "e0")
            _ip("-n", own, "link", "set", "e0", "up")
            if rate:
                self.shape(index, rate)

    def remove(self) -> None:
        """Remove all of it."""
        for name in [self._switch, *map(self.namespace, range(self.count))]:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", name)


@contextmanager
def network(tag: str, count: int, rate: str | None) -> Iterator[Network]:
    """A network that is removed at the end; without a rate its links are as fast as this machine."""
    made = Network(tag, count)
    made.remove()
    try:
        made.make(rate)
        yield made
    finally:
        made.remove()
