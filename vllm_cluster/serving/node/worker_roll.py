"""A worker's end of the roll: dials the head, beats, and keeps what it orders."""

from __future__ import annotations

import secrets
import socket
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import asdict

from vllm_cluster.serving.node.head_roll import BAD, PROOF_SECONDS, RETRY, Me
from vllm_cluster.serving.node.parse_argv import Place
from vllm_cluster.serving.node.process import log_line
from vllm_cluster.serving.node.timing import Timing
from vllm_cluster.wire.parts import Beat, NodeBeat, PartOrder, PartReport
from vllm_cluster.wire.reading import read
from vllm_cluster.wire.roll import HEAD, MAX_HELLO, MAX_LINE, WORKER, Hello, Offer, Signed, hello_line, new_nonce


class WorkerRoll:
    """A worker's end: dials the head, and beats."""

    def __init__(self, head: Place, key: str, me: Me, pace: Timing) -> None:
        self._head, self._key, self._me, self._pace = head, key, me, pace
        self._error = "no beat of the head yet"
        self._instance = secrets.token_hex(8)
        self._orders: tuple[PartOrder, ...] = ()
        self._ordered = time.monotonic()
        self._reports: tuple[PartReport, ...] = ()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def status(self) -> dict[str, object]:
        """Return why this node is not on the roll, as status.json has it."""
        return {"nodes": [], "error": self._error}

    def orders(self) -> tuple[PartOrder, ...]:
        """Return the parts that the head wants here: none, once no beat of it has come for too long."""
        return self._orders if time.monotonic() - self._ordered < self._pace.roll_lost else ()

    def report(self, reports: tuple[PartReport, ...]) -> None:
        """Have the head know how the parts do."""
        self._reports = reports

    def close(self) -> None:
        """End the connection."""
        self._over.set()
        self._thread.join(2.0)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with self._dial() as connection:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._stay(connection)
            except (OSError, *BAD) as error:
                why = getattr(error, "strerror", None) or str(error)
                self._set_error(f"{self._head[0]}:{self._head[1]} (ports.nodes): {why}")
            except Exception as bug:
                log_line("roll", traceback.format_exc())
                self._set_error(f"the way to the head begins again after a fault: {type(bug).__name__}")
            self._over.wait(RETRY)

    def _dial(self) -> socket.socket:
        """Dial from this node's own address, by which the head knows it, where that leads there."""
        with suppress(OSError):
            return socket.create_connection(self._head, PROOF_SECONDS, (self._me.address, 0))
        return socket.create_connection(self._head, PROOF_SECONDS)

    def _stay(self, connection: socket.socket) -> None:
        """Be on the roll until the connection ends, or the head is silent for too long.

        Raises:
            OSError, Unsigned, RefusedDocument: why it has ended.
        """
        lines = _LinesInTime(connection, time.monotonic() + PROOF_SECONDS)
        offer = read(Offer, lines.next(), "the head", MAX_LINE)
        hello = Hello(self._me.host, self._me.address, self._me.gpus, new_nonce(), self._instance)
        signed = Signed(self._key, WORKER, HEAD, (offer.nonce, hello.nonce))
        connection.sendall(hello_line(self._key, offer.nonce, asdict(hello)))
        beaten, sent = 0.0, self._reports
        while not self._over.is_set():
            # How far a start is can wait for the next beat.
            due = time.monotonic() - beaten >= self._pace.roll_beat or _turns(self._reports) != _turns(sent)
            if self._error == "" and due:
                beaten, sent = time.monotonic(), self._reports
                connection.sendall(signed.line(asdict(NodeBeat(sent)) if sent else {}))
            lines.until = time.monotonic() + self._pace.roll_beat / 4
            try:
                beat = read(Beat, signed.body(lines.next()), "the head", MAX_LINE)
            except TimeoutError:
                if time.monotonic() - lines.last > self._pace.roll_lost:
                    raise TimeoutError(f"no beat of the head for {self._pace.roll_lost:g} s") from None
                continue
            if beat.refused:
                raise ConnectionRefusedError(beat.refused)
            self._orders, self._ordered = beat.parts, time.monotonic()
            self._set_error("")

    def _set_error(self, error: str) -> None:
        if error and error != self._error:
            log_line("roll", error)
        self._error = error


class _LinesInTime:
    """The lines that come over a connection, each within a time."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self._socket, self._rest = connection, b""
        self.until, self.last = until, time.monotonic()

    def next(self) -> bytes:
        """Return the next line.

        Raises:
            TimeoutError: it is not there in time.
            OSError: the connection has ended, or the line is too long.
        """
        while b"\n" not in self._rest:
            if len(self._rest) > MAX_LINE:
                raise ConnectionError("a line is too long")
            self._socket.settimeout(max(self.until - time.monotonic(), 0.01))
            data = self._socket.recv(MAX_HELLO)
            if not data:
                raise ConnectionError("the head has closed the connection")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        self.last = time.monotonic()
        return line


def _turns(reports: tuple[PartReport, ...]) -> list[tuple[object, ...]]:
    """What of the parts the head must know at once."""
    return [(one.id, one.code, one.over, one.phase) for one in reports]
