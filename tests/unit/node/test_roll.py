"""The roll of the nodes: who is here, who is silent, who has gone, and who is not let in; over real connections."""

from __future__ import annotations

import itertools
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.support.node.world import eventually
from tests.support.ports import free_port
from vllm_cluster.serving.node import head_roll as module
from vllm_cluster.serving.node.attempt import connect_error
from vllm_cluster.serving.node.head_roll import HeadRoll, Me
from vllm_cluster.serving.node.members import HeadMembers
from vllm_cluster.serving.node.timing import Timing
from vllm_cluster.serving.node.worker_roll import WorkerRoll
from vllm_cluster.wire.parts import NodeBeat
from vllm_cluster.wire.reading import convert
from vllm_cluster.wire.roll import MAX_HELLO, Roll, Signed, hello_line, new_nonce
from vllm_cluster.wire.status import GroupTable

KEY, OTHER = "aa" * 32, "bb" * 32
PACE = Timing(roll_beat=0.1, roll_silent=0.5, roll_lost=1.0)
HEAD = Me("gpu1", "127.0.0.1", 8)
# However busy the machine is.
SOON = 20.0


class Nodes:
    """A head and its nodes."""

    def __init__(self, stack: ExitStack, state: Path) -> None:
        self._stack, self.place, self.state = stack, ("127.0.0.1", free_port()), state
        self.head = HeadRoll(self.place, KEY, HEAD, PACE, HeadMembers(state))
        eventually(lambda: connect_error(*self.place) is None, "its port")
        stack.callback(self.head.close)

    def worker(self, name: str, address: str, key: str = KEY) -> WorkerRoll:
        """A node that dials the head."""
        made = WorkerRoll(self.place, key, Me(name, address, 8), PACE)
        self._stack.callback(made.close)
        return made

    def dial(self, source: str = "127.0.0.1") -> Wire:
        """A connection that no node program holds."""
        connection = self._stack.enter_context(socket.create_connection(self.place, 5, (source, 0)))
        return Wire(connection)

    def plan(self, **addresses: str) -> None:
        """Write the members, as `up` does before it makes a node."""
        rows = [{"name": name, "address": at, "gpus": 8, "leaving": False} for name, at in addresses.items()]
        (self.state / "cluster.json").write_text(json.dumps({"members": rows}))

    @property
    def status(self) -> Roll:
        return convert(Roll, self.head.status(), "the head")

    def states(self) -> dict[str, str]:
        """The state of each node by its name."""
        return {node.host: node.state for node in self.status.nodes}

    def become(self, **states: str) -> None:
        """Wait until these, and the head, are all there is."""
        wanted = {"gpu1": "here", **states}
        eventually(lambda: self.states() == wanted, f"{wanted}, not {self.states()} {self.status.error}", 60.0)


class Wire:
    """What a node program would do, a step at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.file = connection, connection.makefile("rb")
        self.offer = json.loads(self.file.readline())["nonce"]
        self.nonce = new_nonce()
        self.signed = Signed(KEY, "worker", "head", (self.offer, self.nonce))

    def hello(self, name: str, address: str, key: str = KEY, offer: str = "", **more: object) -> None:
        row = {"host": name, "address": address, "gpus": 8, "nonce": self.nonce, **more}
        self.connection.sendall(hello_line(key, offer or self.offer, row))

    def beat(self, **parts: list[dict[str, str]]) -> None:
        self.connection.sendall(self.signed.line(parts))

    def ended(self) -> bool:
        """Whether the head has closed it, or does soon: its beats are passed over."""
        until = time.monotonic() + 5
        try:
            while (left := until - time.monotonic()) > 0:
                self.connection.settimeout(left)
                if not self.connection.recv(4096):
                    return True
        except TimeoutError:
            return False
        except OSError:
            return True
        return False


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with ExitStack() as stack:
        yield Nodes(stack, tmp_path)


def test_a_node_is_here_and_gone_as_soon_as_it_ends(nodes: Nodes) -> None:
    one, two = nodes.worker("gpu2", "10.0.0.2"), nodes.worker("gpu3", "10.0.0.3")
    nodes.become(gpu2="here", gpu3="here")
    eventually(lambda: one.status()["error"] == two.status()["error"] == "", "the head's beats")
    one.close()
    nodes.become(gpu2="gone", gpu3="here")
    nodes.worker("gpu2", "10.0.0.2")
    nodes.become(gpu2="here", gpu3="here")


# fault: serving/node/head_roll.py: if row is not self._own and row.state == "here" and → if False and
def test_a_node_without_beats_is_silent_and_back_only_after_several(nodes: Nodes) -> None:
    """A link that loses most packets must not flap."""
    wire = nodes.dial()
    wire.hello("gpu2", "10.0.0.2")
    nodes.become(gpu2="here")
    nodes.become(gpu2="silent")
    wire.beat()
    wire.beat()
    with pytest.raises(AssertionError):
        eventually(lambda: nodes.states()["gpu2"] == "here", "nothing", 0.15)
    for _ in range(3):
        wire.beat()
    nodes.become(gpu2="here")


# fault: serving/node/head_roll.py: row.beaten += late → row.beaten += 0
def test_a_head_that_was_stopped_holds_no_other_for_silent(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = nodes.dial()
    wire.hello("gpu2", "10.0.0.2")
    nodes.become(gpu2="here")
    clock, jump = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock() + jump[0])
    seen = set()
    jump[0] = 100.0
    for _ in range(10):
        with pytest.raises(AssertionError):
            eventually(lambda: seen.add(nodes.states()["gpu2"]), "nothing", 0.02)
    assert seen == {"here"}


# fault: wire/roll.py: gpus: Annotated[int, between(0, MAX_GPUS)] → gpus: Count
def test_no_node_has_more_gpus_than_the_heads_status_may_have(nodes: Nodes) -> None:
    """No command could read that status, `up` and `stop` among them."""
    wire = nodes.dial()
    wire.hello("gpu2", "10.0.0.2", gpus=1025)
    assert wire.ended()
    table = {"nodes": [asdict(node) for node in nodes.head.members()]}
    assert [node.gpus for node in convert(GroupTable, table, "the head").nodes] == [8]


# fault: serving/node/head_roll.py: and min(claims) >= claim: → and False:
def test_the_roll_has_an_end(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 4)
    for number in (2, 3, 4):
        nodes.dial().hello(f"gpu{number}", f"10.0.0.{number}")
    nodes.become(gpu2="here", gpu3="here", gpu4="here")
    nodes.dial().hello("gpu5", "10.0.0.5")
    eventually(lambda: "the list of nodes is full (4 nodes)" in nodes.status.error, "the refusal")
    assert "gpu5" not in nodes.states()


# fault: serving/node/head_roll.py: and min(claims) >= claim: → and True:
# fault: serving/node/head_roll.py: min(others, key=lambda → max(others, key=lambda
# fault: serving/node/members.py: return self.names.get(address) == host, source → return False, source
# fault: serving/node/members.py: source = OWN if _same(peer, address) else → source =
@pytest.mark.parametrize("planned", [True, False])
def test_a_host_that_was_taken_over_fills_no_place_of_another(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, *, planned: bool
) -> None:
    """It has the token, and gave more names than there are places: no node of the cluster could join any more."""
    monkeypatch.setattr(module, "MAX_ROWS", 4)
    if planned:
        nodes.plan(gpu1="127.0.0.1", gpu2="127.0.0.2", gpu5="10.0.0.5")
    nodes.dial("127.0.0.2").hello("gpu2", "127.0.0.2")
    nodes.become(gpu2="here")
    for number in (3, 4, 5, 6):
        nodes.dial(f"127.0.1.{number}").hello(f"x{number}", f"10.0.0.{number}")
    eventually(lambda: "the list of nodes is full (4 nodes)" in nodes.status.error, "the refusal", SOON)
    honest = nodes.dial("127.0.0.5")
    honest.hello("gpu5", "10.0.0.5" if planned else "127.0.0.5")
    eventually(lambda: nodes.states().get("gpu5") == "here", "the node", SOON)
    assert nodes.states()["gpu2"] == "here"


# fault: serving/node/head_roll.py: return theirs >= claim → return True
@pytest.mark.parametrize(
    ("name", "address"), [("gpu3", "127.0.0.3"), ("gpu3", "127.0.0.2"), ("gpu3", "10.0.0.9"), ("x", "127.0.0.3")]
)
def test_the_place_of_a_node_is_its_own(nodes: Nodes, name: str, address: str) -> None:
    """A host that was taken over gives the name or the address of another, whose node was then refused."""
    nodes.plan(gpu1="127.0.0.1", gpu2="127.0.0.2", gpu3="127.0.0.3")
    first = nodes.dial("127.0.0.2")
    first.hello(name, address)
    nodes.become(**{name: "here"})
    nodes.dial("127.0.0.3").hello("gpu3", "127.0.0.3")
    assert first.ended()
    eventually(lambda: [one.address for one in nodes.status.nodes][1:] == ["127.0.0.3"], "the node", SOON)
    again = nodes.dial("127.0.0.2")
    again.hello(name, address)
    assert again.ended()
    nodes.become(gpu3="here")


RUN = {"id": "ab" * 8}


def gone(nodes: Nodes) -> None:
    """A member that has reported a part, and whose connection has just broken."""
    nodes.plan(gpu1="127.0.0.1", gpu2="127.0.0.2", gpu3="127.0.0.3")
    first = nodes.dial("127.0.0.2")
    first.hello("gpu2", "127.0.0.2", instance="aa")
    nodes.become(gpu2="here")
    first.beat(parts=[RUN])
    eventually(lambda: nodes.head.reports("127.0.0.2"), "its report", SOON)
    first.connection.shutdown(socket.SHUT_RDWR)
    nodes.become(gpu2="gone")


# fault: serving/node/head_roll.py: return theirs > claim or (theirs == claim and → return False and (True and
# fault: serving/node/head_roll.py: not (key[1] == hello.address and claim[1] == OWN)) → True)
# fault: serving/node/head_roll.py: if key == (hello.host, hello.address) and hello.instance and → if False and
@pytest.mark.parametrize(("source", "instance"), [("127.0.0.2", "aa"), ("127.0.0.2", "bb"), ("127.0.0.9", "aa")])
def test_a_node_whose_connection_broke_finds_its_place(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, source: str, instance: str
) -> None:
    """Another host took it meanwhile, and the model that the node served was ended."""
    monkeypatch.setattr(module, "GONE_SECONDS", 600.0)
    gone(nodes)
    for address, peer in [("127.0.0.99", "127.0.0.3"), ("127.0.0.2", "127.0.0.3"), ("127.0.0.99", "127.0.0.99")]:
        other = nodes.dial(peer)
        other.hello("gpu2", address, instance="cc")
        assert other.ended()
        assert nodes.head.alive("127.0.0.2")
        assert len(nodes.head.reports("127.0.0.2")) == 1
    nodes.dial(source).hello("gpu2", "127.0.0.2", instance=instance)
    nodes.become(gpu2="here")
    assert len(nodes.head.reports("127.0.0.2")) == (instance == "aa")


# fault: serving/node/head_roll.py: return theirs > claim or (theirs == claim and → return theirs > claim or (False and
def test_a_claim_that_is_as_good_does_not_take_a_place_at_once(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of both dials from the address of the node, as behind a router."""
    monkeypatch.setattr(module, "GONE_SECONDS", 600.0)
    nodes.plan(gpu1="127.0.0.1", gpu2="127.0.0.2")
    first, other = nodes.dial("127.0.0.50"), nodes.dial("127.0.0.51")
    first.hello("gpu2", "127.0.0.2", instance="aa")
    nodes.become(gpu2="here")
    first.connection.shutdown(socket.SHUT_RDWR)
    nodes.become(gpu2="gone")
    other.hello("gpu2", "127.0.0.2", instance="cc")
    assert other.ended()


# fault: serving/node/head_roll.py: if hello.meets(*key) and (key[1] == hello.address or not member) → if hello.meets(*key)
def test_the_row_of_a_member_is_not_removed_by_its_name(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its part was waited for without end where another host gave its name at an address that no host has."""
    monkeypatch.setattr(module, "GONE_SECONDS", 0.0)
    gone(nodes)
    nodes.dial("127.0.0.3").hello("gpu2", "127.0.0.77", instance="cc")
    eventually(lambda: len(nodes.status.nodes) == 3, "the other", SOON)
    assert [(one.address, one.state) for one in nodes.status.nodes][1:] == [
        ("127.0.0.2", "gone"),
        ("127.0.0.77", "here"),
    ]
    assert not nodes.head.alive("127.0.0.2")


# fault: serving/node/head_roll.py: return row.state == "silent" and theirs > claim → return False
def test_a_silent_node_keeps_its_place_from_a_worse_claim(nodes: Nodes) -> None:
    nodes.plan(gpu1="127.0.0.1", gpu2="127.0.0.2")
    nodes.dial("127.0.0.2").hello("gpu2", "127.0.0.2")
    nodes.become(gpu2="silent")
    other = nodes.dial("127.0.0.3")
    other.hello("gpu2", "127.0.0.2")
    assert other.ended()
    nodes.dial("127.0.0.2").hello("gpu2", "127.0.0.2")
    nodes.become(gpu2="here")


# fault: serving/node/worker_roll.py: PROOF_SECONDS, (self._me.address, 0)) → PROOF_SECONDS)
def test_a_node_dials_from_its_own_address(nodes: Nodes) -> None:
    """A host with two networks came from its other address, and another worker kept its place."""
    nodes.plan(gpu1="127.0.0.1", gpu2="127.0.0.2", gpu3="127.0.0.3")
    other = nodes.dial("127.0.0.2")
    other.hello("gpu3", "127.0.0.3")
    nodes.become(gpu3="here")
    worker = nodes.worker("gpu3", "127.0.0.3")

    def placed() -> bool:
        with suppress(OSError):
            other.beat()
        return worker.status()["error"] == ""

    eventually(placed, "its place", SOON)


# fault: serving/node/members.py: OTHERS if peer in self.names else UNKNOWN → UNKNOWN
def test_the_address_of_another_member_is_a_worse_claim_than_an_unknown_one(nodes: Nodes) -> None:
    nodes.plan(gpu1="127.0.0.1", gpu2="127.0.0.2", gpu3="127.0.0.3")
    other, honest = nodes.dial("127.0.0.2"), nodes.dial("127.0.0.50")
    other.hello("gpu3", "127.0.0.3")
    nodes.become(gpu3="here")
    honest.hello("gpu3", "127.0.0.3")
    assert other.ended()
    nodes.become(gpu3="here")


# fault: serving/node/head_roll.py: if strange and any( → if False and any(
def test_who_is_not_of_the_cluster_has_one_place(nodes: Nodes) -> None:
    """Any host with the token took 500, each with lines to read; hosts behind one address are still let in."""
    nodes.plan(gpu1="127.0.0.1", gpu2="10.0.0.2", gpu3="10.0.0.3")
    nodes.dial("127.0.0.9").hello("x1", "10.0.9.1")
    nodes.become(x1="here")
    assert nodes.status.error == "x1 at 10.0.9.1 (127.0.0.9) is not of this cluster"
    more = nodes.dial("127.0.0.9")
    more.hello("x2", "10.0.9.2")
    assert more.ended()
    eventually(lambda: "another node is here from the same address" in nodes.status.error, "the refusal", SOON)
    for number in (2, 3):
        nodes.dial("127.0.0.9").hello(f"gpu{number}", f"10.0.0.{number}")
    nodes.become(x1="here", gpu2="here", gpu3="here")
    nodes.dial("127.0.0.9").hello("x1", "10.0.9.4")
    eventually(lambda: "10.0.9.1" in nodes.status.error, "its place", SOON)


# fault: serving/node/head_roll.py: self._beat(time.monotonic(), selector) → pass
def test_beats_do_not_wait_for_what_is_read(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long lines of one host took so long to read that the parts of others ended."""
    honest = nodes.dial()
    honest.hello("gpu2", "10.0.0.2")
    others = [nodes.dial(f"127.0.1.{number + 1}") for number in range(20)]
    for number, other in enumerate(others):
        other.hello(f"x{number}", f"10.0.9.{number}")
    eventually(lambda: len(nodes.states()) == 22, "all", SOON)

    def slowly(*_: object) -> NodeBeat:
        time.sleep(0.1)
        return NodeBeat()

    monkeypatch.setattr(module, "read", slowly)
    for other in others:
        other.beat()
    honest.connection.settimeout(SOON)
    moments = []
    for _ in range(20):
        honest.file.readline()
        moments.append(time.monotonic())
    assert max(later - before for before, later in itertools.pairwise(moments)) < 1.0


# fault: serving/node/head_roll.py: MAX_LINE).parts if known else () → MAX_LINE).parts
# fault: serving/node/head_roll.py: MAX_LINE if long else MAX_HELLO): → MAX_LINE):
# fault: wire/parts.py: parts: Annotated[tuple[PartReport, ...], first(MAX_PARTS)] → parts: tuple[PartReport, ...]
def test_what_a_node_reports_takes_little(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """512 names of a host that was taken over reported 9,000 parts each, and the head read and kept all."""
    monkeypatch.setattr(module, "GONE_SECONDS", 0.0)
    nodes.plan(gpu1="127.0.0.1", gpu2="10.0.0.2")
    for name, address, number, kept in [("x", "10.0.0.3", 100, 0), ("gpu2", "10.0.0.2", 1000, 256)]:
        wire = nodes.dial()
        wire.hello(name, address)
        eventually(lambda: nodes.states().get(name) == "here", "its row")  # noqa: B023
        for parts in (number, 0, number):
            wire.beat(parts=[{"id": f"{one:016x}"} for one in range(parts)])
        wire.connection.shutdown(socket.SHUT_WR)
        eventually(lambda: nodes.states()[name] == "gone", "its end")  # noqa: B023
        assert len(nodes.head.reports(address)) == kept
    long = nodes.dial()
    long.hello("x", "10.0.0.3")
    nodes.become(x="here", gpu2="gone")
    long.connection.sendall(b"x" * 3 * MAX_HELLO)
    eventually(lambda: nodes.states()["x"] != "here", "its end")
    assert nodes.states()["x"] == "gone"  # and not silent before


@pytest.mark.parametrize(
    "strange",
    [
        lambda wire: wire.hello("gpu2", "10.0.0.2", key=OTHER),
        lambda wire: wire.hello("gpu2", "10.0.0.2", offer=new_nonce()),
        lambda wire: wire.hello("gpu\n2", "10.0.0.2"),
        lambda wire: wire.hello("gpu2", "not an address"),
        lambda wire: wire.connection.sendall(b"GET / HTTP/1.1\r\n\r\n"),
        lambda wire: wire.connection.sendall(b"x" * 3 * MAX_HELLO),
        lambda wire: wire.connection.sendall(b"\xff {}\n"),
    ],
    ids=["another key", "an old hello", "a name", "an address", "http", "endless", "bytes"],
)
def test_a_stranger_is_not_let_in(nodes: Nodes, strange: Callable[[Wire], None]) -> None:
    wire = nodes.dial()
    strange(wire)
    assert wire.ended()
    assert nodes.states() == {"gpu1": "here"}
    nodes.worker("gpu2", "10.0.0.2")
    nodes.become(gpu2="here")


# fault: wire/roll.py: str(self._received), raw) → "1", raw)
def test_a_line_that_was_recorded_is_not_taken_as_a_beat(nodes: Nodes) -> None:
    wire = nodes.dial()
    wire.hello("gpu2", "10.0.0.2")
    nodes.become(gpu2="here")
    line = wire.signed.line({})
    wire.connection.sendall(line)
    wire.connection.sendall(line)
    assert wire.ended()
    nodes.become(gpu2="gone")


# fault: serving/node/head_roll.py: if len(same) >= STRANGERS: → if False:
def test_strangers_of_one_address_are_few_and_keep_no_node_away(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest goes, since the node of that host comes from the same address."""
    monkeypatch.setattr(module, "PROOF_SECONDS", 60.0)
    every = [nodes.dial() for _ in range(module.STRANGERS + 1)]
    assert every[0].ended()
    nodes.worker("gpu2", "10.0.0.2")
    nodes.become(gpu2="here")


# fault: serving/node/head_roll.py: elif len(strangers) >= MAX_STRANGERS: → elif False:
def test_strangers_of_many_addresses_are_few(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROOF_SECONDS", 60.0)
    monkeypatch.setattr(module, "STRANGERS", 100)
    every = [nodes.dial() for _ in range(module.MAX_STRANGERS + 1)]
    assert every[0].ended()


# fault: serving/node/head_roll.py: if now - last > most: → if False:
def test_a_stranger_who_proves_nothing_is_cut_off(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROOF_SECONDS", 0.5)
    assert nodes.dial().ended()


# fault: serving/node/head_roll.py: if hello.host == self._me.host or hello.address == self._me.address: → if False:
@pytest.mark.parametrize(("name", "address"), [("gpu2", "10.0.0.2"), ("gpu1", "127.0.0.1"), ("gpu9", "10.0.0.2")])
def test_a_refused_node_with_more_to_send_harms_no_other(nodes: Nodes, name: str, address: str) -> None:
    """Also one that breaks off in the middle; it has the token, but is a host that was taken over."""
    nodes.worker("gpu2", "10.0.0.2")
    nodes.become(gpu2="here")
    for reset in (False, True):
        wire = nodes.dial()
        wire.hello(name, address)
        wire.beat()
        if reset:
            wire.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            wire.connection.close()
        else:
            assert wire.ended()
    nodes.worker("gpu3", "10.0.0.3")
    nodes.become(gpu2="here", gpu3="here")
    assert "fault" not in nodes.status.error


# fault: serving/node/head_roll.py: gone[: max(0, len(self._rows) - MAX_ROWS)] → gone[:0]
# fault: serving/node/head_roll.py: key=claims.__getitem__ → key=len
def test_the_names_of_a_taken_over_host_do_not_fill_the_roll(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 8)
    gone(nodes)
    for number in range(20):
        wire = nodes.dial()
        wire.hello(f"n{number}", f"10.0.2.{number}")
        eventually(lambda: nodes.states().get(f"n{number}") == "here", "its row")  # noqa: B023
        wire.connection.shutdown(socket.SHUT_RDWR)
        eventually(lambda: nodes.states()[f"n{number}"] == "gone", "its end")  # noqa: B023
    assert len(nodes.states()) == 9
    assert nodes.head.reports("127.0.0.2")


# fault: serving/node/head_roll.py: except Exception as fault: → except KeyError as fault:
def test_a_roll_with_a_fault_begins_again(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(nodes.head, "_judge", lambda *_: 1 / 0)
        eventually(lambda: "ZeroDivisionError" in nodes.status.error, "the fault")
    nodes.worker("gpu2", "10.0.0.2")
    nodes.become(gpu2="here")


# fault: serving/node/head_roll.py: return theirs >= claim → return False
def test_the_second_node_at_an_address_is_refused_with_the_reason(nodes: Nodes) -> None:
    nodes.worker("gpu2", "10.0.0.2")
    nodes.become(gpu2="here")
    other, as_head = nodes.worker("gpu9", "10.0.0.2"), nodes.worker("gpu8", "127.0.0.1")
    eventually(lambda: "gpu9 at 10.0.0.2" in str(other.status()["error"]), "its refusal")
    eventually(lambda: "the head's own" in str(as_head.status()["error"]), "its refusal")
    assert nodes.states() == {"gpu1": "here", "gpu2": "here"}
    assert "refused" in nodes.status.error


def test_a_host_that_comes_back_at_another_address_is_one_node(nodes: Nodes) -> None:
    nodes.worker("gpu2", "10.0.0.2").close()
    nodes.become(gpu2="gone")
    nodes.worker("gpu2", "10.0.0.7")
    nodes.become(gpu2="here")
    assert [node.address for node in nodes.status.nodes] == ["127.0.0.1", "10.0.0.7"]


# fault: serving/node/worker_roll.py: if time.monotonic() - lines.last > self._pace.roll_lost: → if False:
def test_a_worker_whose_head_is_silent_dials_again(nodes: Nodes) -> None:
    """A firewall that forgot the connection answers neither side."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        worker = WorkerRoll(mute.getsockname()[:2], KEY, Me("gpu2", "10.0.0.2", 8), PACE)
        mute.settimeout(10)
        connection, _ = mute.accept()
        offer = new_nonce()
        with connection, connection.makefile("rb") as file:
            connection.sendall(json.dumps({"v": 1, "nonce": offer}).encode() + b"\n")
            hello = json.loads(file.readline().partition(b" ")[2])
            connection.sendall(Signed(KEY, "head", "worker", (offer, hello["nonce"])).line({}))
            eventually(lambda: worker.status()["error"] == "", "the welcome")
            eventually(lambda: "no beat of the head" in str(worker.status()["error"]), "its end")
            mute.accept()[0].close()
        worker.close()


def test_a_head_that_cannot_listen_shows_why_and_listens_later(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = taken.getsockname()[:2]
        head = HeadRoll(place, KEY, HEAD, PACE, HeadMembers(tmp_path))
        eventually(lambda: f":{place[1]} (ports.nodes): Address already in use" in str(head.status()["error"]), "why")
    eventually(lambda: head.status()["error"] == "", "the port")
    head.close()


def test_sixty_four_nodes_are_here_at_once(nodes: Nodes) -> None:
    names = {f"gpu{number}": f"10.0.1.{number}" for number in range(2, 65)}
    for name, address in names.items():
        nodes.worker(name, address)
    nodes.become(**dict.fromkeys(names, "here"))


# fault: wire/roll.py: error: Line = "" → error: str = ""
def test_what_a_node_reports_stays_on_one_line() -> None:
    """On a line of its own it could look like a remedy."""
    told = convert(Roll, {"nodes": [], "error": "away\n  fix: sh /tmp/x\x1b[2J"}, "gpu2")
    assert told.error == "away fix: sh /tmp/x\N{REPLACEMENT CHARACTER}[2J"
