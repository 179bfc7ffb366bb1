"""Who left an inventory, and who is only behind a way that does not work."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from tests.support.world import converged, hosts, inventory
from vllm_cluster.kernel.checks.members import left as left_members
from vllm_cluster.kernel.plan.members import Member, Record, former
from vllm_cluster.kernel.plan.spec import ID

RECORD = Record("lab", "id", (Member("gpu2", "10.0.0.2", "machine-2", 2, 0.0, host="gpu2"),))
OTHER_WAY: dict[str, Any] = {"entries": {"gpu2": {"ssh": {"port": 2222}}}}


# fault: kernel/plan/members.py: if not bearers(facts, member) or → if True or
@pytest.mark.parametrize(
    ("count", "changes", "answered", "left"),
    [
        (2, {}, {"gpu1", "gpu2"}, set()),
        (1, {}, {"gpu1"}, {"gpu2"}),
        # The same machine behind another way.
        (2, OTHER_WAY, {"gpu1", "gpu2"}, set()),
        # Whether that is the machine is not known while it does not answer.
        (2, OTHER_WAY, {"gpu1"}, set()),
    ],
)
def test_who_left(count: int, changes: dict[str, Any], answered: Collection[str], left: Collection[str]) -> None:
    facts = {name: entry for name, entry in hosts().items() if name in answered}
    assert set(former(inventory(count, **changes), facts, RECORD)) == left


def test_check_names_a_member_that_left() -> None:
    """Its node may hold GPUs, and no host of the inventory shows it."""
    _, facts = converged(inventory())
    kept = replace(RECORD, id=facts["gpu1"].containers[0].labels[ID])
    facts["gpu1"] = replace(facts["gpu1"], member_record=kept.document)
    del facts["gpu2"]
    (found,) = left_members(inventory(1), facts)
    assert (found.code, found.host, found.error) == ("member-not-in-inventory", "gpu1", False)
    assert "gpu2 (10.0.0.2) left the inventory" in found.message
    assert list(left_members(inventory(2), converged(inventory())[1])) == []


def test_another_machine_behind_another_way_of_the_same_name_left_a_member() -> None:
    facts = hosts(gpu2={"machine_id": "another"})
    assert set(former(inventory(2, **OTHER_WAY), facts, RECORD)) == {"gpu2-former"}


# fault: kernel/plan/members.py: if name in names or way_to( → if way_to(
def test_a_host_with_the_name_of_another_member_hides_none_by_its_id() -> None:
    """The way that is recorded of it may be an earlier one."""
    record = replace(RECORD, members=(*RECORD.members, Member("gpu3", "10.0.0.3", "machine-3", 2, 0.0, host="gpu3")))
    facts = hosts(gpu2={"machine_id": "machine-3"})
    assert "gpu3" in former(inventory(2, **OTHER_WAY), facts, record)
