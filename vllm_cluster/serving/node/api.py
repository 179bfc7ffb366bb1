"""What vLLM's API is asked: whether it is healthy, a smallest request of the model's own kind, its counters."""

from __future__ import annotations

import http.client
import io
import json
import math
import re
import socket
import time
import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_cluster.wire.keys import key_to_use
from vllm_cluster.wire.listeners import is_own_listener
from vllm_cluster.wire.reading import bounded

# Metrics have 57 kB an engine. What is parsed takes 20 times as much, where it is a list of empty lists.
MAX_ANSWER, MAX_PARSED = 16 << 20, 2 << 20
# What a server answers on a path that its model does not serve; older ones have the path and refuse each request.
_NOT_SERVED = (400, 404, 405, 501)
# What an engine's scheduler counts. The memory of the cache moves with each step of a prompt, before its first token.
_COUNTER = re.compile(
    r"^vllm:(prompt_tokens_total|generation_tokens_total|iteration_tokens_total_count|kv_cache_usage_perc"
    r"|num_requests_running|num_requests_waiting)(?:\{(.*)\})? (\d{1,300}(?:\.\d*)?(?:e[+-]?\d{1,4})?)$",
    re.MULTILINE,
)
_ENGINE = re.compile(r'(?:^|,)engine="(\d+)"')
_BOUNDARY = "vcluster-probe"


@dataclass
class Counts:
    """What one engine has counted: tokens read and generated, and all that moves with its steps."""

    tokens: float = 0.0
    steps: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Question:
    """A smallest request: what it is called, for which of vLLM's tasks, and what a good answer to it holds."""

    name: str
    tasks: tuple[str, ...]
    path: str
    body: Callable[[str], bytes]
    good: Callable[[object], bool]
    kind: str = "application/json"


def _json(**content: object) -> Callable[[str], bytes]:
    return lambda model: json.dumps({"model": model, **content}).encode()


def _speech(model: str) -> bytes:
    """A second of silence, as a form."""
    sound = io.BytesIO()
    with wave.open(sound, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(bytes(32_000))
    head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="'
    model_part = f'{head}model"\r\n\r\n{model}\r\n'
    file_part = f'{head}file"; filename="silence.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    return model_part.encode() + file_part.encode() + sound.getvalue() + f"\r\n--{_BOUNDARY}--\r\n".encode()


def _finite(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and all(map(_finite, value))
    return isinstance(value, int | float) and math.isfinite(value)


def _first(answer: object, name: str) -> object:
    match answer:
        case {"data": [dict(row), *_]}:
            return row.get(name)
    return None


def _generated(answer: object) -> bool:
    match answer:
        case {"usage": {"completion_tokens": int(count)}}:
            return count >= 1
    return False


QUESTIONS = (
    Question(
        "completion", ("generate",), "/v1/completions", _json(prompt="Hello", max_tokens=1, temperature=0), _generated
    ),
    Question(
        "chat completion",
        ("generate",),
        "/v1/chat/completions",
        _json(messages=[{"role": "user", "content": "Hello"}], max_tokens=1, temperature=0),
        _generated,
    ),
    Question(
        "embedding",
        ("embed",),
        "/v1/embeddings",
        _json(input="Hello"),
        lambda answer: _finite(_first(answer, "embedding")),
    ),
    Question(
        "score",
        ("classify", "score"),
        "/score",
        _json(text_1="Hello", text_2="Hello"),
        lambda answer: _finite(_first(answer, "score")),
    ),
    Question(
        "classification",
        ("classify",),
        "/classify",
        _json(input="Hello"),
        lambda answer: _finite(_first(answer, "probs")),
    ),
    Question(
        "pooling",
        ("token_embed", "token_classify", "encode", "plugin"),
        "/pooling",
        _json(input="Hello"),
        lambda answer: _finite(_first(answer, "data")),
    ),
    Question(
        "transcription",
        ("transcription",),
        "/v1/audio/transcriptions",
        _speech,
        lambda answer: isinstance(answer, dict) and isinstance(answer.get("text"), str),
        f"multipart/form-data; boundary={_BOUNDARY}",
    ),
)


class _InTime(io.RawIOBase):
    """What is read of a socket until a moment: its own time-out is for each receive, and a byte now and then is one."""

    def __init__(self, connection: socket.socket, raw: io.RawIOBase, until: float) -> None:
        self._socket, self._raw, self._until = connection, raw, until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int | None:  # type: ignore[override]
        if (left := self._until - time.monotonic()) <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedAnswer(http.client.HTTPResponse):
    """An answer of which every byte comes within the time-out of its connection."""

    def __init__(self, sock: socket.socket, debuglevel: int = 0, method: str | None = None, url: str | None = None):
        until = time.monotonic() + (sock.gettimeout() or 0.0)
        super().__init__(sock, debuglevel, method, url)
        self.fp = io.BufferedReader(_InTime(sock, self.fp.detach(), until))


class NotServed(ValueError):
    """The server refuses this kind of request: its model is of another kind."""


class Api:
    """vLLM's API on this host, and the file of the key that it wants; none where it wants no key."""

    def __init__(self, host: str, port: int, key_file: str = "") -> None:
        self._host, self._port, self._key_file = host, port, key_file

    def healthy(self, timeout: float) -> bool:
        """Whether /health returns 200, which an engine that hangs does, too."""
        try:
            return self._ask("GET", "/health", None, timeout)[0] == http.client.OK
        except (OSError, http.client.HTTPException):
            return False

    def counts(self, timeout: float) -> dict[str, Counts] | None:
        """What each engine has counted so far, by its number; None where the server does not count."""
        try:
            status, text = self._ask("GET", "/metrics", None, timeout)
        except (OSError, http.client.HTTPException):
            return None
        found: dict[str, Counts] = {}
        for name, labels, value in _COUNTER.findall(text) if status == http.client.OK else ():
            engine = _ENGINE.search(labels)
            counts = found.setdefault(engine[1] if engine else "", Counts())
            counts.steps = (*counts.steps, (name, value))
            if name in ("prompt_tokens_total", "generation_tokens_total"):
                counts.tokens += float(value)
        return found or None

    def ask(self, question: Question, model: str, timeout: float, *, engine: str = "") -> None:
        """Ask one question; with data parallel, of one engine.

        Raises:
            NotServed: the model is not of this kind.
            OSError, HTTPException, ValueError, KeyError, TypeError, IndexError: no answer, or not a good one.
        """
        headers = {"Content-Type": question.kind, **({"X-data-parallel-rank": engine} if engine else {})}
        status, text = self._ask("POST", question.path, question.body(model), timeout, headers)
        if status != http.client.OK:
            error = NotServed if status in _NOT_SERVED else ValueError
            raise error(f"a {question.name} ended with HTTP {status}: {text[:500]}")
        if len(text) > MAX_PARSED or not question.good(_parsed(text)):
            raise ValueError(f"a {question.name} has no token or value: {text[:500]}")

    def _ask(
        self, method: str, path: str, body: bytes | None, timeout: float, headers: Mapping[str, str] = {}
    ) -> tuple[int, str]:
        # Each question has the key. Until vLLM listens, and once it has ended, another user of the host may do so.
        if self._key_file and not is_own_listener(self._host, self._port):
            raise ConnectionRefusedError(f"no program of this user listens at {self._host}:{self._port}")
        # Not urllib: it would ask a proxy named in the environment for our own port.
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        connection.response_class = _TimedAnswer
        if self._key_file:
            headers = {**headers, "Authorization": f"Bearer {key_to_use(Path(self._key_file))}"}
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(MAX_ANSWER).decode("utf-8", "replace")
        finally:
            connection.close()


def _parsed(text: str) -> object:
    try:
        return json.loads(bounded(text.encode()))
    except RecursionError:
        raise ValueError("its answer is nested too deep") from None


def in_order(tasks: Sequence[str]) -> list[Question]:
    """The questions, those first that fit the model's tasks in vLLM's log, which may hold none."""
    return sorted(QUESTIONS, key=lambda question: not set(question.tasks) & set(tasks))
