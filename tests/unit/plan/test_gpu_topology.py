"""Which GPUs are best together, over tables as `nvidia-smi topo -m` prints them for machines that there are."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_cluster.kernel.facts.host_facts import Gpu
from vllm_cluster.kernel.facts.nvidia_smi import parse_topology
from vllm_cluster.kernel.plan.gpus import MAX_COMPARED, MAX_SETS, choose_gpus

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def printed(rows: list[str], *, adapters: bool = False) -> str:
    """A table as nvidia-smi prints it, the header underlined, with an adapter's column where there are some."""
    names = [f"GPU{n}" for n in range(len(rows))]
    more = ["NIC0"] if adapters else []
    head = "\x1b[4m" + "\t".join(["", *names, *more, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]) + "\x1b[0m"
    lines = []
    for name, row in zip(names, rows, strict=True):
        cells = [f" {kind} " if kind == "X" else kind for kind in row.split()]
        lines.append("\t".join([name, *cells, *(["PXB"] if adapters else []), "0-31", "0", "", "N/A"]))
    lines += ["NIC0\t" + "\t".join(["PXB"] * len(rows)) + "\t X \t\t\t"] if adapters else []
    return "\t" + "\n".join([head.removeprefix("\t"), *lines, LEGEND])


def table(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


# Eight GPUs on NVSwitches, as in an HGX H100: all are joined alike, four on each processor.
NVSWITCH = [" ".join("X" if a == b else "NV18" for b in range(8)) for a in range(8)]
# Two bridges of NVLink on each processor, as in a server with A100 PCIe cards.
BRIDGES = table("""
    X NV12 NODE NODE SYS SYS SYS SYS
    NV12 X NODE NODE SYS SYS SYS SYS
    NODE NODE X NV12 SYS SYS SYS SYS
    NODE NODE NV12 X SYS SYS SYS SYS
    SYS SYS SYS SYS X NV12 NODE NODE
    SYS SYS SYS SYS NV12 X NODE NODE
    SYS SYS SYS SYS NODE NODE X NV12
    SYS SYS SYS SYS NODE NODE NV12 X
""")
# A bridge between cards that are not neighbours: 0 and 2, 1 and 3.
CROSSED = table("""
    X PHB NV4 PHB
    PHB X PHB NV4
    NV4 PHB X PHB
    PHB NV4 PHB X
""")
# The hybrid cube mesh of a DGX-1 with V100: 0 to 3 and 4 to 7 are joined all to all, and each to one of the others.
CUBE = table("""
    X NV1 NV1 NV2 NV2 SYS SYS SYS
    NV1 X NV2 NV1 SYS NV2 SYS SYS
    NV1 NV2 X NV2 SYS SYS NV1 SYS
    NV2 NV1 NV2 X SYS SYS SYS NV1
    NV2 SYS SYS SYS X NV1 NV1 NV2
    SYS NV2 SYS SYS NV1 X NV2 NV1
    SYS SYS NV1 SYS NV1 NV2 X NV2
    SYS SYS SYS NV1 NV2 NV1 NV2 X
""")
# Four L40S, two behind each PCIe switch.
SWITCHES = table("""
    X PIX SYS SYS
    PIX X SYS SYS
    SYS SYS X PIX
    SYS SYS PIX X
""")


def gpus(rows: list[str], sides: str = "", *, adapters: bool = False) -> tuple[Gpu, ...]:
    """The GPUs of a host that prints this table."""
    links = parse_topology(printed(rows, adapters=adapters))
    halves = sides or "".join("0" if n < len(rows) / 2 else "1" for n in range(len(rows)))
    return tuple(
        Gpu(n, f"GPU-{n}", "NVIDIA", 80_000, numa=int(side), topology=links[n]) for n, side in enumerate(halves)
    )


@pytest.mark.parametrize(
    ("rows", "number", "busy", "expected"),
    [
        (NVSWITCH, 4, "", "0123"),
        (NVSWITCH, 4, "1", "4567"),
        (NVSWITCH, 2, "014", "23"),
        (NVSWITCH, 6, "", "012345"),
        (NVSWITCH, 6, "0123", "014567"),
        (BRIDGES, 2, "", "01"),
        (BRIDGES, 2, "0", "23"),
        (BRIDGES, 4, "3", "4567"),
        # One GPU: not half of a pair, where one is alone anyway.
        (BRIDGES, 1, "2", "3"),
        (CROSSED, 2, "", "02"),
        (CROSSED, 2, "0", "13"),
        (CUBE, 4, "", "0123"),
        (CUBE, 2, "", "03"),
        (CUBE, 4, "0", "4567"),
        (SWITCHES, 2, "0", "23"),
        (SWITCHES, 2, "02", "13"),
    ],
)
def test_the_best_are_joined_and_near(rows: list[str], number: int, busy: str, expected: str) -> None:
    taken = choose_gpus(gpus(rows), number, frozenset(map(int, busy)))
    assert "".join(str(gpu.index) for gpu in taken) == expected


@pytest.mark.parametrize(
    ("unsound", "expected"),
    [
        ({0: {"mig": True}}, [2, 3]),
        ({1: {"ecc_errors": 3}}, [2, 3]),
        ({0: {"memory_mib": 0}}, [2, 3]),
        ({0: {"mig": True}, 4: {"mig": True}, 6: {"ecc_errors": 1}}, [2, 3]),
        ({0: {"mig": None, "ecc_errors": None}}, [0, 1]),
        ({n: {"mig": True} for n in range(8)}, [0, 1]),
    ],
)
def test_one_with_mig_or_with_memory_errors_is_taken_last(
    unsound: dict[int, dict[str, Any]], expected: list[int]
) -> None:
    found = tuple(replace(gpu, **unsound.get(gpu.index, {})) for gpu in gpus(BRIDGES))
    assert [gpu.index for gpu in choose_gpus(found, 2)] == expected


# fault: kernel/plan/gpus.py: if len(gpus) > MAX_COMPARED: → if len(gpus) > MAX_COMPARED + 1:
# fault: kernel/plan/gpus.py: key=lambda gpu: _avoided(gpu, busy) → key=lambda gpu: False
def test_of_more_gpus_than_a_host_has_the_first_sound_ones_are_taken() -> None:
    """What compares all of them takes gigabytes, and a host may claim any number."""
    found = tuple(Gpu(n, f"GPU-{n}", "NVIDIA", 80_000 + n * 2048) for n in range(MAX_COMPARED + 1))
    assert [gpu.index for gpu in choose_gpus(found, 2, frozenset({1}))] == [0, 2]


def test_gpus_of_one_model_are_taken_together_and_the_larger_ones_first() -> None:
    names = ["NVIDIA T400", "NVIDIA A100", "NVIDIA A100", "NVIDIA T400"]
    sizes = {"NVIDIA T400": 2_048, "NVIDIA A100": 81_920}
    mixed = tuple(
        replace(gpu, name=name, memory_mib=sizes[name]) for gpu, name in zip(gpus(SWITCHES), names, strict=True)
    )
    assert [gpu.index for gpu in choose_gpus(mixed, 2)] == [1, 2]


@settings(deadline=None)  # what is shown has no time, and the machine may be busy
@given(st.randoms(use_true_random=False), st.integers(1, 16))
def test_on_any_host_no_unsound_gpu_is_taken_while_enough_sound_ones_are_there(seed: random.Random, size: int) -> None:
    kinds = ("NV4", "NV18", "SYS", "NODE", "PHB", "PXB", "PIX")
    table = {(a, b): seed.choice(kinds) for a in range(size) for b in range(a)}
    links = [tuple("X" if a == b else table[max(a, b), min(a, b)] for b in range(size)) for a in range(size)]
    busy = frozenset(n for n in range(size) if seed.random() < 0.3)
    found = tuple(
        Gpu(
            n,
            f"GPU-{n}",
            "NVIDIA",
            80_000,
            mig=seed.choice([None, False, False, True]),
            ecc_errors=seed.choice([None, 0, 0, 2]),
            numa=seed.choice([None, 0, 1]),
            topology=seed.choice([(), links[n]]),
        )
        for n in range(size)
    )
    number = seed.randint(1, size)
    choice = choose_gpus(found, number, busy)
    unsound = {gpu.index for gpu in found if gpu.index in busy or gpu.mig or gpu.ecc_errors}
    taken = [gpu.index for gpu in choice]
    assert len(set(taken)) == number
    assert len(unsound.intersection(taken)) == max(0, number - (size - len(unsound)))
    assert choose_gpus(found, number, busy) == choice


def test_without_a_table_the_numa_nodes_decide() -> None:
    bare = tuple(replace(gpu, topology=()) for gpu in gpus(SWITCHES, "0101"))
    assert [gpu.index for gpu in choose_gpus(bare, 2)] == [0, 2]
    unknown = tuple(replace(gpu, numa=None) for gpu in bare)
    assert [gpu.index for gpu in choose_gpus(unknown, 2)] == [0, 1]


def test_of_very_many_gpus_those_that_grow_from_each_are_compared() -> None:
    rows = [" ".join("X" if a == b else "NV4" if a % 4 == b % 4 else "SYS" for b in range(32)) for a in range(32)]
    choice = choose_gpus(gpus(rows), 8, frozenset({0}))
    assert [gpu.index for gpu in choice] == list(range(1, 32, 4))
    assert MAX_SETS < 10**4


@pytest.mark.parametrize("adapters", [False, True])
def test_the_table_is_read_with_adapters_and_without(*, adapters: bool) -> None:
    found = parse_topology(printed(CROSSED, adapters=adapters))
    assert found == {n: tuple(row.split()) for n, row in enumerate(CROSSED)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No devices were found",
        "Failed to initialize NVML: Driver/library version mismatch",
        printed(CROSSED).replace("GPU3\t", "GPU9\t"),
        printed(CROSSED).replace("NV4", "WARP"),
        printed(CROSSED).rpartition("GPU3")[0],
        "\tGPU0\tGPU1\nGPU0\t X \nGPU1\tSYS\t X \n",
        # A cell that is missing is filled by the one of the adapter behind it.
        "\tGPU0\tGPU1\tNIC0\nGPU0\t X \tSYS\tPIX\nGPU1\t X \tSYS\n",
        "\tGPU0\tGPU1\tNIC0\nGPU0\t X \tPIX\nGPU1\tSYS\t X \tNODE\n",
        printed(CROSSED).replace(" X \tPHB\tNV4", "NV4\tPHB\tNV4", 1),
        printed(CROSSED).replace("NV4", "[N/A]", 1),
        printed(CROSSED).replace("GPU0", "GRAFIKKARTE0"),
    ],
)
def test_a_table_that_is_not_whole_is_none(text: str) -> None:
    assert parse_topology(text) == {}
