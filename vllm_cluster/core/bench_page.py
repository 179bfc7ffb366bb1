"""A benchmark as one HTML file that needs no other: tables, and curves as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from vllm_cluster.core.bench import PERCENTILES, average, figure_name

WIDTH, HEIGHT, EDGE = 640, 320, 56
# By name, since what makes a PNG of it knows no generic family.
FONTS = "system-ui, 'Helvetica Neue', Arial, 'DejaVu Sans', 'Liberation Sans', 'Noto Sans', sans-serif"
TOKENS = figure_name("output_throughput")
# Of a label: what a wide digit takes at its size, and the room between two.
CHARACTER, GAP = 7.5, 8
COLORS = ("#2563eb", "#16a34a", "#d97706", "#dc2626")
_STYLE = (
    "body{font:15px system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#111;background:#fff}"
    "table{border-collapse:collapse;margin:1em 0}td,th{padding:.3em .8em;border-bottom:1px solid #ddd;text-align:right}"
    "th:first-child,td:first-child{text-align:left}svg{max-width:100%;height:auto}code{white-space:pre-wrap}"
)
Curve = tuple[str, Sequence[tuple[float, float]]]


def page(document: Mapping[str, Any]) -> str:
    """The report."""
    points = document["points"]
    parts = [
        f"<h1>{escape(str(document['name']))}</h1>",
        f"<p>{escape(_summary(document))}</p>",
        "<h2>Throughput</h2>",
        _svg(_rates(points)),
        "<h2>Throughput against latency</h2>",
        _svg(_rates_by_latency(points)),
        *(_times(points, metric, title) for metric, title in _TITLES.items()),
        "<h2>Runs</h2>",
        _runs(points),
        "<h2>Hosts</h2>",
        _hosts(document["hosts"]),
        f"<p>Flags of vLLM: <code>{escape(' '.join(document['flags']))}</code></p>",
    ]
    title = escape(f"Benchmark of {document['name']}")
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    return head + "\n".join(parts) + "</html>\n"


def picture(document: Mapping[str, Any]) -> str:
    """The curves of the report as one SVG file, one below the other."""
    points, top = document["points"], 40
    below = f'<g transform="translate(0,{top})">{_rates(points)}</g>'
    below += f'<g transform="translate(0,{top + HEIGHT})">{_rates_by_latency(points)}</g>'
    # A line each, as both together are wider than the picture.
    versions = f"{_versions(document)}, {str(document['started'])[:10]}"
    heading = _label(EDGE, 18, str(document["name"]), "start", "#111") + _label(EDGE, 36, versions, "start")
    paper = '<rect width="100%" height="100%" fill="#fff"/>'
    return _svg(paper + heading + below, top + 2 * HEIGHT) + "\n"


def _rates(points: Sequence[Mapping[str, Any]]) -> str:
    rates = [(_at(one), average(one, "output_throughput")) for one in points]
    return _chart([(TOKENS, rates)], "requests open at once", TOKENS)


def _rates_by_latency(points: Sequence[Mapping[str, Any]]) -> str:
    curves = [
        (figure_name(figure), [(average(one, figure) / 1000, average(one, "output_throughput")) for one in points])
        for figure in ("p50_e2el_ms", "p99_e2el_ms")
    ]
    return _chart(curves, "seconds for a whole answer", TOKENS)


_TITLES = {
    "ttft": "Time to first token (TTFT), ms",
    "tpot": "Time per output token (TPOT), ms",
    "itl": "Inter-token latency (ITL), ms",
    "e2el": "Whole answer (E2E), ms",
}


def _summary(document: Mapping[str, Any]) -> str:
    return f"{_versions(document)}, image {document['image']}, started {document['started']}"


def _versions(document: Mapping[str, Any]) -> str:
    versions, hosts = document["versions"], len(document["hosts"])
    return f"{hosts} host{'s' * (hosts != 1)}, vLLM {versions['vllm']}, vcluster {versions['vcluster']}"


def _times(points: Sequence[Mapping[str, Any]], metric: str, title: str) -> str:
    names = [f"{name}_{metric}_ms" for name in ("mean", *PERCENTILES)]
    rows = [[str(_at(one)), *(_shown(average(one, name)) for name in names)] for one in points]
    return f"<h2>{title}</h2>" + _table(["at once", *map(figure_name, names)], rows)


def _runs(points: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            f"{point['concurrency']} at once, {point['input']} in, {point['output']} out",
            str(run["repetition"] + 1),
            f"{run['figures'].get('completed', 0):.0f}",
            _shown(run["figures"].get("duration")),
            _shown(run["figures"].get("request_throughput")),
            _shown(run["figures"].get("output_throughput")),
        ]
        for one in points
        for point in [one["point"]]
        for run in one["runs"]
    ]
    return _table(["load", "run", "requests", "seconds", figure_name("request_throughput"), TOKENS], rows)


def _hosts(hosts: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            str(one["name"]),
            ", ".join(one["gpus"]) or "CPU",
            str(one["driver"]),
            str(one["interface"]),
            ", ".join(one["hcas"]),
        ]
        for one in hosts
    ]
    return _table(["host", "GPUs", "driver", "network", "RDMA"], rows)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _chart(curves: Sequence[Curve], across: str, up: str) -> str:
    """Curves over axes that begin at 0; the first axis is logarithmic where its ends are far apart."""
    xs = [x for _, places in curves for x, _ in places] or [1.0]
    top = max((y for _, places in curves for _, y in places), default=1.0) or 1.0
    low, high = min(xs), max(xs)
    by_log = low > 0 and high / low > 20

    def right(x: float) -> float:
        part = math.log(x / low) / math.log(high / low) if by_log else (x / high if high else 0.0)
        return EDGE + part * (WIDTH - 2 * EDGE)

    def down(y: float) -> float:
        return HEIGHT - EDGE - y / top * (HEIGHT - 2 * EDGE)

    frame = f"M{EDGE},{EDGE} V{HEIGHT - EDGE} H{WIDTH - EDGE}"
    parts = [f'<path d="{frame}" fill="none" stroke="#999"/>']
    parts += [_label(EDGE - 6, down(y) + 4, _shown(y), "end") for y in (0.0, top / 2, top)]
    parts += [_label(right(x), HEIGHT - EDGE + 18, _shown(x), "middle") for x in _apart(xs, right)]
    parts += [_label(WIDTH / 2, HEIGHT - 12, across, "middle"), _label(EDGE, EDGE - 12, up, "start")]
    for color, (_, places) in zip(COLORS, curves, strict=False):
        line = " ".join(f"{right(x):.1f},{down(y):.1f}" for x, y in places)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{right(x):.1f}" cy="{down(y):.1f}" r="3" fill="{color}"/>' for x, y in places]
    parts += _legend([name for name, _ in curves]) if len(curves) > 1 else []
    label = escape(f"{up} over {across}", quote=True)
    return f'<g role="img" aria-label="{label}">{"".join(parts)}</g>'


def _width(text: str) -> float:
    return CHARACTER * len(text)


def _apart(values: Sequence[float], right: Callable[[float], float]) -> list[float]:
    """The values whose labels below an axis do not touch: the largest one, and from the left those that have room."""
    *smaller, largest = sorted(set(values))
    end = right(largest) - _width(_shown(largest)) / 2
    found, free = [], -math.inf
    for value in smaller:
        half = _width(_shown(value)) / 2
        if free < right(value) - half and right(value) + half + GAP < end:
            found.append(value)
            free = right(value) + half + GAP
    return [*found, largest]


def _legend(names: Sequence[str]) -> list[str]:
    """The names of the curves in one line above them, where no curve is."""
    parts, end = [], float(WIDTH - EDGE)
    for color, name in reversed([*zip(COLORS, names, strict=False)]):
        parts.append(_label(end, EDGE - 12, name, "end", color))
        end -= _width(name) + 2 * GAP
    return parts


def _svg(content: str, height: int = HEIGHT) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="{FONTS}">{content}</svg>'
    )


def _label(x: float, y: float, text: str, anchor: str, color: str = "#444") -> str:
    shown = escape(text)
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="12" fill="{color}">{shown}</text>'


def _at(one: Mapping[str, Any]) -> int:
    return int(one["point"]["concurrency"])


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
