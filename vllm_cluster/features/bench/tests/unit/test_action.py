"""A benchmark on a head that is made up: what is kept, and what makes its figures worthless."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.serve_requests import placed
from tests.support.sim import make
from vllm_cluster.features.bench import action
from vllm_cluster.features.bench.action import BenchRequest, read_result
from vllm_cluster.features.bench.measured import Point
from vllm_cluster.features.bench.on_host import bench as remote
from vllm_cluster.kernel.errors import HostError, UsageError
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.hosts.connection import Fleet
from vllm_cluster.kernel.hosts.program import read_message
from vllm_cluster.kernel.hosts.runtime import SYSTEM
from vllm_cluster.wire.order import Order
from vllm_cluster.wire.status import ServeStatus

INVENTORY = make.inventory(1)
READY = ServeStatus(
    *("g1", "org/model", "llama", "127.0.0.1", 8000, "ready", "", None, 0.0, 1, (2.0, 2.0), None, None, 1.0, 1.0)
)
GOOD = {"result": {"completed": 8, "failed": 0, "output_throughput": 10.0, "num_prompts": 8}}


@dataclass
class Head:
    """What `vllm bench serve` answers, one by one, and what is served after each."""

    answers: list[Mapping[str, Any]]
    served: list[ServeStatus | None]
    sent: list[Any] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    name: str = "gpu1"
    host: str = "gpu1"
    runtime: Any = None
    context: int | None = None

    @property
    def connection(self) -> Any:
        return SimpleNamespace(runtime=self.runtime)

    def send(self, row: Mapping[str, Any]) -> None:
        self.sent.append(row)

    def next(self, _deadline: object) -> Mapping[str, Any]:
        if self.sent[-1] == {}:
            return {"ended": True}
        return {"vllm": "0.32.0", "context": self.context} if len(self.sent) == 1 else self.answers.pop(0)

    def stderr_tail(self) -> str:
        return "one\nValueError: no tokenizer\n"

    def state(self) -> Any:
        now = self.served.pop(0) if self.served else READY
        return SimpleNamespace(replica=lambda _: now)

    def order(self) -> Order:
        asked = placed({"gpu1": 1}, 1, 1)
        leads = replace(asked.replica.leader, argv=("vllm", "serve", "--api-key", "hf_abcdefghijklmnopqrst"))
        return Order(1, "ada@laptop", (replace(asked, replica=replace(asked.replica, parts=(leads,))),))

    def read(self, kind: Any, *deadline: object) -> Any:
        """As the program a message, as the node a file."""
        return b"{}" if isinstance(kind, str) else read_message(kind, self.host, "bench", self.next(*deadline))


@contextmanager
def at(head: Head, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with Fleet(INVENTORY) as fleet:
        head.runtime = fleet.runtime
        with monkeypatch.context() as patch:

            @contextmanager
            def start(*_: object) -> Iterator[Head]:
                yield head

            patch.setattr(action, "reach_head", lambda *_: head)
            patch.setattr(action, "read_key", lambda *_: "the key")
            patch.setattr(action, "ready_model", lambda *_: READY)
            patch.setattr(action, "NodeHandle", lambda *_: head)
            patch.setattr(action, "start", start)
            patch.setattr(fleet, "all", lambda *_: {})
            patch.setattr(action, "Fleet", lambda *_: _Opened(fleet))
            yield


@dataclass
class _Opened:
    fleet: Fleet

    def __enter__(self) -> Fleet:
        return self.fleet

    def __exit__(self, *_: object) -> None: ...


def run(head: Head, monkeypatch: pytest.MonkeyPatch, repeat: int = 2) -> dict[str, Any]:
    wanted = BenchRequest("guides", [Point(1, 128, 128, 8), Point(4, 128, 128, 16)], repeat, 60.0)
    with at(head, monkeypatch):
        return action.measure_model(
            INVENTORY, wanted, lambda _: None, lambda found: head.kept.append(json.dumps(found))
        )


def test_each_load_is_run_in_turns_with_other_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head([GOOD] * 4, [])
    found = run(head, monkeypatch)
    assert [len(one["runs"]) for one in found["points"]] == [2, 2]
    assert (found["complete"], found["versions"]["vllm"]) == (True, "0.32.0")
    # The program ends by itself: killed, it would leave its files.
    assert head.sent[-1] == {}
    calls = [row["argv"] for row in head.sent[1:-1]]
    assert [words[words.index("--max-concurrency") + 1] for words in calls] == ["1", "4", "1", "4"]
    assert len({words[words.index("--seed") + 1] for words in calls}) == 4
    # The key is in no argument, and no secret in the document.
    assert head.sent[0]["key"] == "the key"
    assert "the key" not in json.dumps(calls)
    assert "hf_abcdefghijklmnopqrst" not in json.dumps(found)
    kept = read_result(head.kept[-1].encode(), "x")
    assert json.loads(json.dumps(kept)) == {"v": 1, "points": found["points"]}


@dataclass
class Slow(Head):
    """Each run of it takes so many seconds of the test's clock."""

    clock: Clock = field(default_factory=Clock)
    seconds: float = 0.0

    def next(self, deadline: object) -> Mapping[str, Any]:
        self.clock.now += self.seconds if len(self.sent) > 1 and self.sent[-1] else 0.0
        return super().next(deadline)


def shown(head: Slow, monkeypatch: pytest.MonkeyPatch, repeat: int, budget: float) -> tuple[list[str], dict[str, Any]]:
    """What a benchmark of two loads prints, and its document."""
    events: list[Event] = []
    wanted = BenchRequest("cpu", [Point(1, 16, 16, 4), Point(4, 16, 16, 8)], repeat, 600.0, budget)
    with at(head, monkeypatch):
        found = action.measure_model(
            INVENTORY, wanted, events.append, lambda _: None, runtime=replace(SYSTEM, clock=head.clock)
        )
    return [event.text for event in events if not event.text.startswith("starting")], found


# fault: features/bench/action.py: emit(Event("phase", "writing the results")) → pass
# fault: features/bench/measured.py: sum(took.get(index, each * points → sum(took.get(-1, each * points
def test_a_run_has_its_number_and_how_long_all_will_take(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Slow([GOOD] * 6, [], seconds=40.0)
    lines, found = shown(head, monkeypatch, 3, 0.0)
    load = "{} at once, 16 in, 16 out, {} requests"
    one, four = load.format(1, 4), load.format(4, 8)
    assert lines == [
        f"run 1 of 6: {one}",
        f"run 2 of 6, about 6 min left: {four}",
        f"run 3 of 6, about 3 min left: {one}",
        f"run 4 of 6, about 2 min left: {four}",
        f"run 5 of 6, about 1 min 20 s left: {one}",
        f"run 6 of 6, about 40 s left: {four}",
        # On a terminal the last run has its line too once the next phase begins.
        "writing the results",
    ]
    assert found["complete"]


# fault: features/bench/action.py: if wanted.budget and index in took and → if wanted.budget < 0 and index in took and
def test_no_run_begins_that_would_end_after_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each load has a run, however long it takes."""
    head = Slow([GOOD] * 6, [], seconds=40.0)
    lines, found = shown(head, monkeypatch, 3, 150.0)
    assert lines[-2] == "3 of 6 runs fit into 2 min 30 s; --repeat measures all"
    assert [len(point["runs"]) for point in found["points"]] == [2, 1]
    assert found["complete"]
    lines, found = shown(Slow([GOOD] * 6, [], seconds=400.0), monkeypatch, 3, 150.0)
    assert [len(point["runs"]) for point in found["points"]] == [1, 1]


def test_a_prompt_that_does_not_fit_is_reported_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head([GOOD] * 4, [], context=200)
    with pytest.raises(UsageError) as refused:
        run(head, monkeypatch)
    limit = "org/model takes 200 tokens, prompt and answer together (--max-model-len)"
    assert refused.value.message == f"128 tokens in and 128 out are 256; {limit}"
    assert (refused.value.hint or "").splitlines()[1] == "vcluster serve org/model -- --max-model-len=256"
    assert head.sent[1:] == [{}]


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ({"data": [{"id": "m", "max_model_len": 4096}]}, 4096),
        ({"data": [{"id": "m"}]}, None),
        ({"data": [{"id": "m", "max_model_len": 4096}, {"id": "adapter", "max_model_len": None}]}, 4096),
        ({"data": [{"id": "m", "max_model_len": float("inf")}]}, None),
        ({"data": [{"id": "m", "max_model_len": 10**400}]}, None),
        ({"data": [{"id": "m", "max_model_len": 1}], "more": [[]] * 250_000}, None),
    ],
)
def test_the_context_is_that_of_the_servers_list(reply: dict[str, Any], found: int | None) -> None:
    asked: list[str | None] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(reply).encode())

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        api = f"http://127.0.0.1:{server.server_address[1]}"
        assert remote.context(api, "the key") == found
    assert asked == ["Bearer the key"]
    assert remote.context(api, "the key") is None  # no server listens any more


@pytest.mark.parametrize(
    ("answers", "served", "message", "kept"),
    [
        ([GOOD, {"error": "OSError: x"}], [], "gpu1: bench: OSError: x\none\nValueError: no tokenizer", 1),
        ([{"result": {"completed": 5, "failed": 3, "num_prompts": 8}}], [], "bench: 3 of 8 requests failed", 0),
        ([GOOD, GOOD], [READY, replace(READY, attempt=2)], "llama started again (ready) during the run", 1),
        ([GOOD], [replace(READY, generation="g2", name="other")], "llama was replaced by other during the run", 0),
        ([GOOD], [None], "llama was stopped during the run", 0),
    ],
)
def test_worthless_figures_are_refused_and_those_before_are_kept(
    answers: list[Mapping[str, Any]],
    served: list[ServeStatus | None],
    message: str,
    kept: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = Head([*answers], [*served])
    with pytest.raises(HostError) as caught:
        run(head, monkeypatch)
    assert message in caught.value.message
    assert len(head.kept) == kept
    assert not any(json.loads(one)["complete"] for one in head.kept)


POINT = {"concurrency": 1, "input": 1, "output": 1, "prompts": 8}


def kept(point: object = POINT, figures: object = None) -> str:
    """A document with one run."""
    runs = [{"repetition": 0, "figures": figures or {"output_throughput": 1.0}}]
    return json.dumps({"v": 1, "points": [{"point": point, "runs": runs}]})


INVALID = {
    **{raw[:30]: raw for raw in ("", "{}", "[1]", '{"v": 2, "points": []}', '{"v": 1, "points": [{}]}', "[" * 100_000)},
    "a point that is a list": kept(point=[1]),
    "a load without a number": kept(point={"input": 1, "output": 1, "prompts": 1}),
    "escapes": kept(point={**POINT, "concurrency": "\x1b[2J"}),
    "a figure that is text": kept(figures={"output_throughput": "x"}),
    "a figure of 400 digits": kept(figures={"output_throughput": 10**400}),
    "a figure whose square is infinite": kept(figures={"output_throughput": 1e308}),
    "a figure whose square is 0": kept(figures={"output_throughput": 1e-120}),
    "a figure below 0": kept(figures={"output_throughput": -1.0}),
    "figures that are a list": kept(figures=[1]),
    "a run without figures": kept().replace("output_throughput", "x").replace('{"x": 1.0}', "{}"),
}


# fault: features/bench/measured.py: figures: Mapping[str, Figure] → figures: object
@pytest.mark.parametrize("raw", INVALID.values(), ids=INVALID)
def test_an_invalid_result_is_reported(raw: str) -> None:
    """It may be a colleague's: what is compared of it was an internal error, or its escapes were shown."""
    assert read_result(kept().encode(), "x")["points"]
    with pytest.raises(UsageError, match="x is not a result of vcluster bench"):
        read_result(raw.encode(), "x")


def loads(*levels: int) -> bytes:
    """A document with these loads."""
    points = [json.loads(kept({**POINT, "concurrency": level}))["points"][0] for level in levels]
    return json.dumps({"v": 1, "points": points}).encode()


# fault: features/bench/action.py: if number > 1 → if number > 9
# fault: features/bench/action.py: Annotated[tuple[_ComparedPoint, ...], at_most(MAX_POINTS)] → tuple[_ComparedPoint, ...]
def test_a_result_with_more_loads_than_anybody_measures_or_one_twice_is_refused() -> None:
    """Two documents that repeated one load 1,200 times took 100 s and 1.1 GB to compare."""
    assert len(read_result(loads(*range(1, action.MAX_POINTS + 1)), "x")["points"]) == action.MAX_POINTS
    with pytest.raises(UsageError, match=r"^x is not a result of vcluster bench: points has more than 1000 entries"):
        read_result(loads(*range(1, action.MAX_POINTS + 2)), "x")
    twice = r"^x is not a result of vcluster bench: has a load twice: 4 at once, 1 in, 1 out, 8 requests$"
    with pytest.raises(UsageError, match=twice):
        read_result(loads(1, 4, 16, 4), "x")


def test_failed_requests_have_their_most_frequent_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = ["", *["Traceback\n  File x\nConnectionResetError: reset\n"] * 3, "Bad Request", " "]
    assert remote.reasons(errors) == ["3× ConnectionResetError: reset", "1× Bad Request"]
    bad = {"result": {"completed": 4, "failed": 4, "num_prompts": 8}, "reasons": remote.reasons(errors)}
    with pytest.raises(HostError) as caught:
        run(Head([bad], []), monkeypatch)
    assert caught.value.message.splitlines()[1:] == ["3× ConnectionResetError: reset", "1× Bad Request"]
