"""The first cause under the noise: order, rank, runs, look-alikes, what is unknown."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.support.logs import FOLDER, HEALTHY, NEWEST, explained
from vllm_cluster.kernel.explain.catalogue import HARMLESS
from vllm_cluster.kernel.explain.diagnosis import Diagnosis, diagnose
from vllm_cluster.kernel.explain.evidence import LogScan
from vllm_cluster.kernel.explain.log_line import parse_line, parse_time
from vllm_cluster.kernel.explain.progress import OWN_START, OWN_STOP
from vllm_cluster.kernel.explain.scan import LogSource, scan
from vllm_cluster.serving.node.attempt import STARTS, STOPS

START = "INFO 11-21 02:{minute}:00 [utils.py:286] non-default args: {{'model': 'm'}}\n"
CONTEXT = (
    "ERROR 11-21 02:{minute}:30 [core.py:1] ValueError: To serve at least one request with the model's max seq len\n"
)
PORT = "ERROR 11-21 02:{minute}:40 [core.py:1] OSError: [Errno 98] Address already in use\n"
READY = "INFO:     Application startup complete.\n"
DEAD = "ERROR 11-21 02:{minute}:20 [core.py:1] RuntimeError: Engine core initialization failed. See root cause above.\n"
DIED = "ERROR 11-21 02:{minute}:15 [m.py:1] Worker proc VllmWorker-1 died unexpectedly, shutting down executor.\n"
STUCK = "INFO 11-21 02:05:00 [shm.py:1] No available shared memory broadcast block found in 60 seconds.\n"
FILLER = "INFO 11-21 02:00:01 [x.py:1] Route: /v1\n" * 50


def at(minute: int, *lines: str) -> str:
    """Lines of a minute, far enough from others."""
    return FILLER + "".join(line.format(minute=f"{minute:02}") for line in lines)


def test_a_cause_outranks_its_consequence_though_that_is_logged_first() -> None:
    head = (
        at(1, START, DEAD)
        + "[rank0]:[E1121 02:01:00.1 socket.cpp:1023] [c10d] The client socket has timed out after 1s\n"
    )
    worker = (
        "(RayWorkerProc pid=7, ip=10.0.0.2) ERROR 11-21 02:01:59 [w.py:1] OSError: [Errno 28] No space left on device\n"
    )
    found = explained(head, worker)
    assert found.cause
    assert (found.cause.failure.slug, found.cause.places[0].source) == ("disk-full", "1")
    assert found.cause.places[0].process == "RayWorkerProc pid=7, ip=10.0.0.2"
    assert {place.line for place in found.consequences} == {52, 53}
    assert found.other_causes == ()


def test_the_earliest_of_two_causes_comes_first_in_any_log() -> None:
    found = explained(at(5, PORT), at(4, CONTEXT))
    assert found.cause
    assert found.cause.failure.slug == "context-too-long"
    assert [other.failure.slug for other in found.other_causes] == ["port-taken"]


# fault: kernel/explain/diagnosis.py: symptom = first if first and first.failure.kind == "symptom" else None → symptom = None
def test_a_symptom_is_never_given_as_a_cause() -> None:
    found = explained(
        "x [c10d] The client socket has timed out after 600s while trying to connect to (10.0.0.1, 29501)\n"
    )
    assert found.symptom
    assert (found.result, found.cause, found.symptom.failure.slug) == ("symptom", None, "peer-unanswered")


def test_what_no_failure_explains_is_shown_beside_a_symptom_for_it_may_be_why() -> None:
    found = explained(at(1, START, "frobd: error: the frob is out\n", DIED, DEAD))
    assert found.symptom
    assert (found.symptom.failure.slug, [place.text for place in found.unknown_lines]) == (
        "rank-killed",
        ["frobd: error: the frob is out"],
    )
    # That something has failed, or a rank ended, is less than an exception before it that no failure explains.
    assert explained(at(1, START, DEAD)).result == "symptom"
    assert explained(at(1, START, "FrobnicationError: the frob is out\n", DIED, DEAD)).result == "exception"


def test_the_rank_that_fell_silent_first_is_reported() -> None:
    def worker(name: str, minute: int) -> LogScan:
        text = f"INFO 11-21 02:{minute:02}:00 [x.py:1] step\n"
        return scan(LogSource(f"gpu{name}:ray/worker-{name}.out", [(1, text.encode())], f"gpu{name}", NEWEST))

    stuck = scan(LogSource("gpu1:serve.log", [(1, (at(1, START) + STUCK).encode())], "gpu1", NEWEST))
    found = diagnose([stuck, worker("1", 9), worker("2", 4), worker("3", 9)])
    assert found.last_line
    assert (found.result, found.last_line.source) == ("symptom", "gpu2:ray/worker-2.out")
    assert diagnose([stuck, worker("1", 9), worker("2", 9)]).last_line is None


# fault: kernel/explain/weighing.py: oldest = started - (LASTING if lasting and log.started else SLACK) → oldest = -math.inf
def test_the_last_run_counts_and_the_earlier_ones_are_listed() -> None:
    found = explained(at(1, START, CONTEXT, DEAD) + at(9, START, PORT))
    assert found.cause
    assert (found.cause.failure.slug, found.previous_attempts) == ("port-taken", (("context-too-long", 1),))
    # Also where it is in the log of another process.
    found = explained(at(9, START, PORT), at(1, CONTEXT))
    assert found.cause
    assert (found.cause.failure.slug, found.previous_attempts) == ("port-taken", (("context-too-long", 1),))


SIGILL = "ERROR 11-21 02:{minute}:10 [worker.py:1] *** SIGILL received at time=1 ***\n"


# fault: kernel/explain/diagnosis.py: before = seen.before if seen.failing or seen.trouble or → before = seen.before if True or
# fault: kernel/explain/weighing.py: oldest=started - LASTING → oldest=-math.inf
# fault: kernel/explain/weighing.py: (LASTING if lasting and log.started else SLACK) → (LASTING if lasting else SLACK)
@pytest.mark.parametrize("file", ["one", "another"])
def test_what_a_host_suffered_from_before_a_start_is_the_cause_only_where_that_start_fails(file: str) -> None:
    """In the log that holds all starts, and in that of a rank, which holds none."""

    def after(minutes: int, *lines: str) -> Diagnosis:
        new = at(9, START, *lines)
        return (
            explained(at(1, START), new, at(9 - minutes, SIGILL))
            if file == "another"
            else explained(at(1, START) + at(9 - minutes, SIGILL) + new)
        )

    assert (after(2).result, after(2).previous_attempts) == ("unfinished", (("wrong-processor", 1),))
    found = after(2, DEAD)
    assert found.cause and found.cause.failure.slug == "wrong-processor"
    found = after(2, PORT)
    assert found.cause and found.cause.failure.slug == "port-taken"
    # Longer ago it explains nothing.
    assert after(7, DEAD).cause is None


# fault: kernel/explain/weighing.py: count=count, recent=deque(places, RECENT)) → count=count)
def test_a_stop_by_request_brings_no_failure_of_an_earlier_run_back() -> None:
    """In the log of a process of Ray's, which runs through all starts, and has the same words for every end."""
    stop = "2026-11-21T02:10:00Z vcluster stops vLLM\n"
    found = explained(at(9, START) + READY + stop, at(1, DIED) + at(10, DIED))
    assert (found.result, found.symptom, found.recovered) == ("nothing", None, ())


# fault: kernel/explain/failures.toml: has made no step for \d+ s', kind = "decisive" → has made no step for \d+ s'
# fault: kernel/explain/failures.toml: s, though /health returns 200', kind = "decisive" → s, though /health returns 200'
@pytest.mark.parametrize(
    "reason", ["the engine has made no step for 26 s", "no token for 120 s, though /health returns 200"]
)
def test_a_hang_that_the_head_has_seen_comes_before_what_its_end_wrote(reason: str) -> None:
    found = explained(at(1, START) + READY + at(9, DIED), f"{reason}\n")
    assert found.symptom and found.symptom.failure.slug == "engine-hung"


# fault: kernel/explain/weighing.py: (place.time or 0.0) <= worked_at) → True)
def test_a_cluster_that_works_as_far_as_can_be_seen_may_have_lost_a_rank_since() -> None:
    """The head notices the end of a rank some seconds later."""
    log = (at(1, START) + READY + at(9, DEAD)).encode()
    seen = [scan(LogSource("gpu1:serve.log", [(1, log)], "gpu1", NEWEST))]
    died = max(hit.last.time or 0.0 for hit in seen[0].hits.values())
    assert diagnose(seen, worked_at=died + 1).result in ("healed", "healthy")
    assert diagnose(seen, worked_at=died - 1).result not in ("healed", "healthy")


def test_a_start_that_ended_before_vllm_s_first_line_is_the_last_run_too() -> None:
    begin = "2026-11-21T02:{minute}:00Z vcluster starts vLLM\n"
    usage = "vllm: error: unrecognized arguments: --no-such-flag\n"
    first = (begin + START + CONTEXT).format(minute="01")
    found = explained(first + begin.format(minute="02") + usage)
    assert found.cause
    assert (found.cause.failure.slug, found.previous_attempts) == ("flag-unknown", (("context-too-long", 1),))
    assert explained(first).result == "explained"
    # The node program's word, in a log of its own making.
    assert STARTS == OWN_START


# fault: kernel/explain/weighing.py: any(stop - 1 <= time → any(stop - 1 > time
@pytest.mark.promise("P41")
def test_an_end_by_request_is_not_a_failure() -> None:
    """Ray writes of each rank that its connection ended, whether it was killed or asked to end."""
    begin = "2026-11-21T02:01:00Z vcluster starts vLLM\n"
    stop = "2026-11-21T02:05:00Z vcluster stops vLLM\n"
    ends = "[2026-11-21 02:{}:02,000 W 7 7] (gcs_server) Reporting worker exit, connection error code 2. End of file.\n"
    serving = begin + START.format(minute="01") + READY
    assert explained(serving + stop + DEAD.format(minute="05"), ends.format("05")).result == "nothing"
    # The same lines without the request, or before it, are one.
    assert explained(serving, ends.format("05")).result == "symptom"
    assert explained(serving + stop, ends.format("04")).result == "symptom"
    # A new start after it fails by itself.
    again = "2026-11-21T02:09:00Z vcluster starts vLLM\n"
    assert explained(serving + stop + again, ends.format("05"), ends.format("10")).result == "symptom"
    assert explained(serving + stop + again, ends.format("05")).result == "unfinished"
    assert STOPS == OWN_STOP


def test_what_a_new_start_corrected_is_not_a_failure_any_more() -> None:
    found = explained(at(1, START, CONTEXT, DEAD) + at(9, START, READY))
    assert (found.result, found.previous_attempts) == ("healthy", (("context-too-long", 1),))


# fault: kernel/explain/stream.py: seen.earlier.update(failed) → seen.earlier.update([*failed] * 2)
# fault: kernel/explain/weighing.py: earlier.update(failed) → earlier.update([*failed] * 2)
def test_a_rank_that_ended_before_the_last_start_is_counted_once() -> None:
    """Its line is matched by two signs, and was two ranks."""
    died = (
        "(EngineCore pid=2) ERROR 11-21 02:05:00 [m.py:1] Worker proc VllmWorker-1 died unexpectedly, shutting down.\n"
    )
    begin = "2026-11-21T02:{0}:00Z vcluster starts vLLM\n"
    assert explained(begin.format("01") + died + begin.format("09")).previous_attempts == (("rank-killed", 1),)
    # In a log without the later start too.
    assert explained(begin.format("01") + died, begin.format("09")).previous_attempts == (("rank-killed", 1),)


def test_a_host_that_suffered_before_the_start_is_why_it_fails_when_nothing_better_is_there() -> None:
    mismatch = "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.56.1\n    Python: 3.11.2\n"
    found = explained(mismatch + at(3, START, DEAD))
    assert found.cause
    assert (found.cause.failure.slug, found.cause.more) == ("ray-versions-differ", ("Ray: 2.56.1", "Python: 3.11.2"))
    assert (explained(mismatch + at(3, START, PORT)).cause or found.cause).failure.slug == "port-taken"


def test_a_rank_that_died_before_the_start_explains_nothing_of_what_fails_after_it() -> None:
    died = "[2026-11-21 02:01:00,000 W 7 7] (gcs_server) connection error code 2. End of file.\n"
    flag = "2026-11-21T02:05:00Z vcluster starts vLLM\nvllm: error: unrecognized arguments: --no-such-flag\n"
    for logs in ((died + flag,), (flag, died)):
        found = explained(*logs)
        assert found.cause
        assert (found.cause.failure.slug, found.previous_attempts) == ("flag-unknown", (("rank-killed", 1),))


# fault: kernel/explain/weighing.py: bool(alive and precedes(place, alive)) or not →
def test_what_the_server_has_survived_is_not_a_failure() -> None:
    found = explained(at(1, START, PORT) + READY)
    assert (found.result, [one.failure.slug for one in found.recovered]) == ("healed", ["port-taken"])
    assert explained(at(1, START) + READY + at(2, PORT)).result == "explained"
    refused = 'INFO: 10.0.0.1:5 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error\n'
    found = explained(at(1, START, PORT) + READY + at(2, CONTEXT) + refused)
    assert found.cause
    assert [one.failure.slug for one in (found.cause, *found.recovered)] == ["context-too-long", "port-taken"]


def test_long_work_is_harmless_with_the_evidence_and_a_stop_is_not() -> None:
    slow = explained((FOLDER / "healthy-slow-work.log").read_bytes())
    (entry,) = [entry for entry in slow.harmless if entry.evidence]
    assert "No available shared memory broadcast block" in entry.line.text
    assert entry.evidence is not None
    assert entry.evidence.line > entry.line.line
    assert "200" in entry.evidence.text
    stuck = explained((FOLDER / "rank-stuck.log").read_bytes())
    assert stuck.symptom
    assert stuck.symptom.failure.slug == "rank-stuck"
    assert not any("shared memory broadcast" in entry.line.text for entry in stuck.harmless)


def test_loopback_is_the_cause_where_no_host_can_connect_and_harmless_on_one_host() -> None:
    warning = (FOLDER / "healthy-loopback-on-one-host.log").read_text()
    failure = (FOLDER / "gloo-interface.log").read_text()
    assert explained(warning).result == "nothing"
    found = explained(warning, failure)
    assert found.cause
    assert found.cause.failure.slug == "loopback-address"
    assert [other.failure.slug for other in found.other_causes] == ["gloo-interface"]


# fault: kernel/explain/diagnosis.py: (seen.trouble or seen.failing or → (seen.failing or
def test_what_is_not_known_is_shown_in_its_own_words() -> None:
    found = explained(at(1, START) + "Traceback (most recent call last):\nFrobnicationError: the frob is out\n")
    assert (found.result, found.raised and found.raised.line.text) == (
        "exception",
        "FrobnicationError: the frob is out",
    )
    # However many lines after it show only that something has failed.
    ends = "".join(f"RuntimeError: Engine core initialization failed. ({n})\n" for n in range(30))
    found = explained(at(1, START) + "FrobnicationError: the frob is out\n" + ends)
    assert (found.result, found.raised and found.raised.line.text) == (
        "exception",
        "FrobnicationError: the frob is out",
    )


@pytest.mark.parametrize("text", ["", "\n\n", "all is well\n", FILLER, "[state-dump] - num failed / plasma error: 0\n"])
def test_where_nothing_failed_nothing_is_printed(text: str) -> None:
    assert explained(text).result == "nothing"


def test_repeated_lines_count_as_often_as_ray_counts_them() -> None:
    line = (
        "(RayWorkerProc pid=7, ip=10.0.0.2) torch.OutOfMemoryError: CUDA out of memory [repeated 3x across cluster]\n"
    )
    found = explained(line * 2)
    assert found.cause
    assert found.cause.places[0].text == "torch.OutOfMemoryError: CUDA out of memory"
    (seen,) = [scan(LogSource("x", [(1, line.encode() * 2)]))]
    assert {hit.count for hit in seen.hits.values()} == {6}


@pytest.mark.parametrize(
    ("line", "time", "who", "words"),
    [
        ("(EngineCore pid=24) ERROR 11-21 02:19:12 [core.py:1] boom", 1795227552.0, "EngineCore pid=24", "boom"),
        (
            "2026-11-21 02:19:12,500\tINFO worker.py:1 -- hello",
            1795227552.5,
            "",
            "2026-11-21 02:19:12,500\tINFO worker.py:1 -- hello",
        ),
        (
            "[2026-11-21 02:19:12,250 E 7 7] (raylet) boom",
            1795227552.25,
            "",
            "[2026-11-21 02:19:12,250 E 7 7] (raylet) boom",
        ),
        ("2026-11-21T02:19:12.75Z [vllm] (APIServer pid=1) boom", 1795227552.75, "vllm APIServer pid=1", "boom"),
        ("[rank3]:[E1121 02:19:12.5 x.cpp:1] boom", 1795227552.5, "rank3", "[E1121 02:19:12.5 x.cpp:1] boom"),
        ("[E528 02:19:12.5 x.cpp:1] boom", 1779934752.5, "", "[E528 02:19:12.5 x.cpp:1] boom"),
        ("[Sat Nov 21 02:19:12 2026] NVRM: boom", 1795227552.0, "", "[Sat Nov 21 02:19:12 2026] NVRM: boom"),
        ("Nov 21 02:19:12 gpu2 kernel: boom", 1795227552.0, "gpu2", "kernel: boom"),
        ("gpu2:12:34 [0] NCCL WARN boom", None, "gpu2", "gpu2:12:34 [0] NCCL WARN boom"),
        ("\x1b[36m(Worker_TP1 pid=9)\x1b[0m boom", None, "Worker_TP1 pid=9", "boom"),
        ("ERROR 13-41 99:99:99 [x.py:1] boom", None, "", "boom"),
    ],
)
def test_a_line_is_taken_apart(line: str, time: float | None, who: str, words: str) -> None:
    told = parse_line(line.encode(), NEWEST)
    assert (told.time, told.who, told.words) == (time, who, words)


# fault: kernel/explain/log_line.py: if at is None or at > newest + DAY else at → if at is None else at
@pytest.mark.parametrize(
    ("newest", "begun", "failed"),
    [("2026-01-02T05:00:00", "12-30", "01-02"), ("2026-12-30T05:00:00", "12-29", "12-30")],
)
def test_a_run_that_lasts_over_new_year_is_one_run(newest: str, begun: str, failed: str) -> None:
    """vLLM's lines have no year: a log of January begins in the year before."""
    lines = f"INFO {begun} 02:00:00 [utils.py:286] non-default args: {{'model': 'm'}}\n{FILLER.replace('11-21', begun)}"
    lines += f"ERROR {failed} 03:00:00 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate\n"
    written = datetime.fromisoformat(newest).replace(tzinfo=UTC).timestamp()
    found = diagnose([scan(LogSource("serve.log", [(1, lines.encode())], "gpu1", written))])
    assert found.cause, found
    assert (found.cause.failure.slug, found.previous_attempts) == ("gpu-memory-full", ())
    assert found.cause.places[0].time == written - 2 * 3600


def test_the_29th_of_february_is_of_the_last_year_that_had_one() -> None:
    newest = datetime(2025, 1, 5, tzinfo=UTC).timestamp()
    assert parse_time("INFO 02-29 00:00:00 x", newest) == datetime(2024, 2, 29, tzinfo=UTC).timestamp()


# fault: kernel/explain/signs.py: SignKind.BROAD if known.kind is SignKind.CAUSE else known.kind, mild → known.kind, mild
def test_an_error_is_the_cause_and_not_a_warning_before_it() -> None:
    """A warning of vLLM with the words of an error, where the length was raised on purpose; then memory runs out."""
    long = (
        "User-specified max_model_len (65536) is greater than the derived max_model_len (max_position_embeddings=32768"
    )
    warned = f"WARNING 11-21 02:01:10 [model.py:1] {long}). Make sure the value is correct\n"
    memory = "ERROR 11-21 02:01:40 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    found = explained(at(1, START, warned, memory))
    assert found.cause
    assert found.cause.failure.slug == "gpu-memory-full"
    alone = explained(at(1, START, warned, DEAD)).cause
    assert alone, "nothing louder explains it"
    assert alone.failure.slug == "context-above-model"


def test_a_time_that_cannot_be_is_none() -> None:
    assert parse_time("2026-02-31T00:00:00Z", NEWEST) is None


def test_lines_are_numbered_across_pieces() -> None:
    parts = [(1, b"a\nb\n"), (3, b"c\nCUDA out of memory\n"), (90, b"x\nfailed: Address already in use")]
    seen = scan(LogSource("x", parts))
    assert {hit.first.line for hit in seen.hits.values()} == {4, 91}
    assert seen.lines == 91
    assert diagnose([seen]).size == sum(len(part) for _, part in parts)


def test_the_cause_is_found_under_all_noise_that_there_is() -> None:
    """Every healthy log before it, each with lines that look like failures; and the ranks that only saw it end."""
    noise = [path.read_bytes() for path in HEALTHY]
    ends = (FOLDER / "rank-killed.rank-killed.log").read_bytes()
    for name in ("disk-full", "shm-small", "context-too-long.context", "access-denied"):
        # Hours later than all that: the last start is the one that failed.
        cause = (FOLDER / f"{name}.log").read_bytes().replace(b"11-21 02:", b"11-21 09:")
        found = explained(*noise, ends, cause)
        assert found.cause, name
        assert (found.cause.failure.slug, found.cause.places[0].source) == (name.split(".")[0], str(len(noise) + 1))
        assert all(other.failure.kind == "cause" for other in found.other_causes)


@pytest.mark.parametrize("like", HARMLESS, ids=lambda like: like["needle"][:40])
def test_each_lookalike_is_harmless_or_waits_for_work_to_continue(like: dict[str, str]) -> None:
    line = f"(Worker pid=7) WARNING 11-21 02:00:00 [x.py:1] {like['needle']}: error, failed\n"
    alone, after = explained(line), explained(line + READY)
    assert (after.result, [entry.reason for entry in after.harmless]) == ("healthy", [like["why"]])
    assert alone.result == ("symptom" if like.get("else") else "nothing")
    assert (alone.symptom.failure.slug if alone.symptom else "") == like.get("else", "")


# fault: kernel/explain/weighing.py: (hit.first, *hit.recent) if counts(place)] → (hit.first, *hit.recent)]
@pytest.mark.promise("P41")
def test_a_planned_stop_lends_a_later_failure_no_evidence() -> None:
    """The same words, of a `serve` that replaced the model, and of a container that was killed eight minutes later."""
    vllm = "2026-11-22T13:50:00Z vcluster starts vLLM\n2026-11-22T13:58:12Z vcluster stops vLLM\n"
    vllm += "2026-11-22T13:58:20Z vcluster starts vLLM\n"
    gcs = "[2026-11-22 {},000 W 7 7] (gcs_server) Reporting worker exit, connection error code 2. End of file.\n"
    state = '{"Status":"exited","ExitCode":137,"OOMKilled":false,"FinishedAt":"2026-11-22T14:06:01Z"}\n'
    planned, killed = gcs.format("13:58:13"), gcs.format("14:06:02")
    found = explained(vllm, planned * 2 + killed, state)
    assert found.symptom
    assert (found.symptom.failure.slug, found.previous_attempts) == ("rank-killed", ())
    assert [(place.source, place.line) for place in found.symptom.places] == [("2", 1), ("1", 3)]
    # While the replacement starts, the end of what it replaces is nothing.
    assert (explained(vllm, planned).result, explained(vllm, planned).previous_attempts) == ("unfinished", ())
    # Also where the replacement itself was replaced: each planned stop counts.
    twice = vllm + "2026-11-22T14:10:00Z vcluster stops vLLM\n2026-11-22T14:10:09Z vcluster starts vLLM\n"
    found = explained(twice, planned + gcs.format("14:10:01"))
    assert (found.result, found.previous_attempts) == ("unfinished", ())


def test_a_host_that_was_lost_outranks_the_ranks_that_ended_with_it() -> None:
    dead = "[2026-11-22 14:11:40,000 W 7 7] (gcs_server) The node with node id: 5 and address: 10.0.0.2 has been marked"
    dead += " dead because the detector has missed too many heartbeats from it.\n"
    ended = "[2026-11-22 14:11:30,000 W 7 7] (raylet) A worker died or was killed while executing a task.\n"
    found = explained(ended + dead)
    assert found.symptom
    assert (found.symptom.failure.slug, [other.failure.slug for other in found.other_causes]) == (
        "node-lost",
        ["rank-killed"],
    )


def test_no_room_for_the_cache_is_not_called_a_share_that_is_too_high() -> None:
    """vLLM's own advice is a larger share; a smaller one would make it worse."""
    found = explained(
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.\n"
    )
    assert found.cause
    assert (found.cause.failure.slug, "too high" in found.cause.failure.cause) == ("kv-cache-no-room", False)
    assert "0.95" in found.cause.failure.fix


REPORT = (
    "(APIServer pid=1) INFO 05-02 09:0{}:00 [a.py:1] Engine {}: Avg generation throughput: {} tokens/s, Running: 1\n"
)
SURVIVED = "(EngineCore pid=2) ERROR 05-02 09:02:00 [a.py:1] torch.OutOfMemoryError: CUDA out of memory.\n"
ENDED = "(EngineCore pid=2) ERROR 05-02 09:09:00 [a.py:1] frob.FrobError: the frob is out\n"


# fault: kernel/explain/scan.py: found = _worked(part) → found: list[int] = []
# fault: kernel/explain/scan.py: found += [at] if worked else [] → found += [at]
@pytest.mark.parametrize(
    ("reports", "survived"),
    [
        (((3, "000", 5.0), (4, "000", 6.0)), True),
        # The first one is also of the time before it failed.
        (((3, "000", 5.0),), False),
        (((3, "000", 5.0), (4, "000", 0.0)), False),
        # Another engine's work proves nothing of this one's time.
        (((3, "000", 0.0), (4, "001", 6.0)), False),
    ],
)
def test_what_an_engine_outlived_that_made_tokens_since_is_not_why_it_ended(
    reports: tuple[tuple[int, str, float], ...], survived: bool
) -> None:
    found = explained(f"{SURVIVED}{''.join(REPORT.format(*one) for one in reports)}{ENDED}", together=False)
    assert found.result == ("exception" if survived else "explained")
    assert [one.failure.slug for one in found.recovered] == (["gpu-memory-full"] if survived else [])


# fault: kernel/explain/progress.py: if words.startswith(_STACK): → if False:
def test_where_torch_was_is_not_given_as_what_may_be_the_cause() -> None:
    symptom = "[rank1]:[W1229 22:06:38.1 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=1): Broken pipe\n"
    stack = (
        "Exception raised from frob at /a/Utils.hpp:1 (most recent call first):\nframe #0: c10::Error::Error(c10::A)\n"
    )
    found = explained(f"{symptom}{stack}", together=False)
    assert found.symptom and found.symptom.failure.slug == "peer-gone"
    assert found.unknown_lines == ()


# fault: kernel/explain/scan.py: passed = bisect_left(answers, nearby.start, → before = passed = bisect_left(answers, nearby.start,
def test_below_an_answer_a_line_without_a_time_is_as_old_as_the_one_above_it() -> None:
    """Not as the last line that begins with a date: that can be of an earlier run."""
    older = "frob\n2025-01-02T00:00:00Z vcluster starts vLLM\n"
    ready = f"{REPORT.format(1, '000', 5.0)}INFO:     Application startup complete.\n"
    found = explained(f"{older}{ready}{REPORT.format(2, '000', 5.0)}[9.1] {XID}\n", together=False)
    assert found.cause and found.cause.failure.slug == "gpu-broken"
    assert found.cause.places[0].time == parse_time("2025-05-02 09:02:00")


XID = "NVRM: Xid (PCI:0000:4e:00): 79, pid=7, name=frob, GPU has fallen off the bus."
