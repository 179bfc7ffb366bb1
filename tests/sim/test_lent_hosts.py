"""Hosts of a job are there until it ends: up and status show when that is."""

from __future__ import annotations

import pytest

from tests.support.sim import lab, make
from tests.support.sim.clock import EPOCH


# fault: kernel/hosts/lent.py: "warning" if left < SOON else "note" → "note"
@pytest.mark.parametrize(("left", "kind", "shown"), [(720.0, "warning", "12 min"), (8000.0, "note", "2 h")])
def test_when_the_job_ends_is_shown(left: float, kind: str, shown: str) -> None:
    text = f"the job that lent these hosts ends in {shown}; containers outlive it: run vcluster down before"
    with lab.cluster(1) as world:
        for verb in (lab.do_up, lab.do_status):
            inventory = make.inventory(1).model_copy(update={"lent_until": EPOCH + world.clock.now + left})
            found = [one for one in lab.run(world, inventory, verb).events if "lent these hosts" in one.text]
            assert [(one.kind, one.text) for one in found] == [(kind, text)]
        assert not [one for one in lab.run(world, make.inventory(1), lab.do_status).events if "lent" in one.text]
