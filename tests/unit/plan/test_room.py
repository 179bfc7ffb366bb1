"""Where one more model goes: beside the others where GPUs are free, and in whose place where they are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.serve_requests import cluster
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.plan.placement import Cluster, available, choose_layout, place_replicas
from vllm_cluster.kernel.plan.room import Room, rooms
from vllm_cluster.wire.order import Deployment, Order, Placement, read_order

TWO, THREE = {"gpu1": 2, "gpu2": 2}, {"gpu1": 2, "gpu2": 2, "gpu3": 2}


def asked(name: str, **more: Any) -> Deployment:
    return Deployment(name, f"org/{name}", **more)


def chosen(gpus: Mapping[str, int] | Cluster, deployment: Deployment, order: Order) -> tuple[Room, Order]:
    """The first room in which a deployment fits, and the order that has it, as `serve` writes it."""
    hosts = gpus if isinstance(gpus, Cluster) else cluster(gpus)
    for room in rooms(deployment, hosts, order, 8000):
        try:
            layout = choose_layout(deployment, room.cluster)
            how: dict[str, Any] = {"before": room.own, "beside": room.stays}
            new = place_replicas(deployment, room.cluster, (layout.tp, layout.pp), 8000, **how)
        except UsageError:
            continue
        return room, Order(order.epoch + 1, "", (*room.stays, *new))
    raise AssertionError("it fits nowhere")


def models(gpus: Mapping[str, int] | Cluster, *deployments: Deployment) -> Order:
    """The order after all of these were asked for, one after another."""
    order = Order()
    for one in deployments:
        _, order = chosen(gpus, one, order)
    return order


def where(order: Order) -> list[tuple[str, int, str, tuple[int, ...]]]:
    """The name, the index, the host that leads and its GPUs, by replica."""
    rows = [(one, one.replica.leader) for one in order.deployments]
    return [(one.deployment.name, one.index, part.host, part.devices) for one, part in rows]


# fault: kernel/plan/room.py: return Room(beside(cluster, stays), stays, goes, own) → return Room(cluster, stays, goes, own)
def test_a_second_model_goes_to_the_hosts_that_are_free() -> None:
    order = models(THREE, asked("a", hosts=("gpu1",)), asked("b"))
    assert [(name, host) for name, _, host, _ in where(order)] == [("a", "gpu1"), ("b", "gpu2")]
    assert order.deployments[1].replica.layout == "TP=2 × PP=2"
    assert not any(one.meets(other) for one in order.named("a") for other in order.named("b"))


# fault: kernel/plan/room.py: if not any(left.values()): → if True:
# fault: kernel/plan/room.py: if deployment.hosts else "no GPU is free" → if True else ""
@pytest.mark.parametrize(
    ("gpus", "there", "new", "why"),
    [
        (TWO, ("gpu1", "gpu2"), {}, "no GPU is free"),
        (TWO, ("gpu1",), {"hosts": ("gpu1",)}, "no GPU of gpu1 is free"),
        (TWO, ("gpu1",), {"tp": 2, "pp": 2}, "it needs more GPUs than are free, 0 of gpu1, 2 of gpu2"),
        (TWO, ("gpu1",), {"hosts": ("gpu2",)}, ""),
    ],
)
def test_the_reason_why_a_model_goes_is_what_is_free(
    gpus: Mapping[str, int], there: tuple[str, ...], new: dict[str, Any], why: str
) -> None:
    room, _ = chosen(gpus, asked("b", **new), models(gpus, asked("a", hosts=there)))
    assert (room.why, bool(room.goes)) == (why, bool(why))


def test_two_small_models_share_a_host_by_the_numbers_of_its_gpus() -> None:
    small: dict[str, Any] = {"tp": 1, "pp": 1, "backend": "mp"}
    order = models(TWO, asked("a", **small), asked("b", **small), asked("c", **small))
    assert where(order) == [("a", 0, "gpu1", (0,)), ("b", 1, "gpu1", (1,)), ("c", 2, "gpu2", (0,))]
    assert [one.replica.leader.env["CUDA_VISIBLE_DEVICES"] for one in order.deployments] == ["0", "1", "0"]
    assert [one.replica.api for one in order.deployments] == [None, None, 8100]


# fault: kernel/plan/room.py: (every if BACKENDS[one.replica.backend].LED_BY_HEAD else range(part.gpus)) → range(part.gpus)
def test_what_ray_serves_has_its_hosts_for_itself() -> None:
    order = models(TWO, asked("a", tp=1, pp=1), asked("b", tp=1, pp=1))
    assert [(name, host) for name, _, host, _ in where(order)] == [("a", "gpu1"), ("b", "gpu2")]
    assert [one.replica.backend for one in order.deployments] == ["ray", "mp"]


def test_where_nothing_is_free_all_others_go_and_the_way_back_is_kept() -> None:
    order = models(TWO, asked("a", hosts=("gpu1",)), asked("b", hosts=("gpu2",)))
    room, after = chosen(TWO, asked("c"), order)
    assert room.goes == ("a", "b")
    assert [(one.deployment.name, one.index) for one in after.deployments] == [("c", 0)]


# fault: kernel/plan/room.py: if there & one.replica.ranks.keys()} or {*order.names} → } or {*order.names}
def test_of_the_hosts_that_are_named_only_the_models_there_go() -> None:
    order = models(TWO, asked("a", hosts=("gpu1",)), asked("b", hosts=("gpu2",)))
    room, after = chosen(TWO, asked("c", hosts=("gpu2",)), order)
    assert room.goes == ("b",)
    assert where(after)[1][:3] == ("c", 1, "gpu2")


def test_the_same_again_stays_where_it_is_and_so_do_the_others() -> None:
    deployments = (asked("a", hosts=("gpu1",)), asked("b"))
    order = models(TWO, *deployments)
    for one in deployments:
        room, after = chosen(TWO, one, order)
        assert (room.goes, {*where(after)}) == ((), {*where(order)})
        assert after.named(one.name)[0].generation == order.named(one.name)[0].generation


# fault: wire/order.py: tuple(replace(one, asked=one.asked or self.epoch) for one in others) → tuple(others)
def test_what_stays_keeps_the_number_of_the_order_that_asked_for_it() -> None:
    order = models(THREE, *(asked(name, hosts=(host,)) for name, host in zip("abc", THREE, strict=True)))
    assert [(one.deployment.name, one.asked) for one in order.deployments] == [("a", 1), ("b", 2), ("c", 0)]
    assert [order.of(index).epoch for index in range(3)] == [1, 2, 3]
    assert read_order(order.document) == order


def test_a_host_is_not_shared_where_no_layout_is_asked_for() -> None:
    order = models(TWO, asked("a", tp=1, pp=1, backend="mp"))
    (room, *_) = rooms(asked("b"), cluster(TWO), order, 8000)
    assert available(asked("b"), room.cluster) == {"gpu2": 2}
    assert available(asked("b", tp=1), room.cluster) == {"gpu1": 1, "gpu2": 2}


@pytest.mark.parametrize(
    ("hosts", "exposed", "port", "why", "remedy"),
    [
        ((), (False, True), 8000, "a is not exposed, and", "leave out --expose, or first:\nvcluster stop a"),
        ((), (True, False), 8000, "a is exposed, and", "serve b with --expose, too"),
        ((), (False, False), 9000, "a answers at port 8000, and ports.api is 9000 now", "vcluster stop a"),
        # In place of another one, beside the first.
        (("gpu2",), (False, True), 8000, "a is not exposed, and", "leave out --expose, or first:\nvcluster stop a"),
    ],
)
def test_all_models_answer_at_one_address(
    hosts: tuple[str, ...], exposed: tuple[bool, bool], port: int, why: str, remedy: str
) -> None:
    before, after = exposed
    others = [asked("a", hosts=("gpu1",), expose=before)]
    others += [asked("c", hosts=("gpu2",), expose=before)] if hosts else []
    order = models(TWO, *others)
    with pytest.raises(UsageError, match=why) as no:
        list(rooms(asked("b", hosts=hosts, expose=after), cluster(TWO), order, port))
    assert no.value.hint == remedy


def test_no_gpu_is_in_two_models() -> None:
    (one,) = models(TWO, asked("a")).deployments
    other = Placement("other", asked("b"), one.replica, 1)
    with pytest.raises(ValueError, match="gives a GPU to two replicas"):
        Order(1, "", (one, other))
