"""Rates and quantiles from vLLM's counters: what Prometheus' own reader reads, and answers that are known."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tests.support.bounds import within
from tests.support.paths import FIXTURES
from tests.support.views import serving
from vllm_cluster.serving.status.counters import (
    FIRST_TOKEN,
    KV_CACHE,
    MAX_NUMBERS,
    MAX_REPLICAS,
    MAX_SNAPSHOTS,
    NEXT_TOKEN,
    Counters,
    ModelLoad,
    Recent,
    RecentLoads,
    parse_counters,
    quantile,
)
from vllm_cluster.serving.status.on_host.sample import LINES, NAMES

REAL = (FIXTURES / "metrics" / "vllm-0.32.0.txt").read_text()


def theirs() -> Iterator[tuple[str, dict[str, str], float]]:
    """Each number of the real /metrics, by Prometheus' own reader."""
    for family in text_string_to_metric_families(REAL):
        for row in family.samples:
            yield row.name, row.labels, row.value


def test_the_real_metrics_are_read_as_prometheus_reads_them() -> None:
    ours = parse_counters(REAL, 0.0)
    sums: dict[str, float] = {}
    bounds: dict[str, dict[float, float]] = {}
    for whole, labels, value in theirs():
        name = whole.removeprefix("vllm:")
        # What a node passes on; a host that writes others fills the memory with them.
        if name != whole and re.fullmatch(NAMES, name):
            if "le" in labels:
                bounds.setdefault(name.removesuffix("_bucket"), {})[float(labels["le"])] = value
            else:
                sums[name] = sums.get(name, 0.0) + value
    assert ours.values == pytest.approx(sums)
    assert ours.buckets == bounds
    assert ours.values["generation_tokens_total"] > 0
    assert ours.buckets[FIRST_TOKEN][math.inf] > 0


# fault: serving/status/counters.py: max(values.get(name, 0.0), value) → values.get(name, 0.0) + value
def test_the_fullest_kv_cache_counts_and_requests_are_summed() -> None:
    rows = ("kv_cache_usage_perc", 0.4, 0.9), ("num_requests_running", 3, 4)
    text = "".join(
        f'vllm:{name}{{engine="{number}"}} {value}\n' for name, *values in rows for number, value in enumerate(values)
    )
    assert parse_counters(text, 0.0).values == {"kv_cache_usage_perc": 0.9, "num_requests_running": 7.0}


def of_replicas(**tokens: float) -> str:
    """What the front has of replicas by their number, with tokens that they have generated."""
    rows = ((int(name.removeprefix("r")), count) for name, count in tokens.items())
    return "\n".join(f'vllm:generation_tokens_total{{replica="{n}",engine="0"}} {count}' for n, count in rows)


# fault: serving/status/counters.py: self._whole.add([runs.get(index) for index in texts or runs], → self._whole.add(None,
def test_each_of_several_replicas_is_counted_and_their_sum() -> None:
    pair, recent = [replace(serving(), index=n) for n in (0, 1)], RecentLoads()
    for at, text in enumerate((of_replicas(r0=100, r1=1000), of_replicas(r0=130, r1=1200))):
        recent.add(pair, text, 100.0 + 10 * at)
    rates = {index: load.generated_tokens_per_second for index, load in recent.loads().items()}
    assert rates == {0: 3.0, 1: 20.0}
    assert (whole := recent.load())
    assert whole.generated_tokens_per_second == 23.0
    # One that has not answered, and is there again: what it has done before is not of these seconds.
    recent.add(pair, of_replicas(r0=160), 120.0)
    assert [*recent.loads()] == [0]
    recent.add(pair, of_replicas(r0=190, r1=1400), 130.0)
    assert (whole := recent.load())
    assert whole.generated_tokens_per_second is None
    # One that has started again has fallen to nothing, and grown beyond.
    again = [pair[0], replace(pair[1], attempt=2)]
    recent.add(again, of_replicas(r0=220, r1=9000), 140.0)
    assert (whole := recent.load())
    assert whole.generated_tokens_per_second is None
    assert recent.loads()[1].generated_tokens_per_second is None
    assert recent.loads()[0].generated_tokens_per_second == 3.0
    recent.clear()
    assert (recent.load(), recent.loads()) == (None, {})


def test_of_one_replica_alone_there_is_no_row() -> None:
    recent = RecentLoads()
    for at in (0.0, 10.0):
        recent.add([serving()], REAL, at)
    assert recent.load()
    assert recent.loads() == {}
    # The front gives it a number too.
    recent.add([serving()], of_replicas(r0=100), 20.0)
    assert recent.loads() == {}


def test_what_a_node_passes_on_is_there_and_enough() -> None:
    """A metric that another vLLM calls otherwise would be missing without an error."""
    passed = "\n".join(LINES.findall(REAL))
    ours, all_of_it = parse_counters(passed, 0.0), parse_counters(REAL, 0.0)
    assert set(ours.values) == {
        *("num_requests_running", "num_requests_waiting", KV_CACHE),
        *("prefix_cache_queries_total", "prefix_cache_hits_total", "prompt_tokens_total", "generation_tokens_total"),
        *("num_preemptions_total", "request_success_total"),
    }
    assert ours.values.items() <= all_of_it.values.items()
    assert set(ours.buckets) == {FIRST_TOKEN, NEXT_TOKEN}
    assert len(passed) < 8_000
    assert NAMES.count("(") == NAMES.count(")")


def test_the_load_between_two_moments() -> None:
    recent = Recent()
    first = parse_counters(REAL, 100.0)
    values = {name: value + 30 for name, value in first.values.items() if name.endswith("_total")}
    values |= {"num_requests_running": 3.0, "num_requests_waiting": 2.0, KV_CACHE: 0.25, "prefix_cache_hits_total": 15}
    later = Counters(110.0, values, {FIRST_TOKEN: {0.1: 10.0, 0.2: 20.0, math.inf: 20.0}, NEXT_TOKEN: {}})
    recent.add("run", replace(first, buckets={}))
    recent.add("run", later)
    load = recent.load()
    assert load == ModelLoad(3, 2, 3.0, 3.0, load.requests_per_second if load else 0, 3.0, 25.0, 50.0, 0.1, 0.19)


# fault: serving/status/counters.py: if run != self._run or (last and _fell(last, now)): → if run != self._run and not last:
def test_another_run_begins_from_nothing() -> None:
    recent = Recent()
    recent.add("first", Counters(0.0, {"generation_tokens_total": 1000.0}, {}))
    recent.add("first", Counters(2.0, {"generation_tokens_total": 1100.0}, {}))
    assert (load := recent.load())
    assert load.generated_tokens_per_second == 50
    recent.add("second", Counters(4.0, {"generation_tokens_total": 2000.0}, {}))
    assert (load := recent.load())
    assert load.generated_tokens_per_second is None
    recent.add("second", Counters(6.0, {"generation_tokens_total": 3.0}, {}))
    assert (load := recent.load())
    assert load.generated_tokens_per_second is None, "it was started again, unnoticed"
    recent.add("second", Counters(8.0, {"generation_tokens_total": 7.0}, {}))
    assert (load := recent.load())
    assert load.generated_tokens_per_second == 2
    recent.clear()
    assert recent.load() is None


# fault: serving/status/counters.py: if now.at - one.at >= RATE_SECONDS), whole) → if now.at - one.at >= QUANTILE_SECONDS), whole)
def test_rates_are_of_ten_seconds_and_quantiles_of_a_minute() -> None:
    recent = Recent()
    for second in range(0, 121, 2):
        tokens = second if second <= 100 else 100 + (second - 100) * 5
        buckets = {FIRST_TOKEN: {1.0: 5.0, 2.0: 5.0 + second, math.inf: 5.0 + second}}
        recent.add("run", Counters(float(second), {"generation_tokens_total": float(tokens)}, buckets))
    assert (load := recent.load())
    assert load.generated_tokens_per_second == 5
    assert load.first_token_p50_seconds == 1.5


def test_a_host_that_floods_fills_no_memory() -> None:
    recent = Recent()
    for number in range(10 * MAX_SNAPSHOTS):
        recent.add("run", Counters(number / 1e6, {}, {}))
    assert len(recent._seen) == MAX_SNAPSHOTS


# fault: serving/status/counters.py: elif name in _NAMES: → else:
# fault: serving/status/counters.py: [:MAX_REPLICAS] → [:]
@pytest.mark.parametrize(
    "text",
    [
        "vllm:a{" + 'le="1"}' * 100_000 + "}",
        "\n".join(f"vllm:a{number} 1" for number in range(100_000)),
        "\n".join(f'vllm:num_requests_running{{replica="{number}"}} 1' for number in range(50_000)),
        "\n".join(f'vllm:{FIRST_TOKEN}_bucket{{le="{number}"}} 1' for number in range(50_000)),
    ],
    ids=["line", "names", "replicas", "bounds"],
)
def test_a_head_s_metrics_cost_little(text: str) -> None:
    """One line of 4 MB held `status --watch` for an hour; 4 MB of names took 35 MB, six hundred times."""
    loads = RecentLoads()
    with within(30, megabytes=40):
        for number in range(5):
            loads.add((), text, number / 1e3)
        loads.load()


# fault: serving/status/counters.py: sum(one.numbers for one in self._seen) > most: → sum(one.numbers for one in self._seen) > 1e9:
# fault: serving/status/counters.py: most = MAX_NUMBERS // (1 + len(texts)) → most = MAX_NUMBERS
def test_many_replicas_with_many_bounds_fill_no_memory() -> None:
    """A sample of 3.7 MB took 5.4 MB, of which six hundred were kept: 3 GB in `status --watch`."""

    def counted(number: int) -> str:
        forms = (
            f'vllm:{name}_bucket{{replica="{replica}",le="{bound + number / 100}"}} {number}'
            for replica in range(MAX_REPLICAS)
            for name in (FIRST_TOKEN, NEXT_TOKEN)
            for bound in range(50)
        )
        return "\n".join((f"vllm:generation_tokens_total {number}", *forms))

    loads = RecentLoads()
    for number in range(30):
        loads.add((), counted(number), float(number))
    kept = [one for recent in (loads._whole, *loads._each.values()) for one in recent._seen]
    assert sum(one.numbers for one in kept) <= MAX_NUMBERS
    assert (load := loads.load()) and load.generated_tokens_per_second == 1


@pytest.mark.parametrize(
    ("share", "buckets", "found"),
    [
        # Those of Prometheus' own documentation of histogram_quantile: linear within the bucket.
        (0.5, {1.0: 10.0, 2.0: 20.0, math.inf: 20.0}, 1.0),
        (0.75, {1.0: 10.0, 2.0: 20.0, math.inf: 20.0}, 1.5),
        (0.25, {1.0: 10.0, 2.0: 20.0, math.inf: 20.0}, 0.5),
        (0.95, {1.0: 10.0, 2.0: 10.0, math.inf: 20.0}, 2.0),
        (0.5, {1.0: 0.0, 2.0: 0.0, 4.0: 8.0, math.inf: 8.0}, 3.0),
        (0.5, {1.0: 0.0, math.inf: 0.0}, None),
        (0.5, {math.inf: 5.0}, None),
        (0.5, {}, None),
    ],
)
def test_quantiles(share: float, buckets: dict[float, float], found: float | None) -> None:
    assert quantile(share, buckets) == found


@given(st.dictionaries(st.floats(0.001, 100), st.integers(0, 50), min_size=1), st.floats(0.01, 0.99))
def test_a_quantile_lies_within_its_bucket(sizes: dict[float, int], share: float) -> None:
    count, buckets = 0, dict[float, float]()
    for bound, size in sorted(sizes.items()):
        count += size
        buckets[bound] = float(count)
    buckets[math.inf] = float(count)
    found = quantile(share, buckets)
    assert (found is None) == (count == 0)
    if found is not None:
        assert 0 <= found <= max(sizes)
        bound = next(bound for bound in sorted(buckets) if buckets[bound] >= share * count)
        below = max((other for other in sizes if other < bound), default=0.0)
        assert below - 1e-9 <= found <= min(bound, max(sizes)) + 1e-9


@given(st.text())
def test_no_text_is_an_error(text: str) -> None:
    parse_counters(text, 0.0)
    parse_counters(f'vllm:x_total{{le="{text}"}} {text}\nvllm:kv_cache_usage_perc NaN', 0.0)


COUNTED = (
    *(
        "num_requests_running",
        "num_requests_waiting",
        KV_CACHE,
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
    ),
    *("prompt_tokens_total", "request_success_total", f"{FIRST_TOKEN}_bucket", f"{NEXT_TOKEN}_bucket"),
)
NUMBERS = st.one_of(st.floats(), st.sampled_from((1e308, 5e-324, -1.0, 1e18)))
ROWS = st.lists(st.tuples(st.sampled_from(COUNTED), NUMBERS, NUMBERS), max_size=6)


# fault: serving/status/counters.py: not 0 <= (value := _number(found[3])) <= MAX_VALUE: → not math.isfinite(value := _number(found[3])):
@pytest.mark.promise("P23")
@example([[("num_requests_running", 1e308, 0.0)] * 2], 1.0)
@example([[("kv_cache_usage_perc", 1e308, 0.0)]], 1.0)
@example([[], [("prompt_tokens_total", 1e18, 0.0)]], 5e-324)
@given(st.lists(ROWS, min_size=1, max_size=3), st.floats(0, 1e18))
def test_the_load_is_of_numbers_that_json_has(texts: list[list[tuple[str, float, float]]], step: float) -> None:
    recent = Recent()
    for turn, rows in enumerate(texts):
        lines = [f'vllm:{name}{{le="{bound}"}} {value}' for name, value, bound in rows]
        recent.add("run", parse_counters("\n".join(lines), turn * step))
        load = recent.load()
        assert load
        json.dumps(asdict(load), allow_nan=False)
