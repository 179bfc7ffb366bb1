"""Collects what the nodes of a cluster have written: bounded, and from every host that still answers."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from vllm_cluster.kernel.docker.client import MAX_LOG
from vllm_cluster.kernel.errors import CommandFailed, HostError
from vllm_cluster.kernel.explain.log_line import parse_time
from vllm_cluster.kernel.explain.scan import LogSource
from vllm_cluster.kernel.held import one_at_a_time, share
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.hosts.program import InNode, python, start
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.wire.order import Order, Placement
from vllm_cluster.wire.programs import ExcerptRow
from vllm_cluster.wire.reading import RefusedDocument, convert

EXCERPT_SECONDS = 30.0
# Of the logs of all hosts, which are kept until they have been looked through: of 16 hosts they took 394 MB,
# of 64 702; these 93. Of a host no more than the excerpt has by itself, which three hosts have whole.
ALL_HOSTS, ONE_HOST = 8 << 20, 2_500_000
# As text in JSON, the longest piece of a file that the excerpt prints at once.
MAX_PIECE = 110_000
# What an image's own start-up may print beside it.
BESIDE = 64 << 10
# The excerpt has 105 at most. What is kept of each is some kB: 88,838 names, in 4 MiB, took 421 MB and 75 s.
MAX_FILES = 128
# It has 200 lines at most between the beginning and the end of each long file, of which there are 13. Each piece is
# looked through by itself: 113,000 empty ones took 80 s and 76 MB.
MAX_PIECES = 8192
KERNEL_SECONDS = 10.0
# As serving/node/parts.py names them; what was before is kept with another number behind.
_SERVE_LOG = re.compile(r"serve(?:-(\d{1,4}))?\.log(?:\.\d)?")
TAIL = 2000
# The node program lets a file grow to 16 MiB (serving/node/parts.py), of which the end is what matters. There are as
# many as an order has replicas, and a host may claim thousands.
MAX_STOPPED_LOG, STOPPED_SECONDS = 17 << 20, 120.0
# Only what warns: the rest of the kernel's log is of no use here. Where only root may read it, it stays empty. Days and
# months are in the language of the host, if it is not asked otherwise.
_KERNEL = 'LC_ALL=C TZ=UTC dmesg -T --level=emerg,alert,crit,err,warn 2>/dev/null | tail -n 500 | tail -c "$1"'


@dataclass(frozen=True)
class Log:
    """A log of a host, as pieces that begin at line numbers."""

    host: str
    name: str
    parts: tuple[tuple[int, bytes], ...]

    def source(self) -> LogSource:
        """As something to scan."""
        return LogSource(f"{self.host}:{self.name}", self.parts, self.host, datetime.now(UTC).timestamp())


def sources(
    collected: Iterable[Iterable[Log]], *, of_vllm: bool = True, of: Collection[int] | None = None
) -> list[LogSource]:
    """What is to be scanned of the logs of all hosts: the node's own summary only repeats failures, past ones too.

    `of` are numbers of replicas: what only others have printed is left out.
    """
    left = ("status.json", "versions.json", *(() if of_vllm else ("serve.log", "serve-", "ray/worker-")))
    kept = (log for logs in collected for log in logs if not log.name.startswith(left))
    return [log.source() for log in kept if of is None or _replica(log.name) in (None, *of)]


def _replica(name: str) -> int | None:
    """The replica whose vLLM has printed a log; None of what is everyone's."""
    found = _SERVE_LOG.fullmatch(name)
    if found is None:
        # Ray runs the first one alone.
        return 0 if name.startswith("ray/worker-") else None
    return int(found[1] or 0)


def collect(connection: HostConnection, cluster: str, hosts: int = 1) -> list[Log]:
    """The logs of one observed host, one of so many whose logs are kept together; none where it has no node.

    Raises:
        HostError: it does not answer any more.
    """
    node = NodeHandle(connection, cluster)
    there = node.container()
    if there is None:
        return []
    # A line is as old as the first time in it: of a container that has ended, its end.
    times = [("StartedAt", there.started_at), ("FinishedAt", there.finished_at)]
    running = there.status == "running"
    ended = {"ExitCode": there.exit_code, "OOMKilled": there.out_of_memory, "Error": there.error}
    shown = {"Status": there.status, **ended, **dict(times if running else reversed(times))}
    # Docker's own spelling, for the catalogue knows it so from `docker inspect`.
    logs = [Log(connection.name, "state.json", ((1, json.dumps(shown, separators=(",", ":")).encode() + b"\n"),))]
    most = share(hosts, ALL_HOSTS, ONE_HOST)
    inside = _inside(node, most) if running else _stopped(node, most)
    logs += inside
    # Without times a line could be of any attempt.
    printed = connection.docker.logs(node.name, tail=TAIL, times=True, most=min(MAX_LOG, most // 4))
    kernel = ("sh", "-c", _KERNEL, "sh", str(most // 4))
    warned = connection.transport.run(kernel, connection.runtime.after(KERNEL_SECONDS), most=most // 2)
    # vLLM's own lines are in serve.log too, or in that of their replica.
    twice = any(log.name.startswith("serve") for log in inside)
    # Short lines take many times their text while they are looked at: 32 hosts at once took 200 MB.
    with one_at_a_time():
        lines = [line for line in printed.splitlines(keepends=True) if not (twice and " [vllm" in line[:50])]
        logs.append(Log(connection.name, "docker.log", ((1, "".join(lines).encode()),)))
        del lines
        logs.append(Log(connection.name, "dmesg", ((1, _since(warned.text, there.started_at)),)))
    return logs


def _inside(node: NodeHandle, most: int) -> list[Log]:
    """What the container's own Python picks out of its files, at most so many bytes."""
    program = python("serving.explain.on_host", "log_excerpt", str(most), seconds=EXCERPT_SECONDS - 5)
    program = replace(program, max_line=MAX_PIECE, max_bytes=most + BESIDE)
    due = node.connection.runtime.after(EXCERPT_SECONDS)
    # Each row as it comes: of a host that lies all together take 25 times as much as their text.
    with start(node.connection, program, InNode(node.name), due) as running:
        found = by_file(node.host, running.messages(due))
        running.finish(due)
    return found


def by_file(host: str, rows: Iterable[Mapping[str, object]]) -> list[Log]:
    """The logs that an excerpt's rows hold; other rows are skipped.

    Of a long file each line is a row: what belongs together is one piece again, for a traceback is read as a whole.

    Raises:
        HostError: more files, or pieces, than any excerpt has.
    """
    found: dict[str, list[tuple[int, bytearray]]] = {}
    ends: dict[str, int] = {}
    pieces = 0
    for row in rows:
        try:
            one = convert(ExcerptRow, row, "its excerpt")
        except RefusedDocument:
            continue
        name, line, part = one.file[:200], one.line, one.text.encode("utf-8", "replace")
        # Until the next one comes both would be held, with four bytes for each character.
        del row, one
        parts = found.setdefault(name, [])
        if len(found) > MAX_FILES:
            raise HostError(host, f"its excerpt has more than {MAX_FILES} files", again=())
        if ends.get(name) == line:
            parts[-1][1].extend(part)
        else:
            parts.append((line, bytearray(part)))
            pieces += 1
            if pieces > MAX_PIECES:
                raise HostError(host, f"its excerpt has more than {MAX_PIECES} pieces", again=())
        ends[name] = line + part.count(b"\n")
    return [Log(host, name, tuple((at, bytes(part)) for at, part in parts)) for name, parts in found.items()]


def _stopped(node: NodeHandle, most: int) -> list[Log]:
    """What can be read of a container that does not run: the ends of the files that the node program keeps."""
    found = {}
    rows: Sequence[Placement] = ()
    with suppress(CommandFailed, RefusedDocument):
        rows = (node.order() or Order()).deployments
    further = [f"serve-{one.index}.log" for one in rows if one.index]
    until, kept = node.connection.runtime.after(STOPPED_SECONDS), most // (1 + len(further))
    for name in ("serve.log", *further, "status.json"):
        if not until.left():
            break
        with suppress(CommandFailed):
            found[name] = node.read_end(name, MAX_STOPPED_LOG, kept) or b""
    return [Log(node.host, name, ((1, content),)) for name, content in found.items() if content]


def _since(printed: str, started: str) -> bytes:
    """The kernel's warnings since the container started: an older one explains nothing."""
    since = parse_time(started) or 0.0
    return "".join(f"{line}\n" for line in printed.splitlines() if (parse_time(line) or 0.0) >= since).encode()
