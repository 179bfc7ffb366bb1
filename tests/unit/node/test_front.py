"""The front before replicas: what passes, what is repeated, what ends, and what clients get while nothing is ready."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fronted import KEY, Fronted, Replica, fronted, read_answer, request
from tests.support.waiting import until
from vllm_cluster.wire.keys import KeyFile

COMPLETIONS = "/v1/completions"


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Fronted]:
    with fronted(tmp_path, "a", "b") as made:
        yield made


def soon(condition: Any) -> None:
    until(condition, 10, every=0.02)


def stream(made: Fronted, **body: Any) -> socket.socket:
    """An open stream, of which the first token has come."""
    connection = made.connect()
    connection.sendall(request("POST", COMPLETIONS, {"model": "m", "stream": True, "max_tokens": 100_000, **body}))
    data = b""
    while b"data: {" not in data:
        data += connection.recv(1 << 16)
    return connection


def serving(made: Fronted) -> str:
    """The replica that has streams."""
    soon(lambda: any(one.seen()["streams"] for one in made.replicas.values()))
    return next(name for name, one in made.replicas.items() if one.seen()["streams"])


def whole(connection: socket.socket) -> bytes:
    """All that comes until the other side ends it."""
    data = b""
    try:
        while piece := connection.recv(1 << 16):
            data += piece
    except ConnectionError:
        pass
    return data


def test_an_answer_comes_as_it_is(front: Fronted) -> None:
    answer = front.ask("POST", COMPLETIONS, {"model": "m", "prompt": "p", "whole": 3})
    assert (answer.status, json.loads(answer.body)["choices"]) == (200, [{"text": "xxx"}])
    streamed = front.ask("POST", COMPLETIONS, {"model": "m", "stream": True, "max_tokens": 7})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.body.count(b"data: {") == 7
    assert streamed.body.endswith(b"data: [DONE]\n\n")


def test_a_token_is_there_before_the_next(tmp_path: Path) -> None:
    """The server is slow: what it has sent must come without what it has not."""
    with fronted(tmp_path) as made:
        made.replica("a", pace=0.05)
        made.write({"m": ["a"]})
        soon(lambda: made.ask("GET", "/health").status == 200)
        began = time.monotonic()
        stream(made).close()
        assert time.monotonic() - began < 5


# fault: serving/node/front.py: handler_cancellation=True → handler_cancellation=False
def test_a_client_that_goes_ends_its_request_at_the_replica(front: Fronted) -> None:
    connection = stream(front)
    name = serving(front)
    connection.close()
    soon(lambda: front.replicas[name].seen()["cancelled"] == 1)
    waiting = front.connect()
    waiting.sendall(request("POST", COMPLETIONS, {"model": "m", "hang": True}))
    name = serving(front)
    waiting.close()
    soon(lambda: not front.replicas[name].seen()["streams"])


# fault: serving/node/front_proxy.py: request.transport.close() → pass
def test_an_answer_that_breaks_off_gets_no_end(front: Fronted) -> None:
    with front.connect() as connection:
        connection.sendall(request("POST", COMPLETIONS, {"stream": True, "max_tokens": 50, "abort_after": 3}))
        got = whole(connection)
    assert got.count(b"data: {") == 4
    assert b"[DONE]" not in got
    assert not got.endswith(b"0\r\n\r\n")
    soon(lambda: front.status().by_status.get("broken") == 1)


def test_a_replica_that_ends_without_an_answer_is_tried_once_on_another(front: Fronted) -> None:
    """Both end it: one request reaches each, and no more."""
    answer = front.ask("POST", COMPLETIONS, {"model": "m", "reset": True})
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "replica_lost", "1")
    assert [one.seen()["requests"] for one in front.replicas.values()] == [1, 1]


# fault: serving/node/front_proxy.py: and not await self._lives(replica): → and False:
# fault: serving/node/front_proxy.py: return reply.status != HTTPStatus.SERVICE_UNAVAILABLE → return True
def test_a_request_that_an_ended_engine_failed_is_asked_again(front: Fronted) -> None:
    """vLLM's API answers 500 for what was open when a rank was killed, and is unhealthy from then on."""
    front.replicas["a"].make("die")
    answers = [front.ask("POST", COMPLETIONS, {"model": "m"}).status for _ in range(8)]
    assert answers == [200] * 8
    front.replicas["b"].make("die")
    answer = front.ask("POST", COMPLETIONS, {"model": "m"})
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "replica_lost", "1")


# fault: serving/node/front_proxy.py: and not await self._lives(replica): → and True:
def test_an_error_of_an_engine_that_lives_is_handed_on(front: Fronted) -> None:
    assert front.ask("POST", COMPLETIONS, {"model": "m", "status": 500}).status == 500
    assert sum(one.seen()["requests"] for one in front.replicas.values()) == 1


# fault: serving/node/front_proxy.py: return True → return False
def test_a_health_that_comes_late_shows_no_end(front: Fronted) -> None:
    for replica in front.replicas.values():
        replica.make("late")
    assert front.ask("POST", COMPLETIONS, {"model": "m", "status": 500}).status == 500


def test_what_may_not_be_repeated_is_not(front: Fronted) -> None:
    front.replicas["a"].process.kill()
    front.replicas["b"].process.kill()
    front.replicas["a"].process.wait()
    front.replicas["b"].process.wait()
    assert front.ask("DELETE", "/v1/responses/1").status == 503
    soon(lambda: sum(one.failed for one in front.status().replicas.values()) == 1)


# fault: serving/node/front_proxy.py: return request.method in REPEATABLE and (others or ended) → return False
def test_no_request_fails_when_a_replica_is_killed(front: Fronted) -> None:
    for _ in range(6):
        assert front.ask("POST", COMPLETIONS, {"model": "m"}).status == 200
    front.replicas["a"].process.kill()
    front.replicas["a"].process.wait()
    assert [front.ask("POST", COMPLETIONS, {"model": "m", "prompt": str(n)}).status for n in range(40)] == [200] * 40


# fault: serving/node/front_proxy.py: begun = await reply.content.readany() → begun = b""
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_a_request_that_waits_at_a_replica_that_is_killed_is_asked_again(front: Fronted, streamed: bool) -> None:
    """Until its first byte: what no replica has begun to answer gets 503."""
    waiting = front.connect()
    waiting.sendall(request("POST", COMPLETIONS, {"model": "m", "hang": True, "stream": streamed, "prompt": "p"}))
    name = serving(front)
    front.replicas[name].process.kill()
    soon(lambda: other(front, name).seen()["streams"] == 1)
    other(front, name).process.kill()
    answer = read_answer(waiting)
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "replica_lost", "1")


def test_a_replica_that_drains_gets_no_new_request_and_ends_the_old(front: Fronted) -> None:
    connection = stream(front, max_tokens=150)
    name = serving(front)
    before = front.replicas[name].seen()["requests"]
    front.set_state(name, "draining")
    front.write({"m": ["a", "b"]})
    soon(lambda: moved(front, name))
    for number in range(8):
        assert front.ask("POST", COMPLETIONS, {"model": "m", "prompt": str(number)}).status == 200
    soon(lambda: name in front.status().replicas and front.status().replicas[name].open == 1)
    assert whole_stream(connection).endswith(b"0\r\n\r\n")
    soon(lambda: front.status().replicas[name].open == 0)
    assert front.replicas[name].seen()["requests"] == before


def whole_stream(connection: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"0\r\n\r\n"):
        piece = connection.recv(1 << 16)
        assert piece
        data += piece
    return data


def moved(made: Fronted, name: str) -> bool:
    """Whether a replica gets none of some requests, of which each path has its own."""
    before = made.replicas[name].seen()["got"]
    assert {made.ask("GET", f"/{number}").status for number in range(12)} == {200}
    return bool(made.replicas[name].seen()["got"] == before)


def other(made: Fronted, name: str) -> Replica:
    """The replica that is not this one."""
    return next(one for known, one in made.replicas.items() if known != name)


# fault: serving/node/front.py: exchange.lose() → pass
def test_streams_of_a_replica_that_is_lost_end_at_once(front: Fronted) -> None:
    connection = stream(front)
    name = serving(front)
    front.replicas[name].process.send_signal(signal.SIGSTOP)
    front.set_state(name, "lost")
    front.write({"m": ["a", "b"]})
    assert not whole(connection).endswith(b"0\r\n\r\n")
    assert front.ask("POST", COMPLETIONS, {"model": "m"}).status == 200


def test_requests_are_spread_and_counted(front: Fronted) -> None:
    streams = [stream(front, prompt=str(number)) for number in range(24)]
    soon(lambda: front.status().open == 24)
    status = front.status()
    assert sum(one.open for one in status.replicas.values()) == 24
    assert min(one.open for one in status.replicas.values()) >= 4
    for one in streams:
        one.close()
    soon(lambda: front.status().open == 0)
    assert {name: one.open for name, one in front.status().replicas.items()} == {"a": 0, "b": 0}


def test_a_prompt_meets_the_replica_that_has_read_it(front: Fronted) -> None:
    for number in range(10):
        for _ in range(3):
            front.ask("POST", COMPLETIONS, {"model": "m", "prompt": f"prompt {number}"})
        counts = [one.seen()["requests"] for one in front.replicas.values()]
        assert [count % 3 for count in counts] == [0, 0]
    assert min(counts) > 0


def test_connections_are_kept_on_both_sides(front: Fronted) -> None:
    with front.connect() as connection:
        for _ in range(20):
            connection.sendall(request("GET", "/version"))
            assert read_answer(connection).status == 200
    opened = {name: one.seen()["connections"] for name, one in front.replicas.items()}
    # Each look at what was seen is a connection, too.
    assert sum(opened.values()) <= 3


def test_two_models_have_each_their_replicas(tmp_path: Path) -> None:
    with fronted(tmp_path) as made:
        made.replica("a", "m")
        made.replica("b", "org/n", "adapter")
        made.write({"m": ["a"], "org/n": ["b"]})
        soon(lambda: made.ask("GET", "/health").status == 200)
        rows = json.loads(made.ask("GET", "/v1/models").body)
        assert rows["object"] == "list"
        assert [row["id"] for row in rows["data"]] == ["m", "org/n", "adapter"]
        for model, name in (("m", "m"), ("org/n", "org/n"), ("adapter", "org/n")):
            assert json.loads(made.ask("POST", COMPLETIONS, {"model": model}).body)["name"] == name
        assert json.loads(made.ask("POST", COMPLETIONS, {}).body)["name"] == "m"
        refused = made.ask("POST", COMPLETIONS, {"model": "x"})
        assert (refused.status, refused.code) == (404, "model_not_found")
        assert "served: `m`, `org/n`, `adapter`" in json.loads(refused.body)["error"]["message"]


def test_an_adapter_that_is_new_is_found(tmp_path: Path) -> None:
    with fronted(tmp_path) as made:
        made.replica("a", "m", "adapter")
        made.write({"m": ["a"]})
        soon(lambda: made.ask("GET", "/health").status == 200)
        assert made.ask("POST", COMPLETIONS, {"model": "adapter"}).status == 200


def test_clients_learn_the_phase_while_nothing_is_ready(tmp_path: Path) -> None:
    with fronted(tmp_path, "a") as made:
        made.write({})
        soon(lambda: made.ask("GET", "/health", key=None).status == 503)
        assert made.ask("GET", "/v1/models").code == "no_model"
        made.set_state("a", "waiting")
        made.write({"m": ["a"]}, "loading 3/12", 7)
        soon(lambda: made.ask("GET", "/v1/models").code == "model_not_ready")
        strange = made.ask("GET", "/health", key=None)
        assert (strange.status, strange.code, strange.headers["retry-after"]) == (503, "not_ready", "7")
        assert "loading" not in strange.body.decode()
        for method, path, body in (("GET", "/v1/models", None), ("POST", COMPLETIONS, {"model": "m"})):
            answer = made.ask(method, path, body)
            assert (answer.status, answer.headers["retry-after"]) == (503, "7")
            assert "`m` is not ready: loading 3/12; try again in 7 s" in json.loads(answer.body)["error"]["message"]
        assert made.ask("GET", "/v1/models", key=None).status == 401
        made.set_state("a", "ready")
        made.write({"m": ["a"]})
        soon(lambda: made.ask("POST", COMPLETIONS, {"model": "m"}).status == 200)


# fault: serving/node/front.py: or str(error) → or self.table.replace(FrontRoutes(1))
def test_a_broken_file_leaves_the_last_good_routes(front: Fronted) -> None:
    assert front.ask("GET", "/version").status == 200
    for text in ("", "{", '{"v": 2, "deployments": []}', '{"v": 1, "deployments": [{"name": 5}]}'):
        front.put(text)
        soon(lambda: front.status().error)
        assert front.ask("POST", COMPLETIONS, {"model": "m"}).status == 200
    front.routes.unlink()
    soon(lambda: "No such file" in front.status().error)
    front.write({"m": ["a"]})
    soon(lambda: not front.status().error)
    assert front.ask("POST", COMPLETIONS, {"model": "m"}).status == 200


def test_a_new_key_is_valid_at_once_and_the_old_one_for_its_grace(front: Fronted) -> None:
    def allowed(key: str) -> bool:
        return front.ask("GET", "/version", key=key).status == 200

    front.key_file.write_text(KeyFile("sk-new-key", "id", {KEY: time.time() + 60}).text())
    assert (allowed("sk-new-key"), allowed(KEY)) == (True, True)
    front.key_file.write_text(KeyFile("sk-new-key", "id", {KEY: time.time() - 1}).text())
    assert (allowed("sk-new-key"), allowed(KEY)) == (True, False)
    front.key_file.write_text("")  # Docker writes in place: it is being written
    assert (allowed("sk-new-key"), allowed("")) == (True, False)


def test_without_a_key_of_its_own_every_request_is_refused(tmp_path: Path) -> None:
    made = Fronted(tmp_path)
    made.key_file.unlink()
    try:
        made.replica("a")
        made.write({"m": ["a"]})
        made.start()
        answer = made.ask("GET", "/v1/models")
        assert (answer.status, answer.code) == (503, "no_api_key")
        assert made.ask("GET", "/health").status == 200
    finally:
        made.close()


def test_a_client_is_not_blamed_for_a_replica_that_refuses_the_key(front: Fronted) -> None:
    (front.folder / "replica-key").write_text("other")
    answer = front.ask("POST", COMPLETIONS, {"model": "m"})
    assert (answer.status, answer.code) == (502, "replica_key")
    (front.folder / "replica-key").write_text("replica-key")
    assert front.ask("POST", COMPLETIONS, {"model": "m"}).status == 200


# fault: serving/node/front_proxy.py: if not HTTPStatus.OK <= reply.status < MAX_STATUS: → if False:
@pytest.mark.parametrize("status", [101, 600, 999])
def test_no_client_gets_a_status_that_is_none(front: Fronted, status: int) -> None:
    """With 101 a client would take what follows for another protocol."""
    got = front.ask("POST", "/v1/completions", {"model": "m", "status": status})
    assert (got.status, got.code) == (502, "replica_status")
    assert front.ask("POST", "/v1/completions", {"model": "m", "status": 418}).status == 418


def test_a_slow_client_holds_its_own_stream_alone(tmp_path: Path) -> None:
    """What it does not read stays with the replica, and not in the front's memory."""
    with fronted(tmp_path, "a") as made:
        assert made.process
        slow = made.connect()
        slow.sendall(request("POST", COMPLETIONS, {"model": "m", "whole": 200 << 20}))
        assert slow.recv(100)
        assert made.ask("POST", COMPLETIONS, {"model": "m"}).status == 200
        soon(lambda: made.ask("GET", "/version").status == 200)
        lines = Path(f"/proc/{made.process.pid}/status").read_text().splitlines()
        peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
        assert peak < 150 << 10
        slow.close()


def test_it_ends_with_what_is_open(front: Fronted) -> None:
    assert front.process
    connection = stream(front, max_tokens=30)
    idle = front.connect()
    idle.sendall(request("GET", "/version"))
    assert read_answer(idle).status == 200
    front.process.send_signal(signal.SIGTERM)
    assert idle.recv(1) == b""
    assert whole(connection).endswith(b"0\r\n\r\n")
    assert front.process.wait(10) == 0
    assert front.status().open == 0


def test_a_port_that_is_taken_is_reported(front: Fronted, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = Fronted(tmp_path_factory.mktemp("other"))
    other.port = front.port
    with pytest.raises(AssertionError, match="has ended"):
        other.start()
    assert other.process
    assert other.process.wait(10) == 1
    other.close()


def test_nothing_of_a_request_is_written(tmp_path: Path) -> None:
    canaries = ("sk-canary-key", "canary-prompt", "canary-path", "canary-header", "canary-model")
    with fronted(tmp_path, "a") as made:
        assert made.process and made.process.stdout
        for key in (KEY, canaries[0]):
            body = {"model": canaries[4], "prompt": canaries[1]}
            made.ask("POST", f"/{canaries[2]}", body, key=key, headers=f"X: {canaries[3]}\r\n")
            made.ask("POST", f"/{canaries[2]}", {"prompt": canaries[1], "reset": True}, key=key)
        made.send(f"GET /{canaries[2]} {canaries[0]}\r\n\r\n".encode())
        soon(lambda: made.status().requests >= 5)
        text = made.status_file.read_text()
        made.process.send_signal(signal.SIGTERM)
        text += made.process.communicate(timeout=10)[0]
    assert [canary for canary in (*canaries, KEY) if canary in text] == []


def test_it_starts_without_uvloop(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "uvloop.py").write_text("raise ImportError\n")
    made = Fronted(tmp_path)
    made.path = [str(blocked)]
    try:
        made.replica("a")
        made.write({"m": ["a"]})
        made.start()
        assert made.ask("POST", COMPLETIONS, {"stream": True, "max_tokens": 3}).body.count(b"data: {") == 3
        stream(made).close()
        soon(lambda: made.replicas["a"].seen()["cancelled"] == 1)
    finally:
        made.close()
