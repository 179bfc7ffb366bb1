"""Requests to the served model's API over a local port, whose answers arrive piece by piece.

http.client, since it costs no start-up (the openai package imports in 0.8 s, and brings 30 MB) and asks no proxy of the
environment for our own port.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from vllm_cluster.kernel.clock import SYSTEM_CLOCK
from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.serving.api.answer import error_message
from vllm_cluster.wire.reading import MAX_BYTES, MAX_VALUES, RefusedDocument, bounded, convert, document
from vllm_cluster.wire.values import ServedName

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# Of an error, of a page, of one event, and of one with what was asked for: logprobs of a long prompt are tens of
# megabytes in one answer, and take ten times that here, as the text of an answer does where one emoji is in it.
MAX_ERROR, MAX_PAGE, MAX_EVENT, MAX_LOGPROBS = 1 << 20, MAX_BYTES, 3 << 20, 256 << 20
# What one token has beside the text, in bytes and in values of JSON; the most that a vocabulary has; and the tokens of
# an answer that is not streamed, where no limit is asked for.
TOKEN_BYTES, TOKEN_VALUES, MAX_VOCABULARY, MAX_TOKENS = 150, 16, 300_000, 32_768
# Tokens of a chat's template.
TEMPLATE_TOKENS = 4096
DATA, DONE = b"data:", b"[DONE]"
# A model may have hundreds of LoRAs, and one that was meant is looked for among them.
MAX_NAMES = 1000
# Bytes a second, of what is not silent: an event of 3 MB takes half a minute more.
SLOWEST = 100_000


class Refused(VclusterError):
    """The server answered with an error."""

    code = "api-refused"

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Broken(VclusterError):
    """The connection ended before the answer did, or its bytes are not an answer."""

    code = "api-broken"


class Silent(VclusterError):
    """Nothing arrived for too long."""

    code = "api-silent"


class _Socket(socket.socket):
    """A socket that is read by a deadline, which each byte puts off a little, up to `latest`."""

    end = latest = 0.0

    def recv_into(self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0) -> int:
        left = self.end - SYSTEM_CLOCK.monotonic()
        if left <= 0:
            raise TimeoutError
        self.settimeout(left)
        got = super().recv_into(buffer, nbytes, flags)
        self.end = min(self.end + got / SLOWEST, self.latest)
        return got


class _Connection(http.client.HTTPConnection):
    """A connection to 127.0.0.1:`port` on which an event of at most so many bytes comes within `seconds`, or nothing.

    A time-out alone is for each byte: a server that sends one a second would be waited for without end.
    """

    def __init__(self, port: int, seconds: float, most: int) -> None:
        super().__init__("127.0.0.1", port, timeout=seconds)
        self._seconds, self._most = seconds, most

    def connect(self) -> None:
        begun = SYSTEM_CLOCK.monotonic()
        super().connect()
        self.sock = self._own = _Socket(fileno=self.sock.detach())
        self.sock.settimeout(self._seconds)
        self._wait_since(begun)

    def renew(self) -> None:
        """Begin to wait for the next event."""
        self._wait_since(SYSTEM_CLOCK.monotonic())

    def _wait_since(self, begun: float) -> None:
        self._own.end = begun + self._seconds
        self._own.latest = self._own.end + self._most / SLOWEST


def get(
    port: int, path: str, key: str, seconds: float, connected: Callable[[], None] = lambda: None
) -> tuple[int, Mapping[str, object]]:
    """Read the status and the JSON object of a page on 127.0.0.1:`port`; an empty one where it is something else.

    `seconds` are for all of it: none of its bytes gains time. `connected` is called before the key is sent, and raises
    where it must not be.

    Raises:
        Broken: there is no whole answer.
    """
    connection = _Connection(port, seconds, 0)
    try:
        connection.connect()
        connected()
        connection.request("GET", path, headers=_with_key(key))
        reply = connection.getresponse()
        raw = reply.read(MAX_PAGE)
    except (OSError, http.client.HTTPException) as error:
        raise Broken(str(error) or type(error).__name__) from None
    finally:
        connection.close()
    try:
        page = document(raw, "the API")
    except RefusedDocument:
        page = None
    return reply.status, page if isinstance(page, dict) else {}


@dataclass(frozen=True)
class _ServedModel:
    id: ServedName


def model_names(document: Mapping[str, object]) -> list[str]:
    """Read the names in the page of `/v1/models`: the model's, and those of LoRAs beside it; what is none is left."""
    rows, found = document.get("data"), list[str]()
    for row in rows[:MAX_NAMES] if isinstance(rows, list) else ():
        with suppress(RefusedDocument):
            found.append(convert(_ServedModel, row, "the API").id)
    return found


def post(port: int, path: str, body: Mapping[str, object], key: str, seconds: float) -> Iterator[Mapping[str, object]]:
    """Send a request to 127.0.0.1:`port`; the events of its answer, or the whole of it where it is not streamed.

    `seconds` is how long the server may be without the next one.

    Raises:
        Refused, Broken, Silent: see there.
    """
    sent = json.dumps(body).encode()
    most = _event_limit(body, len(sent))
    connection = _Connection(port, seconds, most.bytes)
    try:
        headers = {**_with_key(key), "Content-Type": "application/json"}
        connection.request("POST", path, sent, headers)
        reply = connection.getresponse()
        if reply.status != HTTPStatus.OK:
            raise Refused(reply.status, _message(reply.read(MAX_ERROR)))
        for event in _events(reply, most):
            yield event
            connection.renew()
    except TimeoutError:
        raise Silent(f"no token for {seconds:.0f} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise Broken(str(error) or type(error).__name__) from None
    finally:
        connection.close()


def _with_key(key: str) -> dict[str, str | bytes]:
    # Of text http.client takes the characters of Latin-1 alone; servers here read UTF-8.
    return {"Authorization": f"Bearer {key}".encode()}


@dataclass(frozen=True)
class _Limit:
    """Of one event."""

    bytes: int
    values: int


def _event_limit(body: Mapping[str, object], sent: int) -> _Limit:
    """What an event may have, by what was asked for: a head that was taken over sends any number of logprobs."""

    def asked(name: str) -> int:
        number = body.get(name)
        # True is a chat's own, whose number has another name; -1 is all of the vocabulary.
        return MAX_VOCABULARY if number == -1 else number if type(number) is int else 0

    # Of a prompt no token is shorter than a byte of the request.
    prompt = (sent + TEMPLATE_TOKENS) * (asked("prompt_logprobs") + 2) if body.get("prompt_logprobs") is not None else 0
    tokens = 64 if body.get("stream") else asked("max_tokens") or MAX_TOKENS
    named = any(body.get(name) is not None for name in ("logprobs", "top_logprobs"))
    answer = tokens * (max(asked("logprobs"), asked("top_logprobs")) + 2) if named else 0
    count = min(prompt + answer, MAX_LOGPROBS // TOKEN_BYTES)
    return _Limit(MAX_EVENT + count * TOKEN_BYTES, MAX_VALUES + count * TOKEN_VALUES)


def _events(reply: http.client.HTTPResponse, most: _Limit) -> Iterator[Mapping[str, object]]:
    if not (reply.getheader("Content-Type") or "").startswith("text/event-stream"):
        yield _event(reply.read(most.bytes + 1), most)
        return
    while line := reply.readline(most.bytes):
        data = line.removeprefix(DATA).strip()
        if not line.startswith(DATA):
            continue
        if data == DONE:
            return
        yield _event(data, most)
    raise Broken("the answer has no end")


def _event(raw: bytes, most: _Limit) -> Mapping[str, object]:
    try:
        found = document(raw, "the answer", most.bytes, most.values)
    except RefusedDocument as refused:
        raise Broken(f"the answer {refused.why}") from None
    if not isinstance(found, dict):
        raise Broken("the answer is not an object")
    if message := error_message(found):
        error = found["error"]
        code = error.get("code") if isinstance(error, dict) else None
        raise Refused(code if isinstance(code, int) else HTTPStatus.INTERNAL_SERVER_ERROR, message)
    return found


def _message(raw: bytes) -> str:
    try:
        found = error_message(json.loads(bounded(raw)))
    except (ValueError, RecursionError):
        found = None
    return found or raw.decode("utf-8", "replace").strip()[:500]
