"""Requests to the model's API on the head, and what becomes of each; on the HTTP client that vLLM and Ray bring."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

from vllm_cluster.features.batch.on_head.lines import MAX_ANSWER, PATHS, BatchLine, BatchProblem, no_constant
from vllm_cluster.features.batch.on_head.room import BEGINNING, AnswerSoFar
from vllm_cluster.wire.keys import key_to_use
from vllm_cluster.wire.listeners import is_own_listener
from vllm_cluster.wire.reading import bounded

# vLLM closes a connection that is idle for 5 s: one that was is not used again, as the request would meet its end.
IDLE_SECONDS = 2.0
MAX_MODELS = 1 << 20
# As many may be open at once as answers.
MAX_REFUSAL = 16 << 10
# Of lists and objects in an answer, each of which takes a hundred bytes: 16 MiB of logprobs have half of that.
MAX_PARTS = 1 << 20
POLL_SECONDS, PROBE_SECONDS = 2.0, 30.0
# A node program that has just started writes its request a moment after its first status.
STOPPED_SECONDS = 10.0
NO_STATUS, OK, UNAUTHORIZED, NOT_FOUND, TOO_SLOW, TOO_MANY, INTERNAL = 0, 200, 401, 404, 408, 429, 500
# Of an answer nothing else is looked at: the lists of its logprobs take many times the memory of their text.
_READ = frozenset(
    {
        *("id", "model", "usage", "error", "message", "detail", "finish_reason", *PATHS.values()),
        *("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens"),
    }
)


@dataclass(frozen=True)
class ApiAddress:
    """Where the API answers, and its key."""

    host: str
    port: int
    key: str = field(repr=False)

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


@dataclass(frozen=True)
class Outcome:
    """What came back: a status and what is read of a body, or why nothing did (`status` 0); `raw` is an answer."""

    status: int
    message: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)
    raw: bytes = field(default=b"", repr=False)
    final: bool = False

    @property
    def answered(self) -> bool:
        """Whether it is a whole answer."""
        return self.status == OK and not self.message

    @property
    def name(self) -> str:
        """What the server calls the answer, where it does."""
        found = self.body.get("id")
        return found if isinstance(found, str) else ""

    @property
    def refused(self) -> bool:
        """Whether the same request would be refused again."""
        return self.final or (OK < self.status < INTERNAL and not self.busy and self.status != UNAUTHORIZED)

    @property
    def lacks_model(self) -> bool:
        """Whether the server lacks the model, rather than the path."""
        return self.status == NOT_FOUND and "error" in self.body

    @property
    def busy(self) -> bool:
        """Whether the server lives, and asks to come again."""
        return self.status in (TOO_SLOW, TOO_MANY)


class ApiClient:
    """The API at an address, which may change; a request may take `seconds` from its begin to the end of its answer."""

    def __init__(self, seconds: float, folder: Path) -> None:
        """Have long answers arrive in files without a name, on the disk of a folder."""
        self.address = ApiAddress("127.0.0.1", 0, "")
        self._seconds, self._folder = seconds, folder
        # Each long answer takes several times its size while it is read: one is in memory.
        self._alone = asyncio.Lock()

    async def __aenter__(self) -> ApiClient:
        # No more than asked for may arrive at once; nothing is unpacked, and no cookie kept.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS)
        guard = aiohttp.TraceConfig()
        guard.on_connection_create_start.append(self._ensure_own)
        self._http = aiohttp.ClientSession(
            connector=connector,
            trace_configs=[guard],
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity", "Content-Type": "application/json"},
            read_bufsize=BEGINNING // 4,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._http.close()

    async def get(self, path: str, most: int, seconds: float) -> tuple[int, bytes]:
        """Read the status and the content of a page.

        Raises:
            OSError, asyncio.TimeoutError, aiohttp.ClientError: there is none, or it is longer.
        """
        async with self._ask("GET", path, seconds) as reply:
            raw = await _beginning(reply, most + 1)
            if len(raw) > most:
                raise aiohttp.ClientError(f"{path} is longer than {most} bytes")
            return reply.status, raw

    @asynccontextmanager
    async def post(self, line: BatchLine, names: frozenset[str]) -> AsyncIterator[Outcome]:
        """Ask; a long answer is in memory until the context is left, and no other one; `names` may answer."""
        async with AsyncExitStack() as held:
            yield await self._post(line, names, held)

    async def _post(self, line: BatchLine, names: frozenset[str], held: AsyncExitStack) -> Outcome:
        arriving = AnswerSoFar(self._folder)
        held.callback(arriving.close)
        try:
            async with self._ask("POST", line.path, self._seconds, line.body) as reply:
                status = reply.status
                if status != OK:
                    arriving.add(await _beginning(reply, MAX_REFUSAL))
                elif not await _arrive(reply, arriving):
                    return Outcome(OK, f"the answer is longer than {MAX_ANSWER >> 20} MiB", final=True)
        except (asyncio.TimeoutError, TimeoutError):
            return Outcome(NO_STATUS, f"no whole answer within {self._seconds:g} s")
        except aiohttp.ClientPayloadError:
            return Outcome(NO_STATUS, "the answer was cut off")
        except (OSError, aiohttp.ClientError) as error:
            return Outcome(NO_STATUS, str(error) or type(error).__name__)
        if arriving.long:
            await held.enter_async_context(self._alone)
        try:
            raw = arriving.whole()
            return judge(raw, PATHS[line.path], names) if status == OK else refusal(status, raw)
        except Exception as error:  # what one answer holds ends no other one
            return Outcome(NO_STATUS, f"not an answer: {type(error).__name__}")

    def _ask(
        self, method: str, path: str, seconds: float, body: bytes | None = None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Send a request to the API and nowhere else: an answer that names another place is a refusal."""
        limit = aiohttp.ClientTimeout(total=seconds)
        url, key = self.address.url + path, {"Authorization": f"Bearer {self.address.key}"}
        return self._http.request(method, url, data=body, headers=key, timeout=limit, allow_redirects=False)

    async def _ensure_own(self, *_: object) -> None:
        """Show the key to no other user of the head, who may listen there once the front has ended."""
        at = self.address
        if not is_own_listener(at.host, at.port):
            raise ConnectionRefusedError(f"no program of this user listens at {at.host}:{at.port}")


async def _arrive(reply: aiohttp.ClientResponse, arriving: AnswerSoFar) -> bool:
    """Take in all of an answer, unless it is too long; whether it is whole."""
    if (reply.content_length or 0) > MAX_ANSWER:
        return False
    async for piece in reply.content.iter_any():
        if arriving.size + len(piece) > MAX_ANSWER:
            return False
        arriving.add(piece)
    return True


async def _beginning(reply: aiohttp.ClientResponse, most: int) -> bytes:
    """So much of a reply, also of one that breaks off."""
    found = bytearray()
    try:
        async for piece in reply.content.iter_any():
            found += piece[: most - len(found)]
            if len(found) == most:
                break
    except aiohttp.ClientPayloadError:
        if reply.status == OK:
            raise
    return bytes(found)


def _kept(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in pairs if name in _READ}


def _read_document(raw: bytes) -> dict[str, Any] | None:
    """Read what matters of a JSON object; None where it is none."""
    try:
        found = json.loads(raw.decode(), object_pairs_hook=_kept, parse_constant=no_constant)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def refusal(status: int, raw: bytes) -> Outcome:
    """Return the meaning of a reply with another status than 200."""
    body = _read_document(raw)
    if body is None:
        return Outcome(status, raw.decode("utf-8", "replace").strip()[:500] or f"HTTP {status}")
    return Outcome(status, _message(body) or f"HTTP {status}", body)


def judge(raw: bytes, content: str, names: frozenset[str]) -> Outcome:
    """Return whether a reply with status 200 is an answer: it has this list, and is of one of these models."""
    if raw.count(b"[") + raw.count(b"{") > MAX_PARTS:
        return Outcome(OK, f"the answer has more than {MAX_PARTS} lists and objects", final=True)
    body = _read_document(raw)
    if body is None:
        return Outcome(NO_STATUS, "the answer is not a JSON object")
    rows, model = body.get(content), body.get("model")
    if body.get("error"):
        return Outcome(INTERNAL, _message(body) or "the answer is an error", body)
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        return Outcome(NO_STATUS, f"the answer has no {content}")
    if not isinstance(model, str):
        return Outcome(NO_STATUS, "the answer does not name its model")
    if model not in names:
        return Outcome(NO_STATUS, f"the answer is of the model {json.dumps(model)[:80]}, not of {' or '.join(names)}")
    if any(row.get("finish_reason") == "abort" for row in rows):
        return Outcome(NO_STATUS, "the server ended before the answer did")
    return Outcome(OK, body=body, raw=raw)


def _message(body: Mapping[str, Any]) -> str:
    error = body.get("error")
    found = error.get("message") if isinstance(error, dict) else error or body.get("detail")
    return found if isinstance(found, str) else ""


class NodeApi:
    """The API on this host; `note` gets what is waited for, empty once it answers."""

    def __init__(
        self, client: ApiClient, state: Path, key_file: Path, wait: float, note: Callable[[str], None]
    ) -> None:
        self._client, self._state, self._key_file, self._wait, self._note = client, state, key_file, wait, note
        self.model, self.names, self._generation = "", frozenset[str](), ""

    async def open(self, models: set[str]) -> None:
        """Wait until a model answers; it has to be the one of the answers so far.

        Raises:
            BatchProblem: it is not, or does not come in time.
        """
        await self.recover("it is not ready")
        if other := sorted(models - self.names):
            raise BatchProblem(f"the answers so far are of {other[0]}, and {self.model} is served now")

    async def recover(self, why: str) -> None:
        """Wait until it answers again.

        Raises:
            BatchProblem: it was stopped or replaced, has failed, or is away for too long.
        """
        until, stopped, shown = time.monotonic() + self._wait, 0.0, ""
        while True:
            now = self._read()
            stopped = 0.0 if now else stopped or time.monotonic()
            if now is None and time.monotonic() - stopped > STOPPED_SECONDS:
                raise BatchProblem(f"{self.model or 'the model'} was stopped")
            if now and (end := self._ended(now)):
                raise BatchProblem(end)
            news = await self._try(now) if now else "no model is served"
            if news != shown:
                shown = news
                self._note(news)
            if not news:
                return
            if time.monotonic() > until:
                model = self.model or "the model"
                raise BatchProblem(f"{model} has not answered for {self._wait:.0f} s: {news or why}")
            await asyncio.sleep(POLL_SECONDS)

    def _read(self) -> Mapping[str, Any] | None:
        """What the node program reports to be served."""
        try:
            found = json.loads((self._state / "status.json").read_text()).get("serve")
        except (OSError, ValueError, AttributeError):
            return None
        return found if isinstance(found, dict) else None

    def ensure_same(self) -> None:
        """Check that the model is still the one that the batch began with: another may have its name and its port.

        Raises:
            BatchProblem: it was replaced.
        """
        now = self._read()
        if now and (other := self._replaced(now)):
            raise BatchProblem(other)

    def _replaced(self, now: Mapping[str, Any]) -> str | None:
        if self._generation and now["generation"] != self._generation:
            return f"{self.model} was replaced by {now['name']} ({now['phase']})"
        return None

    def _ended(self, now: Mapping[str, Any]) -> str | None:
        if other := self._replaced(now):
            return other
        if now["phase"] == "failed":
            why = now.get("first_failure") or now.get("failure") or {}
            return f"{now['name']} failed: {why.get('summary') or now.get('detail')}"
        return None

    async def _try(self, now: Mapping[str, Any]) -> str:
        """Try whether it answers; what is waited for, empty where it does."""
        if now["phase"] != "ready":
            detail = now.get("detail")
            return f"{now['phase']}: {detail}" if detail else str(now["phase"])
        self.model, self._generation = str(now["name"]), str(now["generation"])
        self._client.address = ApiAddress(str(now["host"]), int(now["port"]), self._key())
        try:
            status, raw = await self._client.get("/v1/models", MAX_MODELS, PROBE_SECONDS)
            if status != OK:
                return f"HTTP {status}"
            self.names = frozenset(row["id"] for row in json.loads(bounded(raw, MAX_MODELS))["data"])
        except RecursionError:
            return "its list of models is nested too deep"
        except (OSError, asyncio.TimeoutError, aiohttp.ClientError, ValueError, LookupError, TypeError) as error:
            return str(error) or type(error).__name__
        return ""

    def _key(self) -> str:
        try:
            return key_to_use(self._key_file)
        except OSError:
            return ""
