"""Runs in the pull's container on each host: the first one downloads, the others get the files from host to host.

Standard library only and Python 3.10, but for the downloading host, which uses the image's huggingface_hub.
Docker starts it again where it was killed (on-failure): what is on the disk is taken up. It ends with 0 once all hosts
are complete, and also where it cannot continue: then its status has the reason.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_cluster.kernel.spread.origin import Copy, Fed, is_fed
from vllm_cluster.kernel.spread.plan import PullError, read_plan, write_json
from vllm_cluster.kernel.spread.spread import SpreadProgress, receive, serve
from vllm_cluster.kernel.spread.spread_serve import SpreadServer
from vllm_cluster.kernel.spread.store import Store
from vllm_cluster.wire.pull import HERE, HostPlan, PullPhase, digest_of

if TYPE_CHECKING:
    from vllm_cluster.kernel.spread.download import Download

# Its plan, its token, and its status: where any user of a container may write.
FOLDER = Path(os.environ.get("VCLUSTER_PULL", "/tmp"))  # noqa: S108 - the container's own
PLAN, TOKEN, STATUS = "vcluster-plan.json", "vcluster-token", "vcluster-status.json"
BEAT_SECONDS = 1.0
# For the others to learn from the source that all are complete.
FAREWELL_SECONDS = 3.0
# A host that has not come by then will not; another pull completes it.
MAX_WAIT = 24 * 3600.0
# Without a byte for as long, this host ends: its source has gone, and no command may be there that would remove it.
IDLE_SECONDS = 900.0
# Nor does a source send any while it hashes what it has: with four threads a slow network disk gives it as much.
HASHED_BYTES_PER_SECOND = 100e6
STOPPED = 143


class Pull:
    """One host's part."""

    def __init__(self, plan: HostPlan, leave: Callable[[], object]) -> None:
        """`leave` ends the program."""
        self.plan, self.store, self._leave = plan, Store(plan), leave
        self.phase: PullPhase = "starting"
        self.error, self.upstream = "", ""
        self.download: Download | Fed | Copy | None = None
        self._over = threading.Event()

    def run(self) -> None:
        """Bring every file here, and serve the others until all are complete."""
        beat = threading.Thread(target=self._beat, daemon=True)
        beat.start()
        try:
            self._bring()
            self.phase = "done"
        except (PullError, OSError) as error:
            self.phase, self.error = "failed", _words(error)
        finally:
            self._over.set()
            beat.join(BEAT_SECONDS * 5)
            self._write()

    def _bring(self) -> None:
        plan, store = self.plan, self.store
        store.claim()
        self.phase = "verifying"
        store.prove()
        server = self._serve() if len(plan.hosts) > 1 else None
        try:
            if plan.me == plan.hosts[0].name:
                self._download()
                waiting = server.waiting_for if server else list
            else:
                self.phase = "receiving"
                steering = receive(plan, store, self._report)
                waiting = lambda: steering.waiting_for  # noqa: E731
            self._verified()
            self._farewell(waiting)
        finally:
            if server:
                server.close()

    def _serve(self) -> SpreadServer:
        try:
            return serve(self.plan, self.store)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            me = self.plan.host(self.plan.me)
            raise PullError(f"{me.address}:{me.port} is used by another program") from error

    def _download(self) -> None:
        if self.plan.endpoint:
            # Only here: the other hosts need the standard library alone.
            from vllm_cluster.kernel.spread.download import Download  # noqa: PLC0415

            self.phase = "downloading"
            self.download = Download(self.plan, self.store, _token())
            self.download.run()
        elif self.plan.origin:
            sent = self.plan.origin == HERE
            self.phase = "copying"
            self.download = Fed(self.plan, self.store, FOLDER) if sent else Copy(self.plan, self.store)
            self.download.run()
        if lacking := [file.path for file in self.plan.files if not self.store.complete(file)]:
            raise PullError(f"{lacking[0]} is not there any more")

    def _verified(self) -> None:
        self.store.conclude()
        self.phase, self.upstream, self.error = "serving", "", ""

    def _farewell(self, waiting: Callable[[], object]) -> None:
        until = time.monotonic() + MAX_WAIT
        while waiting() and time.monotonic() < until:
            time.sleep(0.2)
        if len(self.plan.hosts) > 1:
            time.sleep(FAREWELL_SECONDS)
        # What takes the files of a laptop ends with this program, and has still to answer for the last one.
        until = time.monotonic() + FAREWELL_SECONDS
        while self.plan.origin == HERE and is_fed(FOLDER) and time.monotonic() < until:
            time.sleep(0.1)

    def _report(self, progress: SpreadProgress) -> None:
        if self.phase == "receiving":
            self.upstream, self.error = progress.upstream, progress.error

    def _beat(self) -> None:
        moved, before = time.monotonic(), -1
        timeout = IDLE_SECONDS + self.plan.total / HASHED_BYTES_PER_SECOND
        while not self._over.wait(BEAT_SECONDS):
            now = self._write()
            if now != before or self.phase != "receiving":
                moved, before = time.monotonic(), now
            if time.monotonic() - moved > timeout:
                self.phase, self.error = "failed", f"no byte came for {timeout:.0f} s: {self.error or 'no source'}"
                self._write()
                self._leave()

    def _write(self) -> int:
        trouble = self.download.trouble if self.download and self.phase in ("downloading", "copying") else ""
        there = sum(max(0, self.store.have(file)) for file in self.plan.files)
        row = {
            "v": 1,
            "id": self.plan.id,
            "model": self.plan.model,
            "commit": self.plan.commit,
            "reference": self.plan.reference,
            "source": self.plan.me == self.plan.hosts[0].name,
            "phase": self.phase,
            "bytes": there,
            "total": self.plan.total,
            "upstream": self.upstream,
            "unfed": self.plan.origin == HERE and self.phase == "copying" and not is_fed(FOLDER),
            "error": self.error or trouble,
            "at": time.time(),
        }
        if self.phase in ("serving", "done"):
            row["digest"] = digest_of(self.plan.files)
        with suppress(OSError):
            write_json(FOLDER / STATUS, row)
        return there


def _words(error: Exception) -> str:
    return (
        f"{error.strerror}: {error.filename or 'the cache'}"
        if isinstance(error, OSError) and error.strerror
        else str(error)
    )


def _token() -> str | None:
    with suppress(OSError):
        return (FOLDER / TOKEN).read_text().strip() or None
    return None


def _leave() -> None:
    """End with nothing left that is secret; a container that has ended can be looked at for as long as it is there."""
    for name in (PLAN, TOKEN):
        (FOLDER / name).unlink(missing_ok=True)
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    """Run the plan that is beside this program."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(STOPPED))
    # Docker starts it again where Docker itself was killed meanwhile, and the program had ended its part by then.
    if (FOLDER / PLAN).exists():
        Pull(read_plan(FOLDER / PLAN), _leave).run()
    _leave()


if __name__ == "__main__":
    main()
