"""vLLM's counters between two moments: rates, and quantiles from the buckets of its histograms."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# Rates are those of the last seconds; quantiles need more, since one request adds one to a histogram.
RATE_SECONDS, QUANTILE_SECONDS = 10.0, 60.0
# A host that sends faster than it was asked to must not fill our memory.
MAX_SNAPSHOTS = 600
_LINE = re.compile(r'^vllm:(\w+)(?:\{(?:[^\n]*?\ble="([^"\n]+)")?[^\n]*\})? +(\S+)$', re.MULTILINE)
_GAUGES = ("num_requests_running", "num_requests_waiting")
KV_CACHE = "kv_cache_usage_perc"
FIRST_TOKEN, NEXT_TOKEN = "time_to_first_token_seconds", "inter_token_latency_seconds"


@dataclass(frozen=True)
class Counters:
    """vLLM's counters at one moment of the host's boot clock, summed over its engines.

    `buckets` are cumulative, by upper bound. The fullest engine's KV cache counts: it is the one that evicts.
    """

    at: float
    values: Mapping[str, float]
    buckets: Mapping[str, Mapping[float, float]]


@dataclass(frozen=True)
class ModelLoad:
    """What the model does now; None where it is not known, as a latency while no request ends.

    Times are those of the last minute, rates those of the last ten seconds.
    """

    requests_running: int | None = None
    requests_waiting: int | None = None
    prompt_tokens_per_second: float | None = None
    generated_tokens_per_second: float | None = None
    requests_per_second: float | None = None
    preemptions_per_second: float | None = None
    kv_cache_percent: float | None = None
    prefix_hit_percent: float | None = None
    first_token_p50_seconds: float | None = None
    first_token_p95_seconds: float | None = None
    next_token_p50_seconds: float | None = None
    next_token_p95_seconds: float | None = None


def parse_counters(text: str, at: float) -> Counters:
    """Read lines of Prometheus' text format; those of other programs, and numbers that are none, are passed over."""
    values: dict[str, float] = {}
    buckets: dict[str, dict[float, float]] = {}
    for name, bound, raw in _LINE.findall(text):
        value = _number(raw)
        if not math.isfinite(value):
            continue
        if name.endswith("_bucket"):
            if not math.isnan(upper := _number(bound)):
                family = buckets.setdefault(name.removesuffix("_bucket"), {})
                family[upper] = family.get(upper, 0.0) + value
        elif name == KV_CACHE:
            values[name] = max(values.get(name, 0.0), value)
        else:
            values[name] = values.get(name, 0.0) + value
    return Counters(at, values, buckets)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


class Recent:
    """The counters of the last minute of one run of vLLM."""

    def __init__(self) -> None:
        self._seen: deque[Counters] = deque(maxlen=MAX_SNAPSHOTS)
        self._run: object = None

    def add(self, run: object, now: Counters) -> None:
        """Take what was counted; of another run, or where a counter has fallen, what came before does not count."""
        last = self._seen[-1] if self._seen else None
        if run != self._run or (last and _fell(last, now)):
            self._seen.clear()
        self._run = run
        self._seen.append(now)
        while len(self._seen) > 1 and now.at - self._seen[1].at >= QUANTILE_SECONDS:
            self._seen.popleft()

    def clear(self) -> None:
        """Forget all: nothing is served."""
        self._seen.clear()

    def load(self) -> ModelLoad | None:
        """What the model does now; None before anything was counted."""
        if not self._seen:
            return None
        now, whole = self._seen[-1], self._seen[0]
        before = next((one for one in reversed(self._seen) if now.at - one.at >= RATE_SECONDS), whole)
        queries, hits = (_grown(whole, now, f"prefix_cache_{name}_total") for name in ("queries", "hits"))
        running, waiting = (now.values.get(name) for name in _GAUGES)
        first, following = (_grown_buckets(whole, now, name) for name in (FIRST_TOKEN, NEXT_TOKEN))
        kv_cache = now.values.get(KV_CACHE)
        return ModelLoad(
            None if running is None else round(running),
            None if waiting is None else round(waiting),
            _rate(before, now, "prompt_tokens_total"),
            _rate(before, now, "generation_tokens_total"),
            _rate(before, now, "request_success_total"),
            _rate(before, now, "num_preemptions_total"),
            None if kv_cache is None else 100 * kv_cache,
            100 * hits / queries if queries and hits is not None else None,
            quantile(0.5, first),
            quantile(0.95, first),
            quantile(0.5, following),
            quantile(0.95, following),
        )


def _fell(before: Counters, now: Counters) -> bool:
    return any(now.values.get(name, 0.0) < value for name, value in before.values.items() if name.endswith("_total"))


def _grown(before: Counters, now: Counters, name: str) -> float | None:
    value = now.values.get(name)
    return None if value is None else value - before.values.get(name, 0.0)


def _rate(before: Counters, now: Counters, name: str) -> float | None:
    grown, seconds = _grown(before, now, name), now.at - before.at
    return None if grown is None or seconds <= 0 else grown / seconds


def _grown_buckets(before: Counters, now: Counters, name: str) -> dict[float, float]:
    earlier = before.buckets.get(name, {})
    return {bound: value - earlier.get(bound, 0.0) for bound, value in now.buckets.get(name, {}).items()}


def quantile(share: float, buckets: Mapping[float, float]) -> float | None:
    """The value below which this share of the observations lies, by cumulative buckets; None where there are none.

    As histogram_quantile of Prometheus: linear within a bucket, the lowest begins at 0, and in the last one, which has
    no end, it is the end of the one before (https://prometheus.io/docs/prometheus/latest/querying/functions/).
    """
    rows = sorted(buckets.items())
    total = rows[-1][1] if rows else 0.0
    if total <= 0 or len(rows) < 2:
        return None
    wanted = share * total
    for (lower, below), (upper, count) in _neighbours(rows):
        if count >= wanted:
            if math.isinf(upper):
                return lower
            return lower + (upper - lower) * (wanted - below) / (count - below) if count > below else lower
    return rows[-2][0]


def _neighbours(rows: list[tuple[float, float]]) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    return zip([(0.0, 0.0), *rows], rows, strict=False)
