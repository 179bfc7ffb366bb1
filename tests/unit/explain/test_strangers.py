"""Logs of anybody's, side by side: a server that answers proves nothing of another, and a warning ends none."""

from __future__ import annotations

import pytest

from tests.support.corpus import CORPUS, FOLDER, shown_by_a_line
from tests.support.depth import FULL
from tests.support.logs import FOLDER as LOGS
from tests.support.logs import explained
from vllm_cluster.kernel.explain.catalogue import FAILURES
from vllm_cluster.kernel.explain.diagnosis import Diagnosis
from vllm_cluster.kernel.explain.log_line import parse_line

ANSWER = '(APIServer pid=1249) INFO:     127.0.0.1:34596 - "POST /v1/completions HTTP/1.1" 200 OK\n'
START = (LOGS / "healthy-gpu-ray.log").read_text()
LATER = START.replace(" 11-21 ", " 12-30 ").replace("2026-11-21", "2026-12-30").replace("W1121", "W1230") + ANSWER
WARNED = "(EngineCore pid=1539) WARNING 11-21 03:18:07 [x.py:12] "
INFORMED = "(APIServer pid=1249) INFO 11-21 03:18:07 [x.py:12] "
FULL_GPU = "torch.OutOfMemoryError: CUDA out of memory."
QUIET = ("healthy", "healed", "nothing")
# All of them take a minute of processor time; CI has every eighth.
CASES = [case for case in (CORPUS if FULL else CORPUS[1::8]) if case.kind != "healthy"]


def named(found: Diagnosis) -> tuple[str, str]:
    return found.result, found.named.failure.slug if found.named else ""


def prefixed(name: str, text: str) -> str:
    return "".join(f"{name}: {line}\n" for line in text.splitlines())


# fault: kernel/explain/companions.py: if together or len(streams) < 2: → if True:
@pytest.mark.promise("P41")
def test_a_later_healthy_host_hides_no_failure_of_another() -> None:
    """Below it in one file, by headings or by prefixes, and beside it in two files, in any order."""
    for case in CASES:
        text = (FOLDER / f"{case.log}.log").read_text("utf-8", "replace")
        alone = explained(text, together=False)
        # A part of a start beside a server that answers may be one of it.
        if alone.result in (*QUIET, "unfinished"):
            continue
        headed = f"===== gpu1 =====\n{text}\n===== gpu2 =====\n{LATER}"
        for logs in ((text, LATER), (LATER, text), (headed,), (prefixed("gpu1", text) + prefixed("gpu2", LATER),)):
            assert named(explained(*logs, together=False)) == named(alone), case.log


# fault: kernel/explain/diagnosis.py: if (survived or overcome) and _has_answered(kind, logs): → if False:
def test_a_later_start_in_the_same_log_is_a_recovery_with_what_it_recovered_from() -> None:
    for line, slug in ((FULL_GPU, "gpu-memory-full"), ("FrobnicationError: the frob is out", "")):
        found = explained(f"{line}\n{LATER}", together=False)
        assert found.result == "healed"
        assert [one.failure.slug for one in found.recovered] == ([slug] if slug else [])
        assert [place.text for place in found.error_lines] == ([] if slug else [line])


# fault: kernel/explain/weighing.py: loud = [hit for hit in failing if not hit.known.mild or (ended and not hit.evidence)] → loud = [*failing]
@pytest.mark.promise("P41")
def test_a_warning_in_a_start_that_continues_does_not_count() -> None:
    """In any words of the catalogue: where the server becomes ready, while it still starts, and as the last line."""
    lines = START.splitlines()
    at = next(number for number, line in enumerate(lines) if "Available KV cache memory" in line)
    for words in shown_by_a_line():
        for before in (WARNED, INFORMED, "WARNING: "):
            ready = explained("\n".join((*lines[:at], before + words, *lines[at:])), together=False)
            assert ready.result in ("healthy", "healed", "nothing", "unfinished"), words
            starting = explained("\n".join((*lines[:at], before + words, *lines[at : at + 60])), together=False)
            assert starting.result in ("unfinished", "nothing"), words
            last = explained("\n".join((*lines, before + words)), together=False)
            assert last.result in ("healthy", "nothing"), words


# fault: kernel/explain/weighing.py: mild = [hit for hit in failing if hit.known.mild and (hit.evidence or not ended)] → mild = []
# fault: kernel/explain/signs.py: if parsed.informs or (not parsed.loud → if (not parsed.loud
def test_a_warning_is_why_where_nothing_louder_is_and_no_work_went_on() -> None:
    words = "User-specified max_model_len (9) is greater than the derived max_model_len (5)"
    ends = "(EngineCore pid=7) ERROR 11-21 03:19:07 [core.py:1] EngineCore failed to start.\n"
    found = explained(f"{START}{WARNED.replace('03:18', '03:19')}{words}\n{ends}", together=False)
    assert found.cause and found.cause.failure.slug == "context-above-model"
    # What a program reports as its normal work is not.
    found = explained(f"{START}{INFORMED.replace('03:18', '03:19')}{words}\n{ends}", together=False)
    assert named(found) == ("symptom", "engine-died")
    # Work that went on after it shows that it was not.
    went_on = "(Worker_TP0 pid=7) INFO 11-21 03:19:06 [x.py:1] Loading weights took 2 seconds\n"
    found = explained(f"{START}{WARNED.replace('03:18', '03:19')}{words}\n{went_on}{ends}", together=False)
    assert named(found) == ("symptom", "engine-died")
    assert [note.failure.slug for note in found.notes] == ["context-above-model"]


MEETS = "INFO 11-21 03:17:01 [p.py:1] world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://{}:29501\n"


# fault: kernel/explain/companions.py: span in _ends(streams[at], at, NEAR)) → span in _ends(streams[at], at, AT_ONCE))
# fault: kernel/explain/companions.py: if at in some: → if True:
# fault: kernel/explain/companions.py: if last and begin <= last[0]: → if False:
# fault: kernel/explain/companions.py: if begin <= over]: → if False]:
# fault: kernel/explain/companions.py: span in _ends(one, at, AT_ONCE))) → span in _ends(one, at, NEAR)))
# fault: kernel/explain/ranks.py: if not _OF_EVERY_HOST.match(one)) → if one)
@pytest.mark.parametrize(
    ("head", "worker", "seconds", "same"),
    [
        ("10.0.0.1", "10.0.0.1", 200, True),
        ("gpu1.lan", "gpu1.lan", 200, True),
        ("10.0.0.1", "10.9.0.1", 5, False),
        ("127.0.0.1", "127.0.0.1", 200, False),
        ("10.0.0.1", "", 5, True),
        ("", "10.0.0.1", 5, True),
        ("", "", 5, True),
        ("10.0.0.1", "", 200, False),
        ("", "", 200, False),
    ],
)
def test_of_one_cluster_are_hosts_that_fail_together_and_name_one_address(
    head: str, worker: str, seconds: int, same: bool
) -> None:
    """What one of two clusters has overcome hides nothing of the other, which failed in the same minutes."""
    lost = "ERROR 11-21 03:2{}:{:02} [w.py:1] ncclRemoteError: the other end is gone\n"
    again = "\n" * 50 + "INFO 11-21 04:16:58 [utils.py:1] non-default args: {'model': 'm'}\n" + ANSWER
    named_head, named_worker = (MEETS.format(one) if one else "" for one in (head, worker))
    server = "INFO 11-21 03:16:58 [utils.py:1] non-default args: {'model': 'm'}\n" + named_head + lost.format(0, 0)
    other = named_worker + lost.format(seconds // 60, seconds % 60)
    found = explained(server + again, other, together=False)
    assert found.result == ("healed" if same else "symptom")


# fault: kernel/explain/companions.py: yield from ((when, when + near, at) for when in log.failed) → yield from ()
def test_a_server_that_failed_with_a_host_and_answers_again_has_overcome_it() -> None:
    worker = "ERROR 11-21 03:20:0{} [w.py:1] ncclRemoteError: the other end is gone\n"
    head = START + worker.format(1) + "\n" * 50 + START.replace(" 03:", " 04:") + ANSWER
    assert explained(head, worker.format(0), together=False).result == "healed"
    # Of another hour it is another failure.
    other = worker.format(0).replace("03:20", "01:20")
    assert named(explained(head, other, together=False)) == ("symptom", "peer-gone")


# fault: kernel/explain/companions.py: if len(servers) < 2: → if True:
def test_of_two_servers_that_failed_together_the_one_that_stays_down_is_named() -> None:
    failed = f"ERROR 11-21 03:20:00 [core.py:1] {FULL_GPU}\n"
    again = START + failed + "\n" * 50 + START.replace(" 03:", " 04:") + ANSWER
    found = explained(again, START + failed, together=False)
    assert found.cause and found.cause.places[0].source == "1"


# fault: kernel/explain/companions.py: if len(own) == 1: → if False:
def test_the_logs_of_a_cluster_belong_to_its_node_program() -> None:
    own = "2026-11-21T02:0{}:00Z vcluster starts vLLM\n"
    failed = "ERROR 11-21 02:01:00 [w.py:1] ncclRemoteError: the other end is gone\n"
    assert explained(own.format(9) + START, failed, together=False).result in ("healthy", "healed")


# fault: kernel/explain/diagnosis.py: kind == "unfinished" and not rank → kind == "unfinished"
def test_a_part_of_a_server_that_answers_elsewhere_is_not_unfinished() -> None:
    """Beside its head; a server that never answered is, beside one that did."""
    start = "INFO 11-21 03:16:58 [utils.py:1] non-default args: {'model': 'm'%s}\n"
    assert explained(START, start % ", 'headless': True", together=False).result == "healthy"
    assert explained(START, start % "", together=False).result == "unfinished"


# fault: kernel/explain/log_line.py: level or bracketed or → level or
@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("WARNING: a b", "WARNING"),
        ("[WARNING] a b", "WARNING"),
        ("[Error]: a b", "ERROR"),
        ("[gpu1] [info] a b", "INFO"),
        ("[rank1] a b", ""),
        ("WARNING:root:a b", "WARNING"),
        ("/a/b.py:12: UserWarning: a b", "WARNING"),
        ("2026-11-21 09:00:00 - app - WARNING - a b", "WARNING"),
        ('time="2026-11-21T09:00:00Z" level=warning msg="a b"', "WARNING"),
        ("INFO:     Application startup complete.", "INFO"),
        ("Warning  FailedScheduling  5m  default-scheduler  0/3 nodes are available", ""),
        ("ValueError: WARNING: a b", ""),
    ],
)
def test_programs_without_a_bracket_have_levels_too(line: str, level: str) -> None:
    assert parse_line(line.encode()).level == level


def test_every_failure_has_signs_that_the_warnings_are_made_of() -> None:
    assert len(shown_by_a_line()) > len(FAILURES) // 3
