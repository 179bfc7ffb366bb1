"""The roll of the nodes that are here now: each dials the head's program, proves the cluster's token, and beats.

A thread of its own on each side, which only sends, receives and remembers: however long the loop of the supervisor
takes, the beats continue. The head counts a node as here by its beats, and as gone at once where its connection ends.
With its beats go the parts that each node shall run, and with theirs how those do: each beat has all of it, so that one
which is lost, or comes twice, changes nothing.
"""

from __future__ import annotations

import hashlib
import secrets
import selectors
import socket
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from vllm_cluster.serving.node.members import OWN, HeadMembers
from vllm_cluster.serving.node.parse_argv import Place
from vllm_cluster.serving.node.process import log_line
from vllm_cluster.serving.node.timing import Timing
from vllm_cluster.wire.parts import Beat, NodeBeat, PartOrder, PartReport
from vllm_cluster.wire.reading import RefusedDocument, read
from vllm_cluster.wire.roll import (
    HEAD,
    MAX_HELLO,
    MAX_LINE,
    WORKER,
    Hello,
    Signed,
    Unsigned,
    new_nonce,
    read_hello,
)
from vllm_cluster.wire.status import GroupNode

# Who has not proved the token by then is cut off, and there are no more of these, of one address and in all: each takes
# one of the files that the whole program may have open, which are 1,024 under some engines.
PROOF_SECONDS, STRANGERS, MAX_STRANGERS = 5.0, 4, 64
# 256 nodes, each once more under what it was called before.
MAX_ROWS = 512
RETRY = 1.0
# A connection without a word for this long is ended, and why a node was refused is kept for as long.
LONG_SECONDS = 60.0
# So many beats in a row from one that was silent: a link that loses every other packet must not flap.
BACK = 3
# A connection may end without its node: until then it may come back, and its parts still run.
GONE_SECONDS = 2.0
# For a beat with long commands: what does not fit at once is of a node that reads nothing.
SEND_BYTES = 1 << 20
BAD = (Unsigned, RefusedDocument)


@dataclass(frozen=True)
class Me:
    """This node, as the roll shows it."""

    host: str
    address: str
    gpus: int


def roll_key(token: Path) -> str:
    """The key that signs, of the cluster's token."""
    return hashlib.sha256(b"roll " + token.read_bytes().strip()).hexdigest()


@dataclass
class Row:
    """A node on the head's roll, which dials from `peer`.

    `beaten` and `changed` are by the monotonic clock, `since` is for people.
    """

    gpus: int
    state: str
    since: float
    beaten: float
    streak: int = 0
    instance: str = ""
    reports: tuple[PartReport, ...] = ()
    changed: float = 0.0
    peer: str = ""

    def be(self, state: str) -> None:
        """Be in a state, since now where it is another one."""
        if state != self.state:
            self.state, self.since, self.changed = state, round(time.time(), 3), time.monotonic()

    @property
    def alive(self) -> bool:
        """Whether its parts can be taken to run."""
        return self.state == "here" or (self.state == "gone" and time.monotonic() - self.changed < GONE_SECONDS)


@dataclass
class Link:
    """A connection to the head, of a node or of one that has yet to prove that it is one."""

    socket: socket.socket
    peer: str
    opened: float
    offer: str = field(default_factory=new_nonce)
    rest: bytes = b""
    hello: Hello | None = None
    signed: Signed | None = None
    # Of a node that is on the roll; a stranger has none, nor has one that was refused.
    row: Row | None = None

    def claim(self, members: HeadMembers) -> tuple[bool, int]:
        """How well it shows that it is the node it names."""
        return members.claim(self.hello.host, self.hello.address, self.peer) if self.hello else (False, 0)

    def known(self, members: HeadMembers) -> bool:
        """Whether it names the address of a host of the cluster, or there is no record of these."""
        return not members.names or (self.hello is not None and self.hello.address in members.names)

    def meets(self, hello: Hello) -> bool:
        """Whether it is on the roll under a name or an address that another node gives as its own."""
        mine = self.hello if self.row else None
        return mine is not None and hello.meets(mine.host, mine.address)


class HeadRoll:
    """The head's end: listens, and keeps the list."""

    def __init__(self, place: Place, key: str, me: Me, pace: Timing, members: HeadMembers) -> None:
        self._place, self._key, self._pace, self._members = place, key, pace, members
        self._me, self._own = me, Row(me.gpus, "here", round(time.time(), 3), time.monotonic())
        self._own.instance = secrets.token_hex(8)
        self._rows = {(me.host, me.address): self._own}
        self._orders: Mapping[str, tuple[PartOrder, ...]] = {}
        self._sent: Mapping[str, tuple[PartOrder, ...]] = self._orders
        self._links: dict[socket.socket, Link] = {}
        self._error, self._complained, self._beaten = "", 0.0, 0.0
        self._over = threading.Event()
        self._status: dict[str, object] = {}
        self._show()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def status(self) -> dict[str, object]:
        """Return the roll as status.json has it."""
        return self._status

    def order(self, orders: Mapping[str, tuple[PartOrder, ...]]) -> None:
        """Have the nodes run these parts (by address), and no others."""
        if orders != self._orders:
            self._orders = orders

    def reports(self, address: str) -> tuple[PartReport, ...]:
        """Return what the node at an address reported last of its parts."""
        return next((row.reports for (_, at), row in list(self._rows.items()) if at == address), ())

    def alive(self, address: str) -> bool:
        """Whether a node is at an address whose parts can be taken to run."""
        return any(at == address and row.alive for (_, at), row in list(self._rows.items()))

    def members(self) -> list[GroupNode]:
        """Return the nodes as Ray's table has them; the id is that of the program that runs on each."""
        return [
            GroupNode(row.instance or f"{host} since {row.since}", at, row.alive, row.gpus)
            for (host, at), row in list(self._rows.items())
        ]

    def close(self) -> None:
        """End every connection."""
        self._over.set()
        self._thread.join(2.0)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with _listen(self._place) as server, selectors.DefaultSelector() as selector:
                    self._error = ""
                    self._serve(server, selector)
            except OSError as error:
                self._error = f"{self._place[0]}:{self._place[1]} (ports.nodes): {error.strerror or error}"
            except Exception as fault:
                log_line("roll", traceback.format_exc())
                self._error = f"the list of nodes begins again after a fault: {type(fault).__name__}"
            self._show()
            self._over.wait(RETRY)

    def _serve(self, server: socket.socket, selector: selectors.BaseSelector) -> None:
        selector.register(server, selectors.EVENT_READ)
        last = time.monotonic()
        try:
            while not self._over.is_set():
                for ready, _ in selector.select(self._pace.roll_beat / 4):
                    if ready.fileobj is server:
                        self._accept(server, selector)
                    elif link := self._links.get(ready.fileobj):  # type: ignore[call-overload]
                        self._receive(link, selector)
                    # Long lines of many nodes take seconds to read: who has no beat for so long ends its parts.
                    self._beat(time.monotonic(), selector)
                now = time.monotonic()
                # What it slept itself, stopped or starved, is not the silence of others.
                if (late := now - last - self._pace.roll_beat) > 0:
                    for row in self._rows.values():
                        row.beaten += late
                last = now
                self._beat(now, selector)
                self._judge(now, selector)
                self._show()
        finally:
            for link in list(self._links.values()):
                self._drop(link, selector)

    def _accept(self, server: socket.socket, selector: selectors.BaseSelector) -> None:
        try:
            connection, peer = server.accept()
        except OSError:
            self._over.wait(self._pace.roll_beat / 10)  # it has ended before its turn, or there are too many files
            return
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        # The oldest goes and not the newest: idle connections of any program of a host must not keep its node away.
        strangers = [link for link in self._links.values() if link.row is None]
        same = [link for link in strangers if link.peer == peer[0]]
        if len(same) >= STRANGERS:
            self._drop(same[0], selector)
        elif len(strangers) >= MAX_STRANGERS:
            self._drop(strangers[0], selector)
        link = Link(connection, peer[0], time.monotonic())
        self._links[connection] = link
        selector.register(connection, selectors.EVENT_READ)
        self._send(link, f'{{"v": 1, "nonce": "{link.offer}"}}\n'.encode(), selector)

    def _receive(self, link: Link, selector: selectors.BaseSelector) -> None:
        try:
            data = link.socket.recv(MAX_HELLO)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        long = link.row and link.known(self._members)
        if not data or len(link.rest) > (MAX_LINE if long else MAX_HELLO):
            self._drop(link, selector)
            return
        *lines, link.rest = (link.rest + data).split(b"\n")
        try:
            for line in lines:
                self._read_line(link, line, selector)
                if link.socket not in self._links:
                    return
        except BAD as bad:
            self.complain(f"{link.peer} is not of this cluster: {bad}")
            self._drop(link, selector)

    def _read_line(self, link: Link, line: bytes, selector: selectors.BaseSelector) -> None:
        if link.signed is None:
            link.hello = hello = read_hello(self._key, link.offer, line)
            link.signed = Signed(self._key, HEAD, WORKER, (link.offer, hello.nonce))
            if why := self._taken(link, hello):
                self.complain(why)
                self._send(link, link.signed.line(asdict(Beat(why))), selector)
                self._drop(link, selector)
            else:
                link.row = self._enter(link, hello, selector)
                if not link.known(self._members):
                    self.complain(f"{hello.host} at {hello.address} ({link.peer}) is not of this cluster")
                self._send(link, link.signed.line({}), selector)
        elif row := link.row:
            raw = link.signed.body(line)
            # 512 names of a host that was taken over would take a megabyte each, and the time to read that.
            known = link.known(self._members)
            row.reports = read(NodeBeat, raw, f"a node at {link.peer}", MAX_LINE).parts if known else ()
            row.beaten, row.streak = time.monotonic(), row.streak + 1
            if row.state == "silent" and row.streak >= BACK:
                row.be("here")

    def _taken(self, link: Link, hello: Hello) -> str:
        """Why there is no place for this node: another has its address, or its name, with as good a claim; or empty."""
        who = f"{hello.host} at {hello.address} ({link.peer}) is refused"
        if hello.host == self._me.host or hello.address == self._me.address:
            return f"{who}: these are the head's own"
        # A host that was taken over has the token too, and may give any names and addresses, as many as there are.
        self._members.look()
        claim, others = link.claim(self._members), [one for one in self._links.values() if one.row]
        for key, row in self._rows.items():
            if hello.meets(*key) and self._keeps(key, row, hello, claim):
                place = "is here" if row.state == "here" else "may come back"
                return f"{who}: {key[0]} at {key[1]} ({row.peer}) {place}"
        strange = not link.known(self._members)
        if strange and any(one.peer == link.peer for one in others if not one.meets(hello)):
            return f"{who}: it is not of this cluster, and another node is here from the same address"
        claims = [one.claim(self._members) for one in others if not one.meets(hello)]
        if len(claims) + 1 >= MAX_ROWS and min(claims) >= claim:
            return f"{who}: the list of nodes is full ({MAX_ROWS} nodes)"
        return ""

    def _keeps(self, key: tuple[str, str], row: Row, hello: Hello, claim: tuple[bool, int]) -> bool:
        """Whether a node keeps its row from one that gives the same name or address as its own."""
        theirs = self._members.claim(*key, row.peer)
        if row.state == "here":
            return theirs >= claim
        # What has lost its connection dials again, and no other host dials from its address.
        if key == (hello.host, hello.address) and hello.instance and hello.instance == row.instance:
            return False
        if row.alive:
            return theirs > claim or (theirs == claim and not (key[1] == hello.address and claim[1] == OWN))
        return row.state == "silent" and theirs > claim

    def _enter(self, link: Link, hello: Hello, selector: selectors.BaseSelector) -> Row:
        """The node's row; what it was before, under another name or address too, is forgotten with its connection.

        The row of a member is not, for whoever has no more than its name.
        """
        claims = {key: self._members.claim(*key, "")[0] for key in self._rows}
        before = [
            key for key, member in claims.items() if hello.meets(*key) and (key[1] == hello.address or not member)
        ]
        for other in list(self._links.values()):
            if other.row and any(other.row is self._rows[key] for key in before):
                other.row = None
                self._drop(other, selector)
        others = [one for one in self._links.values() if one.row]
        if len(others) + 1 >= MAX_ROWS:
            self._drop(min(others, key=lambda one: one.claim(self._members)), selector)
        # Its parts run on where only the connection was lost.
        same = (self._rows[key] for key in before if hello.instance and self._rows[key].instance == hello.instance)
        reports = next((row.reports for row in same), ())
        gone = sorted((key for key, row in self._rows.items() if row.state == "gone"), key=claims.__getitem__)
        for key in {*before, *gone[: max(0, len(self._rows) - MAX_ROWS)]}:
            del self._rows[key]
        now = round(time.time(), 3), time.monotonic()
        row = Row(hello.gpus, "here", *now, BACK, hello.instance, reports, peer=link.peer)
        self._rows[hello.host, hello.address] = row
        return row

    def _beat(self, now: float, selector: selectors.BaseSelector) -> None:
        """Send each node its orders, where that is due."""
        if now - self._beaten < self._pace.roll_beat and self._sent is self._orders:
            return
        self._beaten, self._sent = now, self._orders
        for link in list(self._links.values()):
            if link.signed and link.row and link.hello:
                orders = self._sent.get(link.hello.address, ())
                self._send(link, link.signed.line(asdict(Beat(parts=orders)) if orders else {}), selector)

    def _judge(self, now: float, selector: selectors.BaseSelector) -> None:
        for link in list(self._links.values()):
            last, most = (link.row.beaten, LONG_SECONDS) if link.row else (link.opened, PROOF_SECONDS)
            if now - last > most:
                self._drop(link, selector)
        for row in self._rows.values():
            if row is not self._own and row.state == "here" and now - row.beaten > self._pace.roll_silent:
                row.be("silent")
            if now - row.beaten > self._pace.roll_beat * 2:
                row.streak = 0
        if now - self._complained > LONG_SECONDS:
            self._error = ""

    def _send(self, link: Link, line: bytes, selector: selectors.BaseSelector) -> None:
        """Send a line whole or not at all: one whose buffer is full has read nothing for minutes."""
        try:
            if link.socket.send(line) == len(line):
                return
        except OSError:
            pass
        self._drop(link, selector)

    def _drop(self, link: Link, selector: selectors.BaseSelector) -> None:
        if self._links.pop(link.socket, None) is None:
            return
        selector.unregister(link.socket)
        link.socket.close()
        if link.row:
            link.row.be("gone")

    def complain(self, why: str) -> None:
        """Show what is wrong, for a while."""
        if why != self._error and time.monotonic() - self._complained > RETRY:
            log_line("roll", why)
        self._error, self._complained = why, time.monotonic()

    def _show(self) -> None:
        rows = [
            {"host": host, "address": address, "gpus": row.gpus, "state": row.state, "since": row.since}
            for (host, address), row in self._rows.items()
        ]
        self._status = {"nodes": rows, "error": self._error}


def _listen(place: Place) -> socket.socket:
    """Listen at one address alone; a worker that dials again must not wait for the port of its last connection."""
    family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
    server = socket.create_server(place, family=family, backlog=256)
    server.setblocking(False)
    return server
