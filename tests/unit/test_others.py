"""What a request does to the models beside it: which stay, which go, and which one a verb is about."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.clock import Clock
from tests.support.serve_requests import placed
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import HostError, PreflightFailed, UsageError
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.serving.others import change, order_in_force, the_model
from vllm_cluster.wire.order import Order, Placement, Taken

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


class Failing(Head):
    """A head that serves something else in place of each of its requests, with a file that it sends so for each."""

    def __init__(self, read: Any, *rows: Placement) -> None:
        super().__init__(*rows)
        self.clock, self._read, self.name = Clock(), read, "vcluster-lab"
        self.connection = SimpleNamespace(runtime=SimpleNamespace(after=partial(Deadline.after, clock=self.clock)))

    def state_if_running(self) -> Any:
        rows = [SimpleNamespace(index=one.index, instead_of="x", request=7) for one in self.asked.deployments]
        return SimpleNamespace(replicas=rows)

    def read(self, _name: str, _most: int | None = None, until: Deadline | None = None) -> bytes:
        return bytes(self._read(self.clock, until))


def eight() -> list[Placement]:
    """As many models, each on a host of its own."""
    return [on(f"gpu{at + 1}", f"m{at}", at) for at in range(8)]


# fault: serving/others.py: back.get(one.index) or one → one
def test_what_is_served_in_place_of_a_request_that_failed_is_in_force() -> None:
    back = json.dumps(Taken(7, back_to=A).document).encode()
    found = order_in_force(cast(NodeHandle, Failing(lambda *_: back, replace(A, index=3, generation="failed"))))
    assert found.deployments == (replace(A, index=3),)


# fault: kernel/node/named_files.py: if self._left < 0: → if False:
# fault: kernel/node/named_files.py: if not self._until.left(): → if False:
# fault: serving/others.py: except ValueError as error: → except ZeroDivisionError as error:
@pytest.mark.parametrize(
    ("read", "why"),
    [
        (lambda _clock, _until: b"{}" + b" " * (3 << 20), "all that it keeps is more than 16.0 MB"),
        (lambda clock, _until: clock.sleep(25) or b"{}", "all that it keeps cannot be read within 60 s"),
        (lambda *_: json.dumps(Taken(7, back_to=A).document).encode(), "gives a GPU to two replicas"),
    ],
    ids=["large", "slow", "all on one GPU"],
)
def test_a_head_that_serves_anything_in_place_of_thousands_is_named(read: Any, why: str) -> None:
    """With 150 files `stop` took 2.6 GB, and with 20 that took 100 s each 2,100 s before it asked."""
    with pytest.raises(HostError, match=f"^gpu1: .*{why}"):
        order_in_force(cast(NodeHandle, Failing(read, *eight())))


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
