"""The served model's OpenAI-compatible API: what a request may hold, and what the pieces of an answer mean."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
Document = Mapping[str, Any]
# What vLLM allows where --max-logprobs is not given.
MAX_LOGPROBS = 20
# A rate needs two moments.
MIN_RATED = 2
# What a proxy has kept back comes in a burst: its rate would be that of the network.
MIN_RATED_SECONDS = 0.02
# Of one answer, in characters: no context of a model is as long.
MAX_ANSWER = 64 << 20


class OddAnswer(ValueError):
    """An answer of another shape than the API's: whoever has taken the head over may write it."""


@dataclass(frozen=True)
class Alternative:
    """A token that could have been in a place, and the logarithm of its probability."""

    token: str
    logprob: float


@dataclass(frozen=True)
class TokenLogprob:
    """One token; the first of a prompt has no probability, and `rank` is None where the server does not return it.

    `top` are the most probable tokens in its place, the token itself among them where it is one. `merged` is whether
    some of them may be missing: vLLM's completions have one entry for all tokens of the same text, as parts of a
    character are.
    """

    token: str
    logprob: float | None
    rank: int | None
    top: tuple[Alternative, ...] = ()
    merged: bool = False


@dataclass(frozen=True)
class Usage:
    """Tokens of the prompt, and of all answers to it."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Piece:
    """A part of one answer, as it arrives; the last one has why it ended."""

    index: int = 0
    text: str = ""
    reasoning: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class Answer:
    """One answer, put together from its pieces."""

    text: str = ""
    reasoning: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, piece: Piece) -> None:
        """Append what has arrived."""
        if len(self.text) + len(self.reasoning) > MAX_ANSWER:
            raise ValueError("has no end")
        self.text += piece.text
        self.reasoning += piece.reasoning
        self.logprobs += piece.logprobs
        self.finish_reason = piece.finish_reason or self.finish_reason
        self.stop_reason = self.stop_reason if piece.stop_reason is None else piece.stop_reason


@dataclass
class ModelReply:
    """What came back for one request so far; seconds from when it was sent."""

    answers: dict[int, Answer] = field(default_factory=dict)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    usage: Usage | None = None
    seconds_to_first: float | None = None
    tokens_to_first: int = 0
    seconds: float = 0.0

    def add(self, document: Document, wanted: int, prompt_wanted: int | None, seconds: float) -> list[Piece]:
        """Take an event of the stream, or the whole answer; its pieces.

        Raises:
            OddAnswer: it is none.
        """
        try:
            return self._add(document, wanted, prompt_wanted, seconds)
        except (TypeError, AttributeError, LookupError, ArithmeticError, ValueError):
            raise OddAnswer("the answer is not as the API has it") from None

    def _add(self, document: Document, wanted: int, prompt_wanted: int | None, seconds: float) -> list[Piece]:
        found = list(pieces(document, wanted))
        for piece in found:
            self.answers.setdefault(piece.index, Answer()).add(piece)
        self.usage = usage(document) or self.usage
        if prompt_wanted is not None:
            self.prompt_logprobs += prompt_logprobs(document, prompt_wanted)
        self.seconds = seconds
        if self.seconds_to_first is None and any(piece.text or piece.reasoning for piece in found):
            self.seconds_to_first = seconds
            self.tokens_to_first = self.usage.completion_tokens if self.usage else len(self.answers)
        return found

    @property
    def first(self) -> Answer:
        """The first answer, empty before it begins."""
        return self.answers.get(0) or Answer()

    @property
    def tokens_per_second(self) -> float | None:
        """The rate after the first tokens; None where the answer came as a whole, or in a burst."""
        tokens, first = self.usage.completion_tokens if self.usage else 0, self.seconds_to_first
        if tokens < MIN_RATED or first is None or self.seconds - first < MIN_RATED_SECONDS:
            return None
        return (tokens - self.tokens_to_first) / (self.seconds - first)


def body(
    path: str, model: str, given: Document, *, logprobs: int | None = None, prompt_logprobs: int | None = None
) -> dict[str, Any]:
    """A request with what was given, and nothing else: each default is the server's, or the model's own."""
    made = {"model": model, **{name: value for name, value in given.items() if value is not None}}
    if logprobs is not None:
        # A chat's list may hold the token itself in the place of the last one: so one more, and none is missing.
        more = min(logprobs + 1, MAX_LOGPROBS) if 0 < logprobs < MAX_LOGPROBS else logprobs
        made |= {"logprobs": logprobs} if path == COMPLETIONS else {"logprobs": True, "top_logprobs": more}
    if prompt_logprobs is not None:
        # vLLM has them in no stream; the ids name the prompt's own token among those of its place.
        return {**made, "prompt_logprobs": prompt_logprobs, "return_token_ids": True}
    if made.get("use_beam_search"):  # nor does it stream what it may still take back
        return made
    return {**made, "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}


def schema_format(schema: Document) -> dict[str, Any]:
    """The value of `response_format` that makes the answer JSON of this schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def pieces(document: Document, wanted: int = 0) -> Iterator[Piece]:
    """The pieces in one event of a stream, or in a whole answer, with so many of the most probable tokens."""
    for choice in document.get("choices") or ():
        message = choice.get("delta") or choice.get("message") or {}
        yield Piece(
            index=int(choice.get("index") or 0),
            text=str(choice.get("text") or message.get("content") or ""),
            reasoning=str(message.get("reasoning") or message.get("reasoning_content") or ""),
            logprobs=tuple(_logprobs(choice.get("logprobs") or {}, wanted)),
            finish_reason=_of(choice.get("finish_reason"), str),
            stop_reason=_of(choice.get("stop_reason"), int, str),
        )


def _of(value: Any, *kinds: type) -> Any:
    """A value of one of these types, or none."""
    if value is not None and type(value) not in kinds:
        raise TypeError(value)
    return value


def usage(document: Document) -> Usage | None:
    """The tokens of the whole request, where this event counts them."""
    found = document.get("usage")
    return Usage(int(found["prompt_tokens"]), int(found.get("completion_tokens") or 0)) if found else None


def prompt_logprobs(document: Document, wanted: int) -> list[TokenLogprob]:
    """The tokens of the prompt, where the request asked for them."""
    choice = (document.get("choices") or [{}])[0]
    rows = choice.get("prompt_logprobs") or document.get("prompt_logprobs") or []
    ids = choice.get("prompt_token_ids") or document.get("prompt_token_ids") or [None] * len(rows)
    return [
        _prompt_token(row or {}, None if number is None else str(number), wanted)
        for row, number in zip(rows, ids, strict=False)
    ]


def error_message(document: object) -> str | None:
    """The message of an error document; None where this is none."""
    error = document.get("error") if isinstance(document, Mapping) else None
    if isinstance(error, Mapping):
        return str(error.get("message") or error)
    return str(error) if error else None


def probability(logprob: float | None) -> float | None:
    """The probability, from 0 to 1."""
    return None if logprob is None else math.exp(min(0.0, logprob))


def _prompt_token(row: Document, number: str | None, wanted: int) -> TokenLogprob:
    own = row.get(number or next(iter(row), ""))
    if own is None:  # nothing comes before the first token that could make it probable
        return TokenLogprob(f"<{number}>" if number else "", None, None)
    top = [Alternative(str(one.get("decoded_token")), float(one["logprob"])) for one in row.values()]
    return TokenLogprob(
        str(own.get("decoded_token")), float(own["logprob"]), _of(own.get("rank"), int), _best(top, wanted)
    )


def _logprobs(found: Document, wanted: int) -> Iterator[TokenLogprob]:
    if "content" in found:
        for row in found["content"] or ():
            top = [Alternative(str(one["token"]), float(one["logprob"])) for one in row.get("top_logprobs") or ()]
            yield _ranked(str(row["token"]), row.get("logprob"), top, wanted)
        return
    tops = found.get("top_logprobs") or ()
    pairs = zip(found.get("tokens") or (), found.get("token_logprobs") or (), strict=False)
    for place, (token, logprob) in enumerate(pairs):
        row = (tops[place] if place < len(tops) else None) or {}
        top = [Alternative(str(name), float(value)) for name, value in row.items()]
        # The text of a part of a character is empty, or the sign for what cannot be decoded.
        if logprob is not None and (len(top) < wanted or any(one.token.strip("\ufffd") == "" for one in top)):
            yield TokenLogprob(str(token), float(logprob), None, _best(top, wanted), merged=True)
        else:
            yield _ranked(str(token), logprob, top, wanted)


def _ranked(token: str, logprob: float | None, top: Sequence[Alternative], wanted: int) -> TokenLogprob:
    """A token with its rank, where it is among the most probable ones."""
    if logprob is None:
        return TokenLogprob(token, None, None)
    better = sum(one.logprob > logprob for one in top)
    known = better < wanted <= len(top)
    return TokenLogprob(token, float(logprob), better + 1 if known else None, _best(top, wanted))


def _best(top: Sequence[Alternative], wanted: int) -> tuple[Alternative, ...]:
    return tuple(sorted(top, key=lambda one: -one.logprob)[:wanted])


_REQUEST = ("post", "requestBody", "content", "application/json", "schema")


def fields_of(openapi: Mapping[str, Any], path: str) -> frozenset[str]:
    """Read the fields of a request to this path; none where the schema does not have it."""
    todo, seen, fields = [_at(openapi, ("paths", path, *_REQUEST))], set[int](), set[str]()
    while todo:
        schema = todo.pop()
        if not isinstance(schema, Mapping) or id(schema) in seen:
            continue
        seen.add(id(schema))
        if isinstance(found := schema.get("properties"), Mapping):
            fields |= found.keys()
        todo += [one for kind in ("anyOf", "oneOf", "allOf") for one in _list(schema.get(kind))]
        todo.append(_at(openapi, str(schema.get("$ref", "")).removeprefix("#/").split("/")))
    return frozenset(fields)


def _at(document: object, steps: Iterable[str]) -> object:
    for step in steps:
        document = document.get(step) if isinstance(document, Mapping) else None
    return document


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
