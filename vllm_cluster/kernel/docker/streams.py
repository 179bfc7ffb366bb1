"""What a host's Docker sends for as long as it lasts: a container's log, and the ends of a command in one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime

from vllm_cluster.kernel.docker import parse
from vllm_cluster.kernel.docker.calls import Allowance, Call, Calls, Reply, path
from vllm_cluster.wire.reading import RefusedDocument

# A log is followed, and a command runs, until a person ends it; a broken connection ends both.
ENDLESS = 10_000_000.0
# What has an end is not waited for any more where nothing of it came for so long.
SILENT_SECONDS, WAITING_SECONDS = 120.0, 1800.0
# Docker keeps 150 MB of it (container_body.py): with the times that it sends it is not longer.
WHOLE_LOG = Allowance(SILENT_SECONDS, WAITING_SECONDS, 256 << 20)
CLOCK_SAMPLES = 3


class Streams:
    """The long answers of one host's Docker."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    @contextmanager
    def log(
        self,
        container: str,
        *,
        since: int | None = None,
        until: int | None = None,
        follow: bool = False,
        seconds: float | None = None,
    ) -> Iterator[Iterator[bytes]]:
        """What a container has printed, both outputs, as frames with times; `since` and `until` in nanoseconds.

        A short read ends within `seconds`, and keeps its connection for the next.
        """
        query = {"stdout": 1, "stderr": 1, "timestamps": 1, "follow": int(follow), "since": _when(since)}
        query["until"] = _when(until)
        call = Call(
            f"read the log of {container}", "GET", path("containers", container, "logs"), query, whole=seconds is None
        )
        most = seconds or (ENDLESS if follow else SILENT_SECONDS)
        with self._calls.stream(call, self._calls.after(most)) as reply:
            yield reply.pieces(None if follow or seconds else WHOLE_LOG)

    @contextmanager
    def exec(
        self,
        container: str,
        argv: Sequence[str],
        *,
        terminal: bool = False,
        environment: Mapping[str, str] | None = None,
        allowed: Allowance | None = None,
    ) -> Iterator[RunningExec]:
        """Start a command in a running container; it looks, or it is a person's own: the guard is not asked.

        `allowed` is for one that ends by itself.
        """
        what = f"exec in {container}"
        body: dict[str, object] = {"Cmd": list(argv), "AttachStdout": True, "AttachStderr": True, "AttachStdin": True}
        body |= {"Tty": terminal, "Env": [f"{name}={value}" for name, value in (environment or {}).items()]}
        made = self._calls.ask(
            Call(what, "POST", path("containers", container, "exec"), json=body, reads=True),
            lambda made: parse.text(made, "Id"),
        )
        start = {"Detach": False, "Tty": terminal}
        call = Call(what, "POST", path("exec", made, "start"), json=start, reads=True)
        with self._calls.stream(call, self._calls.after(allowed.silent if allowed else ENDLESS)) as reply:
            yield RunningExec(self._calls, reply, made, allowed)

    def clock_offset(self) -> int:
        """How far this host's clock is ahead of this machine's, in nanoseconds, to half of a round trip."""
        clock, best = self._calls.clock, (float("inf"), 0)
        for _ in range(CLOCK_SAMPLES):
            begun = clock.time()
            theirs = self._calls.ask(Call("ask for the time", "GET", "/info"), _time)
            ended = clock.time()
            offset = theirs - (begun + ended) / 2
            best = min(best, (ended - begun, int(offset * 1e9)))
        return best[1]


class RunningExec:
    """A command in a container: its output, its input, its terminal and its exit code."""

    def __init__(self, calls: Calls, reply: Reply, identity: str, allowed: Allowance | None = None) -> None:
        self._calls, self._reply, self._id, self._allowed = calls, reply, identity, allowed

    def output(self) -> Iterator[bytes]:
        """What it prints, as it comes: plain with a terminal, else in frames."""
        return self._reply.pieces(self._allowed)

    def send(self, data: bytes) -> None:
        """Send to its input.

        Raises:
            HostError: it takes no more.
        """
        with self._reply.failing() as connection:
            connection.stream.sendall(data)

    def end_input(self) -> None:
        """Close its input."""
        with self._reply.failing() as connection:
            connection.stream.shutdown_write()

    def resize(self, rows: int, columns: int) -> None:
        """Give its terminal another size."""
        query = {"h": rows, "w": columns}
        self._calls.do(Call("resize its terminal", "POST", path("exec", self._id, "resize"), query, reads=True))

    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        call = Call("ask for its exit code", "GET", path("exec", self._id, "json"))
        info = self._calls.ask(call, parse.read_exec)
        return None if info.running else info.exit_code


def _time(info: object) -> float:
    try:
        return datetime.fromisoformat(parse.text(info, "SystemTime")).timestamp()
    except (ValueError, OverflowError):
        raise RefusedDocument(parse.SENDER, "SystemTime", "is not a date with a time") from None


def _when(nanoseconds: int | None) -> str | None:
    return None if nanoseconds is None else f"{nanoseconds // 10**9}.{nanoseconds % 10**9:09d}"
