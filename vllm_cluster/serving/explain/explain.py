"""Why it failed: read logs, those of the cluster's hosts or any that are given, and name the first cause."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vllm_cluster.kernel.errors import (
    Aborted,
    ConnectionLost,
    NodesNotJoined,
    TimedOut,
    Unreachable,
    UsageError,
    VclusterError,
)
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.explain.catalogue import FAILURES
from vllm_cluster.kernel.explain.diagnosis import MAX_LINES, MAX_OTHERS, Diagnosis, MatchedFailure, diagnose
from vllm_cluster.kernel.explain.evidence import LogPosition
from vllm_cluster.kernel.explain.ranks import KnownHosts
from vllm_cluster.kernel.explain.scan import LogSource, scan, scan_all
from vllm_cluster.kernel.explain.weighing import once
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.handle import NodeHandle, connect_and_observe
from vllm_cluster.kernel.node.history import restarts
from vllm_cluster.kernel.plan.history import Entry
from vllm_cluster.kernel.plan.node_status import absent
from vllm_cluster.kernel.shell_line import shell_line
from vllm_cluster.kernel.text import count, redact
from vllm_cluster.serving.explain.files import sources_of
from vllm_cluster.serving.explain.logs import Log, collect, sources
from vllm_cluster.serving.status.status import (
    MISSING,
    PAUSED,
    STOPPED,
    ClusterStatus,
    HostState,
    HostStatus,
    assemble,
    host_state,
    unseen,
)
from vllm_cluster.wire.status import FailedRequest, NodeStatus, ServeStatus

PROGRESS_SECONDS = 1.0
MAX_RESTARTS = 5
# The head has noticed the end of a rank by then: 7 s on a busy machine.
NOTICED = 30.0
# What logs show that hold no failure of now.
QUIET = ("nothing", "healthy", "unfinished", "healed")
_OWN = "the error"
BUNDLE = "vcluster explain --bundle report.tar.gz"
# Of a host that does not answer nothing more is asked: it would be waited for once more.
SILENT = (Unreachable, ConnectionLost, TimedOut)
# Which host a symptom is of: of a rank that ended there, and of one that the head has lost.
_WHERE = re.compile(r"(?:\brank (?P<rank>\d{1,4}) |\b)(?:ended on|the head has lost) (?P<host>[\w.-]{1,253})", re.ASCII)


@dataclass(frozen=True)
class Explanation:
    """The verdict, and the hosts whose logs could not be had; `request` is what it is about where that has gone.

    A request that failed and was rolled back leaves a cluster that works, and the next start hides its lines.
    `restarts` are those of what is served, by vcluster itself, with its own reasons.
    """

    verdict: Diagnosis
    failures: Mapping[str, VclusterError]
    request: FailedRequest | None = None
    restarts: Sequence[Entry] = ()


def of_files(paths: Sequence[Path], emit: Emit, *, runtime: Runtime = SYSTEM) -> Diagnosis:
    """The verdict on files; `-` is standard input.

    Raises:
        UsageError: one of them cannot be read, or is not a log.
    """
    opened, total = sources_of(paths)
    clock = runtime.clock
    done, reported = 0, clock.monotonic()

    def tick(size: int) -> None:
        nonlocal done, reported
        done += size
        if clock.monotonic() - reported > PROGRESS_SECONDS:
            reported = clock.monotonic()
            emit(Event("progress", f"read {done / 1e6:.0f} MB of {total / 1e6:.0f}", data={"bytes": done}))

    return diagnose(scan_all(opened, tick))


def of_cluster(inventory: Inventory, emit: Emit, model: str | None = None, *, runtime: Runtime = SYSTEM) -> Explanation:
    """The verdict on what the hosts of the cluster have written; of one model where it is named.

    Raises:
        UsageError: no such model is served.
    """
    found = _read(inventory, emit, model, runtime)
    return replace(found, verdict=_placed(found.verdict, inventory))


def _read(inventory: Inventory, emit: Emit, model: str | None, runtime: Runtime) -> Explanation:
    with Fleet(inventory, runtime) as fleet:
        emit(Event("phase", f"collecting the logs of {count(len(inventory.hosts), 'host')}"))
        logs, states, failures = _look(fleet, inventory)
        status = assemble(inventory, states | {name: unseen(error) for name, error in failures.items()})
        head, rows = status.head, _rows(inventory.head_name, status.head, model)
        restarted = _restarts(fleet, inventory, rows)
    if head and head.group.ended:
        return Explanation(_of_group(inventory.head_name, head), failures, restarts=restarted)
    works = _works(inventory, head, rows)
    ended = [] if works else [*_last_ends(inventory.head_name, rows), *_unread(failures)]
    read_of = sources(logs.values(), of=None if model is None else {one.index for one in rows})
    worked_at = _worked_at(head, rows) if works else None
    hosts = KnownHosts({host.address: name for name, host in inventory.hosts.items()}, inventory.head_name)
    found = diagnose(scan_all((*read_of, *ended)), worked_at=worked_at, together=True, hosts=hosts)
    lost = _missing(inventory, head) if inventory.head_name in states else _without_head(inventory, states)
    off = {name: failures[name] for name in lost if isinstance(failures.get(name), SILENT)}
    if not status.up and (now := _of_now(status, off, found)):
        return Explanation(now, failures, restarts=restarted)
    request = next((one.instead_of for one in rows if one.instead_of), None)
    if request and found.result in QUIET:
        return Explanation(_of_request(inventory.head_name, request, found), failures, request, restarted)
    return Explanation(found, failures, restarts=restarted)


def _placed(found: Diagnosis, inventory: Inventory) -> Diagnosis:
    """The same with the cluster, and where it is known the host and the rank, in the commands of its symptom."""
    if not (symptom := found.symptom):
        return found
    texts = (*found.ranks, *(place.text for place in symptom.places))
    where = next((one for text in texts if (one := _WHERE.search(text)) and one["host"] in inventory.hosts), None)
    words = {"CLUSTER": inventory.cluster, **({"HOST": where["host"]} if where else {})}
    fix = re.sub(r"\b(?:CLUSTER|HOST)\b", lambda word: words.get(word[0], word[0]), symptom.failure.fix)
    if where and where["rank"]:
        fix = fix.replace("--only vllm", f"--only rank={where['rank']}")
    return replace(found, symptom=replace(symptom, failure=replace(symptom.failure, fix=fix)))


def _look(
    fleet: Fleet, inventory: Inventory
) -> tuple[dict[str, list[Log]], dict[str, HostState], Mapping[str, VclusterError]]:
    """The logs of each host that answers, what is on it once all of them are here, and why others did not answer."""

    def read(connection: HostConnection) -> tuple[HostFacts, list[Log]]:
        facts = connect_and_observe(inventory, connection)
        return facts, collect(connection, inventory.cluster, len(inventory.hosts))

    found, failures = fleet.each(read)
    states, ended = fleet.each(
        lambda connection: host_state(inventory, connection, found[connection.name][0]), set(found)
    )
    return {name: logs for name, (_, logs) in found.items()}, states, failures | ended


def _rows(host: str, head: NodeStatus | None, model: str | None) -> Sequence[ServeStatus]:
    """Every replica that is served, or those of a model."""
    rows = head.serves if head else ()
    if model is None:
        return rows
    found = [one for one in rows if one.name == model]
    if not found:
        there = ", ".join(dict.fromkeys(one.name for one in rows)) or "no model"
        what = "neither a file, nor the name of a failure or of a finding, nor a model"
        text = f"{model} is {what}: {host} serves {there}"
        raise UsageError(text, hint="vcluster explain")
    return found


def _missing(inventory: Inventory, head: NodeStatus | None) -> Collection[str]:
    """The hosts whose nodes the head does not have, where it runs."""
    if head is None or head.group.state != "up":
        return ()
    planned = {host.address: name for name, host in inventory.hosts.items()}
    alive = {node.address for node in head.group.nodes if node.alive}
    return {name for address, name in planned.items() if address not in alive} | absent(head.roll, planned).keys()


def _without_head(inventory: Inventory, states: Mapping[str, HostState]) -> Collection[str]:
    """The head's host, where no node that answers has its head any more."""
    nodes = [one.status for one in states.values() if one.status]
    calm = [one for one in nodes if one.group.state == "up" and not (one.group.error or (one.roll and one.roll.error))]
    return () if calm else (inventory.head_name,)


def _of_now(status: ClusterStatus, off: Mapping[str, VclusterError], read: Diagnosis) -> Diagnosis | None:
    """The verdict on a cluster that is not up; None where its logs, of which `read` is the verdict, show more.

    A host that is off, or a node that does not run, is nearer to the cause than what others write of its end.
    """
    if read.cause or not read.logs:
        return None
    if off:
        return _of_unreachable(off, read)
    if stopped := [host for host in status.hosts if host.state in (STOPPED, PAUSED, MISSING)]:
        return _of_hosts("node-stopped", [], stopped, read)
    wrong = [host for host in status.hosts if host.problem]
    return _of_hosts("cluster-not-up", [status.summary], wrong, read) if read.result in QUIET else None


def _of_hosts(slug: str, above: Sequence[str], hosts: Sequence[HostStatus], read: Diagnosis) -> Diagnosis:
    """The verdict by what `status` shows of hosts, with its remedies; what the logs have comes below it."""
    texts = [*above, *(redact(" ".join(f"{host.host}: {host.problem}".split())) for host in hosts)]
    places = tuple(LogPosition("status", number, text) for number, text in enumerate(texts, 1))
    fixes = dict.fromkeys(
        line for host in hosts for line in host.fix.split("\n") if line not in ("", "vcluster explain")
    )
    known = FAILURES[slug]
    symptom = MatchedFailure(replace(known, fix="\n".join(fixes) or known.fix), places, (), len(places))
    others = (*((read.symptom,) if read.symptom else ()), *read.other_causes)
    raised = (read.raised.line,) if read.raised else ()
    errors = () if read.result in QUIET else (*raised, *read.error_lines, *read.unknown_lines)
    return replace(
        read,
        result="symptom",
        symptom=symptom,
        raised=None,
        other_causes=others[:MAX_OTHERS],
        error_lines=(),
        unknown_lines=once(errors)[:MAX_LINES],
    )


def _of_unreachable(off: Mapping[str, VclusterError], read: Diagnosis) -> Diagnosis:
    """The verdict where hosts that the others have lost do not answer SSH either: what others write only follows."""
    places = tuple(
        LogPosition("ssh", number, error.message, host=name) for number, (name, error) in enumerate(off.items(), 1)
    )
    cause = MatchedFailure(FAILURES["host-unreachable"], places, (), len(places))
    return replace(read, result="explained", cause=cause, symptom=None, raised=None, error_lines=())


def _last_ends(host: str, rows: Sequence[ServeStatus]) -> list[LogSource]:
    """Why the node program ends or has ended what is served: that an engine hangs is in no log of vLLM."""
    return [
        LogSource(f"{host}:status of {one.name}", [(1, f"{words}\n".encode("utf-8", "replace"))], host)
        for one in rows
        if (words := _why_it_ended(one))
    ]


def _why_it_ended(one: ServeStatus) -> str:
    """The words for the end that comes or was the last one; none where the model was ready after that.

    What ends now is written down as a failure once it is over: until then the failure there is an older one.
    """
    if one.phase == "stopping":
        return one.detail
    last = one.failure
    return last.summary if last and (one.ready_at is None or last.time >= one.ready_at) else ""


def _unread(failures: Mapping[str, VclusterError]) -> list[LogSource]:
    """What keeps the logs of hosts that answer from being read: a Docker that does not run is why a node is gone."""
    words = {name: error.message for name, error in failures.items() if not isinstance(error, SILENT)}
    return [
        LogSource(f"{name}:docker", [(1, f"{text}\n".encode("utf-8", "replace"))], name) for name, text in words.items()
    ]


def _of_request(host: str, request: FailedRequest, read: Diagnosis) -> Diagnosis:
    """The verdict on the lines that a request left which could not be served; `read` is that on all logs."""
    lines = "\n".join((*request.lines, "")) or f"{request.summary}\n"
    found = diagnose([scan(LogSource(f"{host}:request {request.name}", [(1, lines.encode("utf-8", "replace"))], host))])
    return replace(found, logs=read.logs, lines=read.lines, size=read.size)


def _head(fleet: Fleet, inventory: Inventory) -> NodeStatus | None:
    """The head's own status; None where its container does not run, or the status cannot be read."""
    state = NodeHandle(fleet.connections[inventory.head_name], inventory.cluster).state_if_running()
    return state.status if state else None


def _restarts(fleet: Fleet, inventory: Inventory, rows: Sequence[ServeStatus]) -> Sequence[Entry]:
    """How often vcluster itself started again what is served now, the last times."""
    if not rows:
        return ()
    node = NodeHandle(fleet.connections[inventory.head_name], inventory.cluster)
    return restarts(node, {one.request for one in rows})[-MAX_RESTARTS:]


def _of_group(host: str, head: NodeStatus) -> Diagnosis:
    """The verdict on the last words of a Ray that has ended on the head.

    No other host can join it, so what the others write is not evidence, and a symptom explains less than these words.
    """
    text = f"{head.group.error}\n"
    seen = scan(LogSource(f"{host}:ray", [(1, text.encode("utf-8", "replace"))], host))
    found = diagnose([seen])
    if found.cause:
        return found
    lines = text.strip().splitlines()
    places = tuple(LogPosition(seen.name, number, redact(line), host=host) for number, line in enumerate(lines, 1))
    return replace(found, result="unknown", symptom=None, raised=None, error_lines=places)


def _works(inventory: Inventory, head: NodeStatus | None, rows: Sequence[ServeStatus]) -> bool:
    """Whether every host is in Ray, and what is served, if anything, is ready."""
    if head is None or head.group.state != "up" or any(one.phase != "ready" for one in rows):
        return False
    alive = {node.address for node in head.group.nodes if node.alive}
    return alive == {host.address for host in inventory.hosts.values()}


def _worked_at(head: NodeStatus | None, rows: Sequence[ServeStatus]) -> float:
    """When what works by the head's status certainly did: since then a rank can have died that it has not noticed.

    Of several models the lines of the others are in the logs too: what one prints is not why another fails.
    """
    alone = head is not None and len(rows) == len(head.serves)
    looked = head.updated - (NOTICED if alone else 0.0) if head else 0.0
    return max((looked, *(one.ready_at for one in rows if one.ready_at is not None)))


def add_cause(
    error: VclusterError,
    fleet: Fleet,
    inventory: Inventory,
    otherwise: str = "",
    *,
    since: Mapping[str, float] | None = None,
    model: str = "MODEL",
) -> VclusterError:
    """The same error with its cause, where one is known; `otherwise` are vLLM's last words of this `model`.

    The error's own words are a log too, and what they name gets no second cause. The hosts' logs are read only for
    an error without a cause, and only for what was written `since` the attempt began, by each host's clock.
    """
    if isinstance(error, (*SILENT, Aborted)) or error.exit_code != 1:
        return error
    own = LogSource(_OWN, [(1, (error.message + otherwise).encode("utf-8", "replace"))])
    found = diagnose([scan(own)])
    if found.cause:
        return _named(error, found.cause, model, last=bool(otherwise))
    if not (otherwise or isinstance(error, NodesNotJoined)):
        return error
    cut_off = {host for host, failure in error.failures.items() if isinstance(failure, SILENT)}
    answer = set(inventory.hosts) - cut_off
    logs, _ = fleet.each(lambda connection: collect(connection, inventory.cluster, len(answer)), answer)
    # vLLM's log is older than what `up` does: a model that could not be served explains nothing of it.
    asked = (own, *sources(logs.values(), of_vllm=bool(otherwise)))
    head = _head(fleet, inventory) if inventory.head_name in logs else None
    down = head is not None and head.group.ended
    found = (
        _of_group(inventory.head_name, head) if head and down else diagnose(scan_all(asked), since=since, together=True)
    )
    found = _placed(found, inventory)
    error.lines[-1] += "" if found.cause else otherwise
    if found.named:
        return _named(error, found.named, model, last=bool(otherwise))
    error.hint = _lines(BUNDLE, error.hint) if otherwise else _lines(error.hint, BUNDLE)
    return error


def _named(error: VclusterError, found: MatchedFailure, model: str, *, last: bool) -> VclusterError:
    """The error with a cause and its fix, or with a symptom and the place where its cause is written.

    `last`: its own remedy is the command that failed, which only helps once the cause is gone.
    """
    failure, place = found.failure, found.places[0]
    where = [] if place.source == _OWN else [f"  {place.source}:{place.line}: {place.text}"]
    if failure.kind == "cause":
        error.lines += [f"cause ({failure.slug}): {failure.cause}", *where]
        # The error's own words: whoever raised it knows the host and the command, and the list does not.
        fix = re.sub(r"\bMODEL\b", lambda _: shell_line([model]), failure.fix)
        known, listed = error.hint, _lines(fix, "vcluster explain")
        error.hint = _lines(known, listed) if place.source == _OWN and not last else _lines(listed, known)
    else:
        error.lines += [f"symptom ({failure.slug}), no line names its cause: {failure.cause}", *where]
        error.lines += [f"where to look for the cause: {line}" for line in failure.fix.split("\n")]
        error.hint = _lines("vcluster explain", error.hint) if last else _lines(error.hint, "vcluster explain")
    return error


def _lines(*parts: str | None) -> str:
    return "\n".join(filter(None, parts))
