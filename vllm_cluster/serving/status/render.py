"""The state of a cluster, as a table for people and as a document for programs."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from vllm_cluster.kernel.shell_line import Paste, Pasted
from vllm_cluster.kernel.terminal.output import BOLD, MARK, YELLOW, out, styles, to_paste, with_ends
from vllm_cluster.kernel.terminal.printable import plain
from vllm_cluster.kernel.terminal.table import columns, cut, table
from vllm_cluster.kernel.text import age, host_port
from vllm_cluster.serving.status.status import RUNNING, ClusterStatus, HostStatus, number_text
from vllm_cluster.wire.status import ServeFailure, ServeStatus

# What is left out first where the terminal is narrow.
TITLES = {"host": 0, "address": 2, "role": 3, "state": 0, "GPUs": 0, "age": 1, "container": 4}
# Below this width lines are wrapped, each into about so many at most.
NARROW, MAX_LINES = 80, 4


def status_document(status: ClusterStatus, paste: Paste) -> dict[str, object]:
    """The status as JSON would have it, with remedies to paste."""
    serving = status.head.serve if status.head else None
    return {
        "v": 1,
        "cluster": status.cluster,
        "id": status.id,
        "up": status.up,
        "ready": status.ready,
        "hosts": [{**asdict(host), "fix": paste(host.fix)} for host in status.hosts],
        "serving": asdict(serving) if serving else None,
        "replicas": [asdict(one) for one in status.head.replicas] if status.head else [],
        "served": status.served,
        "now": status.now,
        "changed": asdict(status.changed) if status.changed else None,
        "unreachable": list(status.unreachable),
    }


def show_status(status: ClusterStatus, paste: Paste, *, color: str, verbosity: int = 0) -> None:
    """Write the status on standard output: one line a problem, its whole text with -v."""
    yellow, bold, end = styles(color, YELLOW, BOLD)
    width = columns()
    serve = status.head.serve if status.head else None
    first, *lines = table(TITLES, [_row(host) for host in status.hosts], width)
    out(bold, first, end)
    for host, line in zip(status.hosts, lines, strict=True):
        good = host.state == "running" and host.joined_gpus == host.gpus
        out(*((line,) if good else (yellow, line, end)))
    known = f" (id {status.id})" if status.id else ""
    whole = f"{status.summary}{known}"
    shown = list[str]()
    for line in map(plain, (whole, *serving_lines(status))):
        shown += [line] if verbosity > 0 else fitted(line, width)
    out(*with_ends(shown), end="")
    if serve and serve.phase in ("failed", "backoff", "hung"):
        _fixes(paste("vcluster explain"))
    for problem, fix in group_problems(status, verbosity):
        shown.append(problem if verbosity > 0 else cut(problem, width))
        out(yellow, shown[-1], end)
        # A command is pasted whole.
        _fixes(paste(fix))
    if not verbosity and any(line.endswith("…") for line in shown):
        out("-v shows the lines that are cut")


def _fixes(lines: Pasted) -> None:
    out(*with_ends(to_paste("  fix: ", line, plain) for line in lines.each), end="")


def fitted(line: str, width: int | None) -> list[str]:
    """A line cut to the terminal; wrapped to lines on a narrow one, since the id and the URL are at its end."""
    if width is None or width >= NARROW:
        return [cut(line, width)]
    short = cut(line, MAX_LINES * width)
    # A URL is copied whole.
    return textwrap.wrap(short, width, subsequent_indent=MARK, break_on_hyphens=False, break_long_words=False)


def _row(host: HostStatus) -> dict[str, str]:
    cells = {
        "host": host.host,
        "address": host.address,
        "role": host.role,
        "state": host.state,
        "GPUs": f"{number_text(host.joined_gpus)}/{number_text(host.gpus)}",
        "age": "" if host.age_seconds is None else age(host.age_seconds),
        "container": host.container,
    }
    return {title: plain(cell).replace("\n", " ") for title, cell in cells.items()}


def serving_lines(status: ClusterStatus) -> Iterator[str]:
    serve = status.head.serve if status.head else None
    replicas = status.head.replicas if status.head else ()
    if serve:
        head = next((host.host for host in status.hosts if host.role == "head"), "the head")
        names = {host.address: host.host for host in status.hosts}
        yield from _models(by_model(status), status.now, head, names)
        yield from _unconfirmed(status, names)
        taken = Counter({address: sum(one.ranks.get(address, 0) for one in replicas or (serve,)) for address in names})
        there = [host for host in status.hosts if host.state == RUNNING]
        idle = {host.host: (host.gpus or 0) - taken[host.address] for host in there}
        if serve.ranks and any(count > 0 for count in idle.values()):
            yield f"GPUs idle: {', '.join(f'{count} of {host}' for host, count in idle.items() if count > 0)}"
        if not replicas and serve.backend == "mp" and len(serve.ranks) > 1:
            yield f"ranks: {', '.join(_ranks(serve, names))}"
    else:
        why = (status.head.group.error if status.head else status.unknown) or "no status from the head"
        yield "No model is being served." if status.served is False else f"served model: unknown: {why}"
    if status.changed:
        yield f"last change{_ago(status.changed.time, status.now)}: {status.changed.user}: {status.changed.summary}"


def _models(
    models: Sequence[Sequence[ServeStatus]], now: float | None, head: str, names: Mapping[str, str]
) -> Iterator[str]:
    """The lines of each model; of several each has its hosts, and what all have in common, the URL, comes last."""
    first, several = models[0][0], len(models) > 1
    # Loopback is the head's, and not of whoever reads this.
    where = f" on {head}" if first.host in ("127.0.0.1", "::1") else ""
    url = f"http://{host_port(first.host, first.port)}/v1{where}"
    for own in models:
        on = ", ".join(names.get(address, address) for address in own[0].ranks) if several else ""
        at = "" if several else f" at {url}"
        yield from _replicas(own, now, at, names) if len(own) > 1 else _served(own[0], now, at, on and f" on {on}")
    if several and any(one.phase == "ready" for own in models for one in own):
        yield f"requests by model: {url}"


def _unconfirmed(status: ClusterStatus, names: Mapping[str, str]) -> Iterator[str]:
    """The models that were ready while all their hosts reported to the head, and since when not all do."""
    roll = status.head.roll if status.head else None
    away = {node.address: node.since for node in (roll.nodes if roll else ()) if node.state != "here"}
    for own in by_model(status):
        silent = [address for one in own if one.phase == "ready" for address in one.ranks if address in away]
        if silent and status.now is not None:
            hosts = ", ".join(dict.fromkeys(names.get(address, address) for address in silent))
            since = age(max(0.0, status.now - min(away[address] for address in silent)))
            yield f"{own[0].name}: not confirmed for {since}: nothing came from {hosts}"


def by_model(status: ClusterStatus) -> list[list[ServeStatus]]:
    """The replicas of each model that is served."""
    found: dict[str, list[ServeStatus]] = {}
    for one in status.head.serves if status.head else ():
        found.setdefault(one.name, []).append(one)
    return list(found.values())


def served_words(serves: Sequence[ServeStatus]) -> str:
    """The model and its phase, or how many of its replicas are ready."""
    ready = sum(one.phase == "ready" for one in serves)
    if len(serves) == 1:
        return f"{serves[0].name}: {serves[0].phase}"
    state = "ready" if ready == len(serves) else "degraded" if ready else "not ready"
    return f"{serves[0].name}: {state}: {ready} of {len(serves)} replicas"


def _replicas(replicas: Sequence[ServeStatus], now: float | None, at: str, names: Mapping[str, str]) -> Iterator[str]:
    """A line for all, and one for each replica: where it is, and how it does."""
    yield served_words(replicas) + (at if any(one.phase == "ready" for one in replicas) else "")
    for one in replicas:
        on = ", ".join(f"{count} of {names.get(address, address)}" for address, count in one.ranks.items())
        line, *more = _served(one, now)
        yield f"  replica {one.index} ({on}): {line.removeprefix(f'{one.name}: ')}"
        yield from (f"    {text}" for text in more)


def _ranks(serve: ServeStatus, names: Mapping[str, str]) -> Iterator[str]:
    """Which ranks are on each host: without Ray they are counted over the hosts, that of the endpoint first."""
    first = 0
    for address, number in serve.ranks.items():
        last = first + number - 1
        yield f"{first if first == last else f'{first} to {last}'} on {names.get(address, address)}"
        first += number


def _served(serve: ServeStatus, now: float | None, at: str = "", on: str = "") -> Iterator[str]:
    """What is served, and its failures with their times: the last one, and the first where it is another."""
    last, first = serve.failure or serve.first_failure, serve.first_failure
    phase = f"{serve.name}: {serve.phase}" + ("" if now is None else f" for {age(max(0.0, now - serve.since))}") + on
    if serve.phase == "ready":
        yield f"{phase}{at}"
    elif last and (serve.phase == "backoff" or (serve.phase == "failed" and serve.detail in ("", last.summary))):
        yield phase
    else:
        yield f"{phase}: {serve.detail}" if serve.detail else phase
    if back := serve.instead_of:
        yield f"rolled back from {back.name}{_ago(back.time, now)}: {back.summary}; vcluster explain"
    if last:
        # When it recovered is not known: of several starts since, the last one alone has a time.
        yield _failure("last failure" if serve.phase != "ready" else "recovered; the last failure was", last, now)
    if first and last and first.summary != last.summary and serve.phase != "ready":
        yield _failure("first failure", first, now)


def _failure(title: str, failure: ServeFailure, now: float | None) -> str:
    return f"{title}{_ago(failure.time, now)}: {failure.summary}"


def _ago(time: float, now: float | None) -> str:
    return "" if now is None else f" {age(max(0.0, now - time))} ago"


def group_problems(status: ClusterStatus, verbosity: int) -> Iterator[tuple[str, str]]:
    """Each problem, once for all hosts that have it, and its remedy below the last of those that have the same."""
    hosts: dict[tuple[str, str], list[str]] = {}
    for host in status.hosts:
        if host.problem:
            hosts.setdefault((plain(host.problem), host.fix), []).append(plain(host.host).replace("\n", " "))
    fixes = [fix for _, fix in hosts]
    for number, ((problem, fix), names) in enumerate(hosts.items(), start=1):
        last = fix not in fixes[number : number + 1]
        lines = problem.strip().splitlines() or [""]
        more = f" (… {len(lines) - 1} more lines with -v)" if len(lines) > 1 else ""
        yield f"{', '.join(names)}: " + ("\n".join(lines) if verbosity > 0 else lines[0] + more), fix if last else ""
