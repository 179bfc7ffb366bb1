"""The tunnel in the background: what it waits out, and what ends it."""

from __future__ import annotations

import json
import socket
import subprocess
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
    OpenSshNeeded,
    PortInUse,
    PreflightFailed,
    TimedOut,
    Unreachable,
    VclusterError,
)
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.hosts.connection import machine_of
from vllm_cluster.kernel.hosts.runtime import Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.transport.forward import LoopbackForward, listener
from vllm_cluster.serving.api.client import Broken
from vllm_cluster.serving.endpoint import endpoint, tunnel
from vllm_cluster.serving.endpoint.detached import Detached, State
from vllm_cluster.serving.endpoint.endpoint import be_tunnel, state
from vllm_cluster.serving.endpoint.tunnel import LOCATE_SECONDS, RETRY_SECONDS
from vllm_cluster.serving.head import key_id

INVENTORY = make.inventory(1)


class Ssh:
    """The ssh of this machine, whose configuration sends a name to another machine once it is in `lines`."""

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}
        self.asked = 0

    def __call__(self, argv: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        assert argv[:2] == ["ssh", "-G"]
        self.asked += 1
        port, jump = ((argv[argv.index(flag) + 1] if flag in argv else "") for flag in ("-p", "-J"))
        own = self.lines.get(argv[-1], f"hostname {argv[-1]}")
        text = f"{own}\nuser me\nport {port or 22}\nproxyjump {jump or 'none'}\n"
        return subprocess.CompletedProcess(argv, 0, text.encode(), b"")


OWN, OTHER = (key_id(INVENTORY, key, Runtime()) for key in (KEY, "of another cluster"))


def machine(inventory: Inventory, runtime: Runtime) -> str:
    """Which machine the head is."""
    return machine_of(inventory, inventory.hosts[inventory.head_name], runtime)


def runs() -> None:
    """The tunnel has not ended."""


AWAY = [
    ConnectionLost("gpu1", "tunnel: no keepalive"),
    Unreachable("gpu1", "no route"),
    TimedOut("gpu1", "no answer"),
    CommandFailed("gpu1", "Docker is away", exit_code=1, stderr=""),
    # The inventory has another head already, and no `up` has moved it there yet.
    PreflightFailed("gpu1: the node there is a worker of the head at 10.0.0.2 (gpu2)"),
    NodeMissing("cluster lab is not running on gpu1"),
]
FINAL = [
    HostKeyRejected("gpu1", "another key"),
    AuthenticationFailed("gpu1", "no key was accepted"),
    OpenSshNeeded("gpu1", "another transport"),
]


class Tunnels:
    """Opens a passage each time that it is asked, or raises the next of these errors."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: VclusterError | None) -> None:
        self.errors, self.opened, self.clock = list(errors), 0, Clock()
        self.heads, self.now, self.answers, self.target = list[str](), INVENTORY, True, 1
        self.seen: Callable[[], None] = lambda: None
        self.held: Callable[[], None] = lambda: None
        self.closes: Callable[[], None] = lambda: None
        self.key_of: Callable[[str], str] = lambda at: f"the key of {at}"
        self.ssh = Ssh()
        self.runtime = Runtime(self.clock, repeat=lambda *_: SimpleNamespace(stop=lambda: None), processes=self.ssh)
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
            at = machine(inventory, runtime)
            way = {"machine": at, "key_id": self.key_of(at), "port": self.target, "hold": self.hold}
            yield SimpleNamespace(host=inventory.head_name, answers=self.answers, **way)
        finally:
            self.closes()

    def hold(self, _emit: object, ended: Callable[[], bool], renewed: Callable[[str], None]) -> None:
        self.held()
        self.renewed = renewed
        if not ended():
            raise ConnectionLost("gpu1", "tunnel: no keepalive")

    def keep(self, folder: Path, port: int = 0) -> None:
        be_tunnel(lambda _: self.now, folder, lambda _: None, port=port, runtime=self.runtime)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    state(INVENTORY, tmp_path).path.parent.mkdir(parents=True)
    return tmp_path


# fault: serving/endpoint/tunnel.py: except (HostError, PreflightFailed) as error:  # → except HostError as error:  #
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


# fault: serving/endpoint/tunnel.py:             inventory = _of_cluster(latest(LOCATE_SECONDS if broken else SOURCE_SECONDS), inventory.cluster) →             pass
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
        tunnel.tunnel(lambda _: INVENTORY, events.append, port=0, runtime=made.runtime)
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


# fault: serving/endpoint/endpoint.py: key, left, ensure_leads) → key, ANSWER_SECONDS, ensure_leads)
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


def serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head that the inventory names is up on this machine, and its model ready."""
    monkeypatch.setattr(endpoint, "at_head", lambda *_: nullcontext())
    monkeypatch.setattr(endpoint, "read_key", lambda *_: KEY)
    row = SimpleNamespace(name="m", host="127.0.0.1")
    monkeypatch.setattr(endpoint, "replicas_served", lambda *_: (row,))
    monkeypatch.setattr(endpoint, "first_ready", lambda _: row)


# fault: serving/endpoint/endpoint.py: get(port, "/v1/models", key, left, ensure_leads) → get(port, "/v1/models", key, left)
# fault: serving/endpoint/endpoint.py: if now is None or (now.pid, now.port) != (open_one.pid, open_one.port): → if False:
# fault: serving/endpoint/endpoint.py:     refuse_other() →     pass
# fault: serving/api/client.py: connected() → pass
@pytest.mark.parametrize("looks", [0, 1], ids=["before the key is sent", "before the port is shown"])
def test_a_port_whose_tunnel_has_ended_is_neither_asked_nor_shown(
    looks: int, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user of this machine listened at it, and got the key."""
    left = [True] * (2 + looks)  # it is there, and before the connection
    monkeypatch.setattr(Detached, "runs", property(lambda _: bool(left and left.pop())))
    with serving(Api(answer)) as api:
        monkeypatch.setattr(State, "read", lambda _: Detached(1, "1", api.port, OWN))
        serves(monkeypatch)
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


WAYS = [
    ("", make.inventory(2, head="gpu2")),
    ("", make.inventory(1, {"gpu1": {"ssh": {"host": "gpu1", "port": 2222}}})),
    ("", make.inventory(1, {"gpu1": {"ssh": {"host": "gpu1", "jump": "bastion"}}})),
    ("hostname 10.9.9.9", INVENTORY),
    ("hostname gpu1\nport 2222", INVENTORY),
    ("hostname gpu1\nuser other", INVENTORY),
    ("hostname gpu1\nproxyjump bastion", INVENTORY),
    ("hostname gpu1\nproxycommand nc %h 22", INVENTORY),
    ("hostname gpu1\nhostkeyalias other", INVENTORY),
]


# fault: kernel/transport/ssh_config.py: way.append((at.where, at.host_key_alias or "", → way.append((at.destination, at.host_key_alias or "",
# fault: kernel/transport/ssh_config.py: way.append((at.where, at.host_key_alias or "", → way.append((at.where, "",
# fault: kernel/transport/ssh_config.py: if at.jump is None: → if True:
# fault: serving/endpoint/tunnel.py: return found not in ("", machine) → return False
@pytest.mark.parametrize(("line", "now"), WAYS)
def test_a_tunnel_follows_to_where_ssh_leads_and_notes_the_key_of_that_end(
    line: str, now: Inventory, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words for the head were noted: with another ssh_config they led to another machine."""
    made, notes = Tunnels(monkeypatch, None, None, FINAL[0]), list[str]()
    if line:
        made.ssh.lines["gpu1"] = "hostname gpu1"

    def turns(_emit: object, ended: Callable[[], bool], _renewed: object) -> None:
        note = state(INVENTORY, cache).read()
        assert note is not None
        notes.append(note.key_id)
        assert not ended()
        if len(notes) == 2:
            raise ConnectionLost("gpu1", "it is over")
        made.now = now
        made.ssh.lines |= {"gpu1": line} if line else {}
        made.clock.now += LOCATE_SECONDS / 2
        for _ in range(20):
            if ended():
                return
            made.clock.now += 2
        raise AssertionError("it was not left")

    monkeypatch.setattr(made, "hold", turns)
    with pytest.raises(HostKeyRejected):
        made.keep(cache)
    assert notes == [made.key_of(machine(INVENTORY, Runtime(processes=Ssh()))), made.key_of(machine(now, made.runtime))]
    assert len(set(notes)) == 2


# fault: serving/endpoint/tunnel.py: if fresh.left(): → if False:
def test_a_tunnel_asks_ssh_now_and_then_alone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = Tunnels(monkeypatch, None, FINAL[0]), list[int]()

    def rests(_emit: object, ended: Callable[[], bool], _renewed: object) -> None:
        before = made.ssh.asked
        for _ in range(60):
            assert not ended()
            made.clock.now += 2
        asked.append(made.ssh.asked - before)
        raise ConnectionLost("gpu1", "it is over")

    monkeypatch.setattr(made, "hold", rests)
    with pytest.raises(HostKeyRejected):
        made.keep(cache)
    assert asked == [3]


# fault: serving/endpoint/endpoint.py: if now and now.key_id != wanted: → if False:
def test_a_key_goes_to_an_end_that_has_it_alone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name in DNS, or an alias that a ProxyCommand gets, led elsewhere: the machine before still answers."""
    clock = Clock()
    monkeypatch.setattr(Detached, "runs", True)
    serves(monkeypatch)
    with serving(Api(answer)) as api:
        before, after = (Detached(1, "1", api.port, one) for one in (OTHER, OWN))
        monkeypatch.setattr(State, "read", lambda _: before)
        with pytest.raises(VclusterError, match="does not lead to m: its end has another API key"):
            endpoint.find_endpoint(INVENTORY, cache, direct=False, detach=None, runtime=Runtime(clock))
        assert api.looked == 0
        assert endpoint.ANSWER_SECONDS - 2 < clock.now < endpoint.ANSWER_SECONDS + 2
        serves(monkeypatch)
        monkeypatch.setattr(State, "read", lambda _: after if clock.now > 60 else before)
        assert endpoint.find_endpoint(INVENTORY, cache, direct=False, detach=None, runtime=Runtime(clock)).model == "m"


# fault: serving/endpoint/endpoint.py: if now and not now.key_id: → if False:
def test_a_tunnel_of_an_earlier_version_is_not_waited_for(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It never notes the key of its end: each verb took 45 seconds to refuse it."""
    clock = Clock()
    monkeypatch.setattr(Detached, "runs", True)
    monkeypatch.setattr(State, "read", lambda _: Detached(1, "1", 1))
    serves(monkeypatch)
    for asks in (
        lambda: endpoint.key(INVENTORY, cache, runtime=Runtime(clock)),
        lambda: endpoint.find_endpoint(INVENTORY, cache, direct=False, detach=None, runtime=Runtime(clock)),
    ):
        with pytest.raises(VclusterError, match="was opened by an earlier version") as refused:
            asks()
        assert (refused.value.hint, clock.now) == (endpoint.AGAIN, 0.0)


# fault: serving/endpoint/endpoint.py: port_for(inventory, cache, found, runtime=runtime) → pass
# fault: serving/endpoint/endpoint.py: if now and now.key_id != wanted: → if False:
def test_a_key_is_not_printed_beside_a_tunnel_to_another_end(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients have the port of the tunnel, and would get the key of another cluster with it."""
    clock, followed = Clock(), False
    monkeypatch.setattr(Detached, "runs", True)
    serves(monkeypatch)
    monkeypatch.setattr(State, "read", lambda _: Detached(1, "1", 1, OWN if followed and clock.now > 40 else OTHER))
    with pytest.raises(VclusterError, match="the tunnel in the background does not lead to lab: its end has another"):
        endpoint.key(INVENTORY, cache, runtime=Runtime(clock))
    assert endpoint.ANSWER_SECONDS - 2 < clock.now < endpoint.ANSWER_SECONDS + 2
    clock.now, followed = 0.0, True
    assert endpoint.key(INVENTORY, cache, runtime=Runtime(clock)) == KEY
    monkeypatch.setattr(State, "read", lambda _: None)
    assert endpoint.key(INVENTORY, cache, runtime=Runtime(clock)) == KEY


# fault: serving/endpoint/tunnel.py: passage.hold(emit, moved, lambda key_id: opened(relay.port, key_id)) → passage.hold(emit, moved, lambda key_id: None)
def test_a_key_that_is_rotated_under_an_open_tunnel_is_noted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, notes = Tunnels(monkeypatch, None, FINAL[0]), list[str]()

    def rotates(_emit: object, _ended: object, renewed: Callable[[str], None]) -> None:
        for _ in range(2):
            note = state(INVENTORY, cache).read()
            assert note is not None
            notes.append(note.key_id)
            renewed("of the new key")
        raise ConnectionLost("gpu1", "it is over")

    monkeypatch.setattr(made, "hold", rotates)
    with pytest.raises(HostKeyRejected):
        made.keep(cache)
    assert notes == [made.key_of(machine(INVENTORY, made.runtime)), "of the new key"]


# fault: serving/endpoint/endpoint.py: ensure_leads()  # what → pass  #
def test_a_connection_to_the_head_before_gets_no_key(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tunnel turned to the new head after it had taken the connection."""
    monkeypatch.setattr(Detached, "runs", True)
    serves(monkeypatch)
    asked, clock = list[int](), Clock()

    def get(port: int, _path: str, _key: str, _seconds: float, leads: Callable[[], None]) -> tuple[int, Any]:
        turned.append(True)
        leads()
        asked.append(port)
        return 200, {"data": [{"id": "m"}]}

    turned = list[bool]()
    monkeypatch.setattr(endpoint, "get", get)
    monkeypatch.setattr(State, "read", lambda _: Detached(1, "1", 1, OWN if turned else OTHER))
    with pytest.raises(VclusterError, match="another API key"):
        endpoint.find_endpoint(INVENTORY, cache, direct=False, detach=None, runtime=Runtime(clock))
    assert asked == []


# fault: serving/endpoint/tunnel.py: with passage_to(inventory, runtime) as passage: → with passage_to(inventory, runtime) as passage, relay.leading_to(passage):
def test_what_is_noted_is_where_the_port_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    made, found = Tunnels(monkeypatch, None, None, FINAL[0]), list[tuple[str, int]]()
    two = make.inventory(2)
    made.now = two

    def opened(port: int, key_id: str) -> None:
        found.append((key_id, asked(port)[0]))

    def moves() -> None:
        made.now = two.model_copy(update={"head": "gpu2"})

    made.held = moves
    with pytest.raises(HostKeyRejected):
        tunnel.tunnel(lambda _: made.now, lambda _: None, port=0, opened=opened, runtime=made.runtime)
    assert found == [(made.key_of(machine(now, made.runtime)), 503) for now in (two, made.now)]


# fault: serving/endpoint/tunnel.py: if inventory.cluster != cluster: → if False:
def test_a_tunnel_ends_once_its_file_is_another_clusters(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Tunnels(monkeypatch, None, None, FINAL[0])

    def renames() -> None:
        made.now = make.inventory(1, cluster="other")

    made.held = renames
    with pytest.raises(VclusterError, match="the inventory is of cluster other now, and was of lab"):
        made.keep(cache)
    assert not state(INVENTORY, cache).path.exists()


# fault: serving/endpoint/endpoint.py: debug_log.inventory_key(inventory.cluster, inventory.path)) → hosts_key(inventory))
# fault: kernel/debug_log.py: str(path.resolve()) if path else os.getpid() → ""
# fault: kernel/debug_log.py: words = [cluster, → words = [
def test_a_tunnel_is_found_by_its_cluster_and_file_whichever_hosts_there_are(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("one.yaml", "two.yaml")]
    (link := tmp_path / "link").symlink_to(paths[0])

    def noted(path: Path, hosts: int = 1, cluster: str = "lab") -> Path:
        return state(make.inventory(hosts, cluster=cluster).model_copy(update={"path": path}), tmp_path).path

    first = noted(paths[0])
    assert first == noted(paths[0], 2) == noted(link)
    assert len({first, noted(paths[1]), noted(paths[0], cluster="other")}) == 3
