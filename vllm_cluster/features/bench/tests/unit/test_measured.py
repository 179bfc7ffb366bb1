"""What a benchmark runs, and when two of them differ by more than noise."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise, product
from typing import Any

import pytest

from tests.support.depth import cases
from tests.support.views import serving
from vllm_cluster.features.bench.measured import (
    COMPARED,
    MAX_FIGURE,
    MIN_FIGURE,
    PRESETS,
    Point,
    argv,
    compare,
    figure_name,
    figures,
    order,
    points,
    two_sided,
    welch,
)
from vllm_cluster.features.bench.render import bench_lines, compared_lines, report

MEANS = {"output_throughput": 1000.0, "p50_ttft_ms": 50.0, "p50_tpot_ms": 10.0, "p99_e2el_ms": 2000.0}


def measured(chance: random.Random, runs: int, *, levels: tuple[int, ...] = (1, 16, 256), factor: float = 1.0) -> Any:
    """Points whose figures differ from run to run by 3 %."""
    return [
        {
            "point": {"concurrency": level, "input": 128, "output": 128, "prompts": 8},
            "runs": [
                {
                    "repetition": run,
                    "figures": {name: mean * factor * chance.gauss(1, 0.03) for name, mean in MEANS.items()},
                }
                for run in range(runs)
            ],
        }
        for level in levels
    ]


@pytest.mark.parametrize("runs", [2, 3, 5])
def test_two_equal_benchmarks_show_no_difference_19_times_of_20(runs: int) -> None:
    """All twelve figures of a preset together; the bound is that of as many throws of a coin with 1 of 20."""
    chance, throws = random.Random(7), cases(100, 600, 600)
    false = sum(
        any(row.different for row in compare(measured(chance, runs), measured(chance, runs))) for _ in range(throws)
    )
    assert false <= throws / 20 + 3 * (throws * 0.05 * 0.95) ** 0.5


def test_a_real_difference_is_seen_with_its_direction() -> None:
    chance = random.Random(7)
    rows = compare(measured(chance, 5), measured(chance, 5, factor=1.25))
    assert len(rows) == 3 * len(COMPARED)
    assert all(row.different for row in rows)
    # More tokens per second is better, more milliseconds are worse.
    assert {row.figure for row in rows if row.better} == {"output_throughput"}
    assert all(20 < row.change_percent < 30 for row in rows)


def test_one_run_shows_no_noise_and_other_loads_are_not_compared() -> None:
    chance = random.Random(7)
    assert {(row.p_value, row.different) for row in compare(measured(chance, 1), measured(chance, 3, factor=9))} == {
        (None, False)
    }
    assert compare(measured(chance, 3, levels=(1,)), measured(chance, 3, levels=(2,))) == []


@pytest.mark.parametrize(
    ("t", "freedom", "p"),
    # From tables of Student's t.
    [(12.706, 1, 0.05), (4.303, 2, 0.05), (2.776, 4, 0.05), (2.228, 10, 0.05), (3.169, 10, 0.01), (1.984, 100, 0.05)],
)
def test_students_t_is_that_of_the_tables(t: float, freedom: float, p: float) -> None:
    assert two_sided(t, freedom) == pytest.approx(p, rel=2e-3)
    assert two_sided(0.0, freedom) == pytest.approx(1.0)


def test_figures_without_any_noise_are_compared_too() -> None:
    assert (welch([1, 1], [1, 1]), welch([1, 1], [2, 2]), welch([1], [1, 2])) == (1.0, 0.0, None)
    # Welch and Satterthwaite by hand: t = 3.674 with 4 degrees of freedom.
    assert welch([1, 2, 3], [4, 5, 6]) == pytest.approx(0.0213, abs=1e-4)


def test_points_are_those_of_the_preset_with_what_is_given() -> None:
    assert points(PRESETS["guides"]) == [Point(1, 128, 128, 8), Point(16, 128, 128, 64), Point(256, 128, 128, 1024)]
    assert points(PRESETS["one"], concurrency=[4, 4], tokens_in=9, tokens_out=7) == [Point(4, 9, 7, 16)]


def test_repetitions_come_in_turns() -> None:
    assert list(order(2, 2)) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_the_words_for_vllm() -> None:
    words = argv(Point(16, 128, 64, 32), replace(serving(), model="org/m", name="m"), 5)
    given = dict(pairwise(words))
    assert (given["--model"], given["--served-model-name"], given["--max-concurrency"]) == ("org/m", "m", "16")
    assert (given["--random-input-len"], given["--random-output-len"], given["--seed"]) == ("128", "64", "5")


def test_the_figures_that_are_kept() -> None:
    found = figures({"output_throughput": 5, "p99_itl_ms": 1.5, "request_rate": "inf", "p50_ttft_ms": None, "x": 1})
    assert found == {"output_throughput": 5.0, "p99_itl_ms": 1.5}


# fault: features/bench/measured.py: if number and not MIN_FIGURE <= number <= MAX_FIGURE: → if not number <= MAX_FIGURE:
@pytest.mark.parametrize("odd", [1e-120, 5e-324, -1.0, 1e19, 1e308, 10**400, float("nan"), float("inf")])
def test_no_figure_is_kept_with_which_nothing_can_be_counted(odd: float) -> None:
    """A head may report any number: with those of 1e-120 the comparison ended in a division by zero."""
    assert figures({"output_throughput": odd, "p50_ttft_ms": 0}) == {"p50_ttft_ms": 0.0}


def test_the_smallest_and_the_largest_figures_are_compared() -> None:
    least, most = [MIN_FIGURE, math.nextafter(MIN_FIGURE, 1)], [MAX_FIGURE, math.nextafter(MAX_FIGURE, 0)]
    for values, other in product([least, most, [0.0, MIN_FIGURE], [0.0, MAX_FIGURE]], repeat=2):
        assert all(value == 0 or figures({"duration": value}) for value in values)
        assert 0 <= (welch(values, other) or 0.0) <= 1


# fault: features/bench/measured.py: different.add(row[:2]) → different.update(one[:2] for one in rows if one[1] == row[1])
def test_loads_that_share_a_concurrency_are_different_each_for_itself() -> None:
    chance = random.Random(7)

    def two(factor: float) -> Any:
        short, long = (measured(chance, 5, levels=(1,), factor=one)[0] for one in (factor, 1.0))
        return [short, {**long, "point": {**long["point"], "input": 1024}}]

    assert [row.different for row in compare(two(1.0), two(1.5))] == [True] * 4 + [False] * 4


DOCUMENT = {
    "name": "</script><b>m</b>",
    "versions": {"vllm": "0.32.0", "vcluster": "0.1.0"},
    "image": "i",
    "started": "2026-01-01",
    "flags": ["--x=<script>"],
    "hosts": [{"name": "gpu1", "gpus": [], "driver": "", "hcas": [], "interface": "eth0"}],
    "points": measured(random.Random(1), 2),
}


def data_of(made: str) -> Any:
    """What the script of a report shows."""
    (line,) = re.findall(r"^const data = (.*);$", made, re.MULTILINE)
    return json.loads(line)


@pytest.mark.parametrize("levels", [(1,), (1, 16, 256)])
def test_the_page_needs_no_other_file(levels: tuple[int, ...]) -> None:
    made = report({**DOCUMENT, "points": measured(random.Random(1), 2, levels=levels)})
    tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.append(tag)
            assert not {name for name, _ in attrs} & {"src", "href", "onload"}

    Reader().feed(made)
    assert tags.count("script") == tags.count("style") == 1
    assert "b" not in tags
    found = data_of(made)
    assert (found["name"], found["flags"]) == (DOCUMENT["name"], DOCUMENT["flags"])
    assert found["about"] == "1 host, vLLM 0.32.0, vcluster 0.1.0, image i, started 2026-01-01"
    assert [point["concurrency"] for point in found["points"]] == list(levels)
    # What its script reads of the data, and the elements that it fills, are there.
    script = made.rpartition("const data = ")[2]
    assert set(re.findall(r"\bdata\.(\w+)", script)) == found.keys()
    assert {f'id="{name}"' for name in re.findall(r'(?:at|put|table)\("(\w+)"', script)} <= set(
        re.findall(r'id="\w+"', made)
    )


def test_a_figure_has_one_name_wherever_it_is_shown() -> None:
    table, *_ = bench_lines(DOCUMENT)
    rows = compare(measured(random.Random(1), 3), measured(random.Random(2), 3))
    names = {figure_name(row.figure) for row in rows}
    assert names == {"tokens/s", "ttft p50", "tpot p50", "e2e p99"}
    compared = "\n".join(compared_lines(rows))
    for name in names:
        assert name.upper() in table
        assert f"  {name}  " in compared
        assert name in data_of(report(DOCUMENT))["loads"][0]
