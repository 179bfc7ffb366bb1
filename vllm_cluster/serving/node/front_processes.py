"""The front in several processes: each takes a part of the connections, and the first adds up what they have done."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

from vllm_cluster.serving.node.files import write_whole
from vllm_cluster.serving.node.front_settings import FrontSettings
from vllm_cluster.serving.node.parse_argv import Place
from vllm_cluster.serving.node.process import log_line
from vllm_cluster.wire.front import FrontCount, FrontStatus
from vllm_cluster.wire.inside import beginning
from vllm_cluster.wire.reading import RefusedDocument, read

POLL_SECONDS, BACKLOG = 0.1, 4096
# For the end of a process, beyond its grace for open requests.
END_SECONDS = 5.0
# A status has a row a replica, and a few counts.
MAX_STATUS = 1 << 20
# One process hands on about 33,000 tokens a second (docs/developers/measured.md), as three replicas of a small model
# give; the engines need cores as well.
CORES, MAX_PROCESSES = 8, 4


def process_count() -> int:
    """How many the front has on this host."""
    return min(max(len(os.sched_getaffinity(0)) // CORES, 1), MAX_PROCESSES)


def listeners(at: Place, count: int) -> list[socket.socket]:
    """Listen there, once for each process: the kernel deals new connections out among them.

    Raises:
        OSError: the port is taken.
    """
    family = socket.AF_INET6 if ":" in at[0] else socket.AF_INET
    if count > 1:
        # Beside another program of this user with this option each would get a part of the clients.
        with socket.socket(family) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(at)
    return [socket.create_server(at, family=family, backlog=BACKLOG, reuse_port=count > 1) for _ in range(count)]


def listening_line(at: Place) -> str:
    """Word that it listens."""
    return f"listening on {at[0]}:{at[1]}"


def read_status(path: Path) -> FrontStatus | None:
    """What the front has written last; None where it cannot be read."""
    try:
        return read(FrontStatus, beginning(path, MAX_STATUS + 1), path.name, MAX_STATUS)
    except (OSError, RefusedDocument):
        return None


def total(parts: Sequence[FrontStatus], pid: int) -> FrontStatus:
    """What all have done; routes are in force once each process has them."""
    by_status, rows = Counter[str](), dict[str, FrontCount]()
    for part in parts:
        by_status.update(part.by_status)
        for name, row in part.replicas.items():
            one = rows.get(name, FrontCount())
            rows[name] = FrontCount(one.open + row.open, one.requests + row.requests, one.failed + row.failed)
    return FrontStatus(
        1,
        pid,
        0.0,
        sum(part.connections for part in parts),
        sum(part.open for part in parts),
        sum(part.requests for part in parts),
        dict(sorted(by_status.items())),
        dict(sorted(rows.items())),
        next((part.error for part in parts if part.error), ""),
        min(part.routes for part in parts),
    )


class FrontProcesses:
    """The processes, until a signal or the end of any: then the others end too, and the front is started again."""

    def __init__(self, settings: FrontSettings, run: Callable[[FrontSettings, socket.socket, int], int]) -> None:
        self._settings, self._run = settings, run
        self._shares = [settings.share(number) for number in range(settings.processes)]
        self._pids: list[int] = []
        self._shown: FrontStatus | None = None

    def keep(self, sockets: Sequence[socket.socket]) -> int:
        """Serve with a process a socket; returns 0 after a signal, else the exit code of the first that has ended."""
        # Its other end closes with this process, whichever way that ends.
        lives, held = os.pipe()
        for share, own in zip(self._shares, sockets, strict=True):
            if share.status:
                # Of a container before this one, whose processes had the same numbers.
                share.status.unlink(missing_ok=True)
            if not (pid := os.fork()):
                os.close(held)
                for other in sockets:
                    # Held here, what is dealt to another would wait after that one's end.
                    if other is not own:
                        other.close()
                self._be(share, own, lives)
            self._pids.append(pid)
            own.close()
        stopping = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopping.set())
        code = 0
        while not stopping.wait(POLL_SECONDS) and not (code := self._ended()):
            self._write()
        # Streams end where one has: what the others would do alone is not what clients of the port see.
        self._end(signal.SIGKILL if code else signal.SIGTERM)
        self._write()
        return code

    def _end(self, how: signal.Signals) -> None:
        """End all that are left; one that does not end in its time, as it is stopped, is killed."""
        until = time.monotonic() + self._settings.grace + END_SECONDS
        for number in (how, signal.SIGKILL):
            for pid in self._pids:
                os.kill(pid, number)
            while self._pids and (number == signal.SIGKILL or time.monotonic() < until):
                if not self._ended():
                    time.sleep(POLL_SECONDS / 10)

    def _be(self, share: FrontSettings, own: socket.socket, lives: int) -> NoReturn:
        """Be one of the processes."""
        code = 1
        try:
            code = self._run(share, own, lives)
        except BaseException as fault:
            log_line("front", f"{type(fault).__name__}: {fault}")
        finally:
            os._exit(code)

    def _ended(self) -> int:
        """The exit code of one that has ended by itself, else 0."""
        for pid in self._pids:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._pids.remove(pid)
                return abs(os.waitstatus_to_exitcode(status)) or 1
        return 0

    def _write(self) -> None:
        """Write what all have done, once each has written that of its own."""
        parts = [read_status(share.status) for share in self._shares if share.status]
        found = [part for part in parts if part]
        if self._settings.status is None or len(found) < len(self._shares):
            return
        status = total(found, os.getpid())
        if status == self._shown or not write_whole(
            self._settings.status, {**asdict(status), "updated": round(time.time(), 3)}
        ):
            return
        if self._shown is None:
            log_line("front", listening_line(self._settings.listen))
        self._shown = status
