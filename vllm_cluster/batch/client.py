"""Requests over connections that stay open, each in a thread of its own, and what becomes of each."""

from __future__ import annotations

import http.client
import json
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

# vLLM closes a connection that is idle for 5 s: one that was is not used again, as the request would meet its end.
IDLE_SECONDS = 2.0
MAX_ANSWER, MAX_ERROR = 256 << 20, 1 << 20
OK, UNAUTHORIZED, NOT_FOUND, TOO_SLOW, TOO_MANY, INTERNAL = 200, 401, 404, 408, 429, 500


@dataclass(frozen=True)
class ApiAddress:
    """Where the API answers on loopback, and its key."""

    port: int
    key: str
    host: str = "127.0.0.1"


@dataclass(frozen=True)
class Outcome:
    """What came back: a status and a body, or why nothing did (`status` 0)."""

    status: int
    body: Mapping[str, Any]
    message: str = ""

    @property
    def answered(self) -> bool:
        """Whether it is a whole answer: a server that is stopped returns one that was cut off."""
        choices = self.body.get("choices") or ()
        cut = any(isinstance(one, Mapping) and one.get("finish_reason") == "abort" for one in choices)
        return self.status == OK and not cut

    @property
    def refused(self) -> bool:
        """Whether the same request would be refused again."""
        return OK < self.status < INTERNAL and self.status not in (UNAUTHORIZED, TOO_SLOW, TOO_MANY)

    @property
    def lacks_model(self) -> bool:
        """Whether the server lacks the model, rather than the path."""
        return self.status == NOT_FOUND and "error" in self.body

    @property
    def names(self) -> list[str]:
        """The models that an answer to `models` names."""
        rows = self.body.get("data") or ()
        return [str(row.get("id")) for row in rows if isinstance(row, Mapping)]

    @property
    def busy(self) -> bool:
        """Whether the server lives, and asks to come again."""
        return self.status in (TOO_SLOW, TOO_MANY)


def _content(reply: http.client.HTTPResponse) -> bytes:
    """An answer with 200 as a whole; of a refusal the beginning, which has the reason."""
    most = MAX_ANSWER if reply.status == OK else MAX_ERROR
    try:
        raw = reply.read(most)
    except http.client.IncompleteRead as error:
        raw = error.partial
        cut = True
    else:
        cut = len(raw) < most and not reply.isclosed()
    if reply.status == OK and cut:
        raise http.client.HTTPException(f"the answer was cut off after {len(raw)} bytes")
    if reply.status == OK and not reply.isclosed():
        raise http.client.HTTPException(f"the answer is longer than {MAX_ANSWER >> 20} MiB")
    return raw


class ApiConnection:
    """One connection to the API; it is opened when it is needed."""

    def __init__(self, endpoint: ApiAddress, seconds: float) -> None:
        self.endpoint = endpoint
        self._http = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=seconds)
        self._used = 0.0

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        """The status and the content of an answer.

        Raises:
            OSError, http.client.HTTPException: there is none.
        """
        if time.monotonic() - self._used > IDLE_SECONDS:
            self._http.close()
        headers = {"Authorization": f"Bearer {self.endpoint.key}"}
        content = None
        if body is not None:
            content = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            self._http.request(method, path, content, headers)
            reply = self._http.getresponse()
            raw = _content(reply)
            if not reply.isclosed():
                self._http.close()
        except BaseException:
            self._http.close()
            raise
        self._used = time.monotonic()
        return reply.status, raw

    def post(self, path: str, body: Mapping[str, Any]) -> Outcome:
        """What becomes of a request."""
        try:
            return read(*self.ask("POST", path, body))
        except TimeoutError:
            return Outcome(0, {}, "no answer in time")
        except (OSError, http.client.HTTPException) as error:
            return Outcome(0, {}, str(error) or type(error).__name__)

    def close(self) -> None:
        """Close it, and wake who waits for its answer."""
        self._http.close()


def read(status: int, raw: bytes) -> Outcome:
    """The outcome in an answer."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        text = raw.decode("utf-8", "replace").strip()[:500]
        return Outcome(0 if status == OK else status, {}, "the answer is not JSON" if status == OK else text)
    error = body.get("error")
    if status == OK and error and not body.get("id"):
        status = INTERNAL
    message = error.get("message") if isinstance(error, dict) else error or body.get("detail")
    return Outcome(status, body, str(message or "")[:2000] if status != OK else "")


def models(endpoint: ApiAddress, seconds: float) -> Outcome:
    """The answer to the question which models are served.

    Raises:
        OSError, http.client.HTTPException: there is none.
    """
    connection = ApiConnection(endpoint, seconds)
    try:
        return read(*connection.ask("GET", "/v1/models"))
    finally:
        connection.close()


Task = Callable[[ApiConnection], object]


class Threads:
    """Threads that each hold one connection; as many as tasks were ever open at once."""

    def __init__(self, endpoint: ApiAddress, seconds: float) -> None:
        self.endpoint, self._seconds = endpoint, seconds
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self.results: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._open: list[threading.Thread] = []
        self._busy = 0

    def submit(self, task: Task) -> None:
        """Run a task on a connection; its result comes in `results`, for which `taken` is called."""
        self._busy += 1
        if self._busy > len(self._open):
            thread = threading.Thread(target=self._work, daemon=True, name="batch")
            thread.start()
            self._open.append(thread)
        self._tasks.put(task)

    def taken(self) -> None:
        """A result was taken: its thread is free."""
        self._busy -= 1

    def _work(self) -> None:
        connection = ApiConnection(self.endpoint, self._seconds)
        try:
            while task := self._tasks.get():
                if connection.endpoint != self.endpoint:
                    connection.close()
                    connection = ApiConnection(self.endpoint, self._seconds)
                try:
                    self.results.put(task(connection))
                except BaseException as error:  # taken by the one that waits for the result
                    self.results.put(error)
        finally:
            connection.close()

    def close(self) -> None:
        """End the threads that wait for a task; the others end with their answer, or with the program."""
        for _ in self._open:
            self._tasks.put(None)
