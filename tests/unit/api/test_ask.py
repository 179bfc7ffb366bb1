"""Why an answer broke off, and what is done about a key that changed: with a head that is made up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.clock import Clock
from tests.support.sim import make
from vllm_cluster.features.ask.verb import _own_fields
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import (
    ConnectionLost,
    HostError,
    PreflightFailed,
    TimedOut,
    Unreachable,
    UsageError,
    VclusterError,
)
from vllm_cluster.serving import head
from vllm_cluster.serving.api.answer import COMPLETIONS, ModelReply
from vllm_cluster.serving.api.client import Broken, Refused, Silent
from vllm_cluster.serving.api.question import RequestOptions
from vllm_cluster.serving.endpoint import api as ask
from vllm_cluster.serving.endpoint.api import ModelApi, ModelRequest
from vllm_cluster.wire.status import Phase, ServeFailure, ServeStatus

INVENTORY = make.inventory(1)
READY = ServeStatus(
    *("g1", "org/model", "llama", "127.0.0.1", 8000, "ready", "", None, 0.0, 1, (2.0, 2.0), None, None, 1.0, 1.0)
)
EVENT = {"choices": [{"text": "Hel"}]}


@dataclass
class Head:
    """A head as far as an answer needs it."""

    serving: list[ServeStatus | VclusterError | None]
    lost: Unreachable | None = None
    name: str = "gpu1"
    clock: Clock = field(default_factory=Clock)

    @property
    def transport(self) -> Head:
        return self

    @property
    def runtime(self) -> Head:
        return self

    def after(self, seconds: float) -> Deadline:
        return Deadline.after(seconds, self.clock)

    def require_alive(self) -> None:
        if self.lost:
            raise self.lost

    def state(self) -> Head:
        if isinstance(now := self.serving[0], VclusterError):
            raise now
        return self


def failure(
    monkeypatch: pytest.MonkeyPatch, head: Head, error: VclusterError, **request: Any
) -> tuple[VclusterError, str]:
    """How a request ends whose answer breaks off after its first piece, and what came until then."""

    class Node:
        def __init__(self, *_: object) -> None:
            head.state()
            now = head.serving.pop(0) if len(head.serving) > 1 else head.serving[0]
            self.replicas = (now,) if now else ()

        def state(self) -> Node:
            return self

    def post(*_: object) -> Iterator[Mapping[str, Any]]:
        yield EVENT
        raise error

    monkeypatch.setattr(ask, "NodeHandle", Node)
    monkeypatch.setattr(ask, "post", post)
    monkeypatch.setattr(ask, "answers", lambda _: True)
    monkeypatch.setattr(ask, "read_key", lambda *_: "the key")
    api, reply = ModelApi(INVENTORY, head, READY, "the key", 1), ModelReply()  # type: ignore[arg-type]
    with pytest.raises(VclusterError) as caught:
        list(api.ask(ModelRequest(COMPLETIONS, {"prompt": "Hi"}, **request), reply))
    return caught.value, reply.first.text


FAILED = replace(READY, phase="backoff", failure=ServeFailure(0.0, "a rank died", ()))


@pytest.mark.parametrize(
    ("head", "kind", "message"),
    [
        (Head([READY], Unreachable("gpu1", "no keepalive reply for 15 s")), ConnectionLost, "tunnel: no keepalive"),
        (Head([None]), HostError, "api: llama was stopped before the answer ended"),
        # The head has not noticed at first.
        (Head([READY, READY, FAILED]), HostError, "api: vLLM ended before the answer did; it is backoff: a rank died"),
        (
            Head([replace(READY, generation="g2", name="other", phase="loading")]),
            HostError,
            "api: llama was replaced by other (loading) before the answer ended",
        ),
        (Head([replace(READY, attempt=2)]), HostError, "api: vLLM ended before the answer did; it is ready"),
        (Head([READY]), HostError, "api: the answer broke off, though llama is ready: reset by peer"),
        (Head([HostError("gpu1", "container is missing")]), HostError, "container is missing"),
    ],
)
def test_an_answer_that_breaks_off_has_its_cause(
    head: Head, kind: type[VclusterError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, came = failure(monkeypatch, head, Broken("reset by peer"))
    assert type(error) is kind
    assert message in error.message
    assert came == "Hel"


def test_an_answer_of_another_shape_is_an_error_of_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EVENT, "choices", [5])
    error, _ = failure(monkeypatch, Head([READY]), Broken("not reached"))
    assert isinstance(error, HostError)
    assert "llama is ready: the answer is not as the API has it" in error.message


@pytest.mark.parametrize(
    ("refused", "kind", "message"),
    [
        (Refused(400, "max_tokens=9 is too much"), UsageError, "llama: max_tokens=9 is too much"),
        (Refused(401, "wrong key"), HostError, "gpu1: api: the key is refused: wrong key"),
        (
            Refused(500, "EngineCore died"),
            HostError,
            "though llama is ready: HTTP 500: EngineCore died",
        ),
        (Silent("no token for 600 s"), TimedOut, "gpu1: api: no token for 600 s"),
    ],
)
def test_a_refusal_is_the_servers_word(
    refused: VclusterError, kind: type[VclusterError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, _ = failure(monkeypatch, Head([READY]), refused)
    assert type(error) is kind
    assert message in error.message


LARGE = (
    "'max_tokens' or 'max_completion_tokens' is too large: 9000. This model's maximum context length is 2048 tokens "
    "and your request has 40 input tokens (9000 > 2048 - 40)."
)
# vLLM stops to count once it is too long.
TOTAL = (
    "This model's maximum context length is 2048 tokens. However, you requested 9000 output tokens and your prompt "
    "contains at least 1 input tokens, for a total of at least 9001 tokens."
)
# vLLM 0.32, before it looks at the prompt.
LIMIT = "max_tokens=9000 cannot be greater than max_model_len=2048. Please request fewer output tokens."
FULL = "This model's maximum context length is 2048 tokens. However, your request has 3000 input tokens."


# fault: serving/endpoint/api.py: fits = self._room(body) if fits is None else fits → pass
# fault: wire/refusals.py: int(length[1]) - int(prompt[1]) → int(length[1])
@pytest.mark.parametrize(
    ("message", "counted", "fits"), [(LARGE, False, 2008), (TOTAL, True, 2000), (LIMIT, True, 2000), (FULL, True, 0)]
)
def test_a_max_tokens_that_is_too_large_is_refused_with_the_number_that_fits(
    message: str, counted: bool, fits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def post(_port: int, path: str, body: Mapping[str, Any], *_: object) -> Iterator[Mapping[str, Any]]:
        if path != "/tokenize":
            raise Refused(400, message)
        assert (counted, body) == (True, {"model": "llama", "prompt": "Hi"})
        yield {"count": 48, "max_model_len": 2048, "tokens": [1]}

    monkeypatch.setattr(ask, "post", post)
    api = ModelApi(INVENTORY, cast(Any, Head([READY])), READY, "key", 1)
    with pytest.raises(UsageError) as refused:
        list(api.ask(ModelRequest(COMPLETIONS, {"prompt": "Hi", "max_tokens": 9000}), ModelReply()))
    error = refused.value
    if fits:
        assert error.message == f"llama: max_tokens 9000 is too large, at most {fits} fit: {message}"
        given = ["9000", "--max-tokens=9000", "max_tokens=9000"]
        assert [error.instead[word] for word in given] == [word.replace("9000", str(fits)) for word in given]
    else:
        assert (error.message, error.instead) == (f"llama: {message}", {})


def test_a_model_that_is_not_served_names_the_one_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    error, _ = failure(monkeypatch, Head([READY]), Refused(404, "not found"), model="other")
    assert (type(error), error.message) == (PreflightFailed, "other is not served on lab; it serves llama")
    assert error.instead["model=other"] == "model=llama"


# fault: serving/endpoint/api.py: nearest(model, names) or served → served
def test_of_several_that_are_served_the_one_that_is_alike_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelApi, "_names", lambda *_: ["llama", "my-model"])
    error, _ = failure(monkeypatch, Head([READY]), Refused(404, "not found"), model="my-modle")
    assert error.instead["model=my-modle"] == "model=my-model"


# fault: serving/endpoint/api.py: if error.status == HTTPStatus.SERVICE_UNAVAILABLE and model != self.model: → if False:
def test_another_model_that_is_still_starting_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is ready was waited for, and named."""
    head = Head([replace(READY, name="other", phase="importing")])
    error, _ = failure(monkeypatch, head, Refused(503, "the model 'other' is not ready"), model="other")
    assert (type(error), error.message) == (PreflightFailed, "other is not ready: importing")
    assert (error.hint or "").splitlines()[0] == "vcluster status --wait"
    assert head.clock.monotonic() == Head([]).clock.monotonic()


# fault: features/ask/verb.py: given.pop("model", None), given.pop("prompt_logprobs", None) → None, None
def test_an_adapter_and_the_table_of_the_prompt_are_fields_of_the_request() -> None:
    given = RequestOptions(set_=["model=adapter", "prompt_logprobs=2", "top_k=1"])
    assert _own_fields(given) == ({"top_k": 1}, "adapter", 2)
    for wrong in ("many", "-1", "true"):
        with pytest.raises(UsageError, match="--set prompt_logprobs must be a number"):
            _own_fields(RequestOptions(set_=[f"prompt_logprobs={wrong}"]))


def test_a_schema_that_the_server_refuses_is_reported_with_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    error, _ = failure(monkeypatch, Head([READY]), Refused(400, "Grammar error: x"), schema="river.json")
    assert error.message == "river.json: --json-schema: llama: Grammar error: x"


def test_a_key_that_was_rotated_meanwhile_is_fetched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def post(_port: int, _path: str, _body: object, key: str, _seconds: float) -> Iterator[Mapping[str, Any]]:
        seen.append(key)
        if key != "new":
            raise Refused(401, "wrong key")
        yield EVENT

    monkeypatch.setattr(ask, "post", post)
    monkeypatch.setattr(ask, "read_key", lambda *_: "new")
    api = ModelApi(INVENTORY, Head([READY]), READY, "old", 1)  # type: ignore[arg-type]
    assert [piece.text for piece in api.ask(ModelRequest(COMPLETIONS, {}), ModelReply())] == ["Hel"]
    assert seen == ["old", "new"]


# fault: serving/head.py: if serve.phase == "waiting" and serve.gpus[0] < serve.gpus[1] else first → if False else first
# fault: serving/head.py: if serve.phase == "waiting" and serve.gpus[0] < serve.gpus[1] else first → if serve.phase == "waiting" else first
@pytest.mark.parametrize(
    ("phase", "gpus", "first"),
    [
        ("backoff", (2.0, 4.0), "vcluster status --wait"),
        ("loading", (4.0, 4.0), "vcluster status --wait"),
        ("waiting", (4.0, 4.0), "vcluster status --wait"),
        ("waiting", (2.0, 4.0), "vcluster up"),
        ("failed", (2.0, 4.0), "vcluster explain"),
    ],
)
def test_a_model_that_is_not_ready_is_waited_for_or_explained(
    phase: Phase, gpus: tuple[float, float], first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host whose node has ended is missing until `up`."""
    state = SimpleNamespace(replicas=(replace(READY, phase=phase, gpus=gpus),))
    monkeypatch.setattr(head, "NodeHandle", lambda *_: SimpleNamespace(running=lambda: state))
    with pytest.raises(PreflightFailed, match=f"llama is not ready: {phase}") as refused:
        head.ready(INVENTORY, cast(Any, Head([])))
    assert (refused.value.hint or "").splitlines()[0] == first


# fault: serving/endpoint/api.py: if name not in known: → if False:
def test_a_field_that_the_served_vllm_does_not_know_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    schema: dict[str, Any] = {"properties": {"temperature": {}, "top_k": {}}}
    content = {"application/json": {"schema": schema}}
    page: dict[str, Any] = {"paths": {COMPLETIONS: {"post": {"requestBody": {"content": content}}}}}
    monkeypatch.setattr(ask, "get", lambda *_: (200, page))
    api = ModelApi(INVENTORY, cast(Any, Head([READY])), READY, "key", 1)
    api.ensure_fields([COMPLETIONS], ["top_k", "temperature"])
    with pytest.raises(UsageError, match=r"llama: requests have no field temprature; did you mean temperature\?"):
        api.ensure_fields([COMPLETIONS], ["top_k", "temprature"])
    page.clear()  # a server that shows no schema judges by itself
    api.ensure_fields([COMPLETIONS], ["temprature"])


# fault: serving/endpoint/api.py: > FRESH_SECONDS: → > 1e9:
# fault: serving/endpoint/api.py: if not any(map(has_front, rows)): → if False:
# fault: serving/endpoint/api.py: if all((address_of(row), row.port) != place for row in rows): → if False:
@pytest.mark.parametrize(
    "rows", [(), (replace(READY, phase="failed"),), (replace(READY, host="10.0.0.1"),), (replace(READY, port=9),)]
)
def test_a_question_asked_after_a_stop_goes_to_no_other_program_of_the_head(
    rows: tuple[ServeStatus, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chat is open for hours, and after `vcluster stop` any user of the head may listen at the API's port."""
    asked, state = [], SimpleNamespace(replicas=(READY,))

    def post(*words: object) -> Iterator[Mapping[str, Any]]:
        asked.append(words)
        yield EVENT

    monkeypatch.setattr(head, "NodeHandle", lambda *_: SimpleNamespace(running=lambda: state))
    monkeypatch.setattr(ask, "post", post)
    there = Head([READY])
    api = ModelApi(INVENTORY, cast(Any, there), READY, "key", 1)
    for _ in range(2):
        assert list(api.events(COMPLETIONS, {}, 1.0)) == [EVENT]
        there.clock.now += 60
    state.replicas = rows
    with pytest.raises(VclusterError, match=r"no model is served on|llama is not ready: failed|at another address now"):
        list(api.events(COMPLETIONS, {}, 1.0))
    assert len(asked) == 2
