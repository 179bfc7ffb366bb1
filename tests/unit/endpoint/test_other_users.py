"""Other users of the head: who listens at the port of the API while no front does gets neither key nor prompts."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import pytest

from vllm_cluster.kernel.clock import SYSTEM_CLOCK
from vllm_cluster.kernel.errors import CommandFailed, ConnectionLost
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.hosts.program import RemoteProgram
from vllm_cluster.kernel.transport.forward import LoopbackForward, SocketPipe
from vllm_cluster.serving import consent
from vllm_cluster.serving.endpoint.tunnel import Passage
from vllm_cluster.wire.status import Phase, ServeStatus


def model(phase: Phase, port: int) -> ServeStatus:
    """What the head reports."""
    return ServeStatus("1", "m", "m", "127.0.0.1", port, phase, "", None, 0.0, 1, (1, 1), None, None, None, None)


@pytest.fixture
def other() -> Iterator[int]:
    """The port at which a program listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server.getsockname()[1]


class Head:
    """A head that forwards, and whose model is in one phase after the other; its connection then breaks."""

    def __init__(self, *phases: Phase | None) -> None:
        self.phases, self.name, self.machine, self.transport = list(phases), "gpu1", "here", self
        self.runtime = SimpleNamespace(clock=SimpleNamespace(sleep=lambda _: None, monotonic=SYSTEM_CLOCK.monotonic))

    def forward(self, port: int, local_port: int, *, remote_host: str) -> LoopbackForward:
        return LoopbackForward(self.name, lambda: SocketPipe.dial(remote_host, port, 5.0), local_port)

    def require_alive(self) -> None:
        if not self.phases:
            raise ConnectionLost(self.name, "it is over")

    def passage(self, port: int) -> Passage:
        def served() -> ServeStatus | None:
            phase = self.phases.pop(0)
            return model(phase, port) if phase else None

        return Passage(cast(Any, self), port, served)


# fault: serving/endpoint/tunnel.py: self.answers = self._leads(serve) → self.answers = answers(self.port)
@pytest.mark.parametrize("phase", [None, "waiting", "backoff", "failed", "unknown"])
def test_a_tunnel_leads_to_no_program_that_has_the_port_of_no_front(phase: Phase | None, other: int) -> None:
    with closing(Head(phase).passage(other)) as passage:
        assert not passage.answers


@pytest.mark.parametrize("phase", ["loading", "ready", "hung", "stopping"])
def test_a_tunnel_leads_to_the_front_also_where_no_model_is_ready(phase: Phase, other: int) -> None:
    with closing(Head(phase).passage(other)) as passage:
        assert passage.answers


# fault: serving/endpoint/tunnel.py: != self._place and (serve or not self.answers): → != self._place and not answers(self.port):
def test_a_tunnel_follows_to_another_place_though_a_program_listens_at_the_old_one(other: int) -> None:
    """With or without --expose the address differs, and the old port is free for every user of the head."""
    head = Head("ready", "ready")
    with closing(socket.create_server(("127.0.0.1", 0))) as front:
        places = [other, front.getsockname()[1]]
        passage = Passage(cast(Any, head), other, lambda: model(head.phases.pop(0) or "ready", places.pop(0)))
        with closing(passage):
            with pytest.raises(ConnectionLost):
                passage.hold(lambda _: None)
            with socket.create_connection(("127.0.0.1", passage.port), 10) as client:
                client.sendall(b"key")
                front.settimeout(10)
                while True:  # that of the look whether it answers is here, too
                    with closing(front.accept()[0]) as came:
                        if came.recv(3) == b"key":
                            break


# fault: serving/endpoint/tunnel.py: now = self._leads(serve) → now = answers(self.port)
def test_a_tunnel_leads_nowhere_once_nothing_is_served(other: int) -> None:
    """A program that listens there now may be anybody's."""
    head, events = Head("ready", "ready", None, "loading", "loading"), list[Event]()
    with closing(head.passage(other)) as passage:
        with pytest.raises(ConnectionLost):
            passage.hold(events.append)
        assert [event.text.split(": ")[0] for event in events] == [
            "the API has stopped answering",
            "the API answers again",
        ]


# fault: serving/endpoint/tunnel.py: while not ended(): → while self.answers or not ended():
def test_a_tunnel_leaves_a_head_that_answers(other: int) -> None:
    """Whether it is the head any more is not its own to decide."""
    head = Head("ready", "ready", "ready")
    with closing(head.passage(other)) as passage:
        assert passage.answers
        passage.hold(lambda _: None, lambda: len(head.phases) < 2)
    assert len(head.phases) == 1


class Node:
    """A node that runs programs."""

    def __init__(self) -> None:
        self.asked: list[RemoteProgram] = []
        self.host = "gpu1"
        self.connection = SimpleNamespace(once=lambda _name, work: work())

    def run(self, program: RemoteProgram, seconds: float) -> None:
        self.asked.append(program)
        raise CommandFailed(self.host, "it is over", exit_code=1, stderr="")


# fault: serving/consent.py: port = serve.port if serve.phase in _ANSWERS else 0 → port = serve.port
@pytest.mark.parametrize(("phase", "port"), [("ready", "8000"), ("waiting", "0"), ("loading", "0")])
def test_the_load_is_asked_of_what_is_ready_alone(phase: Phase, port: str) -> None:
    node = Node()
    assert consent._load(cast(Any, node), model(phase, 8000)) == (None, {})
    assert node.asked[0].argv[-2] == port
