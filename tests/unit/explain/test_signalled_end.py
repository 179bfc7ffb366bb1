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


# fault: kernel/explain/stream.py: elif self._asks(parsed.words) and not self._fails(): → elif False:
# fault: kernel/explain/weighing.py: if any(log.stopped or log.asked for log in logs) → if any(log.stopped for log in logs)
def test_lines_after_a_signal_to_end_do_not_count() -> None:
    found = explained(START + ANSWER + SIGNAL + DIED)
    assert (found.result, found.symptom, found.error_lines) == ("nothing", None, ())
    assert [one.failure.slug for one in found.notes] == ["ended-by-signal"]


# fault: kernel/explain/weighing.py: any(_precedes(signal, place) and → any(signal.source == place.source and
def test_other_hosts_lose_their_connection_after_it() -> None:
    found = explained(START + ANSWER + SIGNAL + DIED, LOST.format(11))
    assert (found.result, found.symptom) == ("nothing", None)
    # In the same second it can be why the signal was sent.
    found = explained(START + ANSWER + SIGNAL + DIED, LOST.format(10))
    assert found.symptom and found.symptom.failure.slug == "peer-gone"


# fault: kernel/explain/stream.py: elif self._asks(parsed.words) and not self._fails(): → elif self._asks(parsed.words):
def test_a_signal_after_a_failure_hides_nothing() -> None:
    # The launcher ends the other ranks, and only then is it written why.
    found = explained(START + ANSWER + DIED.replace("11:10", "11:09") + SIGNAL + LOST.format(10))
    assert found.symptom and found.symptom.failure.slug == "peer-gone"
    found = explained(START + "FrobError: no frob\n" + SIGNAL + DIED)
    assert found.raised and found.raised.line.text == "FrobError: no frob"


# fault: kernel/explain/stream.py: return bool(seen.strange) or any(hit.number > answered for hit in failing) → return bool(seen.strange) or any(failing)
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
    # What failed before it is why.
    found = explained(START + DIED.replace("11:10", "11:09") + INTERRUPT + LOST.format(10))
    assert found.symptom and found.symptom.failure.slug == "peer-gone"
