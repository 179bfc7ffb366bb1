"""A run against a server that is made up: what is answered, asked again and given up, and a restart in between."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.batch_api import KEY, Api, Reply, answer, serving
from tests.support.bounds import within
from tests.support.paths import FIXTURES
from vllm_cluster.features.batch.on_head import client as client_module
from vllm_cluster.features.batch.on_head import room, runner
from vllm_cluster.features.batch.on_head.client import ApiClient, NodeApi, judge, refusal
from vllm_cluster.features.batch.on_head.lines import BatchProblem
from vllm_cluster.features.batch.on_head.progress import CEILING, START, Concurrency, Meter, Progress, read_load
from vllm_cluster.features.batch.on_head.row_file import RowFile
from vllm_cluster.features.batch.tests.runs import load, run, state_of
from vllm_cluster.wire.metrics import Load
from vllm_cluster.wire.reading import convert

PROMPTS = [f"p{number}" for number in range(40)]
ALL = {f"r{number}": prompt.upper() for number, prompt in enumerate(PROMPTS)}


class Usage(NamedTuple):
    """What `shutil.disk_usage` returns."""

    total: int
    used: int
    free: int


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "PAUSE_MAX", 0.01)
    monkeypatch.setattr(client_module, "POLL_SECONDS", 0.01)


def test_every_request_is_answered_once_and_never_more_than_allowed_at_once(tmp_path: Path) -> None:
    with serving(Api(answer)) as api:
        found = run(tmp_path, api, PROMPTS, concurrency=3)
    meter = found.meter
    assert (found.texts, found.errors) == (ALL, [])
    assert (meter.answered, meter.prompt_tokens, meter.tokens, set(api.asked.values())) == (40, 80, 120, {1})
    assert api.most <= 3


# fault: features/batch/on_head/client.py: if model not in names: → if False:
@pytest.mark.parametrize(
    "first",
    [
        None,
        (500, {"error": {"message": "EngineCore died"}}),
        (503, {"error": "busy"}),
        (429, {}),
        (200, {"model": "m", "choices": [{"text": "half", "finish_reason": "abort"}]}),
        (200, {"error": {"message": "inside"}}),
        (200, {}),
        (200, {"ok": True}),
        (200, {"model": "m", "choices": []}),
        (200, {"model": "m", "choices": [7]}),
        (200, {"model": "EVIL", "choices": [{"text": "x"}]}),
        (200, {"choices": [{"text": "x"}]}),
    ],
    ids=[
        *("broken", "500", "503", "429", "cut off", "error as 200", "empty", "another object", "no choices"),
        *("no choice", "another model", "no model"),
    ],
)
def test_a_reply_without_an_answer_is_asked_again(tmp_path: Path, first: Reply | None) -> None:
    with serving(Api(lambda prompt, times: first if times == 1 and prompt in ("p3", "p7") else answer(prompt))) as api:
        found = run(tmp_path, api, PROMPTS)
    assert (found.texts, found.errors) == (ALL, [])
    assert {prompt for prompt, times in api.asked.items() if times == 2} == {"p3", "p7"}


def test_what_is_never_an_answer_fails(tmp_path: Path) -> None:
    with serving(Api(lambda *_: (200, {"ok": True}))) as api:
        found = run(tmp_path, api, PROMPTS[:4])
    assert (found.answers, found.meter.failed) == ([], 4)
    assert {row["error"]["message"] for row in found.errors} == {"the answer has no choices (8 attempts)"}


def test_what_is_refused_has_its_reason_and_is_not_asked_again(tmp_path: Path) -> None:
    refused = 400, {"error": {"message": "too long"}}
    with serving(Api(lambda prompt, _: refused if prompt == "p3" else answer(prompt))) as api:
        found = run(tmp_path, api, PROMPTS)
        (bad,) = found.errors
        assert (bad["custom_id"], bad["line"], bad["response"]["status_code"]) == ("r3", 4, 400)
        assert bad["error"] == {"code": "refused", "message": "too long"}
        assert (found.meter.answered, found.meter.failed) == (39, 1)
        run(tmp_path, api, PROMPTS)
    assert set(api.asked.values()) == {1}


# fault: features/batch/on_head/runner.py: at most {fits} fit" if fits else → at most {fits} fit" if False else
def test_a_max_tokens_that_is_too_large_has_the_number_that_fits(tmp_path: Path) -> None:
    text = "This model's maximum context length is 2048 tokens and your request has 40 input tokens"
    with serving(Api(lambda *_: (400, {"error": {"message": text}}))) as api:
        found = run(tmp_path, api, PROMPTS[:1])
    assert found.errors[0]["error"]["message"] == f"{text}: max_tokens of at most 2008 fit"


MISSING = {"error": {"message": "The model `m` does not exist"}}


@pytest.mark.parametrize(
    ("body", "message"),
    [({"detail": "Not Found"}, "Not Found"), (MISSING, "The model `m` does not exist")],
    ids=["no such path", "no such model"],
)
def test_a_404_is_asked_again_only_where_the_model_may_have_been_replaced(
    tmp_path: Path, body: dict[str, Any], message: str
) -> None:
    with serving(Api(lambda prompt, _: (404, body) if prompt == "p3" else answer(prompt))) as api:
        found = run(tmp_path, api, PROMPTS)
        looks = api.looked
    assert (len(found.answers), api.asked["p3"]) == (39, 1)
    assert found.errors[0]["error"] == {"code": "refused", "message": message}
    assert looks == 1 + ("error" in body)


def test_a_request_that_never_gets_an_answer_is_given_up(tmp_path: Path) -> None:
    with serving(Api(lambda prompt, _: (500, {"error": "boom"}) if prompt == "p3" else answer(prompt))) as api:
        found = run(tmp_path, api, PROMPTS)
    assert (len(found.answers), api.asked["p3"]) == (39, runner.ATTEMPTS)
    assert found.errors[0]["error"] == {"code": "no_answer", "message": f"boom ({runner.ATTEMPTS} attempts)"}


def test_a_failure_of_all_open_requests_is_one_recovery(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def reply(prompt: str, times: int) -> Reply | None:
        if times == 1 and prompt in PROMPTS[:8]:
            together.wait(60)
            return None
        return answer(prompt)

    with serving(Api(reply)) as api:
        found = run(tmp_path, api, PROMPTS)
    assert (found.texts, found.errors, api.looked) == (ALL, [], 2)


def test_a_key_that_was_rotated_is_read_and_a_wrong_one_ends_the_run(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("old")
    with serving(Api(answer, keys=(KEY, "old"))) as api:
        api.when_looked = lambda: key.write_text(f"#vcluster-keys\n{KEY} id\n")
        assert run(tmp_path, api, PROMPTS).texts == ALL
        (tmp_path / "out.jsonl").unlink()
        api.keys, api.when_looked = (KEY, "wrong"), lambda: None
        key.write_text("wrong")
        with pytest.raises(BatchProblem, match="the server refuses the requests: wrong key"):
            run(tmp_path, api, PROMPTS)
    assert load(tmp_path / "out.jsonl") == []


# fault: features/batch/on_head/runner.py: self._server.ensure_same() → pass
def test_a_model_that_is_replaced_while_every_request_is_answered_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a request that broke led to a look at what is served: half of the answers were of another model."""
    monkeypatch.setattr(runner, "TURN_SECONDS", 0.01)
    monkeypatch.setattr(runner, "REPORT_SECONDS", 0.0)
    ended = threading.Event()

    def reply(prompt: str, _times: int) -> Reply:
        if prompt == "p10":
            state_of(tmp_path, api, generation="g2")
        if prompt == "p11":
            ended.wait(5)
        return answer(prompt)

    with serving(Api(reply)) as api:
        with pytest.raises(BatchProblem, match=r"m was replaced by m \(ready\)"):
            run(tmp_path, api, PROMPTS, concurrency=1)
        ended.set()
    assert len(load(tmp_path / "out.jsonl")) < 12


def test_a_model_that_was_replaced_ends_the_run_and_keeps_the_answers(tmp_path: Path) -> None:
    def reply(prompt: str, times: int) -> Reply | None:
        if prompt == "p20" and times == 1:
            state_of(tmp_path, api, generation="g2", phase="loading")
            return None
        return answer(prompt)

    with serving(Api(reply)) as api:
        with pytest.raises(BatchProblem, match=r"m was replaced by m \(loading\)"):
            run(tmp_path, api, PROMPTS, concurrency=1)
        assert len(load(tmp_path / "out.jsonl")) == 20
        state_of(tmp_path, api)
        assert run(tmp_path, api, PROMPTS).texts == ALL
    assert max(times for prompt, times in api.asked.items() if prompt != "p20") == 1


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"phase": "failed", "failure": {"summary": "out of memory"}}, "m failed: out of memory"),
        ({"phase": "loading", "detail": "shard 1/2"}, "m has not answered for 1 s: loading: shard 1/2"),
    ],
)
def test_a_model_that_does_not_come_back_ends_the_run(tmp_path: Path, state: dict[str, Any], why: str) -> None:
    def reply(_prompt: str, _times: int) -> None:
        state_of(tmp_path, api, **state)

    with serving(Api(reply)) as api, pytest.raises(BatchProblem, match=why):
        run(tmp_path, api, PROMPTS, wait=1.0, concurrency=1)


def test_a_model_that_comes_back_is_waited_for(tmp_path: Path) -> None:
    def reply(prompt: str, times: int) -> Reply | None:
        if prompt == "p5" and times == 1:
            state_of(tmp_path, api, phase="loading")
            threading.Timer(0.2, state_of, (tmp_path, api)).start()
            return None
        return answer(prompt)

    with serving(Api(reply)) as api:
        found = run(tmp_path, api, PROMPTS)
    assert (found.texts, found.notes[-2:]) == (ALL, ["loading", ""])


def test_a_row_that_cannot_be_written_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, count = RowFile.append, [0]

    def append(file: RowFile, row: bytes) -> None:
        count[0] += 1
        if count[0] == 5:
            raise OSError(28, "No space left on device")
        real(file, row)

    with serving(Api(answer)) as api:
        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
            patch.setattr(RowFile, "append", append)
            run(tmp_path, api, PROMPTS)
        assert len(load(tmp_path / "out.jsonl")) >= 4
        assert run(tmp_path, api, PROMPTS).texts == ALL


def test_requests_that_wait_for_another_attempt_are_open(tmp_path: Path) -> None:
    """A server that refuses all for now must not fill the memory with lines."""
    seen: set[str] = set()

    def reply(prompt: str, times: int) -> Reply:
        seen.add(prompt)
        if times < 3:
            assert len(seen) <= 8
            return 429, {}
        seen.discard(prompt)
        return answer(prompt)

    with serving(Api(reply)) as api:
        found = run(tmp_path, api, PROMPTS)
    assert (found.texts, found.errors) == (ALL, [])


def test_long_lines_are_open_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "OPEN_BYTES", 100)
    with serving(Api(answer)) as api:
        found = run(tmp_path, api, PROMPTS)
    assert (found.texts, api.most) == (ALL, 1)


# fault: features/batch/on_head/client.py: ClientTimeout(total=seconds) → ClientTimeout(total=None, sock_read=seconds)
def test_the_limit_of_a_request_is_that_of_its_whole_answer(tmp_path: Path) -> None:
    """A byte now and then does not show life."""
    over = threading.Event()

    def drip() -> Iterator[bytes]:
        while not over.wait(0.1):
            yield b" "

    with serving(Api(lambda prompt, times: answer(prompt) if times > 1 else (200, drip()))) as api:
        began = monotonic()
        found = run(tmp_path, api, PROMPTS[:1], seconds=1.0)
        took = monotonic() - began
        over.set()
    assert (found.texts, api.asked["p0"], took < 20) == ({"r0": "P0"}, 2, True)


MEASURED = r"""
import re, sys
from pathlib import Path
from tests.support.batch_api import Api, answer
from vllm_cluster.features.batch.tests.runs import answer_all
folder, port, count = sys.argv[1:]
answer_all(Path(folder), Api(answer, port=int(port)), [f"p{n}" for n in range(int(count))], concurrency=500)
# Not ru_maxrss: that counts the process that started this one, which may be a worker of half a gigabyte.
print(int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) >> 10)
"""


# fault: features/batch/on_head/room.py: SpooledTemporaryFile(BEGINNING, → SpooledTemporaryFile(0,
# fault: features/batch/on_head/client.py: await held.enter_async_context(self._alone) → pass
@pytest.mark.slow
def test_long_answers_take_the_memory_of_one(tmp_path: Path) -> None:
    """Of 500 at once, of which sixty are 900 MB together, and all but the last byte of each is there before any end."""
    together = threading.Barrier(60)
    made = json.dumps({"model": "m", "choices": [{"text": "x" * (15 << 20)}]}).encode()

    def long() -> Iterator[bytes]:
        yield made[:-1]
        together.wait(90)
        yield made[-1:] + b" " * ((16 << 20) - len(made))

    with serving(
        Api(lambda prompt, _: (200, long()) if int(prompt[1:]) < 60 else answer(prompt), length=16 << 20)
    ) as api:
        command = [sys.executable, "-c", MEASURED, str(tmp_path), str(api.port), "500"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.jsonl").read_bytes().count(b"\n") == 500
    assert int(done.stdout) < 250, f"{done.stdout} MB"


def long_answer(prompt: str) -> Reply:
    return 200, {"model": "m", "choices": [{"text": prompt.upper() + "x" * 100_000}]}


# fault: features/batch/on_head/client.py: async with self._ask("POST" → async with self._alone, self._ask("POST"
def test_no_answer_waits_for_another(tmp_path: Path) -> None:
    """A replica that sent almost all of each answer, and then nothing, kept those of all others waiting for an hour."""
    output, over = tmp_path / "out.jsonl", threading.Event()
    begun, together = list[bool](), threading.Barrier(40)

    def stall() -> Iterator[bytes]:
        begin, end = b'{"model": "m", "choices": [{"text": "', b'"}]}'
        yield begin + b"x" * ((1 << 20) - len(begin) - 10)
        over.wait(20)
        yield b"x" * (10 - len(end)) + end

    def reply(prompt: str, _times: int) -> Reply:
        together.wait(30)
        return (200, stall()) if int(prompt[1:]) < 20 else long_answer(prompt)

    def watch() -> None:
        until = monotonic() + 10
        while (rows := output.read_bytes().count(b"\n") if output.exists() else 0) < 20 and monotonic() < until:
            over.wait(0.05)
        begun.append(rows >= 20)
        over.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    with serving(Api(reply)) as api:
        found = run(tmp_path, api, PROMPTS, concurrency=40)
    watcher.join()
    assert (len(found.texts), begun, {*api.asked.values()}) == (40, [True], {1})


# fault: features/batch/on_head/room.py: if self.long and (why := → if not self.long and (why :=
def test_a_long_answer_without_room_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short one needs none; what becomes of the batch itself on a full disk is another matter."""
    free = [0]

    def usage(_: Path) -> Usage:
        return Usage(0, 0, free[0])

    def reply(prompt: str, times: int) -> Reply:
        free[0] = 1 << 40 if times > 2 else room.SPARE + room.ROWS - 1
        return long_answer(prompt) if prompt == "p0" else answer(prompt)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with serving(Api(reply)) as api:
        assert run(tmp_path, api, ["p1"]).errors == []
        (tmp_path / "out.jsonl").unlink()
        found = run(tmp_path, api, ["p0"])
    assert (len(found.texts), found.errors, api.asked["p0"]) == (1, [], 3)


# fault: features/batch/on_head/room.py: raise NoRoom(why) → raise OSError(why)
def test_an_answer_that_never_has_room_ends_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had a row as one that failed, and so had all of a batch of long answers on a nearly full disk."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 0))
    free = pytest.raises(BatchProblem, match=r"^0 MB are free on the head's disk .*, and 1088 stay free$")
    with serving(Api(lambda prompt, _: long_answer(prompt))) as api, free:
        run(tmp_path, api, ["p0"])
    assert api.asked["p0"] == 8
    assert not (tmp_path / "out.jsonl").exists()


# fault: features/batch/on_head/client.py: MAX_REFUSAL = 16 << 10 → MAX_REFUSAL = 1 << 20
@pytest.mark.slow
def test_refusals_take_little_memory(tmp_path: Path) -> None:
    """Of 200 at once, each with a megabyte of words."""
    together, raw = threading.Barrier(200), b"x" * (1 << 20)

    def body() -> Iterator[bytes]:
        yield raw[:-1]
        together.wait(60)
        yield raw[-1:]

    with serving(Api(lambda *_: (400, body()))) as api:
        command = [sys.executable, "-c", MEASURED, str(tmp_path), str(api.port), "200"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 150, f"{done.stdout} MB"


def test_an_answer_that_is_too_long_is_called_so_and_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_ANSWER", 1 << 20)
    long = 200, {"model": "m", "choices": [{"text": "x" * (2 << 20)}]}
    with serving(Api(lambda *_: long)) as api:
        found = run(tmp_path, api, PROMPTS[:1])
    assert [row["error"]["message"] for row in found.errors] == ["the answer is longer than 1 MiB"]
    assert api.asked["p0"] == 1


def test_without_a_fixed_level_the_servers_load_sets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two run and nine wait: those two, as many again, and two more."""
    monkeypatch.setattr(runner, "TURN_SECONDS", 0.0)
    metrics = "vllm:num_requests_running 2\nvllm:num_requests_waiting 9\n"
    levels: list[int] = []
    monkeypatch.setattr(runner, "REPORT_SECONDS", 0.0)
    with serving(Api(answer, metrics=metrics)) as api:
        found = run(tmp_path, api, [*PROMPTS] * 5, concurrency=None, report=lambda now: levels.append(now.concurrency))
    assert (len(found.answers), levels[-1]) == (200, 6)


# fault: features/batch/on_head/client.py: object_pairs_hook=_kept, parse_constant=no_constant) → object_pairs_hook=_kept)
def test_another_text_than_json_is_not_an_answer() -> None:
    # NaN is JSON for Python alone: whoever reads the row with another reader stops there.
    numbers = [
        b'{"model": "m", "choices": [{"text": "", "x": %b}]}' % one for one in (b"NaN", b"Infinity", b"-Infinity")
    ]
    for raw in (b"<html>", b"[]", b"\xff", b"[" * 100_000, *numbers):
        assert not judge(raw, "choices", frozenset({"m"})).answered
    assert refusal(502, b"<html>").message == "<html>"
    assert refusal(400, b"[1]").refused


# fault: features/batch/on_head/client.py: if not isinstance(model, str): → if False:
@pytest.mark.parametrize("model", [["m"], {"m": 1}, 7, None])
def test_an_answer_without_the_text_of_a_model_fails_alone(model: object, tmp_path: Path) -> None:
    bad = 200, {"model": model, "choices": [{"text": "x"}]}
    with serving(Api(lambda prompt, times: bad if prompt == "p3" else answer(prompt))) as api:
        found = run(tmp_path, api, PROMPTS[:6])
    assert (len(found.texts), [row["custom_id"] for row in found.errors]) == (5, ["r3"])
    assert found.errors[0]["error"]["message"] == "the answer does not name its model (8 attempts)"


# fault: features/batch/on_head/client.py: except Exception as error:  # what one → except BatchProblem as error:  # what one
@pytest.mark.parametrize("status", [200, 400])
def test_an_answer_that_cannot_be_judged_fails_alone(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(raw: bytes) -> Any:
        if b"P3" in raw:
            raise LookupError
        return json.loads(raw)

    monkeypatch.setattr(client_module, "_read_document", read)
    with serving(Api(lambda prompt, _: (status if prompt == "p3" else 200, reply_of(prompt)))) as api:
        found = run(tmp_path, api, PROMPTS[:6])
    assert (len(found.texts), found.errors[0]["custom_id"]) == (5, "r3")
    assert found.errors[0]["error"]["message"] == "not an answer: LookupError (8 attempts)"


def reply_of(prompt: str) -> dict[str, Any]:
    return {"model": "m", "choices": [{"text": prompt.upper()}]}


# fault: features/batch/on_head/client.py: found = self.body.get("id") → return str(self.body.get("id"))
def test_a_name_of_an_answer_has_to_be_a_text(tmp_path: Path) -> None:
    """Of lists in each other none may become a text: there are some that Python reads and does not write."""
    name = [["a"]]
    with serving(Api(lambda prompt, _: (200, {**reply_of(prompt), "id": name if prompt == "p3" else "a"}))) as api:
        found = run(tmp_path, api, PROMPTS[:6])
    assert len(found.texts) == 6
    names = {row["custom_id"]: row["response"]["request_id"] for row in found.answers}
    assert (names["r2"], names["r3"].startswith("batch_req_4_")) == ("a", True)


# fault: features/batch/on_head/client.py: > MAX_PARTS: → > MAX_ANSWER:
def test_an_answer_of_millions_of_lists_takes_little() -> None:
    """One took 652 MB and 6.5 s, in which nothing else of the batch went on."""
    raw = b'{"choices": [' + b"[[[]]]," * (1 << 20) + b'{}], "model": "m"}'
    with within(2, 24):
        found = judge(raw, "choices", frozenset({"m"}))
    assert (found.refused, found.message) == (True, "the answer has more than 1048576 lists and objects")


# fault: features/batch/on_head/runner.py: except Exception as error:  # without → except BatchProblem as error:  # without
def test_what_no_one_has_thought_of_is_a_failure_and_no_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise LookupError("x")

    monkeypatch.setattr(runner.Job, "_answer", fail)
    assert runner.Job(tmp_path, {}).run() == runner.FAILED
    state = json.loads((tmp_path / "status.json").read_text())
    assert (state["phase"], state["error"]) == ("failed", "LookupError: x")


def test_progress_has_rates_of_the_last_minute() -> None:
    meter = Meter(1000, 100, 0, 0.0)
    for _ in range(100):
        meter.add_answer({"prompt_tokens": 10, "completion_tokens": 10})
    now = meter.progress(10.0, 5, 8)
    assert now == Progress(1000, 200, 0, 5, 8, 200.0, 80.0, 1000, 1000, 10.0)
    assert convert(Progress, json.loads(json.dumps(now.__dict__)), "a batch") == now
    # Nothing for two minutes: no rate, and no guess.
    meter.progress(20.0, 0, 8)
    late = meter.progress(200.0, 0, 8)
    assert (late.tokens_per_second, late.seconds_left) == (0.0, None)


@pytest.mark.parametrize(
    ("text", "key"),
    [("sk-a", "sk-a"), ("#vcluster-keys\nsk-a id\n", "sk-a"), ("#vcluster-keys\n", ""), ("", ""), (None, "")],
)
def test_a_key_file_that_is_not_whole_has_no_key(text: str | None, key: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    if text is not None:
        path.write_text(text)
    assert NodeApi(ApiClient(1.0, tmp_path), tmp_path, path, 0.0, lambda _: None)._key() == key


def settle(batch: int, samples: int, offered: int = CEILING) -> list[int]:
    """The levels over so many samples of a server that runs at most `batch` at once; so many lines are there."""
    found, levels = Concurrency(), []
    for _ in range(samples):
        open_now = min(found.level, offered)
        found.add(Load(min(open_now, batch), max(0, open_now - batch)), open_now)
        levels.append(found.level)
    return levels


@settings(deadline=None)
@given(batch=st.integers(1, 2048))
def test_the_servers_batch_is_full_and_its_queue_no_longer(batch: int) -> None:
    levels = settle(batch, 20)
    assert len({*levels[10:]}) == 1
    assert min(batch, CEILING) <= levels[-1] <= min(2 * batch + 2, CEILING)


def test_it_grows_only_where_all_that_is_allowed_is_open() -> None:
    assert settle(1024, 20, offered=100) == [START] * 20


# fault: features/batch/on_head/progress.py: if waits: → if True:
def test_requests_that_came_together_do_not_count_as_a_queue() -> None:
    found = Concurrency()
    for _ in range(10):
        found.add(Load(8, 120), START)
        found.add(Load(128, 0), 4)
    assert found.level == START


def test_it_falls_where_other_work_takes_the_servers_places() -> None:
    found = Concurrency()
    for now in [Load(1024, 0)] * 3 + [Load(16, 500)] * 6:
        found.add(now, found.level)
    assert found.level == 34


def test_the_load_is_read_from_vllms_own_page() -> None:
    text = (FIXTURES / "metrics" / "vllm-0.32.0.txt").read_text()
    assert read_load(text) is not None
    two = "".join(
        f'vllm:num_requests_{what}{{engine="{at}"}} {at + 1}\n' for at in (0, 1) for what in ("running", "waiting")
    )
    assert read_load(two) == Load(3, 3)
    for wrong in ("", "vllm:num_requests_running 1\n", two.replace("} 1", "} x")):
        assert read_load(wrong) is None


def page(*loads: tuple[object, object]) -> str:
    """What the front gives of replicas with so many requests that run and that wait."""
    return "".join(
        f'vllm:num_requests_{what}{{replica="{at}",engine="0"}} {number}\n'
        for at, load in enumerate(loads)
        for what, number in zip(("running", "waiting"), load, strict=True)
    )


ODD = ["NaN", "Inf", "-Inf", "-1e9", "1e308", "9" * 400]


# fault: wire/metrics.py: return number if 0 <= number <= MAX_REQUESTS else nan → return number
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("what", [0, 1])
def test_a_load_that_can_not_be_is_that_of_no_replica(odd: str, what: int) -> None:
    wrong = (odd, 5) if what == 0 else (5, odd)
    assert read_load(page((3, 4), wrong)) == Load(3, 4)
    assert read_load(page(wrong)) is None


# fault: features/batch/on_head/progress.py: waiting = min((one.waiting → waiting = max((one.waiting
def test_what_one_replica_reports_of_itself_does_not_hold_the_others_down() -> None:
    """One that showed a queue alone set the level of all: 68 s instead of 10."""
    assert read_load(page((64, 0), (0, 1e6), (64, 0))) == Load(128, 0)
    assert read_load(page((64, 9), (0, 1e6), (64, 7))) == Load(128, 7)
    # One that has nothing to do, as one of another model, has no room for these.
    assert read_load(page((64, 9), (0, 0))) == Load(64, 9)
    assert read_load(page((0, 0))) == Load(0, 0)


# fault: features/batch/on_head/runner.py: except Exception:  # what a server → except OSError:  # what a server
def test_metrics_that_cannot_be_read_end_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise LookupError

    monkeypatch.setattr(runner, "read_load", fail)
    with serving(Api(answer)) as api:
        assert run(tmp_path, api, PROMPTS, concurrency=None).texts == ALL
