"""What the nodes answer about a request decides before the question, the lease and the model that is served."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.support.models import configs
from tests.support.sim import lab, make
from tests.support.sim.faults import Fault, Script
from tests.support.sim.lab import Outcome
from tests.support.sim.world import World
from vllm_cluster.kernel.errors import FleetError, PreflightFailed

INVENTORY = make.inventory(2)
GOOD = {"where": "cache", "config": configs.LLAMA_8B, "weights": 10**6, "missing": 0, "free": 10**12}


@pytest.fixture
def world() -> Iterator[World]:
    """A cluster that serves."""
    with lab.cluster(2, lab.do_up, lab.do_serve) as made:
        yield made


def ask(world: World, *extra: str) -> tuple[Outcome, list[str]]:
    """`vcluster serve org/other`, and what it asked."""
    person = lab.Person(True)
    asked = partial(lab.do_serve, model="org/other", flags=extra, confirm=person)
    return lab.run(world, INVENTORY, asked), person.asked


# fault: serving/serve/check.py: judged_files, judged)) → judged_files, judged))[:0]
@pytest.mark.parametrize(
    ("head", "worker", "vllm", "text"),
    [
        (
            {"where": "nowhere", "problem": "it is not there", "near": ["org/others"]},
            GOOD,
            {},
            "gpu1: org/other: it is",
        ),
        (GOOD, {"where": "nowhere", "problem": "it is not there"}, {}, "gpu2: org/other: it is not there"),
        (GOOD, GOOD, {"flags": "refused", "problem": "unrecognized arguments: --x"}, "unrecognized arguments: --x"),
        (GOOD, GOOD, {"flags": "accepted", "given": ["headless"]}, "--headless is set by vcluster"),
        (
            GOOD,
            GOOD,
            {"flags": "accepted", "model": "refused", "problem": "too long"},
            "vLLM refuses org/other: too long",
        ),
        (
            {"where": "hub", "weights": 9, "missing": 9, "free": 1},
            {"where": "hub", "free": 99},
            {},
            "must be downloaded",
        ),
    ],
)
def test_a_bad_request_asks_no_question_and_stops_nothing(
    world: World, head: dict[str, Any], worker: dict[str, Any], vllm: dict[str, Any], text: str
) -> None:
    world.answers = {"gpu1": {"files": head, "vllm": vllm}, "gpu2": {"files": worker, "vllm": {}}}
    outcome, questions = ask(world)
    assert isinstance(outcome.error, PreflightFailed), outcome.story()
    assert text in outcome.error.message
    assert (questions, outcome.script.changing) == ([], [])
    status = lab.run(world, INVENTORY, lab.do_status).value
    assert (status.head.serve.name, status.head.serve.phase) == ("org/model", "ready")


# fault: serving/fit/request.py: or "--nnodes" not in unknown: → or True:
@pytest.mark.parametrize(
    ("words", "fixes"),
    [
        ({}, ["use --backend ray", "use --hosts gpu1: one host needs no such option"]),
        ({"dp": 2, "tp": 2}, ["use --hosts gpu1: one host needs no such option"]),
    ],
)
def test_an_image_too_old_to_span_hosts_without_ray_is_refused_before_anything_stops(
    world: World, words: dict[str, Any], fixes: list[str]
) -> None:
    refusal = "unrecognized arguments: --nnodes=2 --master-addr=10.0.0.1 --master-port=29501 --node-rank=0"
    world.answers = {"gpu1": {"files": GOOD, "vllm": {"flags": "refused", "problem": refusal}}}
    world.answers["gpu2"] = {"files": GOOD, "vllm": {}}
    person = lab.Person(True)
    asked = partial(lab.do_serve, model="org/other", backend="mp", confirm=person, **words)
    outcome = lab.run(world, INVENTORY, asked)
    assert isinstance(outcome.error, PreflightFailed), outcome.story()
    text = "gpu1: the image's vLLM is too old to span hosts without Ray: it does not know --nnodes"
    assert outcome.error.message == text
    assert outcome.error.hint == "\n".join([*fixes, "set image to a newer vLLM, then vcluster up"])
    assert (person.asked, outcome.script.changing) == ([], [])


@pytest.mark.parametrize(
    "answer", [{}, {"files": {"where": 7}, "vllm": []}, {"files": GOOD, "vllm": {"unchecked": "x"}}]
)
def test_what_cannot_be_checked_is_reported_and_served(world: World, answer: dict[str, Any]) -> None:
    world.answers = {"gpu1": answer, "gpu2": answer} if answer else {}
    outcome, questions = ask(world)
    assert outcome.error is None, outcome.story()
    assert len(questions) == 1
    assert any("skipped the check" in event.text for event in outcome.events if event.kind == "note")


def test_every_host_that_is_lost_while_it_is_asked_is_named() -> None:
    """A switch that dies takes several at once."""
    world, inventory = make.world((2, 2, 2)), make.inventory(3)
    with lab.inside(world):
        assert lab.run(world, inventory, lab.do_up).error is None
        lost = Script(by_words=lambda call: Fault.LOST if "exec check" in call.what and call.host != "gpu1" else None)
        error = lab.run(world, inventory, lab.do_serve, lost).error
    assert isinstance(error, FleetError)
    assert list(error.failures) == ["gpu2", "gpu3"]


def warnings(outcome: Outcome) -> list[str]:
    """The warnings of GPUs that others use."""
    return [f"{e.host}: {e.text}" for e in outcome.events if e.kind == "warning" and e.data.get("code") == "gpu-busy"]


# fault: serving/serve/check.py: beside = {name: _beside(inventory, facts[name], number) for → beside = {name: [] for
def test_a_model_that_cannot_fit_beside_another_program_is_refused(world: World) -> None:
    """vLLM would end at once, after the model that is served was stopped for it."""
    world.answers = {name: {"files": GOOD, "vllm": {"flags": "accepted"}} for name in ("gpu1", "gpu2")}
    world.machines["gpu2"].gpu_users[1] = (61_440, "0::/user.slice")
    outcome, questions = ask(world)
    assert isinstance(outcome.error, PreflightFailed), outcome.story()
    assert (questions, outcome.script.changing) == ([], [])
    expected = "gpu2: org/other does not fit: vLLM takes 129.2 GiB of a GPU (--gpu-memory-utilization 0.92), and GPU 1 "
    assert outcome.error.message == f"{expected}has 80.4 GiB beside python3 (pid 4243, user anna)"
    look = "on gpu2: ps -o pid,user,lstart,args -p 4243, then end it"
    assert outcome.error.hint == f"{look}\nor vcluster serve org/other -- --gpu-memory-utilization 0.56"
    status = lab.run(world, INVENTORY, lab.do_status).value
    assert (status.head.serve.name, status.head.serve.phase) == ("org/model", "ready")


def test_a_model_that_fits_beside_another_program_is_served_with_a_warning(world: World) -> None:
    world.answers = {name: {"files": GOOD, "vllm": {"flags": "accepted"}} for name in ("gpu1", "gpu2")}
    world.machines["gpu2"].gpu_users[1] = (61_440, "0::/user.slice")
    for extra in (["--gpu-memory-utilization", "0.56"], ["--gpu-memory-utilization=0.3"]):
        outcome, _ = ask(world, *extra)
        assert outcome.error is None, outcome.story()
        assert [text.partition(";")[0] for text in warnings(outcome)] == [
            "gpu2: used by others: GPU 1: 60.0 of 140.4 GiB by python3 (pid 4243, user anna)"
        ]


# fault: kernel/plan/gpus.py: left_out = {*own, None} if runs else own → left_out = {None}
def test_what_the_cluster_s_own_node_holds_refuses_nothing(world: World) -> None:
    world.answers = {name: {"files": GOOD, "vllm": {"flags": "accepted"}} for name in ("gpu1", "gpu2")}
    node = world.machines["gpu2"].box("vcluster-lab")
    assert node is not None
    world.machines["gpu2"].gpu_users[1] = (130_000, f"0::/system.slice/docker-{node.id}.scope")
    outcome, _ = ask(world)
    assert (outcome.error, warnings(outcome)) == (None, [])
