"""What `up` shows before it asks: what it removes by name, and hosts with the same to do in one line."""

from __future__ import annotations

from tests.support.sim import lab, make


def test_hosts_with_the_same_to_do_are_one_line() -> None:
    made = make.world((2, 2, 2))
    with lab.inside(made):
        first = lab.run(made, make.inventory(3), lab.do_up)
        changed = lab.run(made, make.inventory(3, environment={"A": "1"}), lab.do_up)
    todo = [[e.text.splitlines() for e in one.events if e.text.startswith("Plan:")] for one in (first, changed)]
    assert todo[0][0][1:] == [
        "  gpu1: prepare image, create container vcluster-lab, record members",
        "  gpu2, gpu3: prepare image, create container vcluster-lab",
    ]
    assert todo[1][0][1:] == ["  gpu1, gpu2, gpu3: remove container vcluster-lab, create container vcluster-lab"]
