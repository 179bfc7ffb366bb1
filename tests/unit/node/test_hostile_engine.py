"""An engine whose lines and answers are not those of vLLM: it is watched all the same, until it ends or is ended."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.support.waiting import until
from vllm_cluster.serving.node.api import QUESTIONS, Api
from vllm_cluster.serving.node.engine_watch import BAD
from vllm_cluster.serving.node.process import Child
from vllm_cluster.serving.node.start_movement import Phases

LONG = "9" * 5000
OK = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def answering(first: bytes, drip: bytes = b"") -> Iterator[Api]:
    """An API that answers with these bytes, and with more of others now and then, or ends."""
    over = threading.Event()

    def answer(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection, suppress(OSError):
                    connection.recv(1 << 16)
                    connection.sendall(first)
                    while drip and not over.wait(0.05):
                        connection.sendall(drip)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1 << 16):  # what is not read would reset the connection
                        pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, args=(server,), daemon=True).start()
        yield Api("127.0.0.1", server.getsockname()[1])
        over.set()
        server.shutdown(socket.SHUT_RDWR)


# fault: serving/node/api.py: if (left := self._until - time.monotonic()) <= 0: → if (left := 5.0) <= 0:
@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("first", "drip"),
    [(OK, b"x: y\r\n"), (OK + b"Content-Length: 99999\r\n\r\n", b"x"), (b"", b"HTTP/1.1 100 Continue\r\n\r\n")],
)
def test_an_answer_that_drips_is_late(first: bytes, drip: bytes) -> None:
    """Its time-out was for each receive: an engine that sent a byte now and then was not watched."""
    with answering(first, drip) as api:
        began = time.monotonic()
        assert not api.healthy(0.5)
        assert time.monotonic() - began < 5


# fault: serving/node/api.py: except RecursionError: → except MemoryError:
# fault: serving/node/api.py: if len(text) > MAX_PARSED or not → if not
@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b"[" * 1_000_000, b'{"usage":{"completion_tokens":1},"x":"' + b"a" * (3 << 20) + b'"}']
)
def test_an_answer_that_is_none_is_an_error_that_is_known(body: bytes) -> None:
    """Another one ended the thread that watches, and a start had no end."""
    with (
        answering(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body) as api,
        pytest.raises(BAD, match=r"nested too deep|or 200000 values|no token"),
    ):
        api.ask(QUESTIONS[0], "m", 5.0)


# fault: serving/node/api.py: (\d{1,300}(?:\.\d*)?(?:e[+-]?\d{1,4})?)$ → ([0-9.e+-]+)$
def test_a_counter_with_another_value_counts_nothing() -> None:
    text = b'vllm:prompt_tokens_total{engine="0"} 1.2.3\nvllm:generation_tokens_total{engine="0"} 7.0\n'
    with answering(OK + b"Content-Length: %d\r\n\r\n" % len(text) + text) as api:
        counts = api.counts(5.0)
    assert counts and counts["0"].tokens == 7.0


# fault: serving/node/start_movement.py: Completed \| (\d{1,9})/(\d{1,9}) \[ → Completed \| (\d+)/(\d+) \[
# fault: serving/node/start_movement.py: world_size=(\d{1,9}) rank=(\d{1,9})\b| → world_size=(\d+) rank=(\d+)\b|
@pytest.mark.parametrize(
    "line", [f"Completed | {LONG}/1 [", f"world_size={LONG} rank=1", f"Completed | {'9' * 20}/1 ["]
)
def test_a_number_that_is_too_long_changes_nothing(line: str) -> None:
    phases = Phases()
    phases.see(line)
    assert (phases.phase, phases.progress) == ("importing", None)


# fault: serving/node/process.py: except Exception as fault: → except OSError as fault:
def test_a_line_that_cannot_be_read_ends_no_command() -> None:
    """Its reader ended, its output was closed, and so did the engine at its next line."""

    def see(line: str) -> None:
        raise ValueError(line)

    text = "for i in range(3): print(i, flush=True); __import__('time').sleep(0.3)"
    child = Child("x", [sys.executable, "-c", text], dict(os.environ), see, quiet=True)
    until(lambda: child.code() is not None)
    child.read_rest()
    assert (child.code(), list(child.tail)) == (0, ["0", "1", "2"])
