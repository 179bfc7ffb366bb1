"""Gets every file from the host that the source names, several at once."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from vllm_cluster.remote.pull.plan import HostPlan, PulledFile
from vllm_cluster.remote.pull.spread_arriving import Arriving
from vllm_cluster.remote.pull.spread_parts import SpreadError, host_of
from vllm_cluster.remote.pull.spread_wire import LOST, SILENT_SECONDS, Busy, Peer
from vllm_cluster.remote.pull.store import Store

# Hashing takes a core at about 1.4 GB/s: several files at once fill a faster link.
STREAMS = 4
# Between two looks for what another thread or host brings.
PAUSE_SECONDS = 0.1


class Receiver:
    """Brings all files to this host, on several threads."""

    def __init__(self, plan: HostPlan, store: Store) -> None:
        self._plan, self._store = plan, store
        self.upstream = ""
        # Who could not be used, and the last error, until each is reported.
        self.failed, self.error = "", ""
        self.stop = threading.Event()
        self._fatal: Exception | None = None
        self._lock = threading.Lock()
        self._peers: set[Peer] = set()
        self._threads: list[threading.Thread] = []
        groups: dict[Path, list[tuple[int, PulledFile]]] = {}
        for index, file in enumerate(plan.files):
            if not store.complete(file):
                groups.setdefault(store.partial(file), []).append((index, file))
        # Files of the same content have one blob, and are fetched once.
        self._left = [Arriving(store, path, files) for path, files in groups.items()]
        self._total = sum(file.size for file in plan.files)

    @property
    def whole(self) -> bool:
        """Whether every file is here and verified."""
        return not self._left

    def bytes(self) -> int:
        """Return how much of the plan is here."""
        with self._lock:
            return self._total - sum(arriving.missing() for arriving in self._left)

    def start(self) -> None:
        """Start the threads that fetch."""
        self._threads += [threading.Thread(target=self._run, daemon=True) for _ in self._left[:STREAMS]]
        for thread in self._threads:
            thread.start()

    def gather(self) -> None:
        """Fetch each file from whichever host has it verified; for the source, which has no sender.

        Raises:
            SpreadError: no other host has a file, or this one cannot write it.
        """
        with ThreadPoolExecutor(STREAMS) as pool:
            for _ in pool.map(self._gather, list(self._left)):
                pass

    def _gather(self, arriving: Arriving) -> None:
        while arriving in self._left:
            if not self._get_elsewhere(arriving):
                raise SpreadError(f"{arriving.file.path}: no host has it undamaged")

    def close(self) -> None:
        """End the threads that fetch."""
        self.stop.set()
        self.use("")
        for thread in self._threads:
            thread.join(SILENT_SECONDS)

    def use(self, upstream: str) -> None:
        """Get from another host from now; what arrives from the one before breaks off."""
        with self._lock:
            closing = [peer for peer in self._peers if peer.name != upstream] if upstream != self.upstream else []
            self.upstream = upstream
        for peer in closing:
            peer.interrupt()

    def check(self) -> None:
        """Raise what ended a thread.

        Raises:
            SpreadError: a file cannot be brought here.
        """
        if self._fatal:
            raise self._fatal

    def _run(self) -> None:
        while self._left and not self.stop.is_set():
            upstream = self.upstream
            try:
                if upstream:
                    self._get_from(upstream)
            except Busy:
                pass
            except LOST as exc:
                if upstream == self.upstream:
                    self.failed, self.error = upstream, f"{upstream}: {exc or type(exc).__name__}"
            except Exception as exc:
                # Also what should not be: without this thread the host would wait for its files without end.
                self._fatal = exc
                self.stop.set()
            self.stop.wait(PAUSE_SECONDS)

    def _get_from(self, upstream: str) -> None:
        def wanted() -> bool:
            return self.upstream == upstream and not self.stop.is_set()

        with self._connected(upstream) as peer:
            while wanted() and self._left:
                with self._taken(peer) as arriving:
                    if arriving is None:
                        self.stop.wait(PAUSE_SECONDS)
                    elif arriving.avoid:
                        self._get_elsewhere(arriving)
                    else:
                        self._fetch(peer, arriving, wanted)

    @contextmanager
    def _connected(self, name: str) -> Iterator[Peer]:
        peer = Peer(self._plan, host_of(self._plan, name))
        with self._lock:
            self._peers.add(peer)
        try:
            yield peer
        finally:
            with self._lock:
                self._peers.discard(peer)
            peer.close()

    @contextmanager
    def _taken(self, peer: Peer) -> Iterator[Arriving | None]:
        """Choose a file that no other thread fetches: one of which there is more, else one to wait for."""
        have = None if all(arriving.taken for arriving in self._left) else peer.have()
        with self._lock:
            free = [arriving for arriving in self._left if have and not arriving.taken]
            more = [arriving for arriving in free if arriving.avoid or (have and have[arriving.index] > arriving.bytes)]
            arriving = next(iter(more or free), None)
            if arriving:
                arriving.taken = True
        try:
            yield arriving
        finally:
            if arriving:
                arriving.taken = False

    def _fetch(self, peer: Peer, arriving: Arriving, wanted: Callable[[], bool]) -> None:
        arriving.resume()
        if arriving.bytes < arriving.file.size:
            body = peer.file(arriving.index, arriving.file, arriving.bytes)
            if body is None:
                return
            arriving.append(body, peer.name, wanted)
        if arriving.bytes < arriving.file.size:
            # The sender waited in vain or the answer broke off: what is next is asked on a new connection.
            peer.close()
            return
        wrong = arriving.finish()
        if wrong:
            self.error = wrong
        else:
            with self._lock:
                self._left.remove(arriving)

    def _get_elsewhere(self, arriving: Arriving) -> bool:
        """Fetch a file from a host that has it verified, rather not from where it came wrong.

        Whether it makes sense to try again: it was fetched, or a host did not answer.
        """
        names = [host.name for host in self._plan.hosts if host.name != self._plan.me]
        random.shuffle(names)
        silent = False
        for name in sorted(names, key=arriving.avoid.__contains__):
            try:
                with self._connected(name) as peer:
                    if peer.have()[arriving.index] > arriving.file.size:
                        self._fetch(peer, arriving, lambda: not self.stop.is_set())
                        return True
            except (Busy, *LOST):
                silent = True
        self.stop.wait(PAUSE_SECONDS)
        return silent
