"""Moves the files of a pull from host to host: each forwards while it receives.

The source and every receiver call `serve`; a receiver then calls `receive`. Both continue to serve others until they
are closed: a receiver when its `waiting_for` is empty, the source some seconds later, so that the others learn it.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from vllm_cluster.remote.pull.plan import HostPlan
from vllm_cluster.remote.pull.spread_parts import Report, SpreadProgress
from vllm_cluster.remote.pull.spread_receive import Receiver
from vllm_cluster.remote.pull.spread_serve import SpreadServer
from vllm_cluster.remote.pull.spread_wire import LOST, SILENT_SECONDS, Busy, Peer
from vllm_cluster.remote.pull.store import Store

BEAT_SECONDS = 0.5
# A source that does not answer for this long is gone: the others share what they have.
ALONE_SECONDS = 15.0


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
        SpreadError: this host cannot write, or a file is wrong from everywhere.
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
            SpreadError: this host cannot become complete.
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
            answer = self._source.report({"bytes": receiver.bytes(), "failed": failed})
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

    def _follow(self, answer: dict[str, Any]) -> None:
        self.waiting_for = [str(name) for name in answer.get("waiting_for", ())]
        upstream = answer.get("upstream")
        if upstream in {host.name for host in self._plan.hosts}:
            self._receiver.use(str(upstream))

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
