"""What a request holds, and what the pieces of an answer mean; the documents are vLLM 0.32.0's."""

from __future__ import annotations

import math
import time

import pytest

from tests.support.bounds import within
from vllm_cluster.serving.api import answer
from vllm_cluster.serving.api.answer import (
    CHAT,
    COMPLETIONS,
    ModelReply,
    OddAnswer,
    body,
    pieces,
    probability,
    prompt_logprobs,
)
from vllm_cluster.wire.answers import Alternative, AnswerEvent
from vllm_cluster.wire.reading import convert


def test_a_request_holds_what_was_given_alone() -> None:
    made = body(COMPLETIONS, "m", {"prompt": "Hi", "temperature": 0.0, "seed": None})
    stream = {"include_usage": True, "continuous_usage_stats": True}
    assert made == {"model": "m", "prompt": "Hi", "temperature": 0.0, "stream": True, "stream_options": stream}


@pytest.mark.parametrize("given", [{"use_beam_search": True}, {}], ids=["beam search", "prompt_logprobs"])
def test_what_vllm_does_not_stream_is_asked_for_whole(given: dict[str, object]) -> None:
    made = body(COMPLETIONS, "m", given, prompt_logprobs=None if given else 2)
    assert "stream" not in made
    assert made.get("prompt_logprobs") == (None if given else 2)


@pytest.mark.parametrize(("wanted", "asked"), [(0, 0), (1, 2), (5, 6), (20, 20), (40, 40)])
def test_a_chat_asks_for_one_more_so_that_no_rank_is_hidden(wanted: int, asked: int) -> None:
    assert body(COMPLETIONS, "m", {}, logprobs=wanted)["logprobs"] == wanted
    assert body(CHAT, "m", {}, logprobs=wanted)["top_logprobs"] == asked


def event(document: object) -> AnswerEvent:
    """The document as it is read."""
    return convert(AnswerEvent, document, "the API")


def completion(token: str, logprob: float, top: dict[str, float]) -> dict[str, object]:
    """An event with one token."""
    logprobs = {"tokens": [token], "token_logprobs": [logprob], "top_logprobs": [top]}
    return {"choices": [{"index": 0, "text": token, "logprobs": logprobs, "finish_reason": None}]}


@pytest.mark.parametrize(
    ("token", "logprob", "top", "rank"),
    [
        ("a", -0.1, {"a": -0.1, "b": -2.0}, 1),
        ("b", -2.0, {"a": -0.1, "b": -2.0}, 2),
        # vLLM adds the token itself to the two most probable ones.
        ("z", -9.0, {"z": -9.0, "a": -0.1, "b": -2.0}, None),
        # Parts of a character are all the empty text: one of the two is missing.
        ("", -3.0, {"": -0.1}, None),
        ("", -0.1, {"": -0.1, "a": -2.0}, None),
        # The token itself, and two that may mean more than one: it is the fourth or the second.
        ("ory", -4.9, {"": -2.9, "ory": -4.9}, None),
        ("ory", -4.9, {"\ufffd": -2.9, "ory": -4.9}, None),
    ],
)
def test_a_rank_is_shown_where_it_is_known(token: str, logprob: float, top: dict[str, float], rank: int | None) -> None:
    (piece,) = pieces(event(completion(token, logprob, top)), 2)
    (found,) = piece.logprobs
    assert (found.token, found.logprob, found.rank) == (token, logprob, rank)
    assert list(found.top) == sorted(found.top, key=lambda one: -one.logprob)
    assert len(found.top) <= 2
    assert found.merged == (any(name in ("", "\ufffd") for name in top) or len(top) < 2)


def test_a_chat_shows_the_same_although_its_list_holds_the_token_first() -> None:
    top = [{"token": text, "logprob": value} for text, value in (("z", -9.0), ("a", -0.1), ("b", -2.0))]
    content = [{"token": "z", "logprob": -9.0, "top_logprobs": top}]
    choice = {"index": 0, "delta": {"content": "z"}, "logprobs": {"content": content}}
    (piece,) = pieces(event({"choices": [choice]}), 2)
    assert piece.logprobs[0].rank is None
    assert piece.logprobs[0].top == (Alternative("a", -0.1), Alternative("b", -2.0))


def test_the_tokens_of_a_prompt_are_those_of_its_ids() -> None:
    row = {
        "189": {"logprob": -3.0, "rank": 1, "decoded_token": "x"},
        "329": {"logprob": -5.0, "rank": 50, "decoded_token": " cluster"},
    }
    document = {"choices": [{"prompt_logprobs": [None, row], "prompt_token_ids": [287, 329]}]}
    first, second = prompt_logprobs(event(document), 1)
    assert (first.token, first.logprob, first.rank) == ("<287>", None, None)
    assert (second.token, second.rank, second.top) == (" cluster", 50, (Alternative("x", -3.0),))
    # A chat has both beside its choices.
    assert prompt_logprobs(event({"choices": [{}], **document["choices"][0]}), 1) == [first, second]


def test_a_rate_counts_from_the_first_token() -> None:
    reply = ModelReply()
    for seconds, text in ((1.0, "a"), (2.0, "b"), (3.0, "c")):
        usage = {"prompt_tokens": 4, "completion_tokens": round(seconds)}
        reply.add({"choices": [{"index": 0, "text": text}], "usage": usage}, 0, None, seconds)
    assert (reply.first.text, reply.seconds_to_first, reply.tokens_per_second) == ("abc", 1.0, 1.0)


@pytest.mark.parametrize(
    ("events", "rate"), [([(1.0, 40), (1.001, 80)], None), ([(1.0, 40), (1.5, 60), (2.0, 80)], 40.0)]
)
def test_a_burst_has_no_rate_and_does_not_count_in_one(events: list[tuple[float, int]], rate: float | None) -> None:
    reply = ModelReply()
    for seconds, tokens in events:
        usage = {"prompt_tokens": 4, "completion_tokens": tokens}
        reply.add({"choices": [{"index": 0, "text": "a"}], "usage": usage}, 0, None, seconds)
    assert reply.tokens_per_second == rate


def test_an_answer_that_came_whole_has_no_rate() -> None:
    reply = ModelReply()
    reply.add({"choices": [{"text": "abc"}], "usage": {"prompt_tokens": 1, "completion_tokens": 3}}, 0, None, 2.0)
    assert reply.tokens_per_second is None


def test_a_probability_is_one_at_most() -> None:
    assert probability(None) is None
    assert probability(math.log(0.25)) == pytest.approx(0.25)
    assert probability(1e-9) == 1.0


# fault: serving/api/answer.py: except ValueError: → except KeyError:
@pytest.mark.parametrize(
    "choices",
    [
        5, [5], {"a": 1}, [{"delta": 5}], [{"index": "x"}], [{"index": math.inf}], [{"finish_reason": {}}],
        [{"stop_reason": []}], [{"logprobs": {"content": [5]}}], [{"prompt_logprobs": [5]}],
        [{"logprobs": {"content": [{"token": "a", "logprob": [1]}]}}],
        [{"logprobs": {"tokens": ["a"], "token_logprobs": ["x"]}}],
        [{"prompt_logprobs": [{"1": {"logprob": "x"}}]}],
    ],
)  # fmt: skip
def test_an_answer_of_another_shape_is_refused(choices: object) -> None:
    """A head that was taken over ended `chat` with a traceback."""
    with pytest.raises(OddAnswer):
        ModelReply().add({"choices": choices}, 3, 3, 1.0)
    with pytest.raises(OddAnswer):
        ModelReply().add({"choices": [], "usage": choices}, 3, 3, 1.0)


TOKEN = {"token": "a", "logprob": -1.0, "top_logprobs": [{"token": "a", "logprob": -1.0}] * 3}


# fault: serving/api/answer.py: if self._size > MAX_REPLY: → if False:
# fault: serving/api/answer.py: COUNTED * (new + _tokens(piece.logprobs)) → COUNTED * new
# fault: serving/api/answer.py: COUNTED * (new + _tokens(piece.logprobs)) → COUNTED * _tokens(piece.logprobs)
@pytest.mark.promise("P46")
@pytest.mark.parametrize("kind", ["text", "logprobs", "answers"])
def test_a_reply_without_end_takes_no_memory_without_end(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one answer the text was bounded, and neither its logprobs nor how many answers there are."""
    monkeypatch.setattr(answer, "MAX_REPLY", 1 << 20)

    def event(number: int) -> dict[str, object]:
        parts: dict[str, dict[str, object]] = {
            "text": {"text": "x" * 1000},
            "logprobs": {"logprobs": {"content": [TOKEN] * 10}},
            "answers": {"index": number},
        }
        return {"choices": [parts[kind]]}

    reply = ModelReply()
    with pytest.raises(OddAnswer, match="has no end"):
        for number in range(10_000):
            reply.add(event(number), 3, None, 1.0)


# fault: serving/api/answer.py: MAX_REPLY, CHARACTER, COUNTED = 64 << 20, 12, 250 → MAX_REPLY, CHARACTER, COUNTED = 64 << 20, 1, 250
@pytest.mark.promise("P46")
def test_a_reply_with_an_emoji_has_its_limit_in_memory() -> None:
    """64 million characters took 566 MB, as each of them then has four bytes."""
    reply, event = ModelReply(), {"choices": [{"text": "\N{GRINNING FACE}" + "x" * 1_000_000}]}
    with within(60, megabytes=60):
        with pytest.raises(OddAnswer, match="has no end"):
            for _ in range(70):
                reply.add(event, 3, None, 1.0)
        assert len(reply.first.text) > 4_000_000


# fault: serving/api/answer.py: self._text.write(piece.text) → self._text = StringIO(self._text.getvalue() + piece.text); self._text.seek(0, 2)
@pytest.mark.promise("P46")
def test_a_piece_takes_the_time_of_what_it_adds() -> None:
    """Each token after half a million characters copied all: 1 MB of an answer took 9 s, one near its limit hours."""
    reply, token = ModelReply(), {"choices": [{"text": "a"}]}
    for _ in range(40):
        reply.add({"choices": [{"text": "\N{GRINNING FACE}" + "x" * 65_000}]}, 0, None, 1.0)
    began = time.process_time()
    for _ in range(4000):
        reply.add(token, 0, None, 1.0)
    assert time.process_time() - began < 4
    assert reply.first.text.endswith("x" + "a" * 4000)
