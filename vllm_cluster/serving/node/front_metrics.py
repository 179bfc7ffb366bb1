"""What GET /metrics gives of several replicas: the text of each, merged into one, with a label `replica`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from aiohttp import ClientError, web

from vllm_cluster.serving.node.front_proxy import Proxy
from vllm_cluster.serving.node.front_refusal import bare
from vllm_cluster.serving.node.front_routes import Table
from vllm_cluster.wire.front import FrontReplica, FrontStatus

# Less than who asks has: Prometheus waits 10 s, `status --watch` 5.
ASK_SECONDS = 3.0
# vLLM 0.32 writes 57 kB in 700 lines with one engine; of a replica, of a line, and of all replicas at once.
MAX_BYTES, MAX_LINE, MAX_LINES, MAX_ALL = 1 << 20, 8 << 10, 20_000, 16 << 20
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Strictly what Prometheus reads: of a text with one line that it cannot read, it takes no line.
_NAME = r"(?!vcluster_)[a-zA-Z_:][a-zA-Z0-9_:]*"
_TEXT = r'"(?:[^"\\]|\\[\\"n])*"'
_LABEL = rf"[a-zA-Z_][a-zA-Z0-9_]*={_TEXT}"
_VALUE = r"[+-]?(?:\d{1,200}(?:\.\d*)?(?:[eE](?:-\d{1,4}|\+?\d{1,2}))?|Inf|NaN)"
_SAMPLE = re.compile(rf"({_NAME})(?:\{{((?:{_LABEL}(?:,{_LABEL})*,?)?)\}})? +({_VALUE}(?: -?\d{{1,18}})?)", re.ASCII)
_ABOUT = re.compile(rf"# (?:(HELP) ({_NAME})(?: (?:[^\\]|\\[\\n])*)?|(TYPE) ({_NAME}) ([a-z]{{1,20}}))")
_KEY = re.compile(rf"([a-zA-Z_][a-zA-Z0-9_]*)=({_TEXT})")
# What the samples of one family end with.
_PARTS = re.compile("_(?:bucket|sum|count)$")


@dataclass
class _Family:
    """The help and the type of a metric, once, and its samples, which the format wants in one piece."""

    about: dict[str, str] = field(default_factory=dict)
    samples: list[str] = field(default_factory=list)


def merge(texts: Mapping[int, str]) -> str:
    """One text of those of several replicas, by their index; other lines than Prometheus' samples are left out."""
    families: dict[str, _Family] = {}
    for index, text in texts.items():
        _add(families, index, text)
    lines = [line for one in families.values() if one.samples for line in (*one.about.values(), *one.samples)]
    return "".join(f"{line}\n" for line in lines)


def _add(families: dict[str, _Family], index: int, text: str) -> None:
    """Add the samples of one replica; those of a metric that is of another type elsewhere have no place."""
    types: dict[str, str] = {}
    for line in text.split("\n", MAX_LINES)[:MAX_LINES]:
        if len(line) > MAX_LINE:
            continue
        if about := _ABOUT.fullmatch(line):
            what, name, words = about[1] or about[3], about[2] or about[4], about[5]
            families.setdefault(name, _Family()).about.setdefault(what, line)
            if what == "TYPE":
                types[name] = words
        elif sample := _SAMPLE.fullmatch(line):
            name, labels, value = sample.groups()
            base = name if name in types else _PARTS.sub("", name)
            one = families.setdefault(base if base in types else name, _Family())
            if base in types and one.about["TYPE"] != f"# TYPE {base} {types[base]}":
                continue
            if (labels := _labelled(index, labels or "")) is not None:
                one.samples.append(f"{name}{{{labels}}} {value}")


def _labelled(index: int, labels: str) -> str | None:
    """Labels behind that of the replica, None where one is there twice.

    One of its name is called as Prometheus calls it then.
    """
    if "replica=" in labels:
        labels = _KEY.sub(lambda one: f"{'exported_' * (one[1] == 'replica')}{one[0]}", labels)
    names = [name for name, _ in _KEY.findall(labels)]
    return f'replica="{index}",{labels}'.rstrip(",") if len({*names}) == len(names) else None


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

    @property
    def several(self) -> bool:
        """Whether there is more than one replica: of one alone its own text is handed on."""
        return len(self._table.indexes) > 1

    async def answer(self, status: FrontStatus) -> web.StreamResponse:
        """All of it; also while no replica is ready, which the metrics show then."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        # A client that goes ends its own wait alone.
        text, up = await asyncio.shield(self._asking)
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
                return (await asyncio.wait_for(asked, ASK_SECONDS)).decode("utf-8", "replace")
        return ""
