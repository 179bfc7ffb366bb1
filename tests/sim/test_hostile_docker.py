"""P23: one answer of a host's Docker is not what it should be: an error that names the host, or the verb's own end."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.support.depth import cases
from tests.support.figures import record
from tests.support.sim import lab, make
from tests.support.sim.engine import Answer, FakeEngine, Request
from tests.support.sim.forging import changed, places
from tests.support.sim.make import inventory_of as inventory
from tests.support.sim.world import World

VERBS = (lab.do_up, lab.do_plan, lab.do_down, lab.do_status, lab.do_serve, lab.do_stop)
WORDS = (inventory(1, 2), inventory(2, 1), inventory(1), inventory(1, 2, environment={"A": "1"}))
WRONG: tuple[Any, ...] = (
    None, [], {}, "x", 5, -1, 1e999, True, ["x"], {"a": "b"}, "\x1b[2J", "\ud800", [[]], [None], {"a": 5},
)  # fmt: skip
CASES = cases(50, 100, 4000)
MOST_CALLS = 25


class Liar:
    """Changes the n-th answer that is a document, at a random place."""

    def __init__(self, random: Random) -> None:
        self.random, self.due, self.lie = random, random.randrange(MOST_CALLS), ""

    def change(self, request: Request, answer: Answer) -> Answer:
        """The answer, or the lie in its place."""
        self.due -= 1
        if self.due >= 0 or self.lie or answer.status >= 300 or answer.chunks is not None or not answer.body:
            return answer
        try:
            document = json.loads(answer.body)
        except ValueError:
            return answer
        at, new = self.random.choice(list(places(document))), self.random.choice(WRONG)
        self.lie = f"{request.what}: {at} is {new!r}"
        return replace(answer, body=json.dumps(changed(document, at, new)).encode())


@pytest.mark.promise("P23")
def test_a_malformed_answer_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    world = make.world((2, 2))
    with lab.inside(world):
        assert lab.run(world, inventory(1, 2), lab.do_up).error is None
        assert lab.run(world, inventory(1, 2), lab.do_serve).error is None
    start, honest, lies = world.snapshot(), FakeEngine.answer, 0
    for seed in range(CASES):
        liar = Liar(Random(seed))
        world, verb, words = World.again(start), liar.random.choice(VERBS), liar.random.choice(WORDS)

        def answer(engine: FakeEngine, request: Request, liar: Liar = liar) -> Answer:
            return liar.change(request, honest(engine, request))

        monkeypatch.setattr(FakeEngine, "answer", answer)
        with lab.inside(world):
            try:
                # What is not an error of vcluster gets to here.
                lab.run(world, words, verb)
            except Exception as error:
                raise AssertionError(f"seed {seed}, {verb.__name__}: {liar.lie}") from error
        lies += bool(liar.lie)
    assert lies > CASES / 4
    record("P23", "sim: one answer of Docker has another type or value at a random place", f"{lies} lies: 0 bugs", True)


# fault: serving/cluster/down.py: if left: → if left and not left:
def test_down_reports_what_docker_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Docker that answers a removal with yes and does nothing: down has looked."""
    honest = FakeEngine.answer

    def answer(engine: FakeEngine, request: Request) -> Answer:
        return Answer(204) if request.method == "DELETE" else honest(engine, request)

    world = make.world((2,))
    with lab.inside(world):
        assert lab.run(world, inventory(1), lab.do_up).error is None
        monkeypatch.setattr(FakeEngine, "answer", answer)
        ended = lab.run(world, inventory(1), lab.do_down).error
    assert "gpu1: down: not removed: vcluster-lab" in str(ended)
