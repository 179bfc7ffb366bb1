"""A run against a server that is made up: what is answered, asked again and given up, and a restart in between."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.support.batch_api import KEY, Api, Reply, answer, serving
from vllm_cluster.batch import engine as engine_module
from vllm_cluster.batch.answered import Answered
from vllm_cluster.batch.client import ApiAddress, read
from vllm_cluster.batch.concurrency import Concurrency
from vllm_cluster.batch.engine import Engine, Options
from vllm_cluster.batch.lines import place_of
from vllm_cluster.batch.output import RowFile
from vllm_cluster.batch.problems import BatchProblem
from vllm_cluster.batch.progress import Meter, Progress
from vllm_cluster.batch.source import Source


@dataclass
class Way:
    """The way to an API: `recovered` is why it was opened again."""

    endpoint: ApiAddress
    model: str = "m"
    recovered: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    def recover(self, why: str) -> None:
        self.recovered.append(why)
        if self.keys:
            self.endpoint = ApiAddress(self.endpoint.port, self.keys.pop(0))


def run(
    folder: Path, api: Api, prompts: list[str], way: Way | None = None, ids: str = "r{}", **options: Any
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Meter]:
    """The rows of answers and of errors after a run, and what it counted."""
    source = folder / "in.jsonl"
    requests = [
        {"custom_id": ids.format(number, prompt), "url": "/v1/completions", "body": {"prompt": prompt}}
        for number, prompt in enumerate(prompts)
    ]
    source.write_text("".join(json.dumps(request) + "\n" for request in requests))
    output, errors = RowFile(folder / "out.jsonl"), RowFile(folder / "errors.jsonl")
    try:
        answered, _ = output.read(1)
        opened = Source(source, 1, 0)
        total = opened.count(answered, output.path)
        output.begin()
        errors.clear()
        made = Engine(
            lines=opened.open(answered),
            names=answered.names,
            meter=(meter := Meter(total, answered.count, monotonic())),
            output=output,
            errors=errors,
            server=way or Way(ApiAddress(api.port, KEY)),
            options=Options(**{"concurrency": 8, "seconds": 60.0, **options}),
            report=lambda _: None,
        )
        made.run()
    finally:
        output.close()
        errors.close()
    return load(output.path), load(errors.path), meter


def load(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def texts(rows: list[dict[str, Any]]) -> dict[str, str]:
    assert len({row["custom_id"] for row in rows}) == len(rows)
    return {row["custom_id"]: row["response"]["body"]["choices"][0]["text"] for row in rows}


PROMPTS = [f"p{number}" for number in range(40)]
ALL = {f"r{number}": prompt.upper() for number, prompt in enumerate(PROMPTS)}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "PAUSE_MAX", 0.01)


def test_every_request_is_answered_once_and_never_more_than_allowed_at_once(tmp_path: Path) -> None:
    with serving(Api(answer)) as api:
        rows, errors, meter = run(tmp_path, api, PROMPTS, concurrency=3)
    assert (texts(rows), errors) == (ALL, [])
    assert (meter.answered, meter.prompt_tokens, meter.tokens, set(api.asked.values())) == (40, 80, 120, {1})
    assert api.most <= 3


# fault: batch/client.py: return self.status == OK and not cut → return self.status == OK
@pytest.mark.parametrize(
    "first",
    [
        None,
        (500, {"error": {"message": "EngineCore died"}}),
        (503, {"error": "busy"}),
        (429, {}),
        (200, {"choices": [{"text": "half", "finish_reason": "abort"}]}),
        (200, {"error": {"message": "inside"}}),
    ],
    ids=["broken", "500", "503", "429", "cut off", "error as 200"],
)
def test_what_may_be_answered_later_is_asked_again(tmp_path: Path, first: Reply | None) -> None:
    with serving(Api(lambda prompt, times: first if times == 1 and prompt in ("p3", "p7") else answer(prompt))) as api:
        rows, errors, _ = run(tmp_path, api, PROMPTS)
    assert (texts(rows), errors) == (ALL, [])
    assert {prompt for prompt, times in api.asked.items() if times == 2} == {"p3", "p7"}


# fault: batch/engine.py: if not self._names.add(name_of(line.custom_id)): → if not line.custom_id:
def test_the_second_line_with_a_custom_id_is_a_bad_line(tmp_path: Path) -> None:
    """Also where the first one was answered by a run before; `custom_id` alone links an answer to its line."""
    prompts = ['a"\\ é', "b", 'a"\\ é']
    with serving(Api(answer)) as api:
        for before in (0, 2):
            rows, (bad,), meter = run(tmp_path, api, prompts, ids="{1}")
            assert texts(rows) == {prompt: prompt.upper() for prompt in prompts[:2]}
            assert (bad["line"], bad["custom_id"], bad["error"]["code"]) == (3, prompts[2], "invalid_line")
            assert bad["error"]["message"] == "custom_id is that of an earlier line"
            assert (meter.before, meter.failed, meter.invalid) == (before, 1, 1)
    assert set(api.asked.values()) == {1}


def test_what_is_refused_goes_to_the_errors_with_its_line(tmp_path: Path) -> None:
    with serving(
        Api(lambda prompt, _: (400, {"error": {"message": "too long"}}) if prompt == "p3" else answer(prompt))
    ) as api:
        rows, errors, meter = run(tmp_path, api, PROMPTS)
        assert len(rows) == 39
        (bad,) = errors
        assert (bad["custom_id"], bad["line"], bad["response"]["status_code"]) == ("r3", 4, 400)
        assert bad["error"] == {"code": "refused", "message": "too long"}
        assert meter.failed == 1
        # The next run asks it again, and nothing else.
        api.reply = answer
        rows, errors, meter = run(tmp_path, api, PROMPTS)
    assert (texts(rows), errors, meter.before, meter.answered) == (ALL, [], 39, 1)


MISSING = {"error": {"message": "The model `m` does not exist"}}


@pytest.mark.parametrize(
    ("body", "recoveries"), [({"detail": "Not Found"}, 0), (MISSING, 1)], ids=["no such path", "no such model"]
)
def test_a_404_is_asked_again_only_where_the_model_may_have_been_replaced(
    tmp_path: Path, body: dict[str, Any], recoveries: int
) -> None:
    with serving(Api(lambda prompt, _: (404, body) if prompt == "p3" else answer(prompt))) as api:
        way = Way(ApiAddress(api.port, KEY))
        rows, errors, _ = run(tmp_path, api, PROMPTS, way)
    assert (len(rows), api.asked["p3"], len(way.recovered)) == (39, 1, recoveries)
    assert errors[0]["error"]["code"] == "refused"
    assert errors[0]["error"]["message"] in ("Not Found", "The model `m` does not exist")


def test_a_request_that_never_gets_an_answer_is_given_up(tmp_path: Path) -> None:
    with serving(Api(lambda prompt, _: (500, {"error": "boom"}) if prompt == "p3" else answer(prompt))) as api:
        rows, errors, meter = run(tmp_path, api, PROMPTS)
    assert (len(rows), api.asked["p3"]) == (39, engine_module.ATTEMPTS)
    assert errors[0]["error"] == {"code": "no_answer", "message": f"boom ({engine_module.ATTEMPTS} attempts)"}
    assert (meter.failed, meter.invalid) == (1, 0)


# fault: batch/engine.py: if one.epoch == self._epoch and not outcome.busy: → if not outcome.busy:
def test_a_failure_of_all_open_requests_is_one_recovery(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def reply(prompt: str, times: int) -> Reply | None:
        if times == 1 and prompt in PROMPTS[:8]:
            together.wait(60)
            return None
        return answer(prompt)

    with serving(Api(reply)) as api:
        way = Way(ApiAddress(api.port, KEY))
        rows, errors, _ = run(tmp_path, api, PROMPTS, way)
    assert (texts(rows), errors, len(way.recovered)) == (ALL, [], 1)


def test_a_key_that_was_rotated_is_fetched_and_a_wrong_one_ends_the_run(tmp_path: Path) -> None:
    with serving(Api(answer)) as api:
        rows, _, _ = run(tmp_path, api, PROMPTS, Way(ApiAddress(api.port, "old"), keys=[KEY]))
        assert texts(rows) == ALL
        (tmp_path / "out.jsonl").unlink()
        with pytest.raises(BatchProblem, match="the server refuses the requests: wrong key"):
            run(tmp_path, api, PROMPTS, Way(ApiAddress(api.port, "wrong")))
    assert load(tmp_path / "out.jsonl") == []


def test_an_end_of_the_way_ends_the_run_and_keeps_the_answers(tmp_path: Path) -> None:
    class Gone(Way):
        def recover(self, why: str) -> None:
            raise ValueError("it was replaced")

    with serving(Api(lambda prompt, _: None if prompt == "p20" else answer(prompt))) as api:
        with pytest.raises(ValueError, match="it was replaced"):
            run(tmp_path, api, PROMPTS, Gone(ApiAddress(api.port, KEY)), concurrency=1)
        assert len(load(tmp_path / "out.jsonl")) == 20
        api.reply = answer
        rows, _, _ = run(tmp_path, api, PROMPTS)
    assert texts(rows) == ALL
    assert max(times for prompt, times in api.asked.items() if prompt != "p20") == 1


def test_ctrl_c_keeps_each_row_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Api(answer)) as api:
        for stop in range(5):
            real, count = RowFile.append, [0]

            def append(file: RowFile, row: bytes) -> None:
                real(file, row)  # noqa: B023
                count[0] += 1  # noqa: B023
                if count[0] == 5:  # noqa: B023
                    raise KeyboardInterrupt

            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(RowFile, "append", append)
                run(tmp_path, api, PROMPTS)
            assert len(load(tmp_path / "out.jsonl")) == 5 * (stop + 1)
        rows, _, _ = run(tmp_path, api, PROMPTS)
    assert texts(rows) == ALL


# fault: batch/engine.py: if self._later and self._in_flight < self.level: → if self._later:
def test_a_retry_without_a_free_place_costs_no_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, released = [0], threading.Event()
    tick = Engine._tick

    def counted(engine: Engine) -> None:
        turns[0] += 1
        tick(engine)

    def reply(prompt: str, times: int) -> Reply:
        if prompt == "p0" and times == 1:
            return 429, {}
        released.wait(60)
        return answer(prompt)

    monkeypatch.setattr(Engine, "_tick", counted)
    timer = threading.Timer(0.6, released.set)
    with serving(Api(reply)) as api:
        timer.start()
        rows, errors, _ = run(tmp_path, api, PROMPTS[:3], concurrency=2)
        timer.join()
    assert (len(rows), errors) == (3, [])
    # A turn for each answer, and four a second: it were thousands.
    assert turns[0] < 30


def test_the_memory_is_that_of_the_open_requests(tmp_path: Path) -> None:
    """A server that refuses all for now: lines that wait count as open."""
    seen: set[str] = set()

    def reply(prompt: str, times: int) -> Reply:
        seen.add(prompt)
        if times < 3:
            assert len(seen) <= 8 * 2
            return 429, {}
        seen.discard(prompt)
        return answer(prompt)

    with serving(Api(reply)) as api:
        rows, errors, _ = run(tmp_path, api, PROMPTS)
    assert (texts(rows), errors) == (ALL, [])


def test_without_a_fixed_level_the_servers_load_sets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "SAMPLE_SECONDS", 0.0)
    sampled = threading.Event()
    names = ("num_requests_running", "num_requests_waiting", "prompt_tokens_total", "generation_tokens_total")
    levels: list[int] = []
    real = Concurrency.add

    def add(found: Any, load: Any, in_flight: int) -> None:
        real(found, load, in_flight)
        levels.append(found.level)
        if found.level == 6:
            sampled.set()

    monkeypatch.setattr(Concurrency, "add", add)
    metrics = "".join(f"vllm:{name} {number}\n" for name, number in zip(names, (2, 9, 5, 5), strict=True))

    def reply(prompt: str, _times: int) -> Reply:
        sampled.wait(60)
        return answer(prompt)

    with serving(Api(reply, metrics=metrics)) as api:
        rows, _, _ = run(tmp_path, api, PROMPTS, concurrency=None)
    assert texts(rows) == ALL
    # Two run and nine wait: those two, as many again, and two more.
    assert levels[-1] == 6


def test_an_answer_without_json_is_an_error() -> None:
    assert read(200, b"<html>").status == 0
    assert read(502, b"<html>").message == "<html>"


def test_progress_has_rates_of_the_last_minute() -> None:
    meter = Meter(1000, 100, 0.0)
    for _ in range(100):
        meter.add_answer({"prompt_tokens": 10, "completion_tokens": 10})
    assert meter.progress(10.0, 5, 8) == Progress(1000, 200, 0, 5, 8, 200.0, 80.0)
    # Nothing for two minutes: no rate, and no guess.
    meter.progress(20.0, 0, 8)
    late = meter.progress(200.0, 0, 8)
    assert (late.tokens_per_second, late.seconds_left) == (0.0, None)


def test_rows_of_an_output_name_their_places(tmp_path: Path) -> None:
    with serving(Api(answer)) as api:
        run(tmp_path, api, PROMPTS[:2])
    found = [place_of(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines(keepends=True)]
    assert sorted(place.line for place in found if place) == [1, 2]
    assert Answered(1).checksum(1, 1) == 0
