"""A view of the cluster, again and again: a picture on a terminal, a line elsewhere, JSON lines for programs."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Self

from vllm_cluster.kernel.shell_line import Paste
from vllm_cluster.kernel.terminal.output import END, Style, console, out, styled, to_paste
from vllm_cluster.kernel.terminal.printable import plain, wants_color
from vllm_cluster.kernel.terminal.table import cut, table
from vllm_cluster.serving.status.counters import ModelLoad
from vllm_cluster.serving.status.load import GpuLoad, HostLoad
from vllm_cluster.serving.status.render import (
    by_model,
    fitted,
    group_problems,
    served_words,
    serving_lines,
    status_document,
)
from vllm_cluster.serving.status.status import HostStatus
from vllm_cluster.serving.status.watch import View

# What is left out first where the terminal is narrow.
TITLES = {
    **{"host": 0, "state": 0, "GPUs": 1, "ranks": 4, "GPU": 0, "GPU memory": 2},
    **{"power": 3, "temp": 3, "CPU": 5, "memory": 6, "MB/s in/out": 7},
}
GIB, MB = 1 << 30, 1e6
Styled = tuple[str, str]


def view_document(view: View, paste: Paste) -> dict[str, object]:
    """The view as JSON would have it: the document of `status`, and what hosts and model do now."""
    return {
        **status_document(view.status, paste),
        "time": round(view.time, 3),
        "loads": {host: asdict(load) for host, load in view.loads.items()},
        "model": asdict(view.model) if view.model else None,
        "replica_loads": {str(index): asdict(load) for index, load in view.replicas.items()},
        "metrics_error": view.metrics_error,
    }


def writer(*, as_json: bool, color: str, paste: Paste) -> Picture | Lines:
    """What shows each view: on a terminal a picture, elsewhere a line each."""
    # On such a terminal rich draws nothing.
    dumb = os.environ.get("TERM", "").lower() in ("dumb", "unknown")
    if as_json or dumb or not sys.stdout.isatty():
        return Lines(as_json=as_json, paste=paste)
    return Picture(colored=wants_color(color, stdout=True), paste=paste)


class Lines:
    """A line a view on standard output."""

    def __init__(self, *, as_json: bool, paste: Paste) -> None:
        self._form = (lambda view: json.dumps(view_document(view, paste), default=str)) if as_json else line

    def show(self, view: View) -> None:
        """Write it, at once."""
        out(self._form(view))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is to be taken away."""


class Picture:
    """The whole terminal, drawn once for each view; what was on it before is back at the end."""

    def __init__(self, *, colored: bool, paste: Paste) -> None:
        from rich.live import Live

        self._paste = paste
        self._live = Live(console=console(stderr=False, colored=colored), screen=True, auto_refresh=False)

    def show(self, view: View) -> None:
        """Draw it."""
        width, height = shutil.get_terminal_size()
        rows = picture(view, width, height, self._paste)
        parts = [part for text, style in rows for part in ((END, ""), (text, style))]
        drawn = styled(*parts[1:], no_wrap=True, overflow="crop")
        self._live.update(drawn, refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.__exit__(kind, error, at)


def line(view: View) -> str:
    """The view in one line."""
    status = view.status
    parts = [
        time.strftime("%H:%M:%S", time.localtime(view.time)),
        status.summary,
    ]
    if models := by_model(status):
        parts += [*map(served_words, models), *(_model(view.model) if view.model else ())]
    parts += [f"{host.host}: {host.state}: {host.problem}" for host in status.hosts if host.problem]
    return "  ".join(plain(part).split("\n", 1)[0] for part in parts)


def picture(view: View, width: int, height: int, paste: Paste) -> list[Styled]:
    """The lines of a picture that fits, each with its style; problems go before single GPUs."""
    status = view.status
    whole = status.summary
    clock = time.strftime("%H:%M:%S", time.localtime(view.time))
    gap = width - len(whole) - len(clock)
    top: list[Styled] = [(f"{whole}{' ' * gap}{clock}" if gap > 1 else whole, "" if status.up else "yellow")]
    top += [(row, "") for text in serving_lines(status) for row in fitted(plain(text), width)]
    if view.model:
        top += [(text, "bold") for text in _wrapped(_model(view.model), width)]
    if view.metrics_error:
        top.append((f"/metrics: {view.metrics_error}", "yellow"))
    bottom: list[Styled] = []
    for problem, fix in group_problems(status, 0):
        bottom += [(problem, "yellow"), *((to_paste("  fix: ", line), "") for line in paste(fix).each)]
    bottom += [(f"{name}: {load.error}", "yellow") for name, load in view.loads.items() if load.error]
    room = height - len(top) - len(bottom) - 2
    if len(view.replicas) + len(status.hosts) < room:
        models = by_model(status)
        names = {one.index: f"{one.name} " * (len(models) > 1) for own in models for one in own}
        top += [
            (f"  {names.get(index, '')}replica {index}: {' · '.join(_now(load))}", "")
            for index, load in view.replicas.items()
        ]
        room -= len(view.replicas)
    rows = [*top, ("", ""), *_hosts(view, width, room), *bottom]
    return [(_cut(text, width), style) for text, style in rows[:height]]


def _cut(text: str, width: int) -> str:
    return Style(cut(text, width)) if isinstance(text, Style) else cut(plain(text), width)


def _hosts(view: View, width: int, room: int) -> Iterator[Styled]:
    """The table of hosts; each GPU has a row of its own where there is room for all."""
    single = sum(len(load.gpus) for load in view.loads.values() if len(load.gpus) > 1)
    rows, styles = list[dict[str, str]](), list[str]()
    for host in view.status.hosts:
        load = view.loads.get(host.host)
        rows.append(_host(host, load))
        styles.append("" if host.state == "running" and host.joined_gpus == host.gpus else "yellow")
        if load and len(load.gpus) > 1 and len(view.status.hosts) + single < room:
            rows += [_gpu(gpu) for gpu in load.gpus]
            styles += ["yellow" if gpu.error else "" for gpu in load.gpus]
    yield from zip(table(TITLES, rows, width), ["bold", *styles], strict=True)


def _host(host: HostStatus, load: HostLoad | None) -> dict[str, str]:
    counted, gpus = ("?" if number is None else str(number) for number in (host.joined_gpus, host.gpus))
    known = {"host": plain(host.host).replace("\n", " "), "state": host.state, "GPUs": f"{counted}/{gpus}"}
    if load is None:
        return {**dict.fromkeys(TITLES, ""), **known}
    each = load.gpus
    uses = [gpu.use_percent for gpu in each if gpu.use_percent is not None]
    temperatures = [gpu.temperature_celsius for gpu in each if gpu.temperature_celsius is not None]
    return {
        **known,
        "ranks": str(load.ranks),
        "GPU": _percent(sum(uses) / len(uses) if uses else None),
        "GPU memory": _memory(_sum(g.memory_used_bytes for g in each), _sum(g.memory_total_bytes for g in each)),
        "power": _power(_sum(gpu.power_watts for gpu in each), _sum(gpu.power_limit_watts for gpu in each)),
        "temp": _celsius(max(temperatures, default=None)),
        "CPU": _percent(load.cpu_percent),
        "memory": _memory(load.memory_used_bytes, load.memory_total_bytes),
        "MB/s in/out": _traffic(load.received_bytes_per_second, load.sent_bytes_per_second),
    }


def _gpu(gpu: GpuLoad) -> dict[str, str]:
    return {
        **dict.fromkeys(TITLES, ""),
        "host": f"  GPU {gpu.index}",
        "state": "error" if gpu.error else "",
        "GPU": _percent(gpu.use_percent),
        "GPU memory": _memory(gpu.memory_used_bytes, gpu.memory_total_bytes),
        "power": _power(gpu.power_watts, gpu.power_limit_watts),
        "temp": _celsius(gpu.temperature_celsius),
    }


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}%"


def _celsius(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}°C"


def _memory(used: float | None, total: float | None) -> str:
    return "" if used is None or total is None else f"{used / GIB:.1f}/{total / GIB:.0f} GiB"


def _traffic(received: float | None, sent: float | None) -> str:
    return "" if received is None or sent is None else f"{_amount(received / MB)}/{_amount(sent / MB)}"


def _power(used: float | None, limit: float | None) -> str:
    if used is None:
        return ""
    return f"{used:.0f} W" if limit is None else f"{used:.0f}/{limit:.0f} W"


def _now(load: ModelLoad) -> list[str]:
    """What a model or a replica does at once, as parts of a line; what is not known is left out."""
    rates = (("in", load.prompt_tokens_per_second), ("out", load.generated_tokens_per_second))
    tokens = " ".join(f"{_amount(rate)} {name}" for name, rate in rates if rate is not None)
    requests = (("running", load.requests_running), ("waiting", load.requests_waiting))
    parts = [
        f"tokens/s {tokens}" if tokens else "",
        ", ".join(f"{number} {name}" for name, number in requests if number is not None),
        "" if load.kv_cache_percent is None else f"KV cache {load.kv_cache_percent:.0f}%",
    ]
    return [part for part in parts if part]


def _model(load: ModelLoad) -> list[str]:
    """What the model does, with its latency."""
    parts = [
        *_now(load),
        "" if load.prefix_hit_percent is None else f"prefix hits {load.prefix_hit_percent:.0f}%",
        _latency("TTFT", load.first_token_p50_seconds, load.first_token_p95_seconds),
        _latency("TPOT", load.next_token_p50_seconds, load.next_token_p95_seconds),
        f"preempted {_amount(load.preemptions_per_second)}/s" if load.preemptions_per_second else "",
    ]
    return [part for part in parts if part]


def _amount(rate: float | None) -> str:
    return "?" if rate is None else f"{rate:.1f}" if 0 < rate < 10 else f"{rate:,.0f}"


def _latency(name: str, median: float | None, high: float | None) -> str:
    return "" if median is None or high is None else f"{name} {_seconds(median)} (p95 {_seconds(high)})"


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def _wrapped(parts: Sequence[str], width: int) -> list[str]:
    """The parts in as few lines as fit."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) + 3 <= width:
            lines[-1] += f" · {part}"
        else:
            lines.append(part)
    return lines
