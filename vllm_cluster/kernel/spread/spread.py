"""Moves the files of a pull from host to host: each forwards while it receives.

The source and every receiver call `serve`; a receiver then calls `receive`. Both continue to serve others until they
are closed: a receiver when its `waiting_for` is empty, the source some seconds later, so that the others learn it.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from vllm_cluster.kernel.spread.plan import PullError
from vllm_cluster.kernel.spread.spread_arriving import Arriving
from vllm_cluster.kernel.spread.spread_serve import SpreadServer
from vllm_cluster.kernel.spread.spread_wire import LOST, SILENT_SECONDS, BadPeerError, Busy, Peer
from vllm_cluster.kernel.spread.store import Store
from vllm_cluster.wire.pull import HostPlan, ModelFile, SpreadOrder

BEAT_SECONDS = 0.5
# A source that does not answer for this long is gone: the others share what they have.
ALONE_SECONDS = 15.0
# Hashing takes a core at about 1.4 GB/s: several files at once fill a faster link.
STREAMS = 4
# A host that has more gives so much of it, or is left: one that answered and gave nothing was waited for without end.
PACE_SECONDS, PACE_BYTES = 10.0, 256 << 10
# Between two looks for what another thread or host brings.
PAUSE_SECONDS = 0.1
# The same for who has a whole file verified: each look asks all hosts, and the source may download it for hours.
LOOK_SECONDS = 1.0
# A file that the source gives wrong as often is wrong there, or on this host.
MAX_WRONG = 3


@dataclass(frozen=True)
class SpreadProgress:
    """How far this host is, in bytes of the plan; `error` is the last one since the report before."""

    bytes: int
    upstream: str = ""
    error: str = ""


Report: TypeAlias = Callable[[SpreadProgress], None]


def serve(plan: HostPlan, store: Store) -> SpreadServer:
    """Serve this host's files on its private address, on threads of its own.

    Raises:
        OSError: the address or the port cannot be used.
    """
    server = SpreadServer(plan, store)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
    return server


def receive(plan: HostPlan, store: Store, report: Report) -> Steering:
    """Bring every file to this host; return once all are verified and in their place.

    `report` is called twice a second, also after the return, until the steering is closed.

    Raises:
        PullError: this host cannot write, or a file is wrong from everywhere.
    """
    steering = Steering(plan, Receiver(plan, store), report)
    steering.run()
    return steering


class Steering:
    """Reports this host's progress to the source, and gets from whom the source names."""

    def __init__(self, plan: HostPlan, receiver: Receiver, report: Report) -> None:
        self._plan, self._receiver, self._report = plan, receiver, report
        # The hosts that are not complete, as the source last answered.
        self.waiting_for = [host.name for host in plan.hosts[1:]]
        self._source = Peer(plan, plan.hosts[0])
        self._answered = time.monotonic()
        self._turn = 0
        self._error = ""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._steer, daemon=True)

    def run(self) -> None:
        """Return once this host is complete; continue to report meanwhile and afterwards.

        Raises:
            PullError: this host cannot become complete.
        """
        self._thread.start()
        self._receiver.start()
        try:
            while not self._receiver.whole:
                self._receiver.stop.wait(0.05)
                self._receiver.check()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the reports; the others then take this host for gone."""
        self._closed.set()
        self._receiver.close()
        self._thread.join(SILENT_SECONDS)
        self._source.close()

    def _steer(self) -> None:
        while not self._closed.is_set():
            self._ask_source()
            receiver = self._receiver
            error, receiver.error = receiver.error or self._error, ""
            self._report(SpreadProgress(receiver.bytes(), receiver.upstream, error))
            self._closed.wait(BEAT_SECONDS if receiver.upstream and not receiver.failed else 0.1)

    def _ask_source(self) -> None:
        receiver, failed = self._receiver, self._receiver.failed
        try:
            answer = self._source.report(receiver.bytes(), failed)
        except (Busy, *LOST) as exc:
            self._source.close()
            self._error = f"{self._source.name}: {exc or type(exc).__name__}"
            if time.monotonic() - self._answered > ALONE_SECONDS and (failed or not receiver.upstream):
                self._try_next()
            return
        self._answered, self._error = time.monotonic(), ""
        if failed and receiver.failed == failed:
            receiver.failed = ""
        self._follow(answer)

    def _follow(self, order: SpreadOrder) -> None:
        self.waiting_for = list(order.waiting_for)
        if order.upstream in {host.name for host in self._plan.hosts}:
            self._receiver.use(order.upstream)

    def _try_next(self) -> None:
        """Look at one more of the others, and get from it where it has more than this host."""
        others = [host for host in self._plan.hosts[1:] if host.name != self._plan.me]
        if not others:
            return
        self._turn = (self._turn + 1) % len(others)
        peer = Peer(self._plan, others[self._turn])
        try:
            ahead = sum(min(have, file.size) for have, file in zip(peer.have(), self._plan.files, strict=True))
        except (Busy, ValueError, *LOST):
            return
        finally:
            peer.close()
        if ahead > self._receiver.bytes():
            self._receiver.failed = ""
            self._receiver.use(others[self._turn].name)


class Receiver:
    """Brings all files to this host, on several threads."""

    def __init__(self, plan: HostPlan, store: Store) -> None:
        self._plan, self._store = plan, store
        self.upstream = ""
        self._source = plan.hosts[0].name
        # Who gave a file that was wrong, and had it verified: nothing more is fetched from there.
        self._avoid: set[str] = set()
        # Who could not be used, and the last error, until each is reported.
        self.failed, self.error = "", ""
        # When a byte came last, or who gives them changed.
        self._moved = time.monotonic()
        self.stop = threading.Event()
        self._fatal: Exception | None = None
        self._lock = threading.Lock()
        self._peers: set[Peer] = set()
        self._threads: list[threading.Thread] = []
        groups: dict[Path, list[tuple[int, ModelFile]]] = {}
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
            self._moved = self._moved if upstream == self.upstream else time.monotonic()
            self.upstream = upstream
        for peer in closing:
            peer.interrupt()

    def check(self) -> None:
        """Raise what ended a thread.

        Raises:
            PullError: a file cannot be brought here.
        """
        if self._fatal:
            raise self._fatal

    def _run(self) -> None:
        while self._left and not self.stop.is_set():
            upstream = self.upstream
            try:
                if upstream in self._avoid:
                    self.failed = upstream
                elif upstream:
                    self._get_from(upstream)
            except Busy:
                if time.monotonic() - self._moved > PACE_SECONDS:
                    self._leave(upstream, Busy("serves others"))
            except LOST as exc:
                self._leave(upstream, exc)
            except Exception as exc:
                # Also what should not be: without this thread the host would wait for its files without end.
                self._fatal = exc
                self.stop.set()
            self.stop.wait(PAUSE_SECONDS)

    def _leave(self, upstream: str, why: Exception) -> None:
        if upstream == self.upstream:
            self.failed, self.error = upstream, f"{upstream}: {why or type(why).__name__}"

    def _get_from(self, upstream: str) -> None:
        def wanted() -> bool:
            return self.upstream == upstream and upstream not in self._avoid and not self.stop.is_set()

        with self._connected(upstream) as peer:
            while wanted() and self._left:
                with self._taken(peer) as arriving:
                    if arriving is None:
                        self.stop.wait(PAUSE_SECONDS)
                    elif arriving.wrong:
                        self._get_elsewhere(arriving)
                    else:
                        self._fetch(peer, arriving, wanted)

    @contextmanager
    def _connected(self, name: str) -> Iterator[Peer]:
        peer = Peer(self._plan, self._plan.host(name))
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
        arriving = self._more_of(peer.known)
        # Each answer is as long as the plan: with many small files they would take longer than the files.
        if arriving is None and not all(arriving.taken for arriving in self._left):
            arriving = self._more_of(peer.have(), waits=True)
        try:
            yield arriving
        finally:
            if arriving:
                arriving.taken = False

    def _more_of(self, have: Sequence[int], *, waits: bool = False) -> Arriving | None:
        """Take a free file of which a host answered that it has more; where it `waits`, else any, a wrong one first."""
        with self._lock:
            free = [arriving for arriving in self._left if have and not arriving.taken]
            more = (arriving for arriving in free if not arriving.wrong and have[arriving.index] > arriving.bytes)
            others = sorted(free, key=lambda arriving: not arriving.wrong) if waits else []
            arriving = next(chain(more, others), None)
            if arriving:
                arriving.taken = True
        return arriving

    def _fetch(self, peer: Peer, arriving: Arriving, wanted: Callable[[], bool]) -> None:
        if arriving.senders & self._avoid:
            arriving.restart()
        arriving.resume()
        size = arriving.file.size
        if arriving.bytes < size:
            known = peer.known[arriving.index] if peer.known else 0
            before, has = arriving.bytes, min(known, size)
            if body := peer.file(arriving.index, arriving.file, arriving.bytes):
                in_time = self._in_time(arriving, has, wanted)
                arriving.append(body, peer.name, in_time, verified=known > size)
            if wanted() and arriving.bytes == before < has:
                raise BadPeerError("gives less than it has")
            if body is None:
                peer.known = ()
                return
        if arriving.bytes < size:
            # The sender waited in vain or the answer broke off: what is next is asked on a new connection.
            peer.close()
            return
        culprit, senders = arriving.culprit(), {*arriving.senders}
        if arriving.finish():
            with self._lock:
                self._left.remove(arriving)
        else:
            self._avoid_wrong(arriving, culprit)
            if senders == {self.upstream} != {self._source}:
                # It may only have forwarded it: not accused, but another host comes before it in the chain.
                self.failed = self.upstream

    def _avoid_wrong(self, arriving: Arriving, culprit: str) -> None:
        """Report a file that came wrong, and get nothing more from who gave it; all comes from the source first.

        Raises:
            PullError: the source gives it wrong again and again.
        """
        self.error = arriving.wrong
        if culprit == self._source:
            arriving.wrong_from_source += 1
            if arriving.wrong_from_source >= MAX_WRONG:
                raise PullError(f"{arriving.wrong}, {MAX_WRONG} times")
        elif culprit:
            self._avoid.add(culprit)

    def _in_time(self, arriving: Arriving, has: int, wanted: Callable[[], bool]) -> Callable[[], bool]:
        """As `wanted`, while what a host `has` comes.

        Raises:
            BadPeerError: it gives so little of it that it is none.
        """
        began, before, last = time.monotonic(), arriving.bytes, arriving.bytes

        def check() -> bool:
            nonlocal began, before, last
            now = time.monotonic()
            if arriving.bytes > last:
                self._moved, last = now, arriving.bytes
            if now - began > PACE_SECONDS:
                if arriving.bytes - before < min(PACE_BYTES, has - before):
                    raise BadPeerError(f"gave {arriving.bytes - before} bytes in {PACE_SECONDS:g} s, and has more")
                began, before = now, arriving.bytes
            return wanted()

        return check

    def _get_elsewhere(self, arriving: Arriving) -> None:
        """Fetch all of a file from one host that has it verified, the source first; it may not be there yet."""
        others = [host.name for host in self._plan.hosts[1:] if host.name != self._plan.me]
        random.shuffle(others)
        # It came wrong once: any other may be who sent it so, and take its time now.
        for name in (self._source, *others):
            if self.stop.is_set() or arriving not in self._left:
                return
            if name in self._avoid:
                continue
            with suppress(Busy, *LOST), self._connected(name) as peer:
                if peer.have()[arriving.index] > arriving.file.size:
                    if arriving.senders - {name}:
                        # Bytes of two hosts, one of them wrong, show nothing of the other.
                        arriving.restart()
                    self._fetch(peer, arriving, self._for(arriving.term if name != self._source else math.inf))
        if arriving in self._left:
            arriving.term *= 2
            self.stop.wait(LOOK_SECONDS)

    def _for(self, seconds: float) -> Callable[[], bool]:
        until = time.monotonic() + seconds
        return lambda: time.monotonic() < until and not self.stop.is_set()
