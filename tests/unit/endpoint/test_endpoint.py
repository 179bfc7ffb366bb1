"""The tunnel in the background: what it waits out, and what ends it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from tests.support.batch_api import KEY, Api, answer, serving
from tests.support.clock import Clock
from tests.support.sim import make
from vllm_cluster.kernel.errors import (
    AuthenticationFailed,
    CommandFailed,
    ConnectionLost,
    HostKeyRejected,
    NodeMissing,
    PortInUse,
    PreflightFailed,
    TimedOut,
    Unreachable,
    VclusterError,
)
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.hosts.runtime import Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.transport.forward import LoopbackForward, listener
from vllm_cluster.serving.api.client import Broken
from vllm_cluster.serving.endpoint import endpoint, tunnel
from vllm_cluster.serving.endpoint.detached import Detached, State
from vllm_cluster.serving.endpoint.endpoint import be_tunnel, state
from vllm_cluster.serving.endpoint.tunnel import RETRY_SECONDS

INVENTORY = make.inventory(1)


def runs() -> None:
    """The tunnel has not ended."""


AWAY = [
    ConnectionLost("gpu1", "tunnel: no keepalive"),
    Unreachable("gpu1", "no route"),
    TimedOut("gpu1", "no answer"),
    CommandFailed("gpu1", "Docker is away", exit_code=1, stderr=""),
    NodeMissing("cluster lab is not running on gpu1"),
]
FINAL = [
    HostKeyRejected("gpu1", "another key"),
    AuthenticationFailed("gpu1", "no key was accepted"),
    PreflightFailed("gpu1: a node of another cluster"),
]


class Tunnels:
    """Opens a passage each time that it is asked, or raises the next of these errors."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: VclusterError | None) -> None:
        self.errors, self.opened, self.clock = list(errors), 0, Clock()
        self.heads, self.now, self.answers, self.target = list[str](), INVENTORY, True, 1
        self.seen: Callable[[], None] = lambda: None
        self.held: Callable[[], None] = lambda: None
        self.closes: Callable[[], None] = lambda: None
        self.runtime = Runtime(self.clock, repeat=lambda *_: SimpleNamespace(stop=lambda: None))
        monkeypatch.setattr(tunnel, "passage_to", self.passage_to)

    @contextmanager
    def passage_to(self, inventory: Inventory, runtime: Runtime) -> Iterator[Any]:
        assert runtime == self.runtime
        self.heads.append(inventory.head_name)
        error = self.errors.pop(0) if len(self.errors) > 1 else self.errors[0]
        self.seen()
        if error:
            raise error
        try:
            yield SimpleNamespace(host=inventory.head_name, port=self.target, answers=self.answers, hold=self.hold)
        finally:
            self.closes()

    def hold(self, _emit: object, ended: Callable[[], bool] = lambda: False) -> None:
        self.held()
        if not ended():
            raise ConnectionLost("gpu1", "tunnel: no keepalive")

    def keep(self, folder: Path, port: int = 0) -> None:
        be_tunnel(lambda: self.now, folder, lambda _: None, port=port, runtime=self.runtime)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    state(INVENTORY, tmp_path).path.parent.mkdir(parents=True)
    return tmp_path


# fault: serving/endpoint/tunnel.py: except (HostError, NodeMissing) as error:  # → except HostError as error:  #
@pytest.mark.parametrize("away", AWAY, ids=lambda error: type(error).__name__)
def test_what_is_away_for_a_while_is_waited_for_at_the_same_port(
    away: VclusterError, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Tunnels(monkeypatch, None, away, away, None, FINAL[0])
    with pytest.raises(HostKeyRejected):
        made.keep(cache)
    assert len(made.heads) == 5
    assert not state(INVENTORY, cache).path.exists()


@pytest.mark.parametrize("final", FINAL, ids=lambda error: type(error).__name__)
def test_what_no_new_try_changes_ends_it(final: VclusterError, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Tunnels(monkeypatch, None, final)
    with pytest.raises(type(final)):
        made.keep(cache)
    assert len(made.heads) == 2


def test_what_stays_away_ends_it_after_an_hour(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Tunnels(monkeypatch, None, AWAY[-1])
    with pytest.raises(NodeMissing):
        made.keep(cache)
    assert RETRY_SECONDS <= made.clock.now < RETRY_SECONDS + 10


@pytest.mark.parametrize("away", AWAY, ids=lambda error: type(error).__name__)
def test_a_tunnel_that_never_opened_ends_at_once(
    away: VclusterError, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Tunnels(monkeypatch, away)
    with pytest.raises(type(away)):
        made.keep(cache)
    assert len(made.heads) == 1


# fault: serving/endpoint/tunnel.py:             inventory = latest() →             pass
def test_it_follows_the_head_that_the_inventory_names_now(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Tunnels(monkeypatch, None, None, FINAL[0])
    two = make.inventory(2)
    made.now = two

    def moves() -> None:
        made.now = two.model_copy(update={"head": "gpu2"})

    made.held = moves
    with pytest.raises(HostKeyRejected):
        made.keep(cache)
    assert made.heads == ["gpu1", "gpu2", "gpu2"]


def asked(port: int) -> tuple[int, str | None, str]:
    """What a client of the tunnel gets."""
    client = HTTPConnection("127.0.0.1", port, timeout=10)
    client.request("POST", "/v1/completions", "x" * 100_000)
    reply = client.getresponse()
    found = reply.status, reply.headers["Retry-After"], str(json.load(reply)["error"]["message"])
    client.close()
    return found


# fault: serving/endpoint/relay.py: if way is None or not way.answers: → if way is None:
def test_its_port_is_kept_and_answered_while_the_head_is_away(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = Tunnels(monkeypatch, None, AWAY[1], None, FINAL[0])
    made.answers = False
    answers = list[tuple[int, str | None, str]]()

    def ask() -> None:
        answers.append(asked(port))
        with pytest.raises(PortInUse):
            listener(port)

    made.seen = made.held = ask
    with pytest.raises(HostKeyRejected):
        made.keep(cache, port)
    away, silent = "the head cannot be reached", "no API answers at gpu1"
    assert answers == [(503, "5", why) for why in (away, silent, away, away, silent, away)]
    listener(port).close()


# fault: serving/endpoint/relay.py: self._way = None → pass
def test_it_leads_nowhere_once_the_way_closes(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The port of the way is free then: another program may take it, and would get the key."""
    made, answers = Tunnels(monkeypatch, None, FINAL[0]), list[int]()

    def ask() -> None:
        note = state(INVENTORY, cache).read()
        assert note is not None
        answers.append(asked(note.port)[0])

    made.closes = ask
    with pytest.raises(HostKeyRejected):
        made.keep(cache)
    assert answers == [503]


# fault: serving/endpoint/tunnel.py: if not broken: → if broken:
def test_a_tunnel_of_a_terminal_keeps_its_port_too_and_names_a_break_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made, events = Tunnels(monkeypatch, None, AWAY[1], AWAY[1], None, FINAL[0]), list[Event]()
    answers = list[int]()

    def ask() -> None:
        answers.extend(asked(int(str(event.data["port"])))[0] for event in events if event.kind == "result")

    made.answers, made.seen = False, ask
    with pytest.raises(HostKeyRejected):
        tunnel.tunnel(lambda: INVENTORY, events.append, port=0, runtime=made.runtime)
    assert answers == [503, 503, 503, 503]
    assert [event.kind for event in events] == ["result", "warning", "note", "warning"]
    assert "HTTP 503 until it is back" in events[1].text


def test_a_request_goes_through_to_the_head(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, found = Tunnels(monkeypatch, None, FINAL[0]), list[bytes]()
    with socket.create_server(("127.0.0.1", 0)) as api:
        made.target = api.getsockname()[1]

        def asks() -> None:
            note = state(INVENTORY, cache).read()
            assert note is not None
            with socket.create_connection(("127.0.0.1", note.port), 10) as near:
                api.settimeout(10)
                with api.accept()[0] as far:
                    near.sendall(b"hello")
                    found.append(far.recv(5))

        made.held = asks
        with pytest.raises(HostKeyRejected):
            made.keep(cache)
    assert found == [b"hello"]


# fault: serving/endpoint/endpoint.py: good = status == HTTPStatus.OK and model in names → good = True
@pytest.mark.parametrize(
    ("model", "key", "why"),
    [("m", KEY, ""), ("n", KEY, "HTTP 200, models m"), ("m", "old", "HTTP 401")],
    ids=["answers", "another model", "another key"],
)
def test_a_tunnel_is_good_once_the_model_answers_through_it(model: str, key: str, why: str) -> None:
    clock = Clock()
    with serving(Api(answer)) as api:
        if not why:
            endpoint._ensure_answers(api.port, key, model, runs, Runtime(clock))
            return
        found = rf"the tunnel at 127\.0\.0\.1:\d+ does not lead to {model}: {why}"
        with pytest.raises(VclusterError, match=found) as caught:
            endpoint._ensure_answers(api.port, key, model, runs, Runtime(clock))
    assert caught.value.hint == "vcluster endpoint --close\nvcluster endpoint --detach"
    assert endpoint.ANSWER_SECONDS <= clock.now < endpoint.ANSWER_SECONDS + 5


# fault: serving/endpoint/endpoint.py: if status == HTTPStatus.OK else "" → if False else ""
def test_a_page_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "get", lambda *_: (200, {}))
    with pytest.raises(VclusterError, match="lead to m: HTTP 200 with no list of models that can be read"):
        endpoint._ensure_answers(1, KEY, "m", runs, Runtime(Clock()))


# fault: serving/endpoint/endpoint.py: key, left, ensure_runs) → key, ANSWER_SECONDS, ensure_runs)
@pytest.mark.parametrize("first", [0.0, 15.0, 28.0, 29.5])
def test_no_try_of_a_tunnel_outlives_the_limit_of_all(first: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that began just before the limit had all of the time again."""
    clock, took = Clock(), [first]

    def silent(_port: int, _path: str, _key: str, seconds: float, _connected: object) -> NoReturn:
        clock.now += took.pop() if took else seconds
        raise Broken("timed out")

    monkeypatch.setattr(endpoint, "get", silent)
    with pytest.raises(VclusterError, match="does not lead to m: timed out"):
        endpoint._ensure_answers(1, "k", "m", runs, Runtime(clock))
    assert clock.now == pytest.approx(endpoint.ANSWER_SECONDS)


# fault: serving/endpoint/endpoint.py: get(port, "/v1/models", key, left, ensure_runs) → get(port, "/v1/models", key, left)
# fault: serving/endpoint/endpoint.py: if found.running() != open_one: → if False:
# fault: serving/endpoint/endpoint.py: ensure_runs() → pass
# fault: serving/api/client.py: connected() → pass
@pytest.mark.parametrize("looks", [0, 1], ids=["before the key is sent", "before the port is shown"])
def test_a_port_whose_tunnel_has_ended_is_neither_asked_nor_shown(
    looks: int, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user of this machine listened at it, and got the key."""
    left = [True] * (1 + looks)
    monkeypatch.setattr(Detached, "runs", property(lambda _: bool(left and left.pop())))
    with serving(Api(answer)) as api:
        monkeypatch.setattr(State, "read", lambda _: Detached(1, "1", api.port))
        monkeypatch.setattr(endpoint, "at_head", lambda *_: nullcontext())
        monkeypatch.setattr(endpoint, "read_key", lambda *_: KEY)
        row = SimpleNamespace(name="m", host="127.0.0.1")
        monkeypatch.setattr(endpoint, "replicas_served", lambda *_: (row,))
        monkeypatch.setattr(endpoint, "first_ready", lambda _: row)
        with pytest.raises(PreflightFailed, match="no tunnel from this machine to lab is open in the background"):
            endpoint.find_endpoint(INVENTORY, cache, direct=False, detach=None, runtime=Runtime(Clock()))
    assert api.looked == looks


# fault: serving/endpoint/tunnel.py: closing() → pass
# fault: serving/endpoint/endpoint.py: opened=opened, closing=ended, → opened=opened,
def test_a_tunnel_is_noted_no_more_before_its_port_is_free(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, noted = Tunnels(monkeypatch, None, FINAL[0]), list[object]()
    close = LoopbackForward.close

    def closes(forward: LoopbackForward) -> None:
        noted.append(state(INVENTORY, cache).read())
        close(forward)

    monkeypatch.setattr(LoopbackForward, "close", closes)
    with pytest.raises(HostKeyRejected):
        made.keep(cache)
    assert noted == [None]
