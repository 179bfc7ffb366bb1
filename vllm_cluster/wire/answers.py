"""What vLLM's API answers: an event of a stream, or the whole. Texts are as the model made them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_cluster.wire.values import Count, Long


@dataclass(frozen=True)
class Alternative:
    """A token that could have been in a place, and the logarithm of its probability."""

    token: Long
    logprob: float


@dataclass(frozen=True)
class ChatLogprob(Alternative):
    """A token of a chat."""

    top_logprobs: tuple[Alternative, ...] | None = None


@dataclass(frozen=True)
class Logprobs:
    """Those of a chat in `content`; those of a completion in three lists."""

    content: tuple[ChatLogprob, ...] | None = None
    tokens: tuple[Long, ...] | None = None
    token_logprobs: tuple[float | None, ...] | None = None
    top_logprobs: tuple[Mapping[Long, float] | None, ...] | None = None


@dataclass(frozen=True)
class PromptLogprob:
    """A token that is or could be in a place of the prompt."""

    logprob: float
    decoded_token: Long | None = None
    rank: Count | None = None


@dataclass(frozen=True)
class Message:
    """A part of a chat."""

    content: Long | None = None
    reasoning: Long | None = None
    reasoning_content: Long | None = None


@dataclass(frozen=True)
class Choice:
    """A part of one answer; `stop_reason` is a text or the number of a token."""

    index: Count | None = None
    text: Long | None = None
    delta: Message | None = None
    message: Message | None = None
    logprobs: Logprobs | None = None
    finish_reason: Long | None = None
    stop_reason: object = None
    prompt_logprobs: tuple[Mapping[Long, PromptLogprob] | None, ...] | None = None
    prompt_token_ids: tuple[Count, ...] | None = None


@dataclass(frozen=True)
class Usage:
    """Tokens of the prompt, and of all answers to it."""

    prompt_tokens: Count
    completion_tokens: Count = 0


@dataclass(frozen=True)
class AnswerEvent:
    """All of them; a chat has the tokens of its prompt beside its choices."""

    choices: tuple[Choice, ...] | None = None
    usage: Usage | None = None
    prompt_logprobs: tuple[Mapping[Long, PromptLogprob] | None, ...] | None = None
    prompt_token_ids: tuple[Count, ...] | None = None
