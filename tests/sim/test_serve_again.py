"""`serve` where something is served: the same again changes nothing and reports that, another is asked about."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.sim import lab, make
from tests.support.sim.lab import Outcome
from tests.support.sim.world import World
from vllm_cluster.kernel.errors import HostError, PreflightFailed
from vllm_cluster.kernel.events import Emit
from vllm_cluster.kernel.hosts.runtime import Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.node.history import command_named
from vllm_cluster.serving.endpoint import endpoint
from vllm_cluster.serving.head import at_head, read_key

INVENTORY = make.inventory(2)


@pytest.fixture
def world() -> Iterator[World]:
    """A cluster that has served org/model for three hours."""
    with lab.cluster(2, lab.do_up, lab.do_serve) as made:
        made.clock.sleep(3 * 3600)
        yield made


def ask(world: World, model: str, *extra: str, **more: Any) -> tuple[Outcome, list[str]]:
    """`vcluster serve`, and what it asked."""
    person = lab.Person(False)
    asked = partial(lab.do_serve, model=model, flags=extra, confirm=person, **more)
    return lab.run(world, INVENTORY, asked), person.asked


def test_the_same_again_is_reported_as_served_already(world: World) -> None:
    outcome, questions = ask(world, "org/model")
    assert outcome.error is None, outcome.story()
    assert (questions, outcome.script.changing) == ([], [])
    said = [(event.kind, event.text) for event in outcome.events]
    assert said[-1] == ("result", "already served: org/model (ready for 3 h, 0 requests running). Nothing was changed.")
    # Nothing of it reads like a start.
    assert [text for _, text in said[:-1]] == ["connecting to 2 hosts", "inspecting 2 hosts"]
    assert outcome.value.model == "org/model"


@pytest.mark.parametrize(("model", "extra"), [("org/other", ()), ("org/model", ("--max-model-len", "8192"))])
def test_another_one_asks_first(world: World, model: str, extra: tuple[str, ...]) -> None:
    _, questions = ask(world, model, *extra)
    (question,) = questions
    stops = "stop org/model (ready for 3 h, 0 requests running) on lab and serve"
    stops = f"No GPU is free: {stops}" if model == "org/other" else f"S{stops[1:]}"
    # How long it takes is known of what was ready before.
    known = r" \(ready after \d+ s the last time\)" if model == "org/model" else ""
    asked = " ".join((model, *(("--", *extra) if extra else ())))
    assert re.fullmatch(rf"{re.escape(stops)} {asked}{known}\?", question)


# fault: serving/others.py: if before and len(before) != len(wanted): → if False:
# fault: serving/others.py: before[0].replica.layout != wanted[0].replica.layout → before[0] is wanted[0]
@pytest.mark.parametrize(
    ("layout", "shown"),
    [
        ({"tp": 1, "pp": 4}, r"\(TP=2 × PP=2 becomes TP=1 × PP=4, ready after \d+ s the last time\)\?"),
        ({"tp": 2, "replicas": 2}, r"\(1 replica becomes 2, TP=2 × PP=2 becomes TP=2 × PP=1, ready after .*\)\?"),
    ],
)
def test_another_layout_is_shown_beside_the_one_of_now(world: World, layout: dict[str, int], shown: str) -> None:
    (question,) = ask(world, "org/model", **layout)[1]
    assert re.search(rf" {shown}$", question)


@pytest.mark.parametrize(
    ("stopped", "text"),
    [
        ((), "the cluster is not up: gpu1, gpu2: the node is missing"),
        (("gpu2",), "the cluster is not up: gpu2: the node must be started (stopped)"),
    ],
)
def test_a_cluster_that_is_not_up_names_the_hosts_and_what_they_lack(stopped: tuple[str, ...], text: str) -> None:
    made = make.world((2, 2))
    with lab.inside(made):
        if stopped:
            assert lab.run(made, INVENTORY, lab.do_up).error is None
        for name in stopped:
            machine = made.machines[name]
            made.stop(machine, next(iter(machine.boxes.values())), gently=True, code=0)
        outcome = lab.run(made, INVENTORY, lab.do_serve)
    assert isinstance(outcome.error, PreflightFailed), outcome.story()
    assert (outcome.error.message.startswith(text), outcome.error.hint) == (True, "vcluster up"), outcome.error


def test_a_failed_request_names_itself_the_reason_and_its_own_command(world: World) -> None:
    """`--name` and flags are in the command to try again, and the two models are distinguished."""
    bad = partial(lab.do_serve, model="no/such", name="bad", tp=1, pp=4, flags=("--max-model-len", "2048"))
    outcome = lab.run(world, INVENTORY, bad)
    assert isinstance(outcome.error, HostError), outcome.story()
    first, *more = outcome.error.message.splitlines()
    assert first == "gpu1: bad cannot be served: no such model"
    assert more[-1] == "the previous request is back: org/model is served again, after 137 s without it"
    command = "vcluster serve no/such --name bad --tp 1 --pp 4 -- --max-model-len 2048"
    # What is wrong comes first: the same command again helps only once that is gone.
    assert (outcome.error.hint or "").splitlines()[-1] == command
    told = [event.text for event in outcome.events if event.kind == "warning"]
    assert "bad cannot be served: no such model; serving the previous request again: org/model" in told
    ready = [event.text for event in outcome.events if event.data.get("phase") == "ready"]
    assert ready == ["the previous request, org/model: ready"]


@pytest.fixture
def chosen(world: World) -> World:
    """It serves org/other by another name on one host, with a flag."""
    asked = partial(lab.do_serve, model="org/other", name="other", hosts=("gpu1",), flags=("--seed", "7"))
    lab.succeed(world, INVENTORY, asked)
    return world


SERVED = "vcluster serve org/other --name other --hosts gpu1"


# fault: kernel/node/history.py: if one.generation == serve.generation → if not one
def test_exposing_what_is_served_keeps_its_options(chosen: World, tmp_path: Path) -> None:
    def verb(inventory: Inventory, _emit: Emit, runtime: Runtime) -> Any:
        return endpoint.find_endpoint(inventory, tmp_path, direct=True, detach=None, runtime=runtime)

    error = lab.run(chosen, INVENTORY, verb).error
    assert isinstance(error, PreflightFailed)
    assert error.hint == f"vcluster endpoint --detach\n{SERVED} --expose -- --seed 7"


# fault: serving/endpoint/endpoint.py: if serve.host in _LOOPBACK: → if True:
# fault: serving/endpoint/endpoint.py: if serve.host in _LOOPBACK: → if False:
@pytest.mark.parametrize(
    ("exposed", "end", "remedies"),
    [
        (False, "is open in the background", (("--detach",), None)),
        (
            True,
            "; machines that reach gpu1 find org/model at http://10.0.0.1:8000/v1",
            (("--direct",), "vcluster endpoint --detach"),
        ),
    ],
)
def test_without_a_tunnel_the_other_way_to_what_is_exposed_is_named(
    world: World, tmp_path: Path, *, exposed: bool, end: str, remedies: tuple[tuple[str, ...], str | None]
) -> None:
    """It is not taken unasked: at a private address another machine may answer here."""

    def verb(inventory: Inventory, _emit: Emit, runtime: Runtime) -> Any:
        return endpoint.find_endpoint(inventory, tmp_path, direct=False, detach=None, runtime=runtime)

    lab.succeed(world, INVENTORY, partial(lab.do_serve, expose=exposed))
    error = lab.run(world, INVENTORY, verb).error
    assert isinstance(error, PreflightFailed)
    assert error.message.endswith(end)
    assert (error.again, error.hint) == remedies


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("other", f"{SERVED} -- --seed 7"),
        ("org/model", "vcluster serve org/model"),
        ("a name", "vcluster serve MODEL --name 'a name'"),
    ],
)
def test_a_name_leads_to_the_request_that_had_it(chosen: World, name: str, command: str) -> None:
    assert chosen.runtime
    with at_head(INVENTORY, chosen.runtime) as head:
        read_key(INVENTORY, head)
        assert command_named(INVENTORY, NodeHandle(head, INVENTORY.cluster), name) == command
