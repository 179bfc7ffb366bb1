"""vLLM's counters between two moments: rates, and quantiles from the buckets of its histograms."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vllm_cluster.wire.status import ServeStatus

# Rates are those of the last seconds; quantiles need more, since one request adds one to a histogram.
RATE_SECONDS, QUANTILE_SECONDS = 10.0, 60.0
# A host that sends faster than it was asked to, or more than vLLM has, must not fill our memory.
MAX_SNAPSHOTS, MAX_REPLICAS, MAX_BOUNDS, MAX_LINE = 600, 128, 200, 4096
# Of all snapshots of all replicas: 100 bytes each. 128 replicas of vLLM have 58 each, 40 times.
MAX_NUMBERS = 300_000
# So that no sum, difference or rate of them is infinite: 1e308 and 1e308 are, and neither JSON nor an integer has that.
MAX_VALUE, MIN_SECONDS = 1e18, 0.1
_LINE = re.compile(r'vllm:(\w+)(?:\{((?:[a-zA-Z_]\w*="(?:[^"\\]|\\.)*",?)*)\})? +(\S{1,40})', re.ASCII)
_TEXT = re.compile(r"[^\n]+")
_BOUND = re.compile(r'(?<!\w)le="([^"]{1,40})"')
# As the front writes it.
_OF_REPLICA = re.compile(r'vllm:\w+\{replica="([0-9]{1,5})"')
_GAUGES = ("num_requests_running", "num_requests_waiting")
KV_CACHE = "kv_cache_usage_perc"
FIRST_TOKEN, NEXT_TOKEN = "time_to_first_token_seconds", "inter_token_latency_seconds"
_QUERIES, _HITS = "prefix_cache_queries_total", "prefix_cache_hits_total"
_RATES = ("prompt_tokens_total", "generation_tokens_total", "request_success_total", "num_preemptions_total")
# All that is shown.
_NAMES = frozenset((*_GAUGES, *_RATES, KV_CACHE, _QUERIES, _HITS))


@dataclass(frozen=True)
class Counters:
    """vLLM's counters at one moment of the host's boot clock, summed over its engines.

    `buckets` are cumulative, by upper bound. The fullest engine's KV cache counts: it is the one that evicts.
    """

    at: float
    values: Mapping[str, float]
    buckets: Mapping[str, Mapping[float, float]]

    @property
    def numbers(self) -> int:
        """How many it has."""
        return len(self.values) + sum(map(len, self.buckets.values()))


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
    for line in _lines(text):
        found = _LINE.fullmatch(line) if len(line) <= MAX_LINE else None
        if found is None or not 0 <= (value := _number(found[3])) <= MAX_VALUE:
            continue
        name, base = found[1], found[1].removesuffix("_bucket")
        if name != base and base in (FIRST_TOKEN, NEXT_TOKEN):
            bound, family = _BOUND.search(found[2] or ""), buckets.setdefault(base, {})
            upper = _number(bound[1]) if bound else math.nan
            known = 0 <= upper <= MAX_VALUE or upper == math.inf
            if known and (upper in family or len(family) < MAX_BOUNDS):
                family[upper] = family.get(upper, 0.0) + value
        elif name == KV_CACHE:
            values[name] = max(values.get(name, 0.0), value)
        elif name in _NAMES:
            values[name] = values.get(name, 0.0) + value
    return Counters(at, values, buckets)


def split_replicas(text: str) -> dict[int, str]:
    """The lines of each replica by its number."""
    found: dict[int, list[str]] = {}
    for line in _lines(text):
        if of := _OF_REPLICA.match(line):
            found.setdefault(int(of[1]), []).append(line)
    return {index: "\n".join(found[index]) for index in sorted(found)[:MAX_REPLICAS]}


def _lines(text: str) -> Iterator[str]:
    """Its lines, one after the other: all of a million short ones take fifty times as much memory."""
    return (found[0] for found in _TEXT.finditer(text))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


class RecentLoads:
    """The counters of the last minute of a model, and of each of several replicas."""

    def __init__(self) -> None:
        self._whole, self._each = Recent(), dict[int, Recent]()

    def add(self, serves: Sequence[ServeStatus], text: str, at: float) -> None:
        """Take what was counted at a moment of the host's boot clock; of another start nothing before it counts."""
        runs = {one.index: (one.generation, one.attempt) for one in serves}
        # One alone is the whole.
        texts = {} if len(serves) == 1 else split_replicas(text)
        most = MAX_NUMBERS // (1 + len(texts))
        # A replica that has not answered once, and then does, would look like as many requests at once.
        self._whole.add([runs.get(index) for index in texts or runs], parse_counters(text, at), most)
        self._each = {index: self._each.get(index, Recent()) for index in texts}
        for index, one in self._each.items():
            one.add(runs.get(index), parse_counters(texts[index], at), most)

    def clear(self) -> None:
        """Forget all: nothing is served."""
        self._whole, self._each = Recent(), {}

    def load(self) -> ModelLoad | None:
        """What all replicas do together; None before anything was counted."""
        return self._whole.load()

    def loads(self) -> dict[int, ModelLoad]:
        """What each of several replicas does."""
        return {index: load for index, one in self._each.items() if (load := one.load())}


class Recent:
    """The counters of the last minute of one run of vLLM."""

    def __init__(self) -> None:
        self._seen: deque[Counters] = deque(maxlen=MAX_SNAPSHOTS)
        self._run: object = None

    def add(self, run: object, now: Counters, most: int = MAX_NUMBERS) -> None:
        """Take what was counted; of another run, or where a counter has fallen, what came before does not count.

        Of more than `most` numbers the oldest are forgotten, but for those of two moments.
        """
        last = self._seen[-1] if self._seen else None
        if run != self._run or (last and _fell(last, now)):
            self._seen.clear()
        self._run = run
        self._seen.append(now)
        while len(self._seen) > 1 and now.at - self._seen[1].at >= QUANTILE_SECONDS:
            self._seen.popleft()
        while len(self._seen) > 2 and sum(one.numbers for one in self._seen) > most:
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
        queries, hits = (_grown(whole, now, name) for name in (_QUERIES, _HITS))
        running, waiting = (now.values.get(name) for name in _GAUGES)
        first, following = (_grown_buckets(whole, now, name) for name in (FIRST_TOKEN, NEXT_TOKEN))
        prompts, generated, requests, preemptions = (_rate(before, now, name) for name in _RATES)
        kv_cache = now.values.get(KV_CACHE)
        return ModelLoad(
            None if running is None else round(running),
            None if waiting is None else round(waiting),
            prompts,
            generated,
            requests,
            preemptions,
            None if kv_cache is None else 100 * kv_cache,
            100 * hits / queries if queries and queries >= 1 and hits is not None else None,
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
    return None if grown is None or seconds < MIN_SECONDS else grown / seconds


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
