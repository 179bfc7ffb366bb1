"""Ask the served model: the way to it, its answer piece by piece, and why one broke off."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from vllm_cluster.kernel.errors import (
    ConnectionLost,
    HostError,
    PreflightFailed,
    TimedOut,
    Unreachable,
    UsageError,
    VclusterError,
)
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.inventory.words import nearest
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.node.history import command_named
from vllm_cluster.kernel.text import first_of
from vllm_cluster.serving.api.answer import ModelReply, OddAnswer, Piece, body, fields_of
from vllm_cluster.serving.api.client import Broken, Refused, Silent, get, model_names, post
from vllm_cluster.serving.endpoint.tunnel import address_of, answers, has_front, no_passage
from vllm_cluster.serving.head import at_head, first_ready, read_key, ready, refuse_unready, replicas_served
from vllm_cluster.wire.refusals import fitting_tokens, is_too_long
from vllm_cluster.wire.status import ServeStatus

# An answer that breaks off is seen here before the head's node program has written why.
CAUSE_SECONDS = 15.0
POLL = 0.5
# For so long what listened at the head's port is taken for its front.
FRESH_SECONDS = 2.0
# vLLM makes its schema at the first request for it.
PAGE_SECONDS = 30.0


@dataclass(frozen=True)
class ModelRequest:
    """A request: `given` are fields of the API, `schema` the file of one of them.

    `seconds` is how long the server may be silent.
    """

    path: str
    given: Mapping[str, object]
    model: str | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    seconds: float = 600.0
    schema: str = ""


@contextmanager
def open_api(inventory: Inventory, *, runtime: Runtime = SYSTEM) -> Iterator[ModelApi]:
    """The API of the model that is ready, for as long as it is needed.

    Raises:
        PreflightFailed: no model is ready, with the phase that it is in.
    """
    with at_head(inventory, runtime) as head:
        key = read_key(inventory, head)
        serve = ready(inventory, head)
        forward = head.transport.forward(serve.port, 0, remote_host=address_of(serve))
        try:
            yield ModelApi(inventory, head, serve, key, forward.local_port)
        finally:
            forward.close()


class ModelApi:
    """The API of one model from here."""

    def __init__(self, inventory: Inventory, head: HostConnection, serve: ServeStatus, key: str, port: int) -> None:
        self._inventory, self._head, self._serve, self._key, self._port = inventory, head, serve, key, port
        self.model = serve.name
        self._looked = head.runtime.clock.monotonic()

    def ask(self, question: ModelRequest, reply: ModelReply) -> Iterator[Piece]:
        """The pieces of the answer as they arrive; `reply` has all that came so far, also where it breaks off.

        Raises:
            UsageError, HostError: as `events`.
        """
        request = body(
            question.path,
            question.model or self.model,
            question.given,
            logprobs=question.logprobs,
            prompt_logprobs=question.prompt_logprobs,
        )
        clock = self._head.runtime.clock
        began = clock.monotonic()
        try:
            for document in self.events(question.path, request, question.seconds):
                seconds = clock.monotonic() - began
                yield from reply.add(document, question.logprobs or 0, question.prompt_logprobs, seconds)
        except OddAnswer as error:
            raise self._cause(Broken(str(error), hint="vcluster status")) from None
        except UsageError as error:
            if question.schema and "grammar" in error.message.lower():
                text = f"{question.schema}: --json-schema: {error.message}"
                raise UsageError(text, hint="--json-schema FILE") from None
            raise

    def events(self, path: str, body: Mapping[str, object], seconds: float) -> Iterator[Mapping[str, object]]:
        """The events of an answer; `seconds` is how long the server may be silent.

        Raises:
            UsageError: the server refuses the request as it is.
            PreflightFailed: nothing is served any more.
            HostError: it ended before the answer did; with the reason.
        """
        self._ensure_front()
        for again in (True, False):
            try:
                yield from post(self._port, path, body, self._key, seconds)
                return
            except Refused as error:
                if not (again and self._key_changed(error)):
                    raise self._too_long(error, body) or self._refusal(error, str(body.get("model"))) from None
            except Silent as error:
                raise TimedOut(self._head.name, f"api: {error.message}", hint="vcluster status") from None
            except Broken as error:
                raise self._cause(error) from None

    def _ensure_front(self) -> None:
        """Look again where the last time was a while ago, as between two questions of a person.

        Once its front has ended, another user of the head may listen there, and would get the key and the question.
        """
        clock = self._head.runtime.clock
        if clock.monotonic() - self._looked > FRESH_SECONDS:
            rows = replicas_served(self._inventory, self._head)
            if not any(map(has_front, rows)):
                first_ready(rows)
            place = (address_of(self._serve), self._serve.port)
            if all((address_of(row), row.port) != place for row in rows):
                text = "api: the model is served at another address now"
                raise HostError(self._head.name, text, hint="vcluster endpoint")
            self._looked = clock.monotonic()

    def ensure_fields(self, paths: Iterable[str], given: Iterable[str]) -> None:
        """Refuse fields that no request to these paths has: vLLM leaves out what it does not know without a word.

        Raises:
            UsageError: with the field that was probably meant.
        """
        given = list(given)
        if not given:
            return
        try:
            document = get(self._port, "/openapi.json", self._key, PAGE_SECONDS)[1]
        except Broken as error:
            raise self._cause(error) from None
        known = set().union(*(fields_of(document, path) for path in paths))
        for name in given if known else ():
            if name not in known:
                near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
                meant = f"; did you mean {near[0]}?" if near else ""
                hint = f"--set {near[0]}=VALUE" if near else "vcluster complete --help"
                raise UsageError(f"{self.model}: requests have no field {name}{meant}", hint=hint)

    def ensure_serves(self, found: Iterable[str], output: Path) -> None:
        """Refuse an output with the answers of a model that is not served now.

        Raises:
            PreflightFailed: it has some.
        """
        if other := sorted(set(found) - set(self._names(self.model))):
            text = f"{output} holds answers of {other[0]}; {self._inventory.cluster} serves {self.model}"
            # A name need not be that of a model.
            again = command_named(self._inventory, NodeHandle(self._head, self._inventory.cluster), other[0])
            raise PreflightFailed(text, hint=f"name another output with -o\n{again}")

    def _key_changed(self, error: Refused) -> bool:
        """Whether the key was rotated since it was read: then nothing was answered yet."""
        if error.status != HTTPStatus.UNAUTHORIZED:
            return False
        before, self._key = self._key, read_key(self._inventory, self._head)
        return before != self._key

    def _refusal(self, error: Refused, model: str) -> VclusterError:
        if error.status == HTTPStatus.UNAUTHORIZED:
            text = f"api: the key is refused: {error.message}"
            return HostError(self._head.name, text, hint="vcluster status")
        if error.status == HTTPStatus.NOT_FOUND:
            now = self._now()
            served = now.name if now and now.phase == "ready" else None
            if served and served != model:
                names = self._names(served)
                text = f"{model} is not served on {self._inventory.cluster}; it serves {first_of(names)}"
                forms, meant = ("model=", "--set=model="), nearest(model, names) or served
                return PreflightFailed(text, instead={f"{form}{model}": f"{form}{meant}" for form in forms})
        if error.status == HTTPStatus.SERVICE_UNAVAILABLE and model != self.model:
            other = [one for one in self._rows() if one.name == model]
            if other and all(one.phase != "ready" for one in other):
                return refuse_unready(other[0])
        if HTTPStatus.BAD_REQUEST <= error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
            return UsageError(f"{model}: {error.message}", hint="vcluster complete --help")
        return self._cause(Broken(f"HTTP {error.status}: {error.message}", hint="vcluster status"))

    def _too_long(self, error: Refused, body: Mapping[str, object]) -> UsageError | None:
        """The refusal of a max_tokens for which there is no room, with the number that fits."""
        asked = next((name for name in ("max_completion_tokens", "max_tokens") if body.get(name)), "")
        if error.status != HTTPStatus.BAD_REQUEST or not asked or not is_too_long(error.message):
            return None
        fits = fitting_tokens(error.message)
        fits = self._room(body) if fits is None else fits
        if not fits:
            return None
        text, number = f"{body.get('model')}: {asked} {body[asked]} is too large, at most {fits} fit", str(body[asked])
        forms = ("", "--max-tokens=", f"{asked}=", f"--set={asked}=")
        return UsageError(f"{text}: {error.message}", instead={f"{form}{number}": f"{form}{fits}" for form in forms})

    def _room(self, body: Mapping[str, object]) -> int | None:
        """How many tokens an answer may have, counted by the server; None where it does not count."""
        question = {name: body[name] for name in ("model", "prompt", "messages", "tools") if name in body}
        try:
            found = next(iter(post(self._port, "/tokenize", question, self._key, PAGE_SECONDS)), {})
        except (Refused, Broken, Silent):
            return None
        count, length = found.get("count"), found.get("max_model_len")
        return max(0, length - count) if isinstance(count, int) and isinstance(length, int) else None

    def _names(self, served: str) -> list[str]:
        """The names that the API takes: the model's, and those of LoRAs beside it."""
        try:
            return model_names(get(self._port, "/v1/models", self._key, PAGE_SECONDS)[1]) or [served]
        except Broken:
            return [served]

    def _rows(self) -> tuple[ServeStatus, ...]:
        return NodeHandle(self._head, self._inventory.cluster).state().replicas

    def _now(self) -> ServeStatus | None:
        rows = self._rows()
        # Of several replicas it is not known which one answered.
        own = [one for one in rows if one.name == self.model] or rows
        return max(own, key=lambda one: one.generation == self._serve.generation, default=None)

    def _cause(self, error: Broken) -> VclusterError:
        """Why an answer broke off: the connection, another model, or the end of vLLM; else what was seen here."""
        deadline = self._head.runtime.after(CAUSE_SECONDS)
        while True:
            try:
                self._head.transport.require_alive()
                now = self._now()
            except Unreachable as lost:
                return ConnectionLost(self._head.name, f"tunnel: {lost.detail}", again=())
            except VclusterError as gone:
                return gone
            if found := self._changed(now):
                return HostError(self._head.name, f"api: {found}", hint="vcluster status")
            if not deadline.left():
                if not answers(self._port):
                    return no_passage(self._head, self._serve)
                text = f"api: the answer broke off, though {self.model} is ready: {error.message}"
                return HostError(self._head.name, text, hint="vcluster explain")
            self._head.runtime.clock.sleep(POLL)

    def _changed(self, now: ServeStatus | None) -> str | None:
        if now is None:
            return f"{self.model} was stopped before the answer ended"
        if now.generation != self._serve.generation:
            return f"{self.model} was replaced by {now.name} ({now.phase}) before the answer ended"
        if now.phase != "ready" or now.attempt != self._serve.attempt:
            why = now.failure.summary if now.failure else now.detail
            return f"vLLM ended before the answer did; it is {now.phase}" + (f": {why}" if why else "")
        return None
