"""Deals what is wanted to the replicas, one after another where they change, and keeps the front before them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from vllm_cluster.serving.node.front_keeper import FrontKeeper
from vllm_cluster.serving.node.kept_order import Inbox
from vllm_cluster.serving.node.process import Child, log_line
from vllm_cluster.serving.node.replica_controller import Around, ReplicaController
from vllm_cluster.serving.node.start import Nodes, Parts
from vllm_cluster.serving.node.timing import Timing
from vllm_cluster.wire.front import FrontDeployment
from vllm_cluster.wire.order import READY, TAKEN, Order, Placement
from vllm_cluster.wire.values import served_name

# Of the lines of all failures in the status, which is read whole: at most a sixth of what `status` takes.
LINES_BYTES, FAILURES = 512 << 10, ("first_failure", "failure", "instead_of")
# Of the names of a model's adapters: the front reads the routes of all models at once.
ADAPTERS_BYTES = 8 << 10


class Replicas:
    """Every replica that is wanted, by its index; the order that they follow, and the front."""

    def __init__(
        self,
        state: Path,
        pace: Timing,
        parts: Parts,
        reap: Callable[[], None],
        publish: Callable[[], None],
        *,
        key_file: str | None = None,
    ) -> None:
        self._inbox, self._state = Inbox(state), state
        self._front = FrontKeeper(state, pace, parts.environment)
        self._around = Around(state, pace, parts, self._front, key_file, reap, publish)
        self._first = ReplicaController(self._around)
        self._all: dict[int, ReplicaController] = {0: self._first}
        self._order: Order | None = None
        for folder in state.glob("replica-*"):
            index = folder.name.removeprefix("replica-")
            if index.isdecimal() and int(index) and (folder / TAKEN).exists():
                self._all[int(index)] = ReplicaController(self._around, int(index))

    @property
    def error(self) -> str | None:
        """What is wrong with the file of the order."""
        return self._inbox.error

    def tick(self, table: Nodes | None) -> None:
        """Look at the order, at Ray's nodes (None when Ray does not answer) and at each replica; do what is due."""
        if (news := self._inbox.news()) is not None:
            self._order = news
        elif self._inbox.error and self._order is None:
            # A power cut broke that file: what was asked for before this program began is served.
            for one in self._all.values():
                one.resume()
        if self._order:
            self._deal(self._order)
        for one in self._all.values():
            one.tick(table)
        self._clear()
        self._keep_front()

    def _deal(self, order: Order) -> None:
        """Hand to each replica what is wanted of it; of several that change, the next once the one before is ready.

        One that is wanted no more ends after them: where the first does not get ready, all are served as they were.
        """
        rolls, waits = self._can_roll(order), set[str]()
        asked = {one.index for one in order.deployments}
        # One that is not ready changes first: the one that does is not taken away before another can answer.
        for index in sorted({*self._all, *asked}, key=lambda index: (index not in asked, *self._turn(index))):
            wanted = order.of(index)
            one = self._all.get(index)
            if one is None:
                one = self._all[index] = ReplicaController(self._around, index)
            name = placed.deployment.name if (placed := wanted.wanted or one.requests.served) else ""
            changes = self._changes(one, wanted.wanted)
            if name in waits or one.requests.has(wanted):
                one.resume()
            else:
                one.accept(wanted)
            one.requests.leave_to(other for other in order.deployments if other.deployment.name != name)
            # Where it does not get ready, those of its deployment that come after it stay as they are.
            if rolls and changes and not one.requests.settled:
                waits.add(name)

    def _turn(self, index: int) -> tuple[bool, int]:
        """When it is a replica's turn to change."""
        one = self._all.get(index)
        return bool(one and one.answers), index

    def _changes(self, one: ReplicaController, wanted: Placement | None) -> bool:
        """Whether a replica that runs becomes another, or has begun to and is not ready yet."""
        served = one.requests.served
        if not (served and wanted):
            return False
        return served.generation != wanted.generation or not one.requests.settled

    def _can_roll(self, order: Order) -> bool:
        """Whether each replica can change without the GPUs of another one."""
        served = {index: one.requests.served for index, one in self._all.items()}
        indexes = {*(one.index for one in order.deployments), *(index for index, one in served.items() if one)}
        return len(indexes) > 1 and not any(
            new.meets(old) for new in order.deployments for index, old in served.items() if old and index != new.index
        )

    def _clear(self) -> None:
        """Forget a replica that is not wanted any more, once nothing of it is left but what was ready."""
        wanted = {one.index for one in self._order.deployments} if self._order else set(self._all)
        for index, one in list(self._all.items()):
            if index and index not in wanted and one.over:
                del self._all[index]
                _empty(self._state / f"replica-{index}")
                log_line("node", f"replica {index} is not wanted any more")

    def _keep_front(self) -> None:
        served = [one for one in self._all.values() if one.course]
        by_name: dict[str, dict[int, ReplicaController]] = {}
        for index, one in self._all.items():
            if one.course:
                by_name.setdefault(one.course.wanted.deployment.name, {})[index] = one
        if not (served and served[0].course):
            self._front.keep(None)
            return
        replica = served[0].course.wanted.replica
        self._front.keep((replica.host, replica.port), tuple(_routed(name, ones) for name, ones in by_name.items()))

    @property
    def children(self) -> tuple[Child | None, ...]:
        """The processes that this started and waits for itself."""
        return (*(one.child for one in self._all.values()), self._front.child)

    @property
    def front_pids(self) -> set[int]:
        """The processes that own the API's port."""
        return {*self._front.child.alive()} if self._front.child else set()

    @property
    def settled(self) -> bool:
        """Whether no start of a model is under way, which needs the processors itself."""
        return all(one.course is None or one.course.phase in ("ready", "failed") for one in self._all.values())

    def group_ended(self, why: str) -> None:
        """End what has its ranks in Ray, which have gone with it."""
        for one in self._all.values():
            one.group_ended(why)

    def close(self) -> None:
        """End every replica because this program ends; the order stays."""
        for one in self._all.values():
            one.stop_now()
        for one in self._all.values():
            one.await_end()

    def status(self) -> list[dict[str, object]]:
        """The status of each replica, as it is written."""
        return _shared([row for one in self._each() if (row := one.status())])

    def beat(self, rows: list[dict[str, object]]) -> list[dict[str, object]]:
        """The same with what changes too often for each change to be written."""
        beats = [one.beat() for one in self._each() if one.course]
        return [{**row, **beat} for row, beat in zip(rows, beats, strict=False)]

    def _each(self) -> Iterator[ReplicaController]:
        return (self._all[index] for index in sorted(self._all))


def _shared(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """The rows with as many lines of each failure as leave the others theirs: the first ones, where the cause is."""
    most = LINES_BYTES // (len(FAILURES) * max(1, len(rows)))
    for row in rows:
        row |= {name: _within(dict(one), most) for name in FAILURES if isinstance(one := row.get(name), dict)}
    return rows


def _within(failure: dict[str, object], most: int) -> dict[str, object]:
    lines, kept = failure["lines"], list[str]()
    for line in lines if isinstance(lines, list | tuple) else ():
        most -= len(json.dumps(line))
        if most < 0:
            break
        kept.append(line)
    return {**failure, "lines": kept}


def _routed(name: str, ones: dict[int, ReplicaController]) -> FrontDeployment:
    """A deployment as the front has it: while none is ready, with the outlook of the one that may be first."""
    outlooks = sorted((one.outlook for one in ones.values()), key=lambda outlook: outlook[1])
    routes = {index: one.route for index, one in ones.items()}
    there = tuple(replace(route, index=index) for index, route in routes.items() if route)
    absent = tuple(index for index, route in routes.items() if not route)
    flags = next((one.course.wanted.deployment.flags for one in ones.values() if one.course), ())
    return FrontDeployment(name, there, *outlooks[0], absent, adapter_names(flags))


def adapter_names(flags: Iterable[str]) -> tuple[str, ...]:
    """The names that vLLM's `--lora-modules` gives to adapters: `NAME=PATH` or JSON; those that can be served."""
    found, given, left = list[str](), False, ADAPTERS_BYTES
    for word in flags:
        text = word
        if word.startswith("--"):
            option, _, text = word.partition("=")
            given = option.replace("_", "-") == "--lora-modules"
        if given and text:
            with suppress(ValueError, LookupError, TypeError, RecursionError):
                name = str(json.loads(text)["name"]) if text.startswith("{") else text.partition("=")[0]
                left -= len(served_name(name))
                found += [name] if left >= 0 else []
    return tuple(found)


def _empty(folder: Path) -> None:
    """Remove what a replica kept, but for what was ready."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != READY:
            path.unlink(missing_ok=True)
