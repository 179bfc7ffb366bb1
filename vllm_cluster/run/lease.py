"""The right to change a cluster: a lock on its head that lives exactly as long as its holder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from importlib.resources import files

from vllm_cluster.core.errors import CommandFailed, HostError, Locked, Lost
from vllm_cluster.laptop import whoami
from vllm_cluster.run.fleet import Link
from vllm_cluster.run.runtime import Repeated
from vllm_cluster.transport.base import Stream

# Without a heartbeat for this long the head gives the lease up.
TIME_TO_LIVE = 15
HEARTBEAT = 4.0
ANSWER_SECONDS = TIME_TO_LIVE - HEARTBEAT
RELEASE_SECONDS = 5.0
# Between two attempts of one who waits.
RETRY = 0.5
# Who has just taken it has not signed yet, and who lets go takes the name away: both are over in a moment.
UNCLEAR_SECONDS, RETRY_UNCLEAR = 5.0, 0.1
LONGEST_ANSWER = 4096

_BUSY, _REPLACED = 75, 76


class Lease:
    """Held from `acquire` to `release`. A holder that dies frees it; so does one that falls silent."""

    def __init__(self, head: Link, cluster: str, verb: str) -> None:
        self._transport, self._runtime = head.transport, head.runtime
        self._file = f"/tmp/vcluster-{cluster}.lock"  # noqa: S108 - of all users of the head, or it would not exclude
        self._cluster = cluster
        since = datetime.now().astimezone().isoformat(timespec="seconds")
        self._who = f"{whoami()} (vcluster {verb}) since {since}"
        self._stream: Stream | None = None
        self._broken: str = ""
        self._answered = 0.0
        self._beats: Repeated | None = None

    def acquire(self, wait: float = 0.0, waiting: Callable[[str], None] | None = None) -> None:
        """Take the lease, trying again for `wait` seconds.

        Raises:
            Locked: somebody else holds it; the message says who and since when.
        """
        deadline, unclear = self._runtime.after(wait), self._runtime.after(UNCLEAR_SECONDS)
        while True:
            holder = self._try()
            if holder is None:
                self._beats = self._runtime.repeat(self.beat, HEARTBEAT, "lease")
                return
            if not max(deadline.left(), 0.0 if holder else unclear.left()):
                raise Locked(
                    f"{self._cluster} is being changed by {holder or 'somebody who does not say who'}",
                    hint="wait until it has finished, or let this command wait: --wait 600",
                )
            if waiting and holder:
                waiting(holder)
            self._runtime.clock.sleep(RETRY if holder else RETRY_UNCLEAR)

    def _try(self) -> str | None:
        """One attempt: None when the lease is ours, else who holds it; nobody's name where that is just changing."""
        asked = self._runtime.clock.monotonic()
        script = files("vllm_cluster.run").joinpath("lease.sh").read_text()
        argv = ["sh", "-c", script, "lease", self._file, self._who, str(TIME_TO_LIVE)]
        stream = self._transport.open_stream(argv, self._runtime.after(30))
        stream.settimeout(30)
        said = b""
        try:
            while not said.endswith(b"\n") and len(said) < LONGEST_ANSWER:
                data = stream.recv(4096)
                if not data:
                    break
                said += data
        except BaseException:
            stream.close()
            raise
        answer = said.decode("utf-8", "replace").strip()
        if answer == "held":
            self._stream, self._answered = stream, asked
            return None
        problem = stream.stderr_tail()
        stream.close()
        if problem:
            host = self._transport.host
            raise CommandFailed(host, f"cannot take the lease: {problem}", exit_code=1, stderr=problem)
        return answer

    def beat(self) -> bool:
        """Tell the head that we live, and hear that we still hold the lease; False once that is over."""
        stream, sent = self._stream, self._runtime.clock.monotonic()
        if stream is None or self._broken:
            return False
        try:
            stream.sendall(b"\n")
            stream.settimeout(ANSWER_SECONDS)
            if not stream.recv(4096):
                self._broken = "the head has given it up"
                return False
        except (OSError, HostError, EOFError) as error:
            self._broken = str(error) or type(error).__name__
            return False
        self._answered = sent
        return True

    def check(self) -> None:
        """Go on only while the lease is surely ours: what is sent into a black hole seems to arrive, answers don't.

        Raises:
            Lost: the channel that holds it is gone, or silent for as long as the head waits.
        """
        silent = self._runtime.clock.monotonic() - self._answered
        if self._broken or silent >= TIME_TO_LIVE:
            why = self._broken or f"no answer for {silent:.0f} s"
            raise Lost(self._transport.host, f"the lease is lost ({why}): run the command again")

    def release(self) -> None:
        """Give the lease back; no error where it is gone already."""
        if self._beats:
            self._beats.stop()
        if self._stream:
            with suppress(OSError, HostError, EOFError):
                self._stream.sendall(b"end\n")
                if self._beats:
                    self._beats.join(RELEASE_SECONDS)  # one reader at a time
                self._stream.settimeout(RELEASE_SECONDS)
                # Until the other side has let go, so that the next command finds it free.
                while not (self._beats and self._beats.is_alive()) and self._stream.recv(4096):
                    pass
            self._stream.close()
            self._stream = None

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
