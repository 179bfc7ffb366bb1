"""Requests to the served model's API over a local port, whose answers arrive piece by piece.

http.client, since it costs no start-up (the openai package imports in 0.8 s, and brings 30 MB) and asks no proxy of the
environment for our own port.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from http import HTTPStatus

from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.serving.api.answer import error_message
from vllm_cluster.wire.reading import MAX_BYTES, RefusedDocument, document

# Of an error, of a page, of one event, and of one with what was asked for: logprobs of a long prompt are tens of
# megabytes in one answer, and take ten times that here.
MAX_ERROR, MAX_PAGE, MAX_EVENT, MAX_LOGPROBS = 1 << 20, MAX_BYTES, 16 << 20, 256 << 20
DATA, DONE = b"data:", b"[DONE]"


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


def get(port: int, path: str, key: str, seconds: float) -> tuple[int, Mapping[str, object]]:
    """Read the status and the JSON object of a page on 127.0.0.1:`port`; an empty one where it is something else.

    Raises:
        Broken: there is no answer.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
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


def model_names(document: Mapping[str, object]) -> list[str]:
    """Read the names in the page of `/v1/models`: the model's, and those of LoRAs beside it."""
    rows = document.get("data")
    found = [row.get("id") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return [name for name in found if isinstance(name, str)]


def post(port: int, path: str, body: Mapping[str, object], key: str, seconds: float) -> Iterator[Mapping[str, object]]:
    """Send a request to 127.0.0.1:`port`; the events of its answer, or the whole of it where it is not streamed.

    `seconds` is how long the server may be silent.

    Raises:
        Refused, Broken, Silent: see there.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        headers = {**_with_key(key), "Content-Type": "application/json"}
        connection.request("POST", path, json.dumps(body).encode(), headers)
        reply = connection.getresponse()
        if reply.status != HTTPStatus.OK:
            raise Refused(reply.status, _message(reply.read(MAX_ERROR)))
        large = any(body.get(name) is not None for name in ("logprobs", "top_logprobs", "prompt_logprobs"))
        yield from _events(reply, large=large)
    except TimeoutError:
        raise Silent(f"no token for {seconds:.0f} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise Broken(str(error) or type(error).__name__) from None
    finally:
        connection.close()


def _with_key(key: str) -> dict[str, str | bytes]:
    # Of text http.client takes the characters of Latin-1 alone; servers here read UTF-8.
    return {"Authorization": f"Bearer {key}".encode()}


def _events(reply: http.client.HTTPResponse, *, large: bool) -> Iterator[Mapping[str, object]]:
    most = MAX_LOGPROBS if large else MAX_EVENT
    if not (reply.getheader("Content-Type") or "").startswith("text/event-stream"):
        yield _event(reply.read(most + 1), large=large)
        return
    while line := reply.readline(most):
        data = line.removeprefix(DATA).strip()
        if not line.startswith(DATA):
            continue
        if data == DONE:
            return
        yield _event(data, large=large)
    raise Broken("the answer has no end")


def _event(raw: bytes, *, large: bool) -> Mapping[str, object]:
    try:
        found = json.loads(raw) if large else document(raw, "the answer", MAX_EVENT)
    except RefusedDocument as refused:
        raise Broken(f"the answer {refused.why}") from None
    except (ValueError, RecursionError):
        raise Broken("the answer is not a JSON document") from None
    if not isinstance(found, dict):
        raise Broken("the answer is not an object")
    if message := error_message(found):
        error = found["error"]
        code = error.get("code") if isinstance(error, dict) else None
        raise Refused(code if isinstance(code, int) else HTTPStatus.INTERNAL_SERVER_ERROR, message)
    return found


def _message(raw: bytes) -> str:
    try:
        found = error_message(json.loads(raw))
    except (ValueError, RecursionError):
        found = None
    return found or raw.decode("utf-8", "replace").strip()[:500]
