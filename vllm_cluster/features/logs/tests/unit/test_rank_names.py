"""Which rank a line of vLLM's own processes is of: by what each process prints when it joins the others."""

from __future__ import annotations

import pytest

from tests.support.bounds import within
from vllm_cluster.features.logs.rank_names import RankNames

JOINS = "INFO 11-26 10:00:02 [parallel_state.py:1906] world_size={} rank={} local_rank={} distributed_init_method={} x"
BETWEEN, INSIDE = "tcp://10.0.0.1:29501", "file:///tmp/tmpx"
CONFIG = (
    "INFO 11-26 10:00:01 [core.py:133] Initializing a V1 LLM engine (v0.33.0) with config: tensor_parallel_size=2, "
)


def ranks(*lines: str) -> list[int | None]:
    """The rank of each line of one host."""
    names = RankNames()
    return [names.rank(line.encode()) for line in lines]


# fault: features/logs/rank_names.py: self._ranks[replica, kind, pid] = number → self._ranks[replica, kind, pid] = local
# fault: features/logs/rank_names.py: joins[4].startswith(_IN_HOST) → True
def test_tp_and_pp_over_hosts_have_the_rank_that_each_process_prints_when_it_joins() -> None:
    before = f"(EngineCore_DP1 pid=5) {CONFIG}data_parallel_size=1, "
    found = ranks(
        before,  # of a start before this one, with data parallel
        "(Worker pid=12) INFO 11-26 10:00:01 [x.py:1] early",
        f"(Worker pid=12) {JOINS.format(4, 3, 1, BETWEEN)}",
        "(Worker_PP1_TP1 pid=12) INFO 11-26 10:00:03 [y.py:1] Starting to load model",
        "(Worker_PP1_TP0 pid=11) INFO 11-26 10:00:03 [y.py:1] of a process whose rank is not known",
        "(APIServer pid=12) INFO 11-26 10:00:03 [z.py:1] world_size=4 rank=0 local_rank=0 distributed_init_method=x",
        "Traceback (most recent call last):",
    )
    assert found == [None, None, 3, 3, None, None, None]


def test_data_parallel_of_a_mixture_of_experts_counts_over_all_engines() -> None:
    config = f"(EngineCore_DP1 pid=5) {CONFIG}data_parallel_size=2, "
    worker = f"(Worker pid=12) {JOINS.format(4, 2, 0, BETWEEN)}"
    assert ranks(config, worker, "(Worker_DP1_TP0_EP2 pid=12) INFO loaded") == [None, 2, 2]
    alone = f"(EngineCore_DP1 pid=5) {JOINS.format(2, 1, 0, BETWEEN)}"
    assert ranks(config, alone, "(EngineCore_DP1 pid=5) INFO loaded") == [None, 1, 1]


# fault: features/logs/rank_names.py: if engine and world == 1: → if engine and world == 0:
@pytest.mark.parametrize("engine", [0, 3])
def test_an_engine_of_one_gpu_is_the_rank_of_its_number(engine: int) -> None:
    name = f"(EngineCore_DP{engine} pid=5) "
    assert ranks(name + JOINS.format(1, 0, 0, INSIDE), f"{name}INFO loaded") == [engine, engine]
    assert ranks(f"(EngineCore pid=5) {JOINS.format(1, 0, 0, INSIDE)}", "(EngineCore pid=5) INFO loaded") == [0, 0]


# fault: features/logs/rank_names.py: (self._first[replica] + local // world) * world → local // world * world
def test_engines_of_a_dense_model_count_alone_and_get_the_number_over_all() -> None:
    config = f"(EngineCore_DP2 pid=5) {CONFIG}data_parallel_size=1, "
    joined = [f"(Worker pid={20 + local}) {JOINS.format(2, local % 2, local, INSIDE)}" for local in range(4)]
    assert ranks(config, *joined, "(Worker_TP1 pid=23) INFO loaded") == [None, 4, 5, 6, 7, 7]


# fault: features/logs/rank_names.py: MAX_RANKS = 1024 → MAX_RANKS = 1_000_000
def test_of_processes_without_number_the_last_ones_are_remembered() -> None:
    with within(20, megabytes=5):
        names = RankNames()
        for pid in range(50_000):
            assert names.rank(f"(Worker pid={pid}) {JOINS.format(4, 3, 1, BETWEEN)}".encode()) == 3
    assert names.rank(b"(Worker pid=49999) x") == 3
    assert names.rank(b"(Worker pid=1) x") is None
