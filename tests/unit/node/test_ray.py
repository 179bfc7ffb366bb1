"""How the node's program keeps Ray up, and clears what one that died has left."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.support.node.world import HEAD, World, eventually, lives
from tests.support.ports import free_port
from vllm_cluster.serving.node import supervisor
from vllm_cluster.serving.node.head_roll import Me
from vllm_cluster.serving.node.process import Child
from vllm_cluster.serving.node.timing import Timing
from vllm_cluster.serving.node.worker_roll import WorkerRoll


def starts(world: World) -> list[str]:
    path = world.fake / "ray.starts"
    return path.read_text().splitlines() if path.exists() else []


def test_the_head_reports_the_nodes_of_ray(world: World) -> None:
    world.start("head", "--head")
    world.ray("up")
    status = eventually(lambda: world.status if world.status and world.status.group.nodes else None, "nodes")
    told = [(node.address, node.alive, node.gpus) for node in status.group.nodes]
    assert told == [(HEAD, True, 2), ("127.0.0.2", True, 2), ("9.9.9.9", False, 0)]
    assert (status.role, status.serve, status.group.error) == ("head", None, None)
    assert starts(world) == ["start --head --block"]


# fault: serving/node/supervisor.py: quiet=True, max_line=MAX_MEMBERS_LINE → quiet=True
def test_the_head_reports_as_many_nodes_as_a_cluster_may_have(world: World) -> None:
    """All of them are one line of the program that lists them."""
    addresses = [f"10.20.30.{number}" for number in range(256)]
    world.nodes(dict.fromkeys(addresses, 8), {address: f"{address:0>56}" for address in addresses})
    world.start("head", "--head")
    status = eventually(lambda: world.status if world.status and world.status.group.nodes else None, "nodes", 30)
    assert {node.address for node in status.group.nodes if node.alive} == set(addresses)


# fault: serving/node/supervisor.py: with suppress(RefusedDocument): → with suppress():
def test_a_line_of_members_that_cannot_be_read_does_not_end_its_reader() -> None:
    me = Me("gpu2", "127.0.0.1", 1)
    roll = WorkerRoll(("127.0.0.1", free_port()), "00", me, Timing())
    node = supervisor.Supervisor(me, ["ray"], None, Timing(), roll)
    script = """print('{"nodes": [' + 'x' * 100); print('{"other": 1}'); print('{"nodes": []}')"""
    child = Child("nodes", [sys.executable, "-c", script], os.environ, node._see_nodes, quiet=True, max_line=64)
    eventually(lambda: child.code() is not None, "its end")
    child.read_rest()
    roll.close()
    assert (child.tail[-1], node._nodes) == ('{"nodes": []}', ())


@pytest.mark.slow
def test_nothing_is_left_after_a_stop(world: World) -> None:
    world.plan({"stray": True, "stubborn": True})
    world.start_ready()
    assert world.stop() == 0
    assert world.strays("ray") + world.strays("vllm") == []
    assert not lives(world.attempts[0]["pid"])
    assert world.ray("down").group.nodes == ()


@pytest.mark.slow
def test_ray_comes_back_and_so_does_what_is_served(world: World) -> None:
    world.start_ready()
    (old,) = eventually(lambda: world.strays("ray"), "Ray's daemon")
    (world.fake / "ray.exit").touch()
    again = world.phase("ready", attempt=2)
    assert "Ray ended on the head: ray start ended with exit code 1" in again.failure.summary
    assert not lives(world.attempts[0]["pid"])
    assert not lives(old)
    assert world.ray("up", restarts=1).group.restarts == 1


# fault: serving/node/supervisor.py: "\n".join([trouble, *list(group.tail)[-ERROR_LINES:]]) → trouble
@pytest.mark.slow
def test_ray_that_does_not_start_is_tried_later_and_later(world: World) -> None:
    (world.fake / "ray.refuses").touch()
    world.start()
    status = world.ray("down", restarts=3)
    assert (status.group.failures, status.group.ended) == (3, True)
    assert status.group.error is not None
    assert "exit code 1\nRuntimeError: Version mismatch" in status.group.error
    (world.fake / "ray.refuses").unlink()
    assert world.ray("up", restarts=3).group.error is None


@pytest.mark.slow
def test_a_raylet_that_ended_unnoticed_is_noticed(world: World) -> None:
    port = free_port()
    # The head's own GCS is not there in this world: only the raylet is looked after.
    with socket.create_server((HEAD, world.gcs)):
        world.start("head", f"--node-ip-address={HEAD}", f"--port={world.gcs}", f"--node-manager-port={port}")
        world.ray("up")
        (world.fake / "ray.deaf").touch()
        world.ray("up", restarts=1)
    assert f"the raylet has ended: no process listens at {HEAD}:{port}" in world.log.read_text()
    assert len(starts(world)) == 2


@pytest.mark.slow
def test_a_worker_waits_for_the_head_and_follows_a_new_one(world: World) -> None:
    world.start("worker", "--address=head")
    waiting = world.ray("waiting")
    assert waiting.group.error == f"{HEAD}:{world.gcs}: Connection refused"
    assert starts(world) == []
    with head(world):
        world.ray("up")
    world.ray("waiting", restarts=1)
    with head(world):
        world.ray("up", restarts=1)
    assert len(starts(world)) == 2
    assert world.stop() == 0
    assert world.strays("ray") == []


@contextlib.contextmanager
def head(world: World) -> Iterator[None]:
    """A head's GCS, as far as a connection can see it."""
    server = socket.create_server((HEAD, world.gcs), reuse_port=True)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                server.accept()[0].close()

    thread = threading.Thread(target=accept)
    thread.start()
    yield
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


# fault: serving/node/supervisor.py: self._silent = self._silent + 1 if error else 0 → self._silent = 0
@pytest.mark.promise("P37")
@pytest.mark.slow
def test_a_worker_knows_that_the_head_does_not_answer(world: World) -> None:
    """Its way was cut after it had joined: Ray itself takes a minute to notice."""
    with socket.create_server((HEAD, world.gcs), backlog=1) as server, contextlib.ExitStack() as held:
        world.start("worker", "--address=head")
        while not (world.status and world.status.group.state == "up"):
            server.accept()[0].close()
        # No program takes calls any more: once its queue is full, the kernel drops what knocks, as a firewall does.
        for _ in range(3):
            caller = held.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex((HEAD, world.gcs))
        told = eventually(lambda: world.status and world.status.group.error, "the silence is noticed")
        assert told == f"{HEAD}:{world.gcs}: timed out"
        assert world.status
        assert world.status.group.state == "up"
        while world.status and world.status.group.error:
            server.accept()[0].close()


def test_the_list_of_nodes_is_asked_for_again_when_it_stops(world: World) -> None:
    world.start()
    eventually(lambda: world.status and world.status.group.nodes, "nodes")
    table = world.fake / "nodes.json"
    table.rename(world.fake / "hidden")
    eventually(lambda: world.status and not world.status.group.nodes, "the nodes are unknown")
    (world.fake / "hidden").rename(table)
    eventually(lambda: world.status and world.status.group.nodes, "nodes again")
    assert len(starts(world)) == 1


def test_the_logs_of_old_sessions_go(world: World) -> None:
    folder = world.folder / "tmp"
    for day in (1, 2, 3):
        (folder / f"session_2026-01-0{day}_00-00-00_1_1" / "logs").mkdir(parents=True)
    (folder / "something_else").mkdir()
    world.start("head", f"--temp-dir={folder}")
    world.ray("up")
    assert sorted(path.name for path in folder.iterdir()) == ["session_2026-01-03_00-00-00_1_1", "something_else"]


def test_a_killed_node_starts_again(world: World) -> None:
    world.start()
    world.ray("up")
    assert world.node
    os.kill(world.node.pid, signal.SIGKILL)
    world.node.wait()
    # What Docker does with a container, for a program that ended with its init.
    for pid in world.strays("ray"):
        os.kill(pid, signal.SIGKILL)
    (world.state / "status.json").unlink()
    world.start()
    world.ray("up")


@pytest.mark.parametrize(
    ("code", "words"),
    [(1, ""), (139, " (SIGSEGV)"), (-9, " (SIGKILL)"), (128, ""), (255, "")],
)
def test_an_exit_code_names_its_signal(code: int, words: str) -> None:
    assert supervisor.signal_words(code) == words
