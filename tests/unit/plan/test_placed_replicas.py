"""Where replicas are placed, what stays where their number or the hosts change, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.support.serve_requests import cluster
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.plan.followed import follow
from vllm_cluster.kernel.plan.placement import Cluster, choose_layout, place_replicas
from vllm_cluster.wire.order import Deployment, Order, Placement, read_order

TWO, THREE = {"gpu1": 8, "gpu2": 8}, {"gpu1": 8, "gpu2": 8, "gpu3": 8}


def placed(gpus: Mapping[str, int] | Cluster, number: int, before: Order | None = None, **more: Any) -> Order:
    """An order for so many replicas, as `serve` makes it."""
    hosts = gpus if isinstance(gpus, Cluster) else cluster(gpus)
    deployment = Deployment("llama", "org/llama", replicas=number, **more)
    layout = choose_layout(deployment, hosts)
    own = before.deployments if before else ()
    return Order(1, "", place_replicas(deployment, hosts, (layout.tp, layout.pp), 8000, before=own))


def where(order: Order) -> list[tuple[str, tuple[int, ...], str]]:
    """The host, the GPUs and the name of what runs, by replica."""
    return [(one.replica.leader.host, one.replica.leader.devices, one.generation) for one in order.deployments]


def test_each_answers_at_a_port_of_its_own_and_those_of_a_host_see_their_own_gpus_alone() -> None:
    first, second, third, fourth = placed(TWO, 4).deployments
    assert [one.replica.backend for one in (first, second, third, fourth)] == ["mp"] * 4
    assert [one.replica.api for one in (first, second, third, fourth)] == [None, 8100, None, 8104]
    assert third.replica.leader.env["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    (whole, _) = placed(TWO, 2).deployments
    assert "CUDA_VISIBLE_DEVICES" not in whole.replica.leader.env


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
def test_another_number_of_the_same_changes_only_the_difference(before: int, after: int) -> None:
    first = placed(THREE, before, tp=8, pp=1)
    then = placed(THREE, after, first, tp=8, pp=1)
    both = min(before, after)
    assert where(then)[:both] == where(first)[:both]


# fault: kernel/plan/placement.py: indices, kept=kept, taken → indices, kept={}, taken
def test_what_runs_stays_where_it_runs_behind_another_head() -> None:
    first = placed(TWO, 2)
    then = placed({"gpu3": 8, **TWO}, 2, first)
    assert where(then) == where(first)
    assert [one.replica.api for one in then.deployments] == [8100, 8100]


def test_one_alone_is_what_it_was_where_nothing_else_chooses_ray() -> None:
    first = placed(THREE, 2, tp=8, pp=1)
    assert where(placed(THREE, 1, first, tp=8, pp=1, backend="mp"))[0] == where(first)[0]


def follows(order: Order, gpus: Mapping[str, int]) -> tuple[tuple[Placement, ...], str] | None:
    """What becomes of an order on other hosts."""
    found = follow(order.document, cluster(gpus))
    return (read_order(found.content).deployments, found.text) if found else None


# fault: kernel/plan/followed.py: share.fits(host, cluster.gpus.get(host, 0))] → True]
def test_a_host_that_leaves_takes_its_replica_and_the_others_stay() -> None:
    order = placed(THREE, 3)
    assert follows(order, THREE) is None
    found = follows(order, {"gpu1": 8, "gpu3": 8})
    assert found
    rows, text = found
    assert [(one.index, one.replica.leader.host, one.generation) for one in rows] == [
        (0, "gpu1", order.deployments[0].generation),
        (2, "gpu3", order.deployments[2].generation),
    ]
    assert text.startswith("replica 1 of llama is not served any more: it was on gpu2")


# fault: kernel/plan/followed.py: part.host for part in moved.replica.parts if part.gpus → part.host for part in moved.replica.parts
# fault: kernel/plan/followed.py: part.host for part in moved.replica.parts if part.gpus → part.address for part in moved.replica.parts if part.gpus
def test_a_model_behind_another_head_is_named_with_the_hosts_that_have_it() -> None:
    """Of one that Ray joins the head has a part without GPUs."""
    (one,), (other,) = (placed(TWO, 1, hosts=(host,), tp=8, pp=1).deployments for host in ("gpu1", "gpu2"))
    other = replace(other, deployment=replace(other.deployment, name="other"), index=1)
    found = follows(Order(1, "", (one, other)), {"gpu2": 8, "gpu1": 8})
    assert found
    assert found[1] == "llama is served on gpu1; other is served on gpu2"


def test_ray_is_refused_for_several() -> None:
    with pytest.raises(UsageError, match="without Ray") as refused:
        placed(TWO, 2, backend="ray")
    assert refused.value.hint == "leave out --backend ray"
