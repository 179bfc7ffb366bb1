"""Runs the product's verbs in a world: its own code throughout, with another runtime handed in."""

from __future__ import annotations

import atexit
import functools
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tests.support.sim import make
from tests.support.sim.carrier import FakeTransport
from tests.support.sim.faults import Call, Killed, Script
from tests.support.sim.world import Beat, World
from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.facts.heads import Led
from vllm_cluster.kernel.hosts.runtime import Runtime
from vllm_cluster.kernel.hosts.visited import Visited
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.members import Named, Way
from vllm_cluster.kernel.plan.plan import Plan
from vllm_cluster.serving.cluster import down, up
from vllm_cluster.serving.serve import rollback, serve, stop
from vllm_cluster.serving.status import status
from vllm_cluster.wire.order import Deployment

T = TypeVar("T")
Verb = Callable[[Inventory, Emit, Runtime], Any]


@dataclass
class Outcome:
    """How one run of a verb ended, and what it reported."""

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
        """The operations of the plan that it reported, none where it reported none."""
        plans = [e.data["plan"] for e in self.events if e.kind == "plan"]
        return texts(plans[-1]) if plans and isinstance(plans[-1], Plan) else []

    def script_hosts(self) -> set[str]:
        """The hosts that were asked for something."""
        return {call.host for call in self.script.calls}

    def story(self) -> str:
        """All calls, and the end."""
        return f"{self.script.story()}\n=> {self.error or self.value!r}"


def code(outcome: Outcome) -> int:
    """The exit code that a run would have had."""
    return outcome.error.exit_code if isinstance(outcome.error, VclusterError) else 0


def texts(plan: Plan) -> list[tuple[str | None, str]]:
    """A plan's operations as host and text: specs hold new secrets each time."""
    return [(operation.host, operation.text) for operation in plan.operations()]


class _Turns(Executor):
    """In place of a pool of threads: every host's work, one after the other, in an order that the world chooses.

    A killed controller's other work continues for as many calls as its script spares: that reaches every mixture of
    progress that threads could.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.result = lambda timeout=None: self._result(future, timeout)  # type: ignore[method-assign]
        self._waiting.append((future, lambda: work(*arguments)))
        return future

    def map(self, fn: Callable[..., T], *iterables: Iterable[Any], **_: Any) -> Iterator[T]:
        return map(fn, *iterables)

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


class _Done:
    """Work that was done at once, in place of a thread."""

    def join(self, timeout: float | None = None) -> None:
        """It has ended."""

    def is_alive(self) -> bool:
        return False


class _Beats(_Done):
    """In place of a thread that repeats its work: beats with the world's clock, while its controller is awake."""

    def __init__(self, world: World, work: Callable[[], bool], seconds: float) -> None:
        self._work, self._script, self._stopped = work, world.script, False
        world.beats.append(Beat(self._beat, seconds, world.clock.now + seconds, world.script))

    def _beat(self) -> bool:
        return not self._script.dead and not self._stopped and self._work()

    def stop(self) -> None:
        """No more beats."""
        self._stopped = True


def fast_secret_id(cluster: str, name: str, value: str) -> str:
    """A quick hash: the real one takes 40 ms on purpose."""
    return hashlib.blake2b(f"{cluster}/{name}|{value}".encode(), digest_size=6).hexdigest()


@functools.cache
def cache() -> Path:
    """Where wheels are kept, for all worlds."""
    folder = Path(tempfile.mkdtemp(prefix="vcluster-sim-"))
    atexit.register(shutil.rmtree, folder)
    return folder


def _process(argv: Sequence[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
    """The programs of the controller's machine: ssh, which is asked where a host is, and pip, which downloads Ray."""
    if argv[:2] == ["ssh", "-G"]:
        return subprocess.CompletedProcess(argv, 0, f"user me\nhostname {argv[-1]}\nport 22\n".encode(), b"")
    if argv[3:6] == ["-m", "pip", "download"]:
        Path(argv[argv.index("--dest") + 1], "ray-2.56.1-py3-none-any.whl").write_bytes(b"wheel")
        return subprocess.CompletedProcess(argv, 0, b"", b"")
    raise AssertionError(f"an unknown program: {argv}")


class _InMemory(Visited):
    """What the laptop remembers of hosts, in its world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def of(self, cluster: str) -> frozenset[Way]:
        return frozenset(self._world.visited.get(cluster, ()))

    def add(self, cluster: str, ways: Iterable[Way]) -> None:
        self._world.visited.setdefault(cluster, set()).update(ways)

    def heads(self, cluster: str) -> Mapping[Way, Led]:
        return dict(self._world.heads.get(cluster, {}))

    def _keep(self, cluster: str, heads: Mapping[Way, Led]) -> None:
        self._world.heads[cluster] = dict(heads)


def runtime(world: World) -> Runtime:
    """What a controller takes from its machine, in the world."""

    def background(work: Callable[[], None], _name: str) -> _Done:
        work()
        return _Done()

    return Runtime(
        clock=world.clock,
        pool=lambda _: _Turns(world),
        background=background,
        repeat=lambda work, seconds, _name: _Beats(world, work, seconds),
        processes=_process,
        secret_id=fast_secret_id,
        connect=lambda target, _kind, _endpoint, _jumps: FakeTransport(world, target),
        visited=_InMemory(world),
    )


@contextmanager
def inside(world: World) -> Iterator[None]:
    """While this lasts verbs run in the world."""
    before, world.runtime = world.runtime, runtime(world)
    try:
        yield
    finally:
        world.runtime = before


def run(world: World, inventory: Inventory, verb: Verb, script: Script | None = None) -> Outcome:
    """Run one verb to its end, however it ends; what no code of the product may raise gets to the test."""
    outer, world.script = world.script, script or Script()
    outcome = Outcome(world.script)
    beats, began = list(world.beats), world.clock.now

    def emit(event: Event) -> None:
        outcome.events.append(event)
        world.new_keys += event.data.get("code") == "new-api-key"

    try:
        assert world.runtime, "not inside the world"
        outcome.value = verb(inventory, emit, replace(world.runtime, run=world.next_id("run")[:8]))
    except (VclusterError, Killed, KeyboardInterrupt) as error:
        outcome.error = error
    finally:
        outcome.seconds = world.clock.now - began
        if isinstance(outcome.error, Killed):
            world.script.bury()
        world.script, world.beats = outer, beats
    return outcome


def succeed(world: World, inventory: Inventory, verb: Verb, script: Script | None = None) -> Outcome:
    """As `run`, where no error may come."""
    outcome = run(world, inventory, verb, script)
    assert outcome.error is None, outcome.story()
    return outcome


def yes(_question: str) -> bool:
    """Answer every question of a verb with yes."""
    return True


def verb(action: Callable[..., Any], *paths: Path, **words: Any) -> Verb:
    """An action with its options, as a verb that a world runs: `verb(push, image=NAME)`."""
    return lambda inventory, emit, runtime: action(inventory, emit, *paths, runtime=runtime, **words)


# Each takes the options of its action; `partial(do_serve, model="org/other")` is a verb too.
def do_up(inventory: Inventory, emit: Emit, runtime: Runtime, **words: Any) -> Any:
    """`vcluster up --yes`."""
    return up.bring_up(inventory, emit, runtime=runtime, **{"confirm": yes, "cache": cache(), **words})


def do_forget(host: str) -> Verb:
    """`vcluster up --yes --forget HOST`."""
    return partial(do_up, named=Named(forget=(host,)))


def do_look(inventory: Inventory, emit: Emit, runtime: Runtime) -> up.Planned:
    """`vcluster plan`, with what it stops and the hosts that were lost."""
    return up.plan_cluster(inventory, emit, runtime=runtime)


def do_plan(inventory: Inventory, emit: Emit, runtime: Runtime) -> Any:
    """`vcluster plan`."""
    return do_look(inventory, emit, runtime).plan


def do_down(inventory: Inventory, emit: Emit, runtime: Runtime, **words: Any) -> Any:
    """`vcluster down --yes`."""
    return down.remove_cluster(inventory, emit, runtime=runtime, **{"confirm": yes, **words})


def do_serve(inventory: Inventory, emit: Emit, runtime: Runtime, **words: Any) -> Any:
    """`vcluster serve --yes org/model`."""
    given = {name: words.pop(name) for name in [*words] if name in ("confirm", "pull", "wait", "drain")}
    asked = Deployment(**{"name": "", "model": "org/model", **words})
    return serve.serve_model(inventory, emit, asked, runtime=runtime, **{"confirm": yes, **given})


def do_rollback(inventory: Inventory, emit: Emit, runtime: Runtime, **words: Any) -> Any:
    """`vcluster rollback --yes`."""
    return rollback.serve_previous(inventory, emit, runtime=runtime, **{"confirm": yes, **words})


def do_stop(inventory: Inventory, emit: Emit, runtime: Runtime, **words: Any) -> Any:
    """`vcluster stop --yes`."""
    return stop.stop_serving(inventory, emit, runtime=runtime, **{"confirm": yes, **words})


def do_status(inventory: Inventory, emit: Emit, runtime: Runtime) -> Any:
    """`vcluster status`."""
    return status.look_at_cluster(inventory, emit, runtime=runtime)


@contextmanager
def cluster(hosts: int, *verbs: Verb) -> Iterator[World]:
    """So many hosts with two GPUs each, on which these verbs have run; while this lasts more run there."""
    world = World.again(_begun(hosts, *verbs))
    with inside(world):
        yield world


@functools.cache
def _begun(hosts: int, *verbs: Verb) -> bytes:
    """The snapshot of such a cluster: many tests begin with the same."""
    world = make.world((2,) * hosts)
    with inside(world):
        for verb in verbs:
            succeed(world, make.inventory(hosts), verb)
    return world.snapshot()


class Person:
    """Sits before the terminal and answers each question in turn; None is where no person sits."""

    def __init__(self, *answers: bool | None) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    def __call__(self, question: str) -> bool | None:
        self.asked.append(question)
        assert self._answers, f"asked {question}"
        return self._answers.pop(0)


def at(words: str, host: str = "") -> Callable[[Call], bool]:
    """Whether a call is the one meant, by a part of its words and its host."""
    return lambda call: words in call.what and host in ("", call.host)
