"""A replica whose parts are processes on several hosts: started, watched and ended together; over a real roll."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tests.support.logs import explained
from tests.support.node.world import HEAD, WORKER, World, eventually, lives
from tests.support.waiting import until
from vllm_cluster.serving.node.proc import StoppedProcesses

pytestmark = pytest.mark.slow

PACE = {"roll_beat": 0.1, "roll_silent": 0.8, "roll_lost": 1.5, "part_start": 20.0, "frozen": 1.0}


def ready(world: World, number: int = 1) -> tuple[int, int]:
    """Both processes of the n-th start, once it is ready."""
    world.phase("ready", attempt=number)
    eventually(lambda: len(world.followers) >= number, f"run {number} of the follower")
    return world.attempts[-1]["pid"], world.followers[-1]["pid"]


@pytest.fixture
def served(world: World) -> tuple[World, int, int]:
    """A model that a head and a worker serve without Ray."""
    world.pace |= PACE
    world.start_without_ray()
    world.want("one", backend="mp")
    return world, *ready(world)


def test_every_part_is_started_where_it_belongs(served: tuple[World, int, int]) -> None:
    world, *_ = served
    (leads,), (follows,) = world.attempts, world.followers
    assert leads["argv"][:3] == ["serve", "org/model", "--host=127.0.0.1"]
    assert follows["argv"] == ["serve", "org/model", "--headless"]
    assert world.status
    assert (world.status.group.state, world.status.serve and world.status.serve.backend) == ("up", "mp")
    assert {node.address: node.gpus for node in world.status.group.nodes} == {"127.0.0.1": 2, WORKER: 2}
    assert "vcluster starts vLLM" in (world.state2 / "serve.log").read_text()


def test_the_end_of_one_part_ends_all_and_starts_all(served: tuple[World, int, int]) -> None:
    """Each part by each signal, one after the other."""
    world, *pids = served
    for which, number in ((0, signal.SIGKILL), (1, signal.SIGKILL), (0, signal.SIGTERM), (1, signal.SIGTERM)):
        os.kill(pids[which], number)
        again = ready(world, len(world.attempts) + 1)
        assert not any(map(lives, pids))
        assert all(map(lives, again))
        assert world.status
        assert world.status.serve
        assert f"vLLM ended with exit code {128 + number} on gpu{which + 1}" in str(world.status.serve.failure)
        pids = [*again]


# fault: serving/node/parts.py: hurry = how != "asked" or → hurry = how == "stuck" or
def test_what_is_left_of_a_failed_engine_frees_its_gpus_soon(world: World) -> None:
    """On two hosts it held them for 20 s, when the API server or the worker's part was killed."""
    world.pace |= {**PACE, "serve_stop": 60.0}
    world.plan({"stubborn": True})
    world.start_without_ray()
    world.want("one", backend="mp")
    leads, follows = ready(world)
    os.kill(follows, signal.SIGKILL)
    eventually(lambda: not lives(leads), "the end of the other part", 30.0)


def test_an_end_with_code_0_is_a_failure(world: World) -> None:
    world.pace |= PACE
    world.fake2.mkdir()
    world._write(world.fake2 / "plans.json", '[{"exit": 0, "lines": ["ValueError: no such model\\n"]}]')
    world.start_without_ray()
    world.plan({"loading": True})
    world.want("one", backend="mp")
    failed = world.phase("failed")
    assert failed.detail == "vLLM ended with exit code 0 on gpu2: ValueError: no such model"
    assert failed.first_failure.lines[-1] == "ValueError: no such model"
    eventually(lambda: not any(lives(one["pid"]) for one in world.attempts), "the other part has ended")


# fault: serving/node/start.py: if part is self.first or len(self.parts) == 1 → if True
def test_a_cause_that_another_part_has_printed_has_its_host(world: World) -> None:
    world.pace |= PACE
    world.fake2.mkdir()
    world._write(world.fake2 / "plans.json", '[{"exit": 1}]')
    world.start_without_ray()
    world.plan({"loading": True, "lines": ["RuntimeError: the other end is gone\n"]})
    world.want("one", backend="mp")
    failed = world.phase("failed")
    assert failed.detail == "vLLM ended with exit code 1 on gpu2; on gpu1: RuntimeError: the other end is gone"


def test_a_node_that_is_gone_is_waited_for(served: tuple[World, int, int]) -> None:
    world, leader, follower = served
    assert world.worker
    world.worker.kill()
    world.worker.wait()
    os.kill(follower, signal.SIGKILL)  # as the end of its container does
    waiting = world.phase("waiting", detail=f"{WORKER} is missing")
    assert waiting.failure.summary.startswith(f"the head has lost gpu2 ({WORKER})")
    assert not lives(leader)
    world.join()
    ready(world, 2)


def test_a_frozen_node_is_lost_and_ends_its_part_when_it_wakes(served: tuple[World, int, int]) -> None:
    world, leader, follower = served
    assert world.worker
    world.worker.send_signal(signal.SIGSTOP)
    world.phase("waiting", detail=f"{WORKER} is missing")
    assert not lives(leader)
    assert lives(follower)
    world.worker.send_signal(signal.SIGCONT)
    ready(world, 2)
    assert not lives(follower)


# fault: serving/node/worker_roll.py: if time.monotonic() - self._ordered < self._pace.roll_lost else () → if self else ()
def test_a_part_without_its_head_ends(served: tuple[World, int, int]) -> None:
    world, leader, follower = served
    assert world.node
    world.node.kill()
    world.node.wait()
    os.kill(leader, signal.SIGKILL)
    eventually(lambda: not lives(follower), "the follower has ended", 20)
    world.start_without_ray(joins=False)
    ready(world, 1)


def test_stop_and_another_request_end_every_part(served: tuple[World, int, int]) -> None:
    world, *first = served
    world.want("two", backend="mp")
    world.phase("ready", generation="two")
    assert not any(map(lives, first))
    second = world.attempts[-1]["pid"], world.followers[-1]["pid"]
    assert len(world.followers) == 2
    world.want(None)
    eventually(lambda: world.status and world.status.serve is None, "nothing is served")
    assert not any(map(lives, second))
    for state in (world.state, world.state2):
        assert "vcluster stops vLLM" in (state / "serve.log").read_text()


# fault: serving/node/parts.py: running.end("asked") → running.end("failed")
def test_a_node_that_is_made_again_writes_that_its_part_was_stopped(served: tuple[World, int, int]) -> None:
    """Without that `explain` took the end of its ranks for a fault."""
    world, _, follower = served
    assert world.worker
    world.worker.terminate()
    world.worker.wait(30)
    assert not lives(follower)
    assert "vcluster stops vLLM" in (world.state2 / "serve.log").read_text()


# fault: serving/node/parts.py: if how == "stuck": → if how == "asked":
@pytest.mark.parametrize(("number", "written"), [(signal.SIGSTOP, True), (signal.SIGKILL, False)])
def test_the_stacks_of_what_is_stuck_are_in_the_log_of_each_node(
    served: tuple[World, int, int], number: signal.Signals, written: bool
) -> None:
    world, *pids = served
    spy = world.folder / "bin" / "py-spy"
    spy.write_text('#!/bin/sh\n[ "$1 $2 $3" = "dump --nonblocking --pid" ] && echo "Thread 1 of $4 (idle)"\n')
    spy.chmod(0o755)
    os.kill(pids[1], number)
    ready(world, 2)
    for pid, state in zip(pids, (world.state, world.state2), strict=True):
        line = f"stacks of process {pid}: Thread 1 of {pid} (idle)"
        assert (line in (state / "serve.log").read_text()) is written


# fault: serving/node/proc.py: return f"{pid} ({rank[1]})" if rank else str(pid) → return str(pid)
def test_a_rank_that_is_stopped_is_named() -> None:
    with subprocess.Popen(["VLLM::Worker_TP1", "60"], executable="/bin/sleep") as rank:
        rank.send_signal(signal.SIGSTOP)
        stopped = StoppedProcesses(0.1)
        until(lambda: stopped.look([rank.pid]), 10)
        text = stopped.look([rank.pid])
        rank.kill()
    assert text == f"process {rank.pid} (Worker_TP1) of vLLM has been stopped by a signal for 0.1 s"


# fault: serving/node/proc.py: if now - since > self._longest) → if now - since > 1e9)
@pytest.mark.parametrize("which", [0, 1])
def test_a_part_that_is_stopped_by_a_signal_is_started_again(served: tuple[World, int, int], which: int) -> None:
    world, *pids = served
    os.kill(pids[which], signal.SIGSTOP)
    ready(world, 2)
    assert not any(map(lives, pids))
    assert world.status
    assert world.status.serve
    what = f"process {pids[which]} of vLLM has been stopped by a signal for 1 s on gpu{which + 1}"
    assert what in str(world.status.serve.failure)
    assert (named := explained(f"{what}\n").symptom)
    assert named.failure.slug == "process-stopped"


def test_nothing_starts_before_every_node_is_there(world: World) -> None:
    world.pace |= PACE
    world.start_without_ray(joins=False)
    world.want("one", backend="mp")
    world.phase("waiting", detail=f"GPUs 2/4: {WORKER} is missing")
    assert world.attempts == []
    world.join()
    ready(world)


def test_one_host_needs_no_other(world: World) -> None:
    world.members({"127.0.0.1": 2})
    world.start_without_ray(joins=False)
    world.want("one", backend="mp", ranks={"127.0.0.1": 2})
    world.phase("ready")


# fault: serving/node/replica_controller.py: names, grouped=replica.grouped) → names, grouped=True)
@pytest.mark.parametrize("member", [True, False])
def test_another_host_with_a_wrong_number_of_gpus_holds_up_nothing(world: World, *, member: bool) -> None:
    """One worker kept every other model from starting."""
    world.pace |= PACE
    world.members({HEAD: 2} | ({WORKER: 2} if member else {}))
    world.start_without_ray(joins=False)
    world.join(gpus=0)
    eventually(lambda: world.status and world.status.roll and len(world.status.roll.nodes) == 2, "the worker")
    world.want("one", backend="mp", ranks={HEAD: 2})
    world.phase("ready")
