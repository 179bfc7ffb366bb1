"""Which rank ended on which host, where a line of another process names them; nothing where none does."""

from __future__ import annotations

import pytest

from tests.support.logs import explained
from vllm_cluster.kernel.explain.diagnosis import diagnose
from vllm_cluster.kernel.explain.ranks import KnownHosts, ended_ranks
from vllm_cluster.kernel.explain.scan import LogSource, scan

NAMES = {"10.0.0.12": "gpu2"}
DIED = "Worker proc VllmWorker-1 died unexpectedly"
OF_RAY = "RayWorkerProc rank=[3] died unexpectedly, shutting down executor."
RAY = "A worker died or was killed while executing a task. Worker IP address: 10.0.0.12 Worker port: 10003"


# fault: kernel/explain/ranks.py: at = named[1] if named else "" if died[2] else host → at = "" if died[2] else host
# fault: kernel/explain/ranks.py: at = named[1] if named else "" if died[2] else host → at = named[1] if named else host
# fault: kernel/explain/ranks.py: if place and len(unplaced) == 1: → if False:
# fault: kernel/explain/ranks.py: if place and len(unplaced) == 1: → if place and unplaced:
@pytest.mark.parametrize(
    ("lines", "found"),
    [
        # vLLM's own executor watches the ranks of its host.
        (
            [("gpu2", f"{DIED} (exit code: -9), shutting down executor.")],
            ["rank 1 ended on gpu2 by signal 9 (SIGKILL)"],
        ),
        ([("gpu2", f"{DIED} (exit code: None), shutting down executor.")], ["rank 1 ended on gpu2"]),
        # The head's record has the host of the part that printed it.
        ([("gpu1", f"vLLM ended with exit code 1 on gpu2: {DIED}")], ["rank 1 ended on gpu2"]),
        ([("gpu1", f"vLLM ended with exit code 0 on gpu2; on gpu3: {DIED}")], ["rank 1 ended on gpu3"]),
        (
            [("gpu1", "vLLM ended with exit code 137 on gpu2")],
            ["a part of vLLM ended on gpu2 by signal 9 (SIGKILL)"],
        ),
        # Ray's executor is on the head, its ranks are not; Ray has the address.
        ([("gpu1", OF_RAY)], []),
        ([("gpu1", OF_RAY), ("gpu1", RAY)], ["rank 3 ended on gpu2"]),
        ([("gpu1", OF_RAY), ("gpu1", OF_RAY.replace("3", "2")), ("gpu1", RAY)], ["a rank ended on gpu2"]),
        ([("gpu1", RAY.replace("12", "13"))], ["a rank ended on 10.0.0.13"]),
        # Of a file of anybody's nothing names the host.
        ([("", DIED)], []),
        ([("gpu1", "Connection closed by peer")], []),
    ],
)
def test_a_rank_and_its_host_are_named_as_far_as_lines_name_them(
    lines: list[tuple[str, str]], found: list[str]
) -> None:
    assert [*ended_ranks(lines, KnownHosts(NAMES))] == found


# fault: kernel/explain/ranks.py: if head and writer not in (head, at): → if False:
# fault: kernel/explain/ranks.py: writer = names.get(copied[1], copied[1]) if copied else host → writer = host
# fault: kernel/explain/ranks.py: named = _ON.search(words, 0, died.start()) → named = re.search(r".*\bon (\w+): ", words[: died.start()])
@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([("gpu3", f"vLLM ended with exit code 1 on gpu2: {DIED}")], []),
        ([("gpu3", "vLLM ended with exit code 137 on gpu2")], []),
        ([("gpu3", RAY)], []),
        ([("gpu3", f"{DIED} (exit code: -9)")], ["rank 1 ended on gpu3 by signal 9 (SIGKILL)"]),
        # In the head's words, and in Ray's copy of its output.
        ([("gpu1", f"vLLM ended with exit code 1 on gpu3: on gpu2: {DIED}")], ["rank 1 ended on gpu3"]),
        ([("gpu1", f"(RayWorker pid=7, ip=10.0.0.13) {DIED}")], ["rank 1 ended on gpu3"]),
        ([("gpu1", f"(RayWorker pid=7, ip=10.0.0.13) {RAY}")], []),
        ([("gpu1", RAY)], ["a rank ended on gpu2"]),
    ],
)
def test_a_worker_that_lies_names_no_other_host(lines: list[tuple[str, str]], found: list[str]) -> None:
    assert [*ended_ranks(lines, KnownHosts(NAMES | {"10.0.0.13": "gpu3"}, "gpu1"))] == found


# fault: kernel/explain/diagnosis.py: hit.known.failure == "rank-killed" → hit.known.failure == "peer-gone"
def test_the_rank_is_named_where_others_write_first_that_it_is_gone() -> None:
    """What the rank at the other end writes comes before the executor notices."""
    start = "(APIServer pid=1) INFO 05-02 09:00:00 [utils.py:1] vLLM API server version 0.27.0\n"
    lost = (
        "(Worker_TP0 pid=9) ERROR 05-02 09:11:10 [pynccl.py:1] RuntimeError: ncclRemoteError: the other end is gone\n"
    )
    died = (
        f"(EngineCore pid=7) ERROR 05-02 09:11:12 [multiproc_executor.py:315] {DIED} (exit code: -9), shutting down.\n"
    )
    sources = [LogSource(host, [(1, text.encode())], host) for host, text in (("gpu1", start + lost), ("gpu2", died))]
    verdict = diagnose([scan(one) for one in sources], together=True, hosts=KnownHosts(NAMES))
    assert (verdict.result, verdict.ranks) == ("symptom", ("rank 1 ended on gpu2 by signal 9 (SIGKILL)",))
    assert explained(start + lost).ranks == ()
