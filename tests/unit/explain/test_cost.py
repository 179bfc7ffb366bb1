"""A log that holds an error in each line is read at a bearable cost: by what is done to a line, not by a clock."""

from __future__ import annotations

import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from tests.support.logs import explained
from vllm_cluster.kernel.explain import progress
from vllm_cluster.kernel.explain.catalogue import NEEDLES, SIGNS, WORKS, kind_of
from vllm_cluster.kernel.explain.diagnosis import diagnose
from vllm_cluster.kernel.explain.log_line import parse_line
from vllm_cluster.kernel.explain.prefix import section
from vllm_cluster.kernel.explain.progress import is_trouble
from vllm_cluster.kernel.explain.scan import MAX_STREAMS, STREAM_BYTES, HostRoom, LogSource, scan, scan_all
from vllm_cluster.kernel.explain.signs import classify

LINES = 3000
SHOWN = 300  # calls for what is kept to be shown
LETTERS = str.maketrans("0123456789", "abcdefghij")


def counted_calls(monkeypatch: Any, *names: str) -> Counter[str]:
    """How often these functions of `kernel/explain` are called from here on."""
    calls: Counter[str] = Counter()

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            calls[name] += 1
            return real(*args, **named)

        return call

    for name in names:
        module, function = name.split(".")
        real = getattr(import_module(f"vllm_cluster.kernel.explain.{module}"), function)
        monkeypatch.setattr(f"vllm_cluster.kernel.explain.{name}", counted(name, real))
    return calls


# fault: kernel/explain/stream.py: hit.lines.append(line) → hit.lines.append(self._place(*line) and line)
# fault: kernel/explain/stream.py: raised.append((line, nearby, None)) → raised.append((line, nearby if self._place(*line) else nearby, None))
@pytest.mark.parametrize("error", ["RuntimeError: frob {}", "CUDA error: frob {}", "ValueError: {} is not supported"])
def test_an_error_that_is_not_shown_is_parsed_once_and_not_redacted(error: str, monkeypatch: Any) -> None:
    calls = counted_calls(monkeypatch, "frame.parse_line", "scan.parse_line", "stream.redact")
    text = "".join(f"(Worker pid=7) ERROR 05-02 09:11:10 [a.py:1] {error.format(at)}\n" for at in range(LINES))
    found = explained(text)
    assert found.named or found.raised
    assert calls["stream.redact"] < SHOWN
    assert LINES <= calls["frame.parse_line"] + calls["scan.parse_line"] < LINES + SHOWN


# fault: kernel/explain/progress.py: r"|Killed\b|Aborted\b| → r"|Killed\b|
# fault: kernel/explain/progress.py: {19,27} [EFC] | → {19,27} [FC] |
@pytest.mark.parametrize(
    "line",
    [
        *("Traceback (most recent call last):", "a.FrobError: no", "FrobException", "SystemExit: 3", "a.exc.Frob: no"),
        *("x ERROR y", "x CRITICAL y", "x FATAL y", "frob error: no", "a.c:1: error no frob", "panic: frob"),
        *("Segmentation fault", "(core dumped)", "Killed", "Aborted", "[2026-05-02 09:11:10,1 E 3 3] frob"),
        *("[E528 09:11 frob", "gpu1:1:2 [0] a.cc:3 NCCL WARN frob"),
    ],
)
def test_every_form_of_an_error_is_recognised(line: str) -> None:
    assert is_trouble(line)
    assert not is_trouble("INFO frob")


# fault: kernel/explain/signs.py: known.matches or known.needle): known for known in found → known): known for known in found
def test_a_refusal_counts_once_however_many_of_its_words_are_in_the_line() -> None:
    found, _ = classify("ValueError: frob is not supported, incompatible and not allowed")
    assert [known.failure for known in found] == ["combination-unsupported"]


# fault: kernel/explain/signs.py: if found and (possible := progress.POSSIBLE.search(words)): → if found and (possible := None):
@pytest.mark.parametrize(
    "mark",
    [
        *("Possible reasons include", "There are some potential root causes", "Some common causes include"),
        *("It is possible that it was", "this may be caused by", "which could have been due to", "most likely because"),
    ],
)
def test_what_is_listed_as_possible_has_not_been_seen(mark: str) -> None:
    assert classify(f"frob, {mark}: CUDA out of memory")[0] == ()
    assert [one.failure for one in classify(f"CUDA out of memory, {mark}: frob")[0]] == ["gpu-memory-full"]


# fault: kernel/explain/log_line.py: if (found := _OWN_TIME.match(head)) is None: → if (found := None) is None:
def test_the_time_of_a_line_is_not_taken_from_what_it_logs() -> None:
    # The first as vLLM writes it, the second as it did before 0.8.
    for where in ("[a.py:1]", "a.py:1]"):
        words = f"(EngineCore pid=1) ERROR 05-02 09:11:10 {where} ValueError: 2019-01-01T00:00:00 has no frob"
        line = parse_line(words.encode())
        assert (line.time, line.dated) == (parse_line(b"ERROR 05-02 09:11:10 [a.py:1] x").time, False)


# fault: kernel/explain/scan.py: if name not in self._streams and self._streams and self._room.left < STREAM_BYTES: → if False:
# fault: kernel/explain/scan.py: return [scan(source, tick, room) for → return [scan(source, tick) for
@pytest.mark.promise("P23")
def test_logs_of_more_hosts_than_there_are_share_one_bound() -> None:
    def source(file: int) -> LogSource:
        text = "".join(f"=== host-{file}-{at} ===\nERROR x{at} RuntimeError: boom\n" for at in range(MAX_STREAMS // 2))
        return LogSource(f"{file}.log", [(1, text.encode())])

    found = scan_all(map(source, range(4)))
    assert [len(one.streams) for one in found[:2]] == [MAX_STREAMS // 2 - 1] * 2  # beside the first one
    # Each file has one more, of the hosts that have none of their own.
    assert sum(len(one.streams) for one in found) == MAX_STREAMS + 2
    assert all(one.strange or one.trouble or one.raised for one in found)


# Signs of which each host writes many.
FAILING = (
    *("NCCL WARN Call to connect failed: Connection refused", "torch.OutOfMemoryError: CUDA out of memory."),
    *("OSError: [Errno 28] No space left on device", "RuntimeError: NCCL error: unhandled system error"),
    *("ModuleNotFoundError: No module named 'ray'", "ConnectionResetError: [Errno 104] Connection reset by peer"),
    *("RuntimeError: No CUDA GPUs are available", "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."),
)


# fault: kernel/explain/scan.py: few=self._room.left < STREAM_BYTES → few=False
@pytest.mark.promise("P23")
def test_what_is_kept_of_all_hosts_has_one_bound() -> None:
    """Each of them fails in many ways: 8 MB of such lines took 223 MB."""
    # A tenth of the room that there is.
    hosts, room = 50, HostRoom(MAX_STREAMS * STREAM_BYTES // 10)
    most = 3 * room.left
    lines = [f"host{at % hosts}: [rank{at}]: RuntimeError: a{at}\n" for at in range(hosts * 100)]
    parts = [(at + 1, "".join(lines[at : at + 500]).encode()) for at in range(0, len(lines), 500)]
    tracemalloc.start()
    try:
        found = scan(LogSource("a.log", parts), room=room)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found.streams) == hosts - 1
    assert peak < most


# fault: kernel/explain/stream.py: held(self.seen, lines, few=few) → held(self.seen, lines, few=False)
@pytest.mark.promise("P23")
def test_few_places_of_each_sign_are_kept_where_there_is_little_room() -> None:
    hosts, each = 10, 8 * len(FAILING)
    what = (FAILING[at // hosts % len(FAILING)] for at in range(hosts * each))
    lines = [f"host{at % hosts}: ERROR {one} {at}\n" for at, one in enumerate(what)]
    parts = [(at + 1, "".join(lines[at : at + 80]).encode()) for at in range(0, len(lines), 80)]
    kept = []
    for room in (HostRoom(), HostRoom((hosts - 1) * STREAM_BYTES)):
        found = scan(LogSource("a.log", parts), room=room)
        assert len(found.streams) == hosts - 1
        kept.append(sum(len(hit.recent) for one in found.streams for hit in one.hits.values()))
    assert 0 < kept[1] < 0.7 * kept[0]


# fault: kernel/explain/scan.py: if name not in self._streams and self._streams and → if self._streams and
# fault: kernel/explain/scan.py: ("" if name == _OTHERS else name) → name
@pytest.mark.parametrize("known", [True, False])
def test_a_host_is_not_taken_for_another_where_there_is_no_room_left(known: bool) -> None:
    """The restart of one host took away what had failed on another: both had become the first one."""
    hosts = [f"gpu{at} | INFO 11-20 12:00:00 [x.py:1] vLLM API server version 0.9.1\n" for at in range(MAX_STREAMS + 9)]
    failed, other = (200, 7) if known else (MAX_STREAMS + 5, 7)
    end = (
        f"gpu{failed} | ERROR 11-20 13:00:00 [x.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to get it.\n"
        f"gpu{other} | INFO 11-20 13:01:00 [x.py:1] vLLM API server version 0.9.1\n"
    )
    found = diagnose([scan(LogSource("a.log", [(1, "".join(hosts).encode()), (len(hosts) + 1, end.encode())]))])
    assert found.cause and found.cause.failure.slug == "gpu-memory-full"
    assert found.cause.places[0].host == (f"gpu{failed}" if known else "")


# fault: kernel/explain/catalogue.py: any(one.text.decode() in mark for mark in marks) → any(one.text.decode() == mark[1:] for mark in marks)
def test_each_mark_of_a_start_or_of_work_is_found_by_a_needle() -> None:
    """What a line is taken for is decided by its needles: a mark without one would never be looked for."""
    for marks, number in ((progress.TURNS, 1), (WORKS, 2)):
        for mark in marks:
            own = [at for at, one in enumerate(NEEDLES) if one.text.decode() in mark]
            assert kind_of(tuple(own))[number], mark


# fault: kernel/explain/scan.py: if self._rewritten and any( → if False and any(
@pytest.mark.parametrize(
    "line", ["CUDA e\x1b[0mrror: an illegal frob", "CUDA e[0mrror: frob", '{"log":"CUDA \\u0065rror: frob"}']
)
def test_a_sign_that_only_the_words_of_a_line_hold_is_found(line: str) -> None:
    found = explained(f"a CUDA error: no frob\n{line}\n")
    assert found.named and found.named.count == 2


# fault: kernel/explain/scan.py: if often[distinct[at]] > 1 else own → if often[distinct[at]] > LEARNT else own
# fault: kernel/explain/signs.py: if nearby.judged is not None: → if nearby.judged:
# fault: kernel/explain/log_line.py: if not single and without_digits(names): → if single and without_digits(names):
@pytest.mark.parametrize(
    "line",
    [
        "[{0}.{0}] Out of memory: Killed process {0} (python3) total-vm:{0}kB",
        "gpu1:{0}:{0} [0] misc/socket.cc:{0} NCCL WARN Call to recv from 10.0.0.{0}<{0}> failed : frob",
        '{{"log":"ERROR RuntimeError: frob {0}","time":"2026-11-21T09:10:{0:.2}.{0}Z"}}',
        "vllm-1  | CUDA error: frob {0}",
    ],
)
def test_lines_that_differ_in_digits_only_are_taken_apart_and_judged_once(line: str, monkeypatch: Any) -> None:
    calls = counted_calls(monkeypatch, "signs.classify", "log_line._take_apart")
    text = "".join(f"{line.format(f'{10000 + at}')}\n" for at in range(LINES))
    assert explained(text).error_lines or explained(text).named
    assert max(calls.values()) < SHOWN


def hits(*lines: str) -> Counter[str]:
    """How often each failure is seen in these lines, on all hosts."""
    seen = scan_all([LogSource("x", [(1, "".join(f"{line}\n" for line in lines).encode())])])[0]
    counts: Counter[str] = Counter()
    for one in (seen, *seen.streams):
        counts.update({known.failure: hit.count for known, hit in one.hits.items()})
    return counts


# fault: kernel/explain/catalogue.py: return bool(_DIGIT.search( → return False and bool(_DIGIT.search(
# fault: kernel/explain/scan.py: (digits and any( → (False and any(
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("NVRM: Xid (PCI:0000:01:00): 13, pid=1", "NVRM: Xid (PCI:0000:01:00): 79, pid=1"),
        ("the rank exited with code 255", "the rank exited with code 137"),
        ("OSError: libcuda.so.7: cannot open shared object", "OSError: libcuda.so.1: cannot open shared object"),
    ],
)
def test_a_sign_that_asks_which_digits_a_line_has_is_looked_for_in_each(one: str, other: str) -> None:
    """The signs of the lines of its form beside it are not its own."""
    of_one, of_other = hits(one), hits(other)
    assert of_one != of_other
    assert hits(one, other, one, other) == hits(other, one, other, one) == of_one + of_one + of_other + of_other


# fault: kernel/explain/scan.py: found.judged if steady else None → found.judged
def test_where_a_digit_shows_whose_line_it_is_each_is_judged() -> None:
    named = [f"a-1 INFO frob {at}" for at in range(9)]
    own, other = "a-1 MemoryError: 1", "a-2 MemoryError: 1"
    assert hits(*named, own, own) == {"host-memory-full": 2}
    assert hits(*named, own, own, other, other) == hits(*named, other, own, other, own) == {"host-memory-full": 2}


# fault: kernel/explain/catalogue.py: if not begins or _is_divided(pattern.pattern): → if not begins:
# fault: kernel/explain/catalogue.py: if words.isascii() else [0] → if True else [0]
# fault: kernel/explain/catalogue.py: words.lower() if ignores else words → words
@pytest.mark.parametrize("text", ["{}", "x {}", "frob of a GPU: {}", "a\u017f\u212a {}", "\u0130\u0130 worKer {}"])
def test_an_expression_is_looked_for_wherever_it_can_begin(text: str) -> None:
    words = ["PROCESS frob died", "GPU 0 out of memory", "cutlass frob misaligned", "unable to cutlass"]
    led = [known for known in SIGNS if known.matches and known.search != known.matches.search]
    assert len(led) >= 5
    for known in led:
        for word in (known.needle, *words):
            line = text.format(word)
            assert bool(known.search(line)) == bool(known.matches and known.matches.search(line)), line


# fault: kernel/explain/prefix.py: -{3,}(?!-)| → -{3,}|
def test_lines_of_dashes_are_read_in_the_time_of_their_length() -> None:
    """Each of 160 took 11 ms, and 1 MB of them in the log of a host a minute."""
    dashes = "-" * 158 + "!\n"
    began = time.process_time()
    scan_all([LogSource("a.log", iter([(1, (dashes * 400).encode())]))])
    assert time.process_time() - began < 1
    assert section("--- gpu1 ---") == section("----- gpu1 -----") == "gpu1"
