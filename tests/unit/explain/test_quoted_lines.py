"""What a log only quotes, guesses or takes back is not a failure: in the words of any sign."""

from __future__ import annotations

import re

import pytest

from tests.support.corpus import shown_by_a_line
from tests.support.logs import explained
from vllm_cluster.kernel.explain.catalogue import SIGNS

PREFIX = "(Worker_TP1 pid=9) ERROR 11-03 10:00:00 [core.py:1] "
TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "/usr/lib/python3.12/site-packages/frob/frob.py", line 5, in build',
    "    {}",
    "FrobError: no frob",
]
# The first expects words of its own below, so each of the others is one that must not count.
SOURCE_CODE = [known for known in SIGNS if known.code]


def traceback(code: str, prefix: str = "") -> str:
    return "".join(f"{prefix}{line.replace('{}', code)}\n" for line in TRACEBACK)


def quotable() -> list[str]:
    return [text for text in shown_by_a_line() if not any(known.needle in text for known in SOURCE_CODE)]


# fault: kernel/explain/signs.py: if (found or trouble) and nearby.quotes( → if False and nearby.quotes(
@pytest.mark.promise("P41")
@pytest.mark.parametrize("prefix", ["", PREFIX])
def test_source_code_that_a_traceback_quotes_names_nothing(prefix: str) -> None:
    for text in quotable():
        found = explained(traceback(text, prefix))
        assert (found.result, found.raised and found.raised.line.text) == ("exception", "FrobError: no frob"), text


# fault: kernel/explain/frame.py: if end < 0 or (named in above and b"    " not in above): → if True:
def test_source_code_is_quoted_between_the_lines_of_others_and_over_several() -> None:
    first, frame, code, last = traceback("CUDA out of memory", PREFIX).splitlines()
    other = PREFIX.replace("TP1 pid=9", "TP0 pid=8") + "FrobError: other"
    for lines in ((first, frame, other, code, last), (first, frame, f"{PREFIX}    frob(", code, last)):
        assert explained("\n".join(lines) + "\n").result == "exception"


def test_only_what_is_below_its_frame_is_quoted() -> None:
    # Rays, trees and tables indent what they report.
    found = explained(f"{PREFIX}    torch.OutOfMemoryError: CUDA out of memory.\n")
    assert found.cause and found.cause.failure.slug == "gpu-memory-full"
    # And a sign of source code is one there.
    found = explained(traceback("self._semlock = _multiprocessing.SemLock._rebuild(*state)"))
    assert found.symptom and found.symptom.failure.slug == "shared-memory-removed"


# fault: kernel/explain/failures.toml: not None", code = true } → not None" }
def test_a_sign_that_is_a_statement_is_looked_for_where_a_traceback_quotes_it() -> None:
    statement = re.compile(r"(?:assert|raise|return|del|await) |self\.")
    assert [known.needle for known in SIGNS if statement.match(known.needle) and not known.code] == []
    found = explained(
        traceback("assert local_message_queue is not None", PREFIX).replace("FrobError: no frob", "AssertionError")
    )
    assert found.cause and found.cause.failure.slug == "cpu-ranks-over-hosts"


# fault: kernel/explain/signs.py: if found and progress.COMMAND.match(words): → if False:
@pytest.mark.promise("P41")
@pytest.mark.parametrize("prompt", ["$ ", "+ ", "++ ", "ana@gpu1:~$ ", "[ana@gpu1 run]# ", "root@gpu1:/workspace# "])
def test_what_a_command_is_given_names_nothing(prompt: str) -> None:
    for text in quotable():
        assert explained(f"{prompt}grep -c '{text}' serve.log\n0\n").named is None, text


# fault: kernel/explain/signs.py: words = words[: possible.start()] → pass
@pytest.mark.promise("P41")
def test_what_is_only_possible_names_nothing() -> None:
    for text in quotable():
        assert explained(f"{PREFIX}FrobError: it ended. This may be caused by: {text}\n").named is None, text


WARNED = "gpu1:{0}:57 [0] misc/frob.cc:9 NCCL WARN {1}\n"
JOINED = "gpu1:{0}:58 [0] NCCL INFO comm 0xa rank 0 nranks 2 commId 0xab - Init COMPLETE\n"
AGAIN = "gpu1:{0}:58 [0] NCCL INFO NET/FastSocket : Connected after 1000 retries.\n"


# fault: kernel/explain/stream.py: if process := connected(words): → if False:
# fault: kernel/explain/communicators.py: words.startswith(process) and (found := _WARNS.match(words)) is not None and found[1] == process → words.startswith(process)
@pytest.mark.parametrize("words", ["Maximum retry reached for connect 3.", "Error: network IB not found"])
@pytest.mark.parametrize("later", [JOINED, AGAIN])
def test_what_nccl_warned_of_is_over_once_the_same_process_connected(words: str, later: str) -> None:
    assert explained(WARNED.format(31, words)).result in ("unknown", "explained")
    assert explained(WARNED.format(31, words) + later.format(31)).result == "nothing"
    # Not by another process, and not by what it did before.
    for other in (32, 3):
        assert explained(WARNED.format(31, words) + later.format(other)).result in ("unknown", "explained")
    assert explained(later.format(31) + WARNED.format(31, words)).result in ("unknown", "explained")


WAITS = "Warning  FailedScheduling  40s  default-scheduler  0/3 nodes are available: 3 Insufficient nvidia.com/gpu.\n"
PLACED = "Normal   Scheduled         10s  default-scheduler  Successfully assigned default/vllm-0 to gpu3\n"


# fault: kernel/explain/contradictions.py: if any(_takes_back(place, hit.last) for → if any(False for
# fault: kernel/explain/contradictions.py: and 0 < place.line - last.line <= MAX_APART → and place.line - last.line <= MAX_APART
# fault: kernel/explain/contradictions.py: and 0 < place.line - last.line <= MAX_APART → and 0 < place.line - last.line
def test_a_fact_that_comes_later_takes_a_failure_back() -> None:
    found = explained(WAITS)
    assert found.cause and found.cause.failure.slug == "pod-unscheduled"
    assert explained(WAITS + PLACED).cause is None
    assert explained(PLACED + WAITS).cause
    # It may be of another pod.
    assert explained(WAITS + "Normal   Pulled   kubelet  Container image\n" * 20 + PLACED).cause


# fault: kernel/explain/contradictions.py: elif known.instead: → else:
# fault: kernel/explain/weighing.py: lines["quiet"] += now(_unproved(found, hits)) → pass
def test_a_sign_without_its_proof_names_nothing_and_leaves_the_line() -> None:
    refused = "Input should be a valid integer [type=int_type, input_value='x', input_type=str]\n"
    request = "pydantic_core._pydantic_core.ValidationError: 1 validation error for ChatRequest\nn\n  "
    assert explained(request + refused).raised
    # Alone it is unknown, and exit code 1.
    assert explained(refused).result == "unknown"
    found = explained(request.replace("ChatRequest", "ModelConfig") + refused)
    assert found.cause and found.cause.failure.slug == "flag-unknown"


# fault: kernel/explain/stream.py: any(known.is_sure for known in found) → found
def test_a_fact_in_a_line_does_not_hide_the_error_of_it() -> None:
    found = explained("pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n")
    assert found.raised


# fault: kernel/explain/weighing.py: oldest = -math.inf → pass
def test_an_older_log_pasted_below_a_start_keeps_its_failure() -> None:
    start = "(APIServer pid=1) INFO 06-01 13:17:20 [utils.py:233] non-default args: {}\n"
    ready = "(APIServer pid=1) INFO:     Application startup complete.\n"
    failed = "(EngineCore pid=9) ERROR 05-22 10:21:33 [core.py:1] torch.OutOfMemoryError: CUDA out of memory.\n"
    found = explained(start + ready + failed)
    assert found.cause and found.cause.failure.slug == "gpu-memory-full"


# fault: kernel/explain/scan.py: stream.foreign(dated) → stream.foreign(parsed)
def test_an_older_log_pasted_below_a_failure_proves_no_recovery() -> None:
    failed = "(EngineCore pid=9) ERROR 06-01 10:21:33 [core.py:1] torch.OutOfMemoryError: CUDA out of memory.\n"
    older = "(APIServer pid=1) INFO 05-22 13:17:20 [utils.py:233] non-default args: {}\n"
    answer = '(APIServer pid=1) INFO:     10.0.0.9:41000 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    found = explained(failed + older + answer)
    assert found.cause and found.cause.failure.slug == "gpu-memory-full"


@pytest.mark.parametrize(
    "line",
    [
        "INFO 06-16 09:47:59 [__init__.py:239] Automatically detected platform cpu.",
        "(VllmWorker rank=1 pid=4) INFO 07-23 19:34:49 [__init__.py:1152] Found nccl from library libnccl.so.2",
        "gpu1:31:57 [0] NCCL INFO Bootstrap : Using eth1:10.0.0.1<0>",
    ],
)
# fault: kernel/explain/ranks.py: for marks in (STARTING, (LEAVES, *DONE))) → for marks in (STARTING, (LEAVES,)))
def test_a_part_of_a_start_is_unfinished_whichever_part_it_is(line: str) -> None:
    assert explained(line + "\n").result == "unfinished"
    # A test of NCCL, or a client of a server, that is done.
    for end in ("# Avg bus bandwidth    : 171.4", "============ Serving Benchmark Result ============"):
        assert explained(f"{line}\n{end}\n").result == "nothing"
