"""What a request does to the models beside it: which stay, which go, and which one a verb is about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from tests.support.serve_requests import placed
from vllm_cluster.kernel.errors import PreflightFailed, UsageError
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.serving.others import change, the_model
from vllm_cluster.wire.order import Order, Placement

TWO = {"gpu1": 2, "gpu2": 2}


class Head:
    """A head that was asked for this, and whose node does not run."""

    def __init__(self, *rows: Placement) -> None:
        self.asked, self.host = Order(7, "", rows), "gpu1"

    def order(self) -> Order:
        return self.asked

    def state_if_running(self) -> None:
        return None


def on(host: str, name: str, index: int) -> Placement:
    """A model on a host of its own."""
    return replace(placed({host: 2}, 2, 1, name=name, hosts=(host,), backend="mp"), index=index)


A, B = on("gpu1", "a", 0), on("gpu2", "b", 1)


def made(head: Head, *wanted: Placement, goes: Any = ()) -> tuple[list[tuple[str, int]], set[str]]:
    """What the next order has, with the numbers of the orders that asked for it, and what goes."""
    found = change(cast(NodeHandle, head), wanted, goes)
    return [(one.deployment.name, one.asked) for one in found.rows], {*found.goes}


def test_another_model_stays_with_the_number_of_its_order() -> None:
    assert made(Head(A), B) == ([("a", 7), ("b", 0)], set())
    assert made(Head(replace(A, asked=3), B)) == ([("a", 3), ("b", 7)], set())


# fault: serving/others.py: or any(one.meets(other) for other in wanted) → or False
def test_what_was_asked_for_meanwhile_on_the_same_gpus_goes() -> None:
    """Two people serve at once; the second one is asked about the model of the first."""
    other = on("gpu2", "other", 2)
    assert made(Head(A, other), B) == ([("a", 7), ("b", 0)], {"other"})


# fault: serving/others.py: raise PreflightFailed(text, again=()) → continue
def test_what_was_asked_for_meanwhile_on_other_gpus_is_not_stopped_for_its_number() -> None:
    """Two people add a model each at once; the second one asks again, and gets another number."""
    with pytest.raises(PreflightFailed, match="a was asked for meanwhile; nothing was changed"):
        made(Head(A), replace(B, index=0))


def test_a_stop_ends_the_one_that_is_named_or_all() -> None:
    assert made(Head(A, B), goes=("b",)) == ([("a", 7)], {"b"})
    assert made(Head(A, B), goes=None) == ([], {"a", "b"})


def test_the_only_model_needs_no_name() -> None:
    assert [the_model(["a"], None, "stop"), the_model(["a", "b"], "b", "stop"), the_model([], None, "stop")] == [
        "a",
        "b",
        "",
    ]


# fault: serving/others.py: if name is None and len(names) > 1: → if False:
def test_of_several_it_is_not_guessed_which_one_is_meant() -> None:
    with pytest.raises(UsageError, match="several models are served: a, b") as no:
        the_model(["a", "b"], None, "stop")
    assert no.value.hint == "vcluster stop a\nvcluster stop b"
    with pytest.raises(UsageError, match="c is not served; served: a, b"):
        the_model(["a", "b"], "c", "stop")


# fault: serving/others.py: near = nearest(name, names) → near = None
def test_a_slip_in_the_name_of_a_model_names_the_one_that_was_meant() -> None:
    with pytest.raises(
        UsageError, match=r"org/lama is not served \(did you mean org/llama\?\); served: org/llama"
    ) as no:
        the_model(["org/llama"], "org/lama", "stop")
    assert no.value.hint == "vcluster stop org/llama"
