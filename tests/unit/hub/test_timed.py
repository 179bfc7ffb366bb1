"""A hub that comes to no end, or leads to no place, is an error that names it, by a deadline."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.support.bounds import within
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import Unreachable
from vllm_cluster.serving.fit.hub.files import Hub

pytestmark = pytest.mark.promise("P46")
OK = b"HTTP/1.1 200 OK\r\n"
NO_ENDS = {
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "trailers": (OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n", b"X: y\r\n" * 100),
    "a header": (OK + b"X: ", b"y"),
    "a body": (OK + b"\r\n", b"{"),
}


@contextmanager
def hub(monkeypatch: pytest.MonkeyPatch, begin: bytes, more: bytes = b"") -> Iterator[None]:
    """A hub that answers so, and does not end."""
    over = threading.Event()

    def answer(peer: socket.socket) -> None:
        with peer, suppress(OSError):
            peer.recv(65536)
            peer.sendall(begin)
            while more and not over.is_set():
                peer.sendall(more)
                over.wait(0.01 if len(more) == 1 else 0)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(made.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as made:
        threading.Thread(target=accept, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{made.getsockname()[1]}")
        try:
            yield
        finally:
            over.set()
            made.shutdown(socket.SHUT_RDWR)


# fault: serving/fit/hub/timed.py: if not self._deadline.left(): → if False:
@pytest.mark.timeout(30)
@pytest.mark.parametrize(("begin", "more"), NO_ENDS.values(), ids=NO_ENDS)
def test_a_hub_that_comes_to_no_end_is_left_at_the_deadline(
    begin: bytes, more: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the standard library reads to its end held `fit` and `serve` without end."""
    with hub(monkeypatch, begin, more), within(10), pytest.raises(Unreachable, match="did not answer in time"):
        Hub("org/m", None, Deadline.after(1)).read("config.json", 0, 1 << 20)


# fault: serving/fit/hub/files.py: except ValueError:  # also → except KeyError:  # also
@pytest.mark.parametrize("place", [b"http://[bad", b"http://\x1b[2J/", b"http://\xff\xfe/", b"//[", b"file:///etc/x"])
def test_a_redirect_to_no_place_is_an_error_of_the_hub(place: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was an internal error."""
    answer = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: " + place + b"\r\n\r\n"
    with hub(monkeypatch, answer), pytest.raises(Unreachable, match="cannot connect to the hub"):
        Hub("org/m", None, Deadline.after(20)).read("config.json", 0, 100)
