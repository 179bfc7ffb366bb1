"""Runs the product's verbs in a world: its own code throughout, with time, threads and the way to hosts replaced."""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tests.support.sim.carrier import FakeTransport
from tests.support.sim.faults import Call, Killed, Script
from tests.support.sim.world import World
from vllm_cluster.actions import down, serve, status, survey, up
from vllm_cluster.core.errors import VclusterError
from vllm_cluster.core.plan import Plan
from vllm_cluster.docker import ray_layer
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run import audit, barrier, fleet, lease, secrets
from vllm_cluster.run.events import Emit, Event
from vllm_cluster.transport import base
from vllm_cluster.transport.base import Target
from vllm_cluster.transport.sshconfig import Resolved

Verb = Callable[[Inventory, Emit], Any]


@dataclass
class Outcome:
    """How one run of a verb ended, and what it told."""

    script: Script
    value: Any = None
    error: BaseException | None = None
    events: list[Event] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def operations(self) -> list[tuple[str | None, str]]:
        """The operations that were begun: host and text."""
        return [(e.host, e.text) for e in self.events if e.kind == "start" and "operation" in e.data]

    @property
    def planned(self) -> list[tuple[str | None, str]]:
        """The operations of the plan that it told, none where it told none."""
        plans = [e.data["plan"] for e in self.events if e.kind == "plan"]
        return texts(plans[-1]) if plans and isinstance(plans[-1], Plan) else []

    def script_hosts(self) -> set[str]:
        """The hosts that were asked for something."""
        return {call.host for call in self.script.calls}

    def story(self) -> str:
        """All calls, and the end."""
        return f"{self.script.story()}\n=> {self.error or self.value!r}"


def texts(plan: Plan) -> list[tuple[str | None, str]]:
    """A plan's operations as host and text: specs hold new secrets each time."""
    return [(operation.host, operation.text) for operation in plan.operations()]


class _Turns:
    """In place of a pool of threads: every host's work, one after the other, in an order that the world chooses.

    A killed controller's other work goes on for as many calls as its script spares: that reaches every mixture of
    progress that threads could.
    """

    world: World

    def __init__(self, *_: object, **__: object) -> None:
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.result = lambda timeout=None: self._result(future, timeout)  # type: ignore[method-assign]
        self._waiting.append((future, lambda: work(*arguments)))
        return future

    def map(self, work: Callable[[Any], Any], items: Any) -> Iterator[Any]:
        return map(work, items)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._run()

    def _result(self, future: Future[Any], timeout: float | None) -> Any:
        self._run()
        return Future.result(future, timeout)

    def _run(self) -> None:
        waiting, self._waiting = self.world.order(self._waiting), []
        script = self.world.script
        for future, work in waiting:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
        if script.dead and waiting:
            script.bury()

    def __enter__(self) -> _Turns:
        return self

    def __exit__(self, *_: object) -> None:
        self._run()


class _Now:
    """In place of a thread: does its work when it is started."""

    def __init__(self, target: Callable[[], None], **_: object) -> None:
        self._target = target

    def start(self) -> None:
        self._target()

    def join(self, _seconds: float | None = None) -> None:
        """It has ended."""


class _Beats(_Now):
    """In place of the lease's thread: beats as the world's clock goes on."""

    world: World

    def start(self) -> None:
        held: lease.Lease = self._target.__self__  # type: ignore[attr-defined]
        script = self.world.script

        def beat() -> bool:
            return not script.dead and not held._done.is_set() and held.beat()

        self.world.beats.append((beat, [self.world.clock.now + lease.HEARTBEAT]))

    def is_alive(self) -> bool:
        return False


@lru_cache(maxsize=100_000)
def _scrypt(value: bytes, *, salt: bytes, **_: int) -> bytes:
    """A quick hash: the real one takes 40 ms on purpose."""
    return hashlib.blake2b(salt + b"|" + value, digest_size=6).digest()


@cache
def _wheels() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="vcluster-sim-"))
    (folder / "ray-2.56.1-py3-none-any.whl").write_bytes(b"wheel")
    return folder


@contextmanager
def inside(world: World) -> Iterator[None]:
    """While this lasts the product lives in the world."""

    def make(target: Target, _kind: str, _jumps: object) -> FakeTransport:
        return FakeTransport(world, target)

    def resolve(target: Target) -> Resolved:
        return Resolved(target.name, target.destination, target.destination, target.port or 22, target.user or "me")

    turns = type("Turns", (_Turns,), {"world": world})
    beats = type("Beats", (_Beats,), {"world": world})
    with ExitStack() as stack:

        def swap(where: Any, name: str, value: object) -> None:
            stack.enter_context(patch.object(where, name, value))

        for module in (audit, barrier, base, lease, serve):
            swap(module, "time", world.clock)
        swap(fleet, "make", make)
        swap(fleet, "resolve", resolve)
        swap(fleet, "ThreadPoolExecutor", turns)
        swap(survey, "ThreadPoolExecutor", turns)
        swap(fleet, "threading", SimpleNamespace(Thread=_Now, Event=threading.Event))
        swap(lease, "threading", SimpleNamespace(Thread=beats, Event=threading.Event))
        swap(secrets, "hashlib", SimpleNamespace(scrypt=_scrypt))
        swap(ray_layer, "wheels", lambda *_: _wheels())
        yield


def run(world: World, inventory: Inventory, verb: Verb, script: Script | None = None) -> Outcome:
    """Run one verb to its end, however it ends; whatever no code of the product may raise goes on to the test."""
    outer, world.script = world.script, script or Script()
    outcome = Outcome(world.script)
    beats, began = list(world.beats), world.clock.now

    def emit(event: Event) -> None:
        outcome.events.append(event)

    try:
        outcome.value = verb(inventory, emit)
    except (VclusterError, Killed, KeyboardInterrupt) as error:
        outcome.error = error
    finally:
        outcome.seconds = world.clock.now - began
        if isinstance(outcome.error, Killed):
            world.script.bury()
        world.script, world.beats = outer, beats
    return outcome


def do_up(inventory: Inventory, emit: Emit) -> Any:
    """`vcluster up --yes`."""
    return up.up(inventory, emit, confirm=lambda _: True, cache=Path("/nonexistent"))


def do_plan(inventory: Inventory, emit: Emit) -> Any:
    """`vcluster plan`."""
    return up.plan(inventory, emit)


def do_down(inventory: Inventory, emit: Emit) -> Any:
    """`vcluster down --yes`."""
    return down.down(inventory, emit, confirm=lambda _: True)


def do_serve(inventory: Inventory, emit: Emit, model: str = "org/model") -> Any:
    """`vcluster serve --yes MODEL`."""
    return serve.serve(
        inventory, emit, model=model, name=None, tp=None, pp=None, expose=False, extra=(), confirm=lambda _: True
    )


def do_stop(inventory: Inventory, emit: Emit) -> Any:
    """`vcluster stop --yes`."""
    return serve.stop(inventory, emit, confirm=lambda _: True)


def do_status(inventory: Inventory, emit: Emit) -> Any:
    """`vcluster status`."""
    return status.status(inventory, emit)


def at(words: str, host: str = "") -> Callable[[Call], bool]:
    """Whether a call is the one meant, by a part of its words and its host."""
    return lambda call: words in call.what and host in ("", call.host)
