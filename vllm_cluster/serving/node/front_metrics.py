"""What GET /metrics gives: the text of each replica, read and written again as one, with a label `replica`.

What a replica writes is text from elsewhere, also where there is one alone: nothing of it is handed on unread.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter

from aiohttp import ClientError, web

from vllm_cluster.serving.node.front_proxy import Proxy
from vllm_cluster.serving.node.front_refusal import FrontRefusal, bare, not_ready
from vllm_cluster.serving.node.front_routes import Table
from vllm_cluster.serving.node.key_check import Refusal
from vllm_cluster.wire.front import FrontReplica, FrontStatus

# Less than who asks has: Prometheus waits 10 s, `status --watch` 5.
ASK_SECONDS = 4.0
# vLLM 0.32 writes 57 kB in 629 lines with one engine, and a replica may have 64; of a replica, of a line, and of all
# replicas at once.
MAX_BYTES, MAX_LINE, MAX_LINES = 4 << 20, 8 << 10, 50_000
MAX_ALL, MAX_ALL_LINES = 16 << 20, 200_000
# vLLM has 37 at most. Of a page beyond one of the limits in `prometheus.yml` Prometheus takes nothing: it has more.
MAX_LABELS = 100
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Strictly what Prometheus reads: of a text with one line that it cannot read, it takes no line. Names that Prometheus
# or the front writes itself are theirs alone.
_NAME = r"(?!vcluster_|scrape_|ALERTS|up(?![a-zA-Z0-9_:]))[a-zA-Z_:][a-zA-Z0-9_:]*"
_TEXT = r'"(?:[^"\\\x00-\x1f\x7f]|\\[\\"n])*"'
_LABEL = rf"(?!__)[a-zA-Z_][a-zA-Z0-9_]*={_TEXT}"
_VALUE = r"(?:[+-]?(?:\d{1,200}(?:\.\d*)?(?:[eE](?:-\d{1,4}|\+?\d{1,2}))?|Inf)|NaN)"
# The moment is when it is asked for: one that a replica names would be another one's past, or future.
_SAMPLE = re.compile(rf"({_NAME})(?:\{{((?:{_LABEL}(?:,{_LABEL})*,?)?)\}})? +({_VALUE})(?: -?\d{{1,18}})?", re.ASCII)
_TYPE = re.compile(rf"# TYPE ({_NAME}) ([a-z]{{1,20}})")
_HELP = re.compile(rf"# HELP ({_NAME}) ((?:[^\\\x00-\x1f\x7f]|\\[\\n])*)")
_KEY = re.compile(rf"([a-zA-Z_][a-zA-Z0-9_]*)=({_TEXT})")
# What the samples of a family of this type end with; of another type there is none.
_UNTYPED = "untyped"
_ENDS = {
    **dict.fromkeys((_UNTYPED, "counter", "gauge"), ("",)),
    "summary": ("", "_sum", "_count"),
    "histogram": ("_bucket", "_sum", "_count"),
}

# A family by its name and its type.
_Kind = tuple[str, str]


@dataclass
class _Family:
    """What replicas have of one family: the helps, and the samples, each behind its name."""

    helps: set[str] = field(default_factory=set)
    samples: list[tuple[str, str]] = field(default_factory=list)


def merge(texts: Mapping[int, str]) -> str:
    """One text of those of all replicas, by their index; other lines than Prometheus' samples are left out.

    Where replicas give one name different types, as of two versions or as one lies, it has none: each sample is there.
    """
    families: dict[_Kind, _Family] = {}
    for index, text in texts.items():
        _add(families, index, text, min(MAX_LINES, MAX_ALL_LINES // len(texts)))
    disputed = _disputed(families)
    lines, loose = list[str](), list[tuple[str, str]]()
    for kind, one in families.items():
        if kind in disputed:
            loose += one.samples
            continue
        name, type_ = kind
        lines += [f"# HELP {name} {words}" for words in one.helps if len(one.helps) == 1]
        lines += [f"# TYPE {name} {type_}"] if type_ != _UNTYPED else []
        lines += [line for _, line in one.samples]
    # The format wants those of one name in one piece.
    lines += [line for _, line in sorted(loose, key=itemgetter(0))]
    return "".join(f"{line}\n" for line in lines)


def _add(families: dict[_Kind, _Family], index: int, text: str, most: int) -> None:
    """Add the samples of one replica, from so many lines."""
    types, helps, samples = dict[str, str](), dict[str, str](), list[tuple[str, str]]()
    for line in text.split("\n", most)[:most]:
        if len(line.encode()) > MAX_LINE:
            continue
        if found := _TYPE.fullmatch(line):
            types.setdefault(found[1], found[2])
        elif found := _HELP.fullmatch(line):
            helps.setdefault(found[1], found[2])
        elif found := _SAMPLE.fullmatch(line):
            name, labels, value = found.groups()
            if (labels := _labelled(index, labels or "")) is not None:
                samples.append((name, f"{name}{{{labels}}} {value}"))
    kinds = {name: _kind(name, types) for name, _ in samples}
    for kind in kinds.values():
        families.setdefault(kind, _Family()).helps.update({helps[kind[0]]} if kind[0] in helps else ())
    for name, line in samples:
        families[kinds[name]].samples.append((name, line))


def _kind(name: str, types: Mapping[str, str]) -> _Kind:
    """The family of a sample by the types that its replica gives."""
    if "" in _ENDS.get(types.get(name, ""), ()):
        return name, types[name]
    for end in _ENDS["histogram"]:
        base = name.removesuffix(end)
        if base != name and end in _ENDS.get(types.get(base, ""), ()):
            return base, types[base]
    return name, _UNTYPED


def _disputed(families: Iterable[_Kind]) -> set[_Kind]:
    """The families that have a name in common with another one."""
    claims: dict[str, set[_Kind]] = {}
    for kind in families:
        for end in {"", *_ENDS[kind[1]]}:
            claims.setdefault(kind[0] + end, set()).add(kind)
    return {kind for kinds in claims.values() if len(kinds) > 1 for kind in kinds}


def _labelled(index: int, labels: str) -> str | None:
    """Labels behind that of the replica, None where they are too many, or one is there twice.

    One of its name is called as Prometheus calls it then.
    """
    if "replica=" in labels:
        labels = _KEY.sub(lambda one: f"{'exported_' * (one[1] == 'replica')}{one[0]}", labels)
    names = [name for name, _ in _KEY.findall(labels)]
    good = len({*names}) == len(names) <= MAX_LABELS
    return f'replica="{index}",{labels}'.rstrip(",") if good else None


def own(status: FrontStatus, up: Mapping[int, bool]) -> str:
    """What the front counts itself."""
    running = sum(one.open for one in status.replicas.values())
    answers = {f'status="{code}"': number for code, number in status.by_status.items()}
    rows: Iterable[tuple[str, str, str, dict[str, int]]] = (
        (
            *("vcluster_replica_up", "gauge", "1 where a replica has given its metrics, else 0."),
            {f'replica="{index}"': int(good) for index, good in sorted(up.items())},
        ),
        ("vcluster_front_requests_running", "gauge", "Requests that are open at a replica.", {"": running}),
        (
            *("vcluster_front_requests_waiting", "gauge", "Requests that no replica has yet."),
            {"": max(status.open - running, 0)},
        ),
        ("vcluster_front_answers_total", "counter", "Answers by their HTTP status; broken: broken off.", answers),
    )
    lines = list[str]()
    for name, kind, words, samples in rows:
        lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{{{labels}}} {value}" if labels else f"{name} {value}" for labels, value in samples.items()]
    return "".join(f"{line}\n" for line in lines)


class FrontMetrics:
    """Asks all replicas that run, once for all who ask meanwhile."""

    def __init__(self, table: Table, proxy: Proxy) -> None:
        self._table, self._proxy = table, proxy
        self._asking: asyncio.Task[tuple[str, dict[int, bool]]] | None = None

    async def answer(self, status: FrontStatus) -> web.StreamResponse:
        """All of it; of several replicas also while none is ready, which the metrics show then.

        Raises:
            FrontRefusal: there is one replica at most, and it gives none.
        """
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        # A client that goes ends its own wait alone.
        text, up = await asyncio.shield(self._asking)
        if len(up) <= 1 and not any(up.values()):
            if not self._table.ready:
                raise FrontRefusal(not_ready(next(iter(self._table.routes.deployments), None)))
            raise FrontRefusal(Refusal(502, "replica_metrics", "the replica gives no metrics"))
        body = (own(status, up) + text).encode()
        return bare(web.Response(body=body, headers={"Content-Type": CONTENT_TYPE}))

    async def _ask(self) -> tuple[str, dict[int, bool]]:
        replicas = [replica for one in self._table.routes.deployments for replica in one.replicas]
        most = min(MAX_BYTES, MAX_ALL // max(len(replicas), 1))
        texts = await asyncio.gather(*(self._text(one, most) for one in replicas))
        found = {one.index: text for one, text in zip(replicas, texts, strict=True) if text}
        # Clients get their answers meanwhile.
        text = await asyncio.get_running_loop().run_in_executor(None, merge, found)
        return text, {index: index in found for index in self._table.indexes}

    async def _text(self, replica: FrontReplica, most: int) -> str:
        """The text of a replica; empty where it does not answer in time, or with too much."""
        if replica.state in ("ready", "draining"):
            with suppress(ClientError, OSError, asyncio.TimeoutError):
                asked = self._proxy.fetch("/metrics", replica, most)
                return (await asyncio.wait_for(asked, ASK_SECONDS)).decode("utf-8", "ignore")
        return ""
