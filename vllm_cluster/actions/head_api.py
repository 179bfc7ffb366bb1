"""The way to the model's API for work that outlasts the connection, a rotated key and a heal of the cluster."""

from __future__ import annotations

from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from typing import Protocol

from vllm_cluster.actions.head import at_head, read_key, ready
from vllm_cluster.actions.tunnel import address_of, answers, no_passage
from vllm_cluster.batch.client import OK, UNAUTHORIZED, ApiAddress, models
from vllm_cluster.clock import Deadline
from vllm_cluster.core.node_status import ServeStatus
from vllm_cluster.errors import ConnectionLost, HostError, NodeMissing, PreflightFailed, TimedOut, Unreachable
from vllm_cluster.events import Emit, Event
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.connection import HostConnection
from vllm_cluster.run.history import command_named
from vllm_cluster.run.node_handle import NodeHandle
from vllm_cluster.run.runtime import Runtime

POLL_SECONDS, PROBE_SECONDS = 2.0, 30.0


class OpenForward(Protocol):
    """A port of the head, brought here."""

    @property
    def local_port(self) -> int:
        """The port here."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


class HeadApi:
    """The API of the model on the head, and the way to it: it is opened again as often as it breaks."""

    def __init__(self, inventory: Inventory, emit: Emit, wait: float, runtime: Runtime) -> None:
        self._inventory, self._emit, self._wait, self._runtime = inventory, emit, wait, runtime
        self._open = ExitStack()
        self._head: HostConnection | None = None
        self._forwarded: OpenForward | None = None
        self._where = ("", 0)
        self._serve: ServeStatus

    def __enter__(self) -> HeadApi:
        try:
            head = self._connect()
            self._serve = ready(self._inventory, head)
            self._forward(head, self._serve)
            self._probe()
        except BaseException:
            self._drop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()

    @property
    def model(self) -> str:
        """The served model's name."""
        return self._serve.name

    def ensure_model(self, found: set[str], output: Path) -> None:
        """Refuse an output with the answers of a model that is not served now.

        Raises:
            PreflightFailed: it has some.
        """
        if other := sorted(found - self._models):
            text = f"{output} holds answers of {other[0]}; {self._inventory.cluster} serves {self.model}"
            hint = "name another output with -o"
            if self._head:
                node = NodeHandle(self._head, self._inventory.cluster)
                # A name need not be that of a model.
                hint += f"\n{command_named(self._inventory, node, other[0])}"
            raise PreflightFailed(text, hint=hint)

    def recover(self, why: str) -> None:
        """Wait until the model answers again.

        Raises:
            HostError: it was stopped or replaced, has failed, or is away for too long.
        """
        deadline, shown = self._runtime.after(self._wait), ""
        while True:
            news = self._try()
            if not news:
                if shown:
                    self._emit(Event("note", f"{self.model} answers again"))
                return
            if news != shown:
                shown = news
                self._emit(Event("note", f"waiting for {self.model}: {news}", data={"code": "waiting"}))
            self._pause(deadline, news or why)

    def _try(self) -> str:
        """Try whether it answers; what is waited for, empty where it does."""
        try:
            head = self._head or self._connect()
            head.transport.require_alive()
            now = NodeHandle(head, self._inventory.cluster).state().serving
        except (Unreachable, ConnectionLost) as error:
            self._drop()
            return error.message
        except (HostError, NodeMissing) as error:  # its container starts again, or Docker does
            if self._head is None:
                self._drop()
            return error.message
        if found := self._ended(now):
            raise HostError(head.name, f"batch: {found}; the answers so far are kept", hint="vcluster status")
        if now is None or now.phase != "ready":
            return f"{now.phase}: {now.detail}" if now and now.detail else str(now and now.phase)
        try:
            self._serve = now
            self._forward(head, now)
            self._probe()
        except (Unreachable, ConnectionLost) as error:
            self._drop()
            return error.message
        except (HostError, NodeMissing) as error:
            return error.message
        return ""

    def _ended(self, now: ServeStatus | None) -> str | None:
        if now is None:
            return None if self._restarting() else f"{self.model} was stopped"
        if now.generation != self._serve.generation:
            return f"{self.model} was replaced by {now.name} ({now.phase})"
        if now.phase == "failed":
            why = now.first_failure or now.failure
            return f"{self.model} failed: {why.summary if why else now.detail}"
        return None

    def _restarting(self) -> bool:
        """Whether the node has not written its status since its container started."""
        head = self._head
        return head is not None and NodeHandle(head, self._inventory.cluster).state().status is None

    def _pause(self, deadline: Deadline, why: str) -> None:
        if not deadline.left():
            text = f"batch: {self.model} has not answered for {self._wait:.0f} s: {why}; the answers so far are kept"
            raise TimedOut(self._inventory.head_name, text, hint="vcluster status")
        self._runtime.clock.sleep(POLL_SECONDS)

    def _connect(self) -> HostConnection:
        head = self._open.enter_context(at_head(self._inventory, self._runtime))
        # It also observes the head, without which its Docker cannot be asked.
        self._key = read_key(self._inventory, head)
        self._head = head
        return head

    def _drop(self) -> None:
        self._head = None
        self._close_forward()
        self._open.close()

    def _forward(self, head: HostConnection, serve: ServeStatus) -> None:
        """Bring the API here, where it is not: recoveries in which nothing moved leave no port behind."""
        where = address_of(serve), serve.port
        if self._forwarded is None or self._where != where:
            self._close_forward()
            self._forwarded = head.transport.forward(serve.port, 0, remote_host=where[0])
            self._where = where
        self.endpoint = ApiAddress(self._forwarded.local_port, self._key)

    def _close_forward(self) -> None:
        if self._forwarded:
            self._forwarded.close()
        self._forwarded = None

    def _probe(self) -> None:
        """Ask for the models, with the key as it is now.

        Raises:
            HostError: there is no answer.
        """
        head = self._head
        if head is None:
            raise ConnectionLost(self._inventory.head_name, "tunnel: it is closed")
        for again in (True, False):
            try:
                found = models(self.endpoint, PROBE_SECONDS)
            except (OSError, HTTPException) as error:
                passes = answers(self.endpoint.port)
                self._close_forward()
                if not passes:
                    raise no_passage(head, self._serve) from None
                raise HostError(head.name, f"api: {error}") from None
            if found.status == OK:
                self._models = set(found.names)
                return
            if found.status != UNAUTHORIZED or not again:
                break
            self._key = read_key(self._inventory, head)
            self.endpoint = ApiAddress(self.endpoint.port, self._key)
        raise HostError(head.name, f"api: {found.message or found.status}", hint="vcluster status")
