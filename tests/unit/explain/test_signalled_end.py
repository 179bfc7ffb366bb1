"""Who asks vLLM to end by a signal, a container's runtime or a launcher, did not find a failure."""

from __future__ import annotations

from tests.support.logs import explained

START = "(APIServer pid=1) INFO 05-02 09:00:00 [utils.py:1] vLLM API server version 0.27.0\n"
ANSWER = '(APIServer pid=1) INFO:     10.0.0.9:41000 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
SIGNAL = "(EngineCore pid=31) INFO 05-02 09:11:10 [core.py:1] [shutdown] EngineCore: trigger received signal=SIGTERM\n"
DIED = "(APIServer pid=1) ERROR 05-02 09:11:10 [async_llm.py:1] vllm.v1.engine.exceptions.EngineDeadError: it ended.\n"
INTERRUPT = """\
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "/usr/lib/python3.12/frob.py", line 5, in wait
(APIServer pid=1)     wait()
(APIServer pid=1) KeyboardInterrupt: terminated
"""
LOST = "(Worker_TP1 pid=9) ERROR 05-02 09:11:{:02} [pynccl.py:1] RuntimeError: ncclRemoteError: the other end is gone\n"


# fault: kernel/explain/stream.py: alive=bool(seen.alive)) and not self._fails(): → alive=False) and False:
# fault: kernel/explain/weighing.py: if any(log.stopped or log.asked for log in logs) → if any(log.stopped for log in logs)
def test_lines_after_a_signal_to_end_do_not_count() -> None:
    found = explained(START + ANSWER + SIGNAL + DIED)
    assert (found.result, found.symptom, found.error_lines) == ("nothing", None, ())
    assert [one.failure.slug for one in found.notes] == ["ended-by-signal"]


# fault: kernel/explain/weighing.py: any(_since(signal, place) and → any(signal.source == place.source and
def test_other_hosts_lose_their_connection_after_it() -> None:
    found = explained(START + ANSWER + SIGNAL + DIED, LOST.format(11))
    assert (found.result, found.symptom) == ("nothing", None)
    # In the same second it can be why the signal was sent.
    found = explained(START + ANSWER + SIGNAL + DIED, LOST.format(10))
    assert found.symptom and found.symptom.failure.slug == "peer-gone"


# fault: kernel/explain/stream.py: alive=bool(seen.alive)) and not self._fails(): → alive=bool(seen.alive)):
def test_a_signal_after_a_failure_hides_nothing() -> None:
    # The launcher ends the other ranks, and only then is it written why.
    found = explained(START + ANSWER + DIED.replace("11:10", "11:09") + SIGNAL + LOST.format(10))
    assert found.symptom and found.symptom.failure.slug == "peer-gone"
    found = explained(START + "FrobError: no frob\n" + SIGNAL + DIED)
    assert found.raised and found.raised.line.text == "FrobError: no frob"


# fault: kernel/explain/stream.py: any(hit.number > answered and not cancels(hit) for hit in failing) → any(failing)
def test_what_was_survived_before_it_does_not_count() -> None:
    found = explained(START + LOST.format(1) + ANSWER + SIGNAL + DIED)
    assert found.result != "symptom"


# fault: kernel/explain/stream.py: seen.started, seen.alive, seen.stopped, seen.asked = place, None, None, None → seen.started, seen.alive, seen.stopped = place, None, None
def test_a_later_start_counts_again() -> None:
    again = "\n" * 50 + START.replace("09:00:00", "09:20:00")
    found = explained(START + ANSWER + SIGNAL + DIED + again + LOST.format(10).replace("09:11", "09:21"))
    assert found.symptom and found.symptom.failure.slug == "peer-gone"
    assert explained(START + ANSWER + SIGNAL + DIED + again + ANSWER).result == "healthy"


# fault: kernel/explain/progress.py: INTERRUPTED = "KeyboardInterrupt" → INTERRUPTED = "KeyboardInterrupted"
# fault: kernel/explain/stream.py: self._trouble.pop() → pass
def test_where_a_start_was_when_it_was_interrupted_is_not_an_error() -> None:
    found = explained(START + INTERRUPT)
    assert (found.result, found.error_lines) == ("nothing", ())
    assert [one.failure.slug for one in found.notes] == ["ended-by-signal"]
    found = explained(START + "(APIServer pid=1) ERROR: no frob\n" + INTERRUPT)
    assert [place.text for place in found.error_lines] == ["ERROR: no frob"]
    # What failed before it is why.
    found = explained(START + DIED.replace("11:10", "11:09") + INTERRUPT + LOST.format(10))
    assert found.symptom and found.symptom.failure.slug == "peer-gone"


DONE = "(EngineCore pid=31) INFO 05-02 09:11:{:02} [core.py:1] Shutdown initiated (timeout=0)\n"
WENT = "(EngineCore pid=31) ERROR 05-02 09:11:15 [multiproc_executor.py:1] Worker proc VllmWorker-0 died unexpectedly\n"
RATES = "INFO 05-02 09:11:00 [l.py:1] Avg prompt throughput: 9.0 tokens/s, Avg generation throughput: 9.0 tokens/s\n"


# fault: kernel/explain/progress.py: "Shutdown initiated (timeout=" → "Shutdown initiated (timeout of"
# fault: kernel/explain/progress.py: "srun: interrupt (one more within", → "srun: interrupted",
def test_a_script_that_is_done_and_a_person_at_srun_end_it_too() -> None:
    """The engine ends its workers, and its monitor finds that they died."""
    assert explained(START + RATES + RATES + DONE.format(10) + WENT).result == "nothing"
    # A worker that is gone before is why.
    found = explained(START + RATES + RATES + WENT + DONE.format(20))
    assert found.symptom and found.symptom.failure.slug == "rank-killed"
    at_srun = "srun: interrupt (one more within 1 sec to abort)\nsrun: StepId=5.0 task 0: running\n"
    assert explained(START + ANSWER + at_srun + LOST.format(11)).result == "nothing"


FROB = """\
({0}) Traceback (most recent call last):
({0})   File "/usr/lib/python3/site-packages/vllm/frob.py", line 5, in build
({0}) FrobError: no frob
"""


TRIGGERED = "(APIServer pid=1) INFO 05-02 09:11:10 [launcher.py:1] [shutdown] API server: shutdown triggered\n"


# fault: kernel/explain/stream.py: if other and leads(parsed.who) and → if other and
# fault: kernel/explain/stream.py: if other and leads(parsed.who) and not is_echo(parsed.words): → if other and leads(parsed.who):
# fault: kernel/explain/stream.py: and (not alive or progress.TO_AN_ENGINE in asked.text) → and not alive
# fault: kernel/explain/stream.py: and (not alive or progress.TO_AN_ENGINE in asked.text) → and True
# fault: kernel/explain/progress.py: *("API server: shutdown triggered", → *("API server: shutdown was triggered",
def test_who_ends_the_engine_for_what_it_raised_writes_that_last() -> None:
    """The signal to the engine is its own, unless it was asked first; what ranks write in their end shows nothing."""
    crash = FROB.format("APIServer pid=1")
    for log in (SIGNAL, ANSWER + SIGNAL):
        found = explained(START + log + crash)
        assert found.raised and (found.result, found.raised.line.text) == ("exception", "FrobError: no frob")
    for log in (
        SIGNAL + FROB.format("Worker_TP0 pid=9"),
        SIGNAL + crash.replace("FrobError: no frob", "asyncio.exceptions.CancelledError"),
        ANSWER + TRIGGERED + SIGNAL + crash,
        # Older versions do not report who was asked.
        ANSWER + DONE.format(10) + crash,
    ):
        assert explained(START + log).result == "nothing", log
