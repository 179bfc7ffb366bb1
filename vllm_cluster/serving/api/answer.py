"""The served model's OpenAI-compatible API: what a request may hold, and what the pieces of an answer mean."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO

from vllm_cluster.wire.answers import Alternative, AnswerEvent, Choice, Logprobs, Message, PromptLogprob, Usage
from vllm_cluster.wire.reading import convert

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
Document = Mapping[str, object]
# What vLLM allows where --max-logprobs is not given.
MAX_LOGPROBS = 20
# A rate needs two moments.
MIN_RATED = 2
# What a proxy has kept back comes in a burst: its rate would be that of the network.
MIN_RATED_SECONDS = 0.02
# Of a reply with all its answers, in bytes of memory. A character has four with one emoji in its answer, and is there
# twice while a piece is added: 5 million fit, and no model writes as many. COUNTED is a token with its logprobs, and an
# answer.
MAX_REPLY, CHARACTER, COUNTED = 64 << 20, 12, 250


class OddAnswer(ValueError):
    """An answer of another shape than the API's: whoever has taken the head over may write it."""


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
class Piece:
    """A part of one answer, as it arrives; the last one has why it ended."""

    index: int = 0
    text: str = ""
    reasoning: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True)
class Answer:
    """One answer, as far as it has come."""

    text: str = ""
    reasoning: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class _Growing:
    """An answer that is put together from its pieces."""

    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    # Of two texts that are added, Python copies both: after a million characters so many for each token.
    _text: StringIO = field(default_factory=StringIO)
    _reasoning: StringIO = field(default_factory=StringIO)

    @property
    def answer(self) -> Answer:
        """What it is now."""
        text, reasoning = self._text.getvalue(), self._reasoning.getvalue()
        return Answer(text, reasoning, self.logprobs, self.finish_reason, self.stop_reason)

    def add(self, piece: Piece) -> None:
        """Append what has arrived."""
        self._text.write(piece.text)
        self._reasoning.write(piece.reasoning)
        self.logprobs += piece.logprobs
        self.finish_reason = piece.finish_reason or self.finish_reason
        self.stop_reason = self.stop_reason if piece.stop_reason is None else piece.stop_reason


@dataclass
class ModelReply:
    """What came back for one request so far; seconds from when it was sent."""

    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    usage: Usage | None = None
    seconds_to_first: float | None = None
    tokens_to_first: int = 0
    seconds: float = 0.0
    _size: int = 0
    _growing: dict[int, _Growing] = field(default_factory=dict)

    def add(self, document: Document, wanted: int, prompt_wanted: int | None, seconds: float) -> list[Piece]:
        """Take an event of the stream, or the whole answer; its pieces.

        Raises:
            OddAnswer: it is none.
        """
        try:
            event = convert(AnswerEvent, document, "the API")
            found = list(pieces(event, wanted))
        except ValueError:
            raise OddAnswer("the answer is not as the API has it") from None
        for piece in found:
            new = piece.index not in self._growing
            self._count(CHARACTER * (len(piece.text) + len(piece.reasoning)))
            self._count(COUNTED * (new + _tokens(piece.logprobs)))
            self._growing.setdefault(piece.index, _Growing()).add(piece)
        self.usage = event.usage or self.usage
        if prompt_wanted is not None:
            asked = prompt_logprobs(event, prompt_wanted)
            # A stream has none: they come once, within the limit of an event.
            self._count(COUNTED * _tokens(asked) if self.prompt_logprobs else 0)
            self.prompt_logprobs += asked
        self.seconds = seconds
        if self.seconds_to_first is None and any(piece.text or piece.reasoning for piece in found):
            self.seconds_to_first = seconds
            self.tokens_to_first = self.usage.completion_tokens if self.usage else len(self._growing)
        return found

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > MAX_REPLY:
            raise OddAnswer("the answer has no end")

    @property
    def first(self) -> Answer:
        """The first answer, empty before it begins."""
        return self._growing[0].answer if 0 in self._growing else Answer()

    @property
    def answers(self) -> dict[int, Answer]:
        """Each answer by its index."""
        return {index: one.answer for index, one in self._growing.items()}

    @property
    def tokens_per_second(self) -> float | None:
        """The rate after the first tokens; None where the answer came as a whole, or in a burst."""
        tokens, first = self.usage.completion_tokens if self.usage else 0, self.seconds_to_first
        if tokens < MIN_RATED or first is None or self.seconds - first < MIN_RATED_SECONDS:
            return None
        return (tokens - self.tokens_to_first) / (self.seconds - first)


def body(
    path: str, model: str, given: Document, *, logprobs: int | None = None, prompt_logprobs: int | None = None
) -> dict[str, object]:
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


def schema_format(schema: Document) -> dict[str, object]:
    """The value of `response_format` that makes the answer JSON of this schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def pieces(event: AnswerEvent, wanted: int = 0) -> Iterator[Piece]:
    """The pieces in one event of a stream, or in a whole answer, with so many of the most probable tokens."""
    for choice in event.choices or ():
        message = choice.delta or choice.message or Message()
        stop = choice.stop_reason
        if not isinstance(stop, int | str | None):
            raise OddAnswer("its stop_reason is neither a text nor a number")
        yield Piece(
            index=choice.index or 0,
            text=choice.text or message.content or "",
            reasoning=message.reasoning or message.reasoning_content or "",
            logprobs=tuple(_logprobs(choice.logprobs or Logprobs(), wanted)),
            finish_reason=choice.finish_reason,
            stop_reason=stop,
        )


def prompt_logprobs(event: AnswerEvent, wanted: int) -> list[TokenLogprob]:
    """The tokens of the prompt, where the request asked for them."""
    choice = event.choices[0] if event.choices else Choice()
    rows = choice.prompt_logprobs or event.prompt_logprobs or ()
    ids = choice.prompt_token_ids or event.prompt_token_ids or [None] * len(rows)
    return [
        _prompt_token(row or {}, None if number is None else str(number), wanted)
        for row, number in zip(rows, ids, strict=False)
    ]


def _tokens(found: Sequence[TokenLogprob]) -> int:
    """How many tokens are in it, the most probable ones too."""
    return sum(1 + len(one.top) for one in found)


def error_message(document: object) -> str | None:
    """The message of an error document; None where this is none."""
    error = document.get("error") if isinstance(document, Mapping) else None
    if isinstance(error, Mapping):
        return str(error.get("message") or error)
    return str(error) if error else None


def probability(logprob: float | None) -> float | None:
    """The probability, from 0 to 1."""
    return None if logprob is None else math.exp(min(0.0, logprob))


def _prompt_token(row: Mapping[str, PromptLogprob], number: str | None, wanted: int) -> TokenLogprob:
    own = row.get(number or next(iter(row), ""))
    if own is None:  # nothing comes before the first token that could make it probable
        return TokenLogprob(f"<{number}>" if number else "", None, None)
    top = [Alternative(one.decoded_token or "", one.logprob) for one in row.values()]
    return TokenLogprob(own.decoded_token or "", own.logprob, own.rank, _best(top, wanted))


def _logprobs(found: Logprobs, wanted: int) -> Iterator[TokenLogprob]:
    for one in found.content or ():
        yield _ranked(one.token, one.logprob, one.top_logprobs or (), wanted)
    tops = found.top_logprobs or ()
    pairs = zip(found.tokens or (), found.token_logprobs or (), strict=False)
    for place, (token, logprob) in enumerate(pairs):
        row = (tops[place] if place < len(tops) else None) or {}
        top = [Alternative(name, value) for name, value in row.items()]
        # The text of a part of a character is empty, or the sign for what cannot be decoded.
        if logprob is not None and (len(top) < wanted or any(one.token.strip("\ufffd") == "" for one in top)):
            yield TokenLogprob(token, logprob, None, _best(top, wanted), merged=True)
        else:
            yield _ranked(token, logprob, top, wanted)


def _ranked(token: str, logprob: float | None, top: Sequence[Alternative], wanted: int) -> TokenLogprob:
    """A token with its rank, where it is among the most probable ones."""
    if logprob is None:
        return TokenLogprob(token, None, None)
    better = sum(one.logprob > logprob for one in top)
    known = better < wanted <= len(top)
    return TokenLogprob(token, logprob, better + 1 if known else None, _best(top, wanted))


def _best(top: Sequence[Alternative], wanted: int) -> tuple[Alternative, ...]:
    return tuple(sorted(top, key=lambda one: -one.logprob)[:wanted])


_REQUEST = ("post", "requestBody", "content", "application/json", "schema")


def fields_of(openapi: Mapping[str, object], path: str) -> frozenset[str]:
    """Read the fields of a request to this path; none where the schema does not have it."""
    todo, seen, fields = [_at(openapi, ("paths", path, *_REQUEST))], set[int](), set[str]()
    while todo:
        schema = todo.pop()
        if not isinstance(schema, Mapping) or id(schema) in seen:
            continue
        seen.add(id(schema))
        if isinstance(found := schema.get("properties"), Mapping):
            # One is in a remedy where it is alike, and a server may name it anything.
            fields |= {name for name in found if name.isidentifier()}
        todo += [one for kind in ("anyOf", "oneOf", "allOf") for one in _list(schema.get(kind))]
        todo.append(_at(openapi, str(schema.get("$ref", "")).removeprefix("#/").split("/")))
    return frozenset(fields)


def _at(document: object, steps: Iterable[str]) -> object:
    for step in steps:
        document = document.get(step) if isinstance(document, Mapping) else None
    return document


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
