"""Logs whose lines decide together: a line that contradicts, one that is missing, one that came too late."""

from __future__ import annotations

import pytest

from tests.support.logs import FOLDER, explained

BLOCKS = [
    (*head.split(" "), text)
    for block in (FOLDER / "decided_together.txt").read_text().split("\n== ")[1:]
    for head, text in [block.split("\n", 1)]
]
IDLE = (
    "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, Running: 3 reqs, Waiting: 0 reqs\n"
)
BUSY = (
    "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 9.1 tokens/s, Running: 3 reqs, Waiting: 0 reqs\n"
)
READY = "(APIServer pid=1) INFO:     Application startup complete.\n"


def report(minute: int, engine: int, rates: str) -> str:
    return f"(APIServer pid=1) INFO 11-06 16:{minute:02}:01 [loggers.py:2] Engine {engine:03}: {rates}"


@pytest.mark.parametrize(("result", "slug", "text"), BLOCKS)
def test_the_lines_decide_together(result: str, slug: str, text: str) -> None:
    found = explained(text)
    assert (found.result, found.named.failure.slug if found.named else "-") == (result, slug)


# fault: kernel/explain/idle.py: if progress.IDLE.search(words): → if True:
# fault: kernel/explain/idle.py: self._idle.pop(_engine(words), None) and not self._idle else → self._idle.pop(_engine(words), None) else
def test_an_engine_that_makes_tokens_again_is_not_stuck_and_no_other_one_hides_it() -> None:
    stuck = READY + report(1, 0, IDLE) + report(3, 0, IDLE)
    assert explained(stuck).result == "symptom"
    assert explained(stuck + report(4, 0, BUSY)).result == "healthy"
    assert explained(stuck + report(4, 1, BUSY)).result == "symptom"
    assert explained(stuck + report(4, 1, IDLE) + report(5, 1, BUSY)).result == "symptom"
    # One report may be that of a long prompt.
    assert explained(READY + report(1, 0, IDLE) + report(1, 0, IDLE)).result == "healthy"


# fault: kernel/explain/stream.py: if self._leaves and parsed.words.startswith → if parsed.words.startswith
def test_connections_that_close_before_a_process_leaves_are_a_symptom() -> None:
    closed = "[rank1]:[W523 21:36:39.2 TCPStore.cpp:1] [c10d] recvValue failed: Connection was likely closed.\n"
    leaves = "[rank0]:[W523 21:36:38.9 ProcessGroupNCCL.cpp:1] WARNING: destroy_process_group() was not called\n"
    assert explained(leaves + closed).result == "nothing"
    assert explained(closed + leaves).result == "symptom"


# fault: kernel/explain/failures.toml: tcp://127.0.0.1", who = '\bip=' → tcp://127.0.0.1", who = ''
def test_the_local_address_is_right_for_ranks_of_one_host() -> None:
    told = "INFO 06-05 11:02:59 [parallel_state.py:1] rank=1 distributed_init_method=tcp://127.0.0.1:5 backend=nccl\n"
    late = "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.\n"
    assert explained(f"(RayWorkerWrapper pid=3) {told}{late}").result == "symptom"
    assert explained(f"(RayWorkerWrapper pid=3, ip=10.3.4.2) {told}{late}").result == "explained"
    healthy = explained(f"(RayWorkerWrapper pid=3, ip=10.3.4.2) {told}{READY}")
    assert (healthy.result, healthy.notes) == ("healthy", ())


# fault: kernel/explain/diagnosis.py: seen.failing or soft) → seen.failing)
@pytest.mark.parametrize(
    "line",
    [
        "kernel: frobd[812]: segfault at 10 ip 00007f0 sp 00007ff error 4 in libfabric.so.1",
        "systemd[1]: vllm.service: Failed with result 'core-dump'.",
        "/src/transport.cpp:998: non-zero status: 7 building the transport map failed",
        "terminate called after throwing an instance of 'std::length_error'",
        "Error response from daemon: no such container: vllm",
    ],
)
def test_programs_without_levels_are_shown(line: str) -> None:
    found = explained(f"loading\n{line}\n")
    assert (found.result, [place.text for place in found.error_lines]) == ("unknown", [line])
    assert explained(f"{line}\n{READY}").result == "healthy"
