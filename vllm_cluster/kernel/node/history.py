"""What was done to a cluster and what was served on it: the lines that laptops and the head's program left there."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import accumulate
from typing import TypeVar

from vllm_cluster import __version__
from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.hosts.program import python
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.laptop import whoami
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.node.named_files import NamedFiles, Spent
from vllm_cluster.kernel.plan.desired import STATE_FOLDER
from vllm_cluster.kernel.plan.history import AUDIT_FILE, RESTARTER, Entry
from vllm_cluster.kernel.plan.placement import serve_command
from vllm_cluster.kernel.text import count
from vllm_cluster.wire.history import AuditLine, ResultLine
from vllm_cluster.wire.order import RESULTS, Deployment, Order, Placement
from vllm_cluster.wire.reading import RefusedDocument, read
from vllm_cluster.wire.status import ServeStatus

APPEND_SECONDS = 10.0
# A file that is full, with 1 MiB, becomes another one; and the longest line, of 256 hosts. An honest line has 128 bytes
# and ten values: of 3 MiB in shorter ones the history took 165 MB and 23 s.
MAX_FILE, MAX_LINES, MAX_VALUES = (1 << 20) + (256 << 10), 8192, 100_000
T = TypeVar("T")


def record(
    node: NodeHandle,
    verb: str,
    operations: Sequence[str],
    emit: Emit,
    *,
    request: int = 0,
    seconds: float | None = None,
) -> None:
    """Append one line, that of `serve` and `stop` with the number of the request, that of `up` with its `seconds`.

    Secrets never get here, since operations do not hold their values.
    A head that runs no command at this moment only costs the line: what it is about has been done already.
    """
    line = json.dumps(
        {
            "time": round(node.connection.runtime.clock.time(), 3),
            "user": whoami(),
            "version": __version__,
            "run": node.connection.runtime.run,
            "verb": verb,
            "operations": list(operations),
            **({"request": request} if request else {}),
            **({} if seconds is None else {"seconds": round(seconds, 1)}),
        }
    )
    program = replace(python("kernel.node.on_host", "append_line", seconds=APPEND_SECONDS), changes=True)
    try:
        ended = node.run(program, APPEND_SECONDS + 5, {"path": f"{STATE_FOLDER}/{AUDIT_FILE}", "line": line})
        problem = "" if ended.messages else ended.text.rpartition("\n")[2] or f"exit code {ended.code}"
    except HostError as error:
        problem = error.detail
    if problem:
        emit(Event("warning", f"the history of {node.cluster} has no line for this {verb}: {problem}", node.host))


@dataclass(frozen=True)
class AuditEntry:
    """One line of the history: who ran what; `time` by the clock of their laptop."""

    user: str
    verb: str
    summary: str
    time: float
    run: str


def last_change(node: NodeHandle) -> AuditEntry | None:
    """The last line of the history; None where there is none that can be read."""
    last = last_line(node.read(AUDIT_FILE, MAX_FILE), f"{node.host}: {AUDIT_FILE}")
    if last is None:
        return None
    done = last.operations
    first = done[0] if len(done) == 1 else count(len(done), "change")
    what = first if first.startswith(last.verb) else f"{last.verb} ({first})"
    return AuditEntry(last.user, last.verb, what, last.time, last.run)


def last_other(node: NodeHandle) -> str:
    """Who ran what and when, by the last line of the history; empty where that line is this run's own."""
    last = last_change(node)
    if last is None or last.run == node.connection.runtime.run:
        return ""
    at = datetime.fromtimestamp(last.time).astimezone().isoformat(timespec="seconds")
    return f"{last.user} ran {last.summary} at {at}"


# What the node program writes of a restart, beside the one line for how a request ended.
_OF_RESTARTS = ("restarted", "ready again", "gave up")


def read_history(node: NodeHandle) -> list[Entry]:
    """Every entry that the head has kept, the oldest first; a line that cannot be read is passed over."""
    results = list(_lines(ResultLine, node, RESULTS))
    ends: dict[int, list[ResultLine]] = {}
    for line in results:
        if line.result not in _OF_RESTARTS:
            ends.setdefault(line.request, []).append(line)
    entries = [
        Entry(line.time, line.user, line.verb, line.operations, line.request or None, seconds=line.seconds)
        for line in _lines(AuditLine, node, AUDIT_FILE)
    ]
    history = [_with_end(entry, ends.pop(entry.request, [])) if entry.request else entry for entry in entries]
    # A laptop that lost its connection right after it wrote the request has left no line of its own.
    history += [_with_end(_of_head(number, lines), lines) for number, lines in ends.items()]
    return sorted([*history, *_restarts(results)], key=lambda entry: entry.time)


def restarts(node: NodeHandle, request_numbers: Collection[int]) -> list[Entry]:
    """The restarts of what these requests asked for, the oldest first."""
    return [entry for entry in _restarts(_lines(ResultLine, node, RESULTS)) if entry.request in request_numbers]


def ready_requests(node: NodeHandle, index: int = 0) -> tuple[Placement, ...]:
    """What was ready in the place of a replica, the newest last; nothing where that cannot be read."""
    return NamedFiles(node).ready(index)


def ready_request(node: NodeHandle, number: int) -> tuple[Placement | None, ResultLine | None]:
    """What was ready by the request of a number, and how that request ended; None where the head keeps it no more."""
    lines = [line for line in _lines(ResultLine, node, RESULTS) if line.request == number]
    end = next((line for line in lines if line.result == "ready"), lines[-1] if lines else None)
    if end is None or end.result != "ready":
        return None, end
    kept = ready_requests(node, end.replica)
    asked = (end.generation, end.replicas)
    return next((one for one in kept if (one.generation, one.deployment.replicas) == asked), None), end


def last_ready_request(node: NodeHandle, served: Collection[str], name: str = "") -> tuple[int, Placement] | None:
    """The last request that was ready and is kept still, with its number, but for those that are `served` now.

    Under a name where one is given.
    """
    lines = [line for line in _lines(ResultLine, node, RESULTS) if line.result == "ready"]
    lines = [line for line in lines if name in ("", line.name)]
    newest = [line for line in reversed(lines) if line.generation not in served]
    of_one: dict[int, list[int]] = {}  # where a replica's lines are
    for at, line in enumerate(newest):
        of_one.setdefault(line.replica, []).append(at)
    last, found = len(newest), None
    for index, ready in _ready_of(node, of_one):
        kept = {(one.generation, one.deployment.replicas): one for one in ready}
        for at in of_one[index]:
            one = kept.get((newest[at].generation, newest[at].replicas))
            if one and at < last:
                last, found = at, (newest[at].request, one)
    return found


def last_start(node: NodeHandle, deployment: Deployment) -> float | None:
    """How many seconds a model took the last time until it was ready; None where it never was, as far as is kept.

    Under the same name: under another it has other GPUs and flags.
    """
    which = (deployment.name, deployment.model, "ready")
    took = [line.seconds for line in _lines(ResultLine, node, RESULTS) if (line.name, line.model, line.result) == which]
    return next((seconds for seconds in reversed(took) if seconds), None)


def known_requests(node: NodeHandle) -> Iterator[Placement]:
    """What was asked for last of each replica, which may never get ready, then what was ready, the newest first."""
    rows: tuple[Placement, ...] = ()
    with suppress(RefusedDocument):
        rows = (node.order() or Order()).deployments
    yield from rows
    for _, ready in _ready_of(node, (0, *(one.index for one in rows))):
        yield from reversed(ready)


def _ready_of(node: NodeHandle, indexes: Iterable[int]) -> Iterator[tuple[int, tuple[Placement, ...]]]:
    """What was ready of each of these replicas, as far as all of them are small and quick enough."""
    files = NamedFiles(node)
    with suppress(Spent):
        for index in dict.fromkeys(indexes):
            yield index, files.ready(index)


def command_of(
    inventory: Inventory, node: NodeHandle, serve: ServeStatus, *, expose: bool = False, flag: str = ""
) -> str:
    """The command that asks for what is served again, with an option or a flag of vLLM more.

    Where the last order cannot be served, the head serves one that was ready before.
    """
    asked = next((one for one in known_requests(node) if one.generation == serve.generation), None)
    deployment = asked.deployment if asked else Deployment(serve.model, serve.model)
    return serve_command(replace(deployment, expose=expose or deployment.expose), _names(inventory), flag=flag)


def command_named(inventory: Inventory, node: NodeHandle, name: str) -> str:
    """The command that asks for a model that was served under a name, as far as the head knows it still."""
    asked = next((one for one in known_requests(node) if one.deployment.name == name), None)
    return serve_command(asked.deployment if asked else Deployment(name, "MODEL"), _names(inventory))


def _names(inventory: Inventory) -> dict[str, str]:
    return {host.address: name for name, host in inventory.hosts.items()}


def _lines(kind: type[T], node: NodeHandle, name: str) -> Iterator[T]:
    """The lines of a file that can be read, those that were in it before it was full first."""
    for part in (f"{name}.1", name):
        yield from _read(kind, _rows(node, part), f"{node.host}: {part}")


def _rows(node: NodeHandle, name: str) -> list[bytes]:
    return _last_rows(node.read(name, MAX_FILE))


def _last_rows(raw: bytes | None) -> list[bytes]:
    """The last lines of a file, as many as it may have."""
    rows = (raw or b"").rstrip(b"\n").rsplit(b"\n", MAX_LINES)[-MAX_LINES:]
    values = accumulate(row.count(b",") + 1 for row in reversed(rows))
    kept = sum(number <= MAX_VALUES for number in values)
    return rows[len(rows) - kept :]


def _read(kind: type[T], rows: Sequence[bytes], sender: str) -> Iterator[T]:
    for row in rows:
        with suppress(RefusedDocument):
            yield read(kind, row, sender)


def last_line(raw: bytes | None, sender: str) -> AuditLine | None:
    """Read the last line of an audit; None where it cannot be read."""
    return next(_read(AuditLine, _last_rows(raw)[-1:], sender), None)


def written_again(kind: type[AuditLine | ResultLine], raw: bytes | None, sender: str) -> bytes:
    """The lines of a file that can be read, each with nothing beside what was read of it."""
    lines = _read(kind, _last_rows(raw), sender)
    return b"".join(json.dumps(asdict(line), ensure_ascii=False).encode() + b"\n" for line in lines)


def _of_head(number: int, lines: Sequence[ResultLine]) -> Entry:
    first = lines[0]
    return Entry(first.time, first.user, "serve", (f"serve {first.model}",), number)


def _with_end(entry: Entry, lines: Sequence[ResultLine]) -> Entry:
    if not lines:
        return entry
    several = any(line.replica for line in lines)
    number = max(line.replicas for line in lines)
    # What ends it is written once: a later line is of another start of the same, on a head that moved.
    replicas: dict[int, list[ResultLine]] = {}
    for line in lines:
        replicas.setdefault(line.replica, []).append(line)
    ends = [next((line for line in own if line.result != "failed"), own[-1]) for _, own in sorted(replicas.items())]
    # Of several replicas it is ready when the last one is.
    end = next((line for line in ends if line.result != "ready"), max(ends, key=lambda line: line.seconds or 0.0))
    if end.result == "ready" and len(ends) < number:
        return entry
    failed = [line for line in lines if line.result == "failed"]
    failure = next((_of_replica(line.summary, line, several) for line in failed), None)
    return replace(entry, result=end.result, seconds=end.seconds, failure=failure)


def _of_replica(text: str, line: ResultLine, several: bool) -> str:
    return f"replica {line.replica}: {text}" if several else text


def _restarts(results: Iterable[ResultLine]) -> list[Entry]:
    """Each restart, with when that replica was ready again."""
    results = list(results)
    several = {line.request for line in results if line.replica}
    found: list[Entry] = []
    last: dict[tuple[int, int], int] = {}  # the place of a replica's last restart
    for line in results:
        if line.result not in _OF_RESTARTS:
            continue
        which = (line.request, line.replica)
        if line.result != "ready again":
            end = "gave up" if line.result == "gave up" else None
            why = _of_replica(line.summary, line, line.request in several)
            last[which] = len(found)
            done = (f"restart {line.name}",)
            found.append(Entry(line.time, RESTARTER, "restart", done, line.request, end, failure=why))
        elif (at := last.get(which)) is not None and not found[at].result:
            found[at] = replace(found[at], result="ready", seconds=line.seconds)
    return found
