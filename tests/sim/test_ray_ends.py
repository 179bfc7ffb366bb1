"""When Ray ends on the head, its last words are the answer: of up, serve, status and explain alike."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.sim import lab, make
from tests.support.sim.world import World
from vllm_cluster.kernel.errors import CommandFailed
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.serving.explain import explain

DASHBOARD = "Exception: Cannot include dashboard with missing packages."
STRANGE = "FrobnicationError: the frob is out"
WORDS = "ray start ended with exit code 1\nTraceback (most recent call last):\n{}\nmore of it"


def broken(words: str) -> tuple[World, Inventory]:
    """Two hosts; on the head Ray ends with these words as often as it is started."""
    world, inventory = make.world((2, 2)), make.inventory(2)
    world.machines["gpu1"].ray_ends = WORDS.format(words)
    return world, inventory


# fault: kernel/node/handle.py: and max(ends, group.failures) >= ATTEMPTS → >= 1000
@pytest.mark.promise("P37")
def test_up_ends_within_seconds_with_rays_words_and_waits_for_no_worker() -> None:
    world, inventory = broken(STRANGE)
    with lab.inside(world):
        for seconds, worker in ((15.0, False), (35.0, True)):  # the second one gives Ray one more start
            began = world.clock.now
            failed: Any = lab.run(world, inventory, lab.do_up)
            assert isinstance(failed.error, CommandFailed), failed.story()
            assert world.clock.now - began < seconds
            assert failed.error.host == "gpu1"
            assert STRANGE in failed.error.message
            assert "firewall" not in f"{failed.error.message} {failed.error.hint}"
            assert (world.machines["gpu2"].box("vcluster-lab") is not None) == worker


# fault: serving/explain/explain.py: if head and head.group.ended: → if head and not head.group:
@pytest.mark.promise("P41")
def test_the_worker_that_cannot_join_is_not_blamed_while_the_head_is_down() -> None:
    world, inventory = make.world((2, 2)), make.inventory(2)
    with lab.inside(world):
        assert lab.run(world, inventory, lab.do_up).error is None
        head = world.machines["gpu1"].box("vcluster-lab")
        assert head
        world.machines["gpu1"].ray_ends = WORDS.format(DASHBOARD)
        head.life.update(state="starting", due=world.clock.now, nodes={})
        world.clock.sleep(60)
        began = world.clock.now
        failed: Any = lab.run(world, inventory, lab.do_up)
        assert world.clock.now - began < 35
        assert failed.error.host == "gpu1"
        assert "cause (dashboard-missing)" in failed.error.message
        served: Any = lab.run(world, inventory, lab.do_serve)
        assert (served.error.host, DASHBOARD in served.error.message) == ("gpu1", True), served.story()
        status = lab.run(world, inventory, lab.do_status).value
        assert not status.up
        assert next(host.problem for host in status.hosts if host.host == "gpu1") == f"Ray is down: {DASHBOARD}"
        told = lab.run(world, inventory, lambda i, e, r: explain.of_cluster(i, e, runtime=r)).value.verdict
        assert (told.cause.failure.slug, told.symptom) == ("dashboard-missing", None)


def test_explain_shows_words_that_it_does_not_know_rather_than_what_the_workers_write() -> None:
    world, inventory = broken(STRANGE)
    with lab.inside(world):
        assert lab.run(world, inventory, lab.do_up).error is not None
        box = world.machines["gpu1"].box("vcluster-lab")
        assert box
        box.log = "[ray] Failed to connect to GCS at address 10.0.0.1:6379 within 5 seconds.\n"
        told = lab.run(world, inventory, lambda i, e, r: explain.of_cluster(i, e, runtime=r)).value.verdict
    assert (told.result, told.symptom) == ("unknown", None)
    assert STRANGE in [place.text for place in told.error_lines]


# fault: serving/explain/explain.py: return alive == {host.address for host in inventory.hosts.values()} → return not alive
def test_a_cluster_that_works_has_healed_of_what_its_logs_show() -> None:
    world, inventory = make.world((2, 2)), make.inventory(2)
    with lab.inside(world):
        assert lab.run(world, inventory, lab.do_up).error is None
        box = world.machines["gpu2"].box("vcluster-lab")
        assert box
        box.log = "(raylet) A worker died or was killed while executing a task\nFrobError: strange\n"
        world.clock.sleep(60)
        told = lab.run(world, inventory, lambda i, e, r: explain.of_cluster(i, e, runtime=r)).value.verdict
    assert (told.result, [one.failure.slug for one in told.recovered]) == ("healed", ["rank-killed"])
