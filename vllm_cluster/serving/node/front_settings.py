"""Where the front listens, its files and its limits: of all of it, and of each of its processes."""

from __future__ import annotations

import resource
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from vllm_cluster.serving.node.parse_argv import Place

MAX_CONNECTIONS, MAX_OPEN = 8192, 4096
# What comes of a body beside its own bytes, before it may be no more than those: chunks of a byte each are parsed in
# quadratic time by aiohttp 3.13, and lines behind the last chunk are kept without a limit: 97 MB took 2.6 GB.
MAX_FRAMING = 64 << 10
# Of all heads that are not whole yet: 300 strangers with heads of 3.6 MB took 1 GB. Four processes take 67 MB alone.
MAX_UNPROVED = 24 << 20
# Of one body, and of all whose answers have not begun.
MAX_BODY = 64 << 20
MAX_HELD = 256 << 20
# Files beside the connections of clients and replicas.
OTHER_FILES = 64


@dataclass(frozen=True)
class FrontSettings:
    """Where the front listens, and its files; `grace` is for what is open at its end."""

    listen: Place
    routes: Path
    status: Path | None
    key: str
    grace: float = 30.0
    # Tests wait for a part of the seconds that clients have.
    patience: float = 1.0
    connections: int = MAX_CONNECTIONS
    streams: int = MAX_OPEN
    unproved: int = MAX_UNPROVED
    held: int = MAX_HELD
    processes: int = 1
    # What all processes have done, where this is one of several.
    total: Path | None = None

    def share(self, number: int) -> FrontSettings:
        """What one of its processes may take, and where it writes what it has done."""
        of = self.processes
        return replace(
            self,
            status=self.status and self.status.with_name(f"{self.status.name}.{number}"),
            total=self.status,
            connections=self.connections // of,
            # Connections are not dealt out evenly: of 4,096 one of four processes got 1,051.
            streams=self.streams * 5 // 4 // of,
            unproved=self.unproved // of,
            # A body of the largest size must not be all that one of them may hold.
            held=max(self.held // of, min(self.held, 2 * MAX_BODY)),
        )


def limited(settings: FrontSettings) -> FrontSettings:
    """Raise the limit of open files; where it is low, fewer connections are taken."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OTHER_FILES
    if files >= settings.connections + settings.streams:
        return settings
    return replace(settings, connections=max(files * 2 // 3, 16), streams=max(files // 3, 8))
