"""The front as the head's program keeps it: its port is there while a model starts, is replaced or has failed."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.node.world import KEY, World, eventually
from tests.support.waiting import until

LOADING = {"lines": ["(APIServer pid=1) INFO Starting to load model org/model...\n"], "loading": True}


def ask(world: World, path: str = "/v1/completions", *, key: str = KEY, timeout: float = 60) -> tuple[int, Any, Any]:
    """The status, the document and the headers of an answer at the port that people know."""
    body = None if path == "/health" else json.dumps({"model": "model", "prompt": "p"}).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{world.port}{path}", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["error"], error.headers


def answers(world: World) -> bool:
    """Whether anything answers there."""
    try:
        ask(world)
    except (OSError, urllib.error.URLError):
        return False
    return True


def front_pid(world: World) -> int:
    """The process of the front that has written its status; 0 where a new one has not yet."""
    path = world.state / "front-status.json"
    return int(json.loads(path.read_text())["pid"]) if path.exists() else 0


# fault: serving/node/replica_controller.py: return "ready" if leads and leads.phase == "ready" else "waiting" → return "ready"
def test_clients_get_503_until_the_model_has_answered(world: World) -> None:
    world.plan(LOADING)
    world.start()
    world.want("one")
    world.phase("loading")
    until(lambda: answers(world) and "loading" in ask(world)[1]["message"], 10, every=0.05)
    status, error, headers = ask(world)
    assert (status, error["code"]) == (503, "model_not_ready")
    assert error["message"].startswith("the model `model` is not ready: loading; try again in ")
    assert 5 <= int(headers["Retry-After"]) <= 60
    assert (ask(world, key="wrong")[0], ask(world, "/health")[0]) == (401, 503)
    (world.fake / "loaded").touch()
    world.phase("ready")
    # At once: who has read that it is ready must not meet a front that does not know.
    assert [ask(world)[0], ask(world, "/health")[0]] == [200, 200]
    assert "--host=127.0.0.1" in world.attempts[0]["argv"]


# fault: serving/node/front_keeper.py: self.child = self._at = None → pass
def test_a_front_that_dies_is_back_within_2_s(world: World) -> None:
    world.start_ready()
    before = front_pid(world)
    began = time.monotonic()
    os.kill(before, signal.SIGKILL)
    eventually(
        lambda: front_pid(world) not in (0, before) and answers(world) and ask(world)[0] == 200, "the front again"
    )
    assert time.monotonic() - began < 2.0
    assert len(world.attempts) == 1


# fault: serving/node/replica_controller.py: if leads.phase == "ready" and self._front.taken: → if False:
def test_a_model_whose_port_another_program_took_is_not_ready(world: World) -> None:
    """Who reads that it is ready shows the key there."""
    world.start_ready()
    os.kill(front_pid(world), signal.SIGKILL)

    def taken() -> socket.socket | None:
        with suppress(OSError):
            return socket.create_server(("127.0.0.1", world.port))
        return None

    with eventually(taken, "the port"):
        world.phase("waiting", detail=f"port {world.port} of 127.0.0.1 is taken by another program")
    world.phase("ready")
    until(lambda: answers(world), 10, every=0.05)
    assert len(world.attempts) == 1


def open_request(world: World) -> tuple[threading.Thread, list[Any]]:
    """A request that the engine has begun."""
    (world.fake / "hangs").touch()
    before, got = len(world.completions), list[Any]()
    thread = threading.Thread(target=lambda: got.append(ask(world)[0]))
    thread.start()
    eventually(lambda: len(world.completions) > before, "the request at the engine")
    return thread, got


# fault: serving/node/replicas.py: {*self._front.child.alive()} → {self._front.child.pid or 0}
def test_the_end_of_ray_leaves_each_process_of_the_front(world: World) -> None:
    """All that Ray has left is cleared; on a host with many cores the front has several processes."""
    many = "import os\nos.sched_getaffinity = lambda _: set(range(16))\n"
    (world.folder / "python" / "sitecustomize.py").write_text(many)
    world.start()
    world.want("one")
    world.phase("ready")
    before = front_pid(world)
    parts = Path(f"/proc/{before}/task/{before}/children").read_text().split()
    assert len(parts) == 2
    (world.fake / "ray.exit").touch()
    world.ray("up", restarts=1)
    assert front_pid(world) == before
    assert Path(f"/proc/{before}/task/{before}/children").read_text().split() == parts


# fault: serving/node/replica_controller.py: how="" → how="asked"
def test_what_is_open_ends_before_the_model_is_replaced(world: World) -> None:
    world.start_ready()
    thread, got = open_request(world)
    world.want("two")
    world.phase("stopping", detail="superseded by a new request; open requests end first: 1")
    assert ask(world)[0] == 503
    (world.fake / "hangs").unlink()
    thread.join(20)
    assert got == [200]
    eventually(lambda: len(world.attempts) == 2, "the next start")
    world.phase("ready")
    assert ask(world)[0] == 200


# fault: serving/node/replica_controller.py: or time.monotonic() >= start.drained_by → or False
def test_what_does_not_end_is_ended(world: World) -> None:
    world.pace["drain"] = 1.0
    world.start_ready()
    thread, got = open_request(world)
    world.want("two")
    eventually(lambda: len(world.attempts) == 2, "the next start")
    thread.join(20)
    assert got == [503]
    (world.fake / "hangs").unlink()


# fault: serving/node/kept_order.py: self._drain = order.drain → self._drain = None
@pytest.mark.parametrize("wanted", ["two", None], ids=["replaced", "stopped"])
def test_an_order_names_how_long_open_requests_may_take(world: World, wanted: str | None) -> None:
    world.pace["drain"] = 60.0
    world.start_ready()
    thread, got = open_request(world)
    world.want(wanted, {"drain": 1.0})
    world.phase("stopping", detail="superseded by a new request; open requests end first: 1")
    thread.join(20)
    assert got == [503]
    (world.fake / "hangs").unlink()


def test_a_stop_waits_for_what_is_open_where_it_is_asked_to(world: World) -> None:
    world.start_ready()
    thread, got = open_request(world)
    world.want(None, {"drain": 60.0})
    world.phase("stopping", detail="superseded by a new request; open requests end first: 1")
    (world.fake / "hangs").unlink()
    thread.join(20)
    assert got == [200]
    until(lambda: not answers(world), 10, every=0.05)


# fault: serving/node/kept_order.py: return usual if self._drain is None else self._drain → return self._drain or 0.0
def test_what_is_taken_away_without_a_stop_has_the_usual_time(world: World) -> None:
    """An order for fewer replicas, or for another model in its place, names no time for those that it leaves out."""
    world.pace["drain"] = 60.0
    world.start_ready()
    thread, got = open_request(world)
    world.want(None)
    world.phase("stopping", detail="superseded by a new request; open requests end first: 1")
    (world.fake / "hangs").unlink()
    thread.join(20)
    assert got == [200]


# fault: serving/node/kept_order.py: usual if self._drain is None else → usual if not self._drain else
def test_a_stop_without_a_time_ends_what_is_open_at_once(world: World) -> None:
    world.pace["drain"] = 60.0
    world.start_ready()
    thread, got = open_request(world)
    world.want(None, {"drain": 0.0})
    thread.join(20)
    assert got == [503]
    (world.fake / "hangs").unlink()


def test_with_nothing_wanted_the_port_is_free(world: World) -> None:
    world.start_ready()
    world.want(None)
    until(lambda: not answers(world), 10, every=0.05)


def test_clients_learn_that_it_has_failed(world: World) -> None:
    world.plan({"exit": 3})
    world.start()
    world.want("one")
    world.phase("failed")
    until(lambda: answers(world), 10, every=0.05)
    until(lambda: "not ready: failed" in ask(world)[1]["message"], 10, every=0.05)


# fault: serving/node/replica_controller.py: self._front.ended or →
def test_a_front_that_does_not_start_is_named(world: World, tmp_path: Path) -> None:
    """An image whose HTTP library is broken: the model must not wait without a reason."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "aiohttp.py").write_text("raise ImportError('it is broken')\n")
    path = f"{tmp_path / 'broken'}{os.pathsep}{world.folder / 'python'}"
    world.start(PYTHONPATH=path)
    world.want("one")
    world.phase("probing", detail="the front has ended with exit code 1: ImportError: it is broken")
