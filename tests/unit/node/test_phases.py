"""How far a start is, by real logs of vLLM: always forward, with any lines."""

from __future__ import annotations

import random
from typing import get_args

import pytest

from tests.support.paths import ROOT
from vllm_cluster.serving.node.start_movement import STEPS, Phases
from vllm_cluster.wire.status import Phase

LOGS = ROOT / "tests" / "fixtures" / "logs"
STARTED = ("healthy-gpu-ray", "healthy-one-process", "healthy-slow-work", "healthy-two-hosts")


def seen(lines: list[str]) -> tuple[Phases, list[tuple[str, str]]]:
    """The phases after all lines, and each phase with its detail in turn."""
    phases, told = Phases(lambda: 0.0), list[tuple[str, str]]()
    for line in lines:
        phases.see(line)
        if not told or told[-1] != (phases.phase, phases.detail):
            told.append((phases.phase, phases.detail))
    return phases, told


@pytest.mark.promise("P37")
@pytest.mark.parametrize("name", STARTED)
def test_a_real_start_passes_through_its_phases(name: str) -> None:
    lines = (LOGS / f"{name}.log").read_text().splitlines()
    phases, told = seen(lines)
    names = [phase for phase, _ in told]
    assert names == sorted(names, key=STEPS.index)
    assert {"importing", "joining", "loading", "profiling", "probing"} <= set(names)
    assert told[-1] == ("probing", "starting the API")
    assert phases.tasks == ("generate",)


# fault: serving/node/start_movement.py: if marker.step >= self._step and ( → if (
def test_a_gpu_start_compiles_and_captures() -> None:
    phases, told = seen((LOGS / "healthy-gpu-ray.log").read_text().splitlines())
    assert [phase for phase, _ in phases.passed] == [
        "importing",
        "joining",
        "loading",
        "compiling",
        "profiling",
        "capturing",
    ]
    assert ("profiling", "KV cache of 1,971,008 tokens") in told
    assert ("capturing", "CUDA graphs 51/51") in told


def test_ranks_that_join_are_counted_and_folded_lines_too() -> None:
    joined = (
        "(RayWorkerProc pid=1) (Worker pid=1) INFO [parallel_state.py:1] world_size=4 rank={} local_rank=0 x=tcp://a:1"
    )
    phases, told = seen([joined.format(0), joined.format(2) + " [repeated 2x across cluster]", joined.format(3)])
    assert [detail for _, detail in told] == ["ranks 1/4", "ranks 3/4", "ranks 4/4"]
    assert phases.phase == "joining"


def test_shards_have_a_count_and_a_duration() -> None:
    line = "(Worker pid=2) Loading safetensors checkpoint shards:  47% Completed | 14/30 [00:31<00:34,  2.1s/it]"
    phases, _ = seen([line])
    assert (phases.phase, phases.detail, phases.progress) == ("loading", "shards 14/30, 00:34 left", (14, 30))


def test_a_download_comes_between_opening_and_loading() -> None:
    phases = Phases(lambda: 0.0)
    phases.see("INFO Starting to load model org/model...")
    phases.downloading("1.5 GB, 120 MB/s")
    assert (phases.phase, phases.detail) == ("downloading", "1.5 GB, 120 MB/s")
    # Another rank is only now so far.
    phases.see("INFO Starting to load model org/model...")
    assert phases.phase == "downloading"
    phases.see("INFO Time spent downloading weights for org/model: 12.3 seconds")
    phases.downloading("1.6 GB, 120 MB/s")
    assert str(phases.phase) == "loading"


def test_no_line_breaks_it_or_takes_it_back() -> None:
    """Every line of every log, in any order, and noise."""
    chance = random.Random(7)
    lines = [line for path in LOGS.glob("*.log") for line in path.read_text(errors="replace").splitlines()]
    lines += ["", "\x00\ufffd", "Completed | /", "world_size= rank=", "Supported tasks: [", "x" * 100_000]
    for _ in range(3):
        chance.shuffle(lines)
        phases, last = Phases(lambda: 0.0), 0
        for line in lines:
            phases.see(line)
            step = len(STEPS) - 1 - STEPS[::-1].index(phases.phase)
            assert step >= last or phases.phase == "loading"
            last = max(last, STEPS.index(phases.phase))
        assert phases.phase == "probing"


@pytest.mark.parametrize(
    ("line", "tasks"),
    [
        ("INFO Supported tasks: ['generate', 'transcription']", ("generate", "transcription")),
        ("INFO Supported_tasks: ('embed', 'token_embed')", ("embed", "token_embed")),
        ("INFO Supported tasks: ['embed&token_classify']", ("embed&token_classify",)),
    ],
)
def test_the_tasks_of_a_model_are_read(line: str, tasks: tuple[str, ...]) -> None:
    assert seen([line])[0].tasks == tasks


def test_the_laptop_knows_every_step_of_the_node_program() -> None:
    """The node program runs alone in its container, so each side has its own list."""
    assert set(STEPS) <= set(get_args(Phase))
