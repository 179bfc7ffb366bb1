"""A rank that never joins a communicator of NCCL writes nothing: that others have joined it shows it."""

from __future__ import annotations

import pytest

from tests.support.logs import explained

LINE = "node{0}:10{0}:20{0} [0] NCCL INFO ncclCommInitRank comm 0x{0}a rank {0} nranks 2 commId 0xab - Init {1}\n"
BEGIN, JOIN = "START", "COMPLETE"


def lines(*steps: tuple[int, str]) -> str:
    return "".join(LINE.format(rank, step) for rank, step in steps)


# fault: kernel/explain/communicators.py: if name in joined → if name not in joined
@pytest.mark.parametrize("apart", [False, True], ids=["one log", "a log a host"])
def test_ranks_that_have_not_joined_what_others_have_joined_are_a_symptom(apart: bool) -> None:
    first, second = lines((0, BEGIN), (0, JOIN)), lines((1, BEGIN))
    verdict = explained(first, second) if apart else explained(second + first)
    assert verdict.result == "symptom"
    assert verdict.symptom
    assert verdict.symptom.failure.slug == "collective-timeout"
    assert ["comm 0x1a rank 1 " in place.text for place in verdict.symptom.places] == [True]


def test_ranks_that_have_all_joined_or_may_all_be_about_to_are_none() -> None:
    both = lines((0, BEGIN), (1, BEGIN))
    assert explained(both).symptom is None
    assert explained(both + lines((1, JOIN), (0, JOIN))).symptom is None


# fault: kernel/explain/stream.py: self.seen.communicators.clear() → pass
def test_a_server_that_has_answered_since_has_survived_it() -> None:
    log = lines((1, BEGIN), (0, BEGIN), (0, JOIN)).replace("node1", "node0")
    assert explained(log).result == "symptom"
    assert explained(log + "INFO:     Application startup complete.\n").result == "healthy"


@pytest.mark.parametrize(
    ("log", "slug"),
    [
        ("RuntimeError: Engine core initialization failed. See root cause above.\n"
         "srun: error: gpu1: task 0: Exited with exit code 1\n", "engine-died"),
        ("/usr/bin/ld: cannot find -lz: No such file or directory\ncollect2: error: ld returned 1 exit status\n",
         "program-missing"),
        ("Failed to modify QP to RTR: Connection timed out\nerrno: 110\n", "rdma-path"),
        ("a:1:2 [0] misc/socket.cc:4 NCCL WARN socketStartConnect: Connect to 10.0.0.4<45> failed : Software caused "
         "connection abort\n", "peer-unanswered"),
        ("a:1:2 [0] misc/socket.cc:4 NCCL WARN socketPollConnect: connect to 10.0.0.4<45> failed (34/34)\n",
         "peer-unanswered"),
    ],
)  # fmt: skip
def test_words_of_launchers_and_libraries(log: str, slug: str) -> None:
    verdict = explained(log)
    assert verdict.named
    assert verdict.named.failure.slug == slug


# fault: kernel/explain/failures.toml: cannot find -l(?!cuda\b)\w → cannot find -l\w
def test_the_library_of_the_driver_is_not_missed_in_an_image() -> None:
    """Its host gives it to the container: another image has it no more than this one."""
    found = explained("/usr/bin/ld: cannot find -lcuda: No such file or directory\n")
    assert found.symptom and found.symptom.failure.slug == "kernel-build-failed"


def test_what_libraries_print_without_a_level_is_shown() -> None:
    said = "Assertion failed: frob != nullptr (frob.cpp:455)"
    died = "(APIServer pid=9) RuntimeError: Engine core initialization failed. See root cause above.\n"
    assert said in [place.text for place in explained(f"{said}\n{died}").unknown_lines]


def watchdog(group: str, rank: int, number: int) -> str:
    """A line of torch's watchdog."""
    work = f"WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000)"
    words = f"[{group}Rank {rank}] Watchdog caught collective operation timeout: {work} ran for 600009 milliseconds"
    return f"[rank{rank}]:[E1124 10:00:0{rank}.1 ProcessGroupNCCL.cpp:607] {words} before timing out.\n"


def begins(rank: int) -> str:
    """A line of vLLM before a rank joins."""
    words = f"world_size=4 rank={rank} local_rank=0 distributed_init_method=tcp://10.0.0.1:29500 backend=nccl"
    return f"(Worker pid={rank}) INFO 11-24 09:00:00 [parallel_state.py:1] {words}\n"


# fault: kernel/explain/ranks.py: groups.setdefault(group, {})[rank] → groups.setdefault("", {})[rank]
def test_the_rank_whose_collective_is_behind_the_others_of_its_group_is_named() -> None:
    logs = watchdog("PG ID 2 ", 0, 42), watchdog("PG ID 2 ", 1, 41) + watchdog("PG ID 3 ", 3, 7)
    found = explained(*logs)
    assert found.symptom and found.symptom.failure.slug == "collective-timeout"
    assert found.ranks == ("behind the others of its group, which are at SeqNum 42: rank 1 at 41",)
    assert explained(watchdog("", 0, 42) + watchdog("", 1, 42)).ranks == ()


# fault: kernel/explain/ranks.py: if missing and begun and (joined or groups): → if False:
def test_ranks_that_joined_are_compared_with_those_that_began() -> None:
    joined = "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 2/4 clients joined.\n"
    found = explained(begins(0) + joined, begins(1))
    assert found.ranks == ("2 of 4 ranks joined", "never began, by these logs: rank 2, 3")
    assert explained(begins(0) + begins(1)).ranks == ()
