"""Keeps one replica served: waits for its GPUs, starts its parts, and starts them again when that can help."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from vllm_cluster.serving.node.files import write_whole
from vllm_cluster.serving.node.front_keeper import FrontKeeper
from vllm_cluster.serving.node.idle_gpus import IdleGpus
from vllm_cluster.serving.node.kept_order import Requests
from vllm_cluster.serving.node.members import HeadMembers
from vllm_cluster.serving.node.process import Child
from vllm_cluster.serving.node.serve_state import ServeState, compare_gpus, idle_gpus
from vllm_cluster.serving.node.start import Nodes, Parts, Start, free_place, unended
from vllm_cluster.serving.node.timing import Timing, boot_seconds
from vllm_cluster.wire.front import FrontReplica, ReplicaState
from vllm_cluster.wire.inside import beginning
from vllm_cluster.wire.order import Order, Placement
from vllm_cluster.wire.parts import EndKind, PartReport
from vllm_cluster.wire.reading import MAX_BYTES, RefusedDocument, read
from vllm_cluster.wire.status import ServeMemory


@dataclass(frozen=True)
class Around:
    """What the replicas of a head share: its state's folder, the parts that run, the front, and the key behind it."""

    state: Path
    pace: Timing
    parts: Parts
    front: FrontKeeper
    key_file: str | None
    reap: Callable[[], None]
    publish: Callable[[], None]


class ReplicaController:
    """What is asked for in place of one replica, its course and, while its parts run, their start."""

    def __init__(self, around: Around, index: int = 0) -> None:
        self.course: ServeState | None = None
        self.start: Start | None = None
        self._index, self._key_file = index, around.key_file
        # The first one's files are where earlier versions had them.
        self._folder = around.state / f"replica-{index}" if index else around.state
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self.requests = Requests(self._folder, history=around.state, index=index)
        self._members = HeadMembers(around.state)
        self._next: tuple[Placement | None, bool] | None = None  # waits until what runs has ended
        self._state, self._pace, self._parts, self._front = around.state, around.pace, around.parts, around.front
        self._reap, self._publish = around.reap, around.publish
        self._idle = IdleGpus(around.parts.environment, around.reap)

    def tick(self, table: Nodes | None) -> None:
        """Look at Ray's nodes (None when Ray does not answer) and at the parts; do what is due."""
        if self.course is not None:
            self._members.look()
            nodes = table if self.course.wanted.replica.grouped else self._parts.members()
            self._look(self.course, nodes)
        self._parts.order(self._index, self.start)

    @property
    def over(self) -> bool:
        """Whether nothing is wanted of it, and nothing of it runs."""
        return self.course is None and self.start is None

    @property
    def route(self) -> FrontReplica | None:
        """Its API as the front has it; None while there is no start."""
        start = self.start
        return FrontReplica(start.replica, *start.at, self._replica_state(start), self._key_file) if start else None

    @property
    def answers(self) -> bool:
        """Whether the front sends it requests."""
        return self.start is not None and self._replica_state(self.start) == "ready"

    @property
    def outlook(self) -> tuple[str, int]:
        """How far it is, for clients, and the seconds until it may be ready: of one that is or was, a whole start."""
        course, leads = self.course, self._leads()
        # Its details may hold paths and addresses: for clients of the API the phase and how far it is are enough.
        done = leads.progress if course and leads and course.phase in ("downloading", "loading", "capturing") else None
        phase = course.phase if course else ""
        began = self.start.began if self.start and self._replica_state(self.start) == "waiting" else boot_seconds()
        return (f"{phase} {done[0]}/{done[1]}" if done else phase), self.requests.seconds_left(boot_seconds() - began)

    def _replica_state(self, start: Start) -> ReplicaState:
        if start.ending:
            return "lost" if start.how else "draining"
        leads = self._leads()
        return "ready" if leads and leads.phase == "ready" else "waiting"

    def _look(self, course: ServeState, nodes: Nodes | None) -> None:
        replica, names = course.wanted.replica, self._members.names
        known = compare_gpus(self._planned, nodes or (), replica.ranks, names, grouped=replica.grouped)
        course.have, wrong = known
        if nodes is None:
            wrong = ["Ray does not answer yet"]
        if self.start and self.start.ending and not self.start.how:
            self._drain_open(course, self.start)
        elif self.start and self.start.ending:
            self._finish(course, self.start, names)
        elif self.start:
            self._follow(course, self.start, nodes)
        elif course.phase in ("waiting", "backoff"):
            self._consider(course, nodes or (), wrong)
        if self.course and self.course.phase == "failed" and self.requests.fail(self.course.failure):
            self._take(self.requests.served, fresh=True)

    @property
    def child(self) -> Child | None:
        """The process that this started and waits for itself."""
        return self._idle.child

    def group_ended(self, why: str) -> None:
        """End vLLM, whose ranks have gone with Ray."""
        if self.course and self.start and self.start.placed.replica.grouped:
            self._ended(self.course, self.start, why, lost=True)
            self.await_end()

    def stop_now(self) -> None:
        """Begin the end of vLLM because this program ends; the request stays."""
        if self.start:
            self._stop(self.start, "the node stops")

    def await_end(self) -> None:
        """Wait until nothing is left of the part on this node, or what is left will not end."""
        while self.start and self.course:
            self._finish(self.course, self.start, (self._parts.address,))
            self._parts.order(self._index, self.start)
            self._reap()
            time.sleep(0.02)

    def status(self) -> dict[str, object] | None:
        """The status to write; None when nothing is wanted."""
        course = self.course
        if course is None:
            return None
        leads, wanted = self._leads(), course.wanted
        names = ("phase", "detail", "since", "ready_at", "seconds_to_ready")
        failures = {"first_failure": course.first_failure, "failure": course.failure}
        return {
            "generation": wanted.generation,
            "model": wanted.deployment.model,
            "name": wanted.deployment.name,
            "host": wanted.replica.host,
            "port": wanted.replica.port,
            "backend": wanted.replica.backend,
            **{name: getattr(course, name) for name in names},
            **{name: asdict(one) if one else None for name, one in failures.items()},
            "attempt": course.attempts,
            "progress": leads.progress if leads else None,
            # While a start is stopped, the request may already be the next one.
            "phases": [*course.waited, *leads.phases] if leads and course.phase != "stopping" else [],
            "gpus": [course.have, sum(self._planned.values())],
            "ranks": wanted.replica.ranks,
            "index": self._index,
            **self.requests.status(),
        }

    def beat(self) -> dict[str, object]:
        """What changes too often for each change to be written; it is written with the next beat."""
        leads = self._leads()
        return {"last_line": leads.last_line, "token_age_seconds": leads.token_age} if leads else {}

    def _leads(self) -> PartReport | None:
        """How the part does that answers requests."""
        return self._parts.report(self.start, self.start.placed.replica.leader) if self.start else None

    @property
    def _planned(self) -> dict[str, int]:
        """The GPUs by address that must be there; those of the order, where the record of members cannot be read."""
        return self._members.gpus or (self.course.wanted.replica.ranks if self.course else {})

    def accept(self, order: Order) -> None:
        """Take what is asked for in this replica's place."""
        fresh = self.requests.accept(order)
        self._take(self.requests.served, fresh=fresh)

    def resume(self) -> None:
        """Serve what was asked for before this program began."""
        if self.course is None and self.requests.served:
            self._take(self.requests.served, fresh=False)

    def _take(self, wanted: Placement | None, *, fresh: bool) -> None:
        """Serve this from now on. The same again changes nothing, unless it had failed and was asked for afresh."""
        same = self.course and wanted and wanted.generation == self.course.wanted.generation
        again = fresh and self.course is not None and self.course.phase == "failed"
        if fresh and not (same and not again):
            (self._folder / "serve.json").unlink(missing_ok=True)
        if self.course and (not same or again):
            if self.start:
                self._next = (wanted, fresh)
                if not self.start.ending:
                    self._stop(self.start, "superseded by a new request", how="")
                return
            self._idle.release()
            self.course = None
        self._next = None
        if wanted and self.course is None:
            self.course = self._remember(ServeState(wanted))
            if self.course.once_ready and self.course.phase != "failed":
                self.requests.restarted("the head's container started again")
            self._save(self.course)
        elif wanted and self.course:
            self.course.wanted = wanted  # the same on other hosts: its next start goes there

    def _remember(self, course: ServeState) -> ServeState:
        """What a container before this one has learned about the same request."""
        course.set_phase("waiting")
        # A first start has no such file, and a disk may have lost it.
        with contextlib.suppress(OSError, RefusedDocument):
            course.remember(read(ServeMemory, beginning(self._folder / "serve.json", MAX_BYTES + 1), "serve.json"))
        return course

    def _save(self, course: ServeState) -> None:
        write_whole(self._folder / "serve.json", {"v": 1, **asdict(course.memory)}, sync=True)

    def _consider(self, course: ServeState, nodes: Nodes, wrong: list[str]) -> None:
        """Start the parts when that is due and every GPU is there and free, and nothing else is."""
        now = time.monotonic()
        if course.judge_until is not None:
            self._judge(course, wrong, late=now >= course.judge_until)
            return
        if now < course.again_at:
            return
        if not wrong and self._idle.child is None:
            wrong = self._held(course, nodes)
        wanted = course.wanted.replica
        if wrong:
            course.set_phase("waiting", f"GPUs {course.have:g}/{sum(self._planned.values())}: {'; '.join(wrong)}")
        elif wanted.grouped and (unheld := self._idle.hold(idle_gpus(self._planned, wanted.ranks))):
            course.set_phase("waiting", unheld)
        elif self._front.taken:
            course.fail(self._front.taken)
            self._decide(course, lost=False, judge=False)
        else:
            self._begin(course, nodes)

    def _held(self, course: ServeState, nodes: Nodes) -> list[str]:
        """What an attempt before has left: processes that have not ended, GPUs that Ray has not got back."""
        held = self._parts.held(course.wanted.replica)
        if not course.attempts:
            return held  # GPUs that others hold from the start are Ray's to wait for
        taken = {n.address: n.gpus - n.free for n in nodes if n.alive and n.free is not None}
        return held + [f"{count:g} GPUs of {address} are not free yet" for address, count in taken.items() if count > 0]

    def _begin(self, course: ServeState, nodes: Nodes) -> None:
        course.attempts += 1
        waited = boot_seconds() - course.phase_began if course.phase == "waiting" else 0.0
        course.waited = (("waiting", round(waited, 1)),) if waited >= 1 else ()
        course.ready_at = course.seconds_to_ready = None
        course.starts.append(round(time.time(), 3))
        self._save(course)
        ranks = course.wanted.replica.ranks
        members = {n.address: n.id for n in nodes if n.alive and (not ranks or n.address in ranks)}
        replica, moment = course.wanted.replica, time.monotonic()
        at = (replica.leader.address, replica.api) if replica.api else free_place()
        self.start = Start(secrets.token_hex(8), course.wanted, members, boot_seconds(), moment, at, self._key_file)
        course.set_phase("importing")

    def _follow(self, course: ServeState, start: Start, nodes: Nodes | None) -> None:
        living = {node.id for node in nodes or () if node.alive}
        # By id: a node that died and came back between two looks has the address, but not the ranks.
        gone = [] if nodes is None else [place for place, name in start.members.items() if name not in living]
        what = list(self._ends(start))
        what += [start.lost(gone)] if gone else []
        # Until its ranks are placed, they could go where they shall not.
        unheld = self._idle.lost and course.ready_at is None
        what += ["the GPUs that stay idle are no longer held in Ray"] if unheld else []
        if what:
            self._ended(course, start, "; ".join(what), lost=bool(gone) or unheld)
        elif leads := self._leads():
            self._progress(course, start, leads)

    def _ends(self, start: Start) -> Iterator[str]:
        """How parts have ended, or what is wrong with them."""
        late = time.monotonic() - start.ordered > self._pace.part_start
        for part in start.parts:
            where = self._parts.where(start, part)
            one = self._parts.report(start, part)
            if one is None:
                if part.host in start.seen or late:
                    yield f"no part of vLLM runs{where or ' here'}"
                continue
            start.seen.add(part.host)
            if one.code is not None or one.verdict:
                start.first = start.first or part
                yield (
                    f"vLLM ended with exit code {one.code}{where}" if one.code is not None else f"{one.verdict}{where}"
                )

    def _progress(self, course: ServeState, start: Start, leads: PartReport) -> None:
        started = leads.phase == "ready" and course.ready_at is None
        if leads.phase == "ready" and self._front.taken:
            # Whoever asks there would show the key to that program.
            course.set_phase("waiting", self._front.taken)
            return
        if started and not self._front.sends_to(start.replica):
            course.set_phase("probing", self._front.ended or "the front is about to take requests for it")
            return
        if started:
            course.once_ready, course.failures = True, 0
            course.ready_at = round(time.time(), 3)
            course.seconds_to_ready = round(boot_seconds() - start.began, 3)
            self._save(course)
        if leads.phase == "ready":
            # At each look: another request may ask for what runs already.
            self.requests.ready(course.seconds_to_ready if started else None)
        course.set_phase(leads.phase, leads.detail)

    def _ended(self, course: ServeState, start: Start, what: str, *, lost: bool) -> None:
        planned = self._members.replaced_by(start.members)

        def then() -> None:
            if planned:
                course.replaced(planned)
                self.requests.restarted(planned)
                self._save(course)
                return
            last = self._parts.last(start)
            # The likeliest cause first; of two parts, that of the one which ended first.
            why = next((start.why(part, one.cause) for part, one in last if one.cause), "")
            course.fail(f"{what}{why}{start.overdue}", last[0][1].lines if last else ())
            self._decide(course, lost=lost, judge=any(one.maybe_lost for _, one in last))

        stuck = any(one.verdict and one.code is None for _, one in self._parts.last(start))
        self._stop(start, planned or what, how="stuck" if stuck and not planned else "failed", then=then)

    def _decide(self, course: ServeState, *, lost: bool, judge: bool) -> None:
        """Whether to try again, within the budget: when it once was ready, or when a node was lost."""
        if course.once_ready or lost:
            self._again(course)
        elif judge:
            course.judge_until = time.monotonic() + self._pace.notice_loss
            course.set_phase("backoff", f"was a node lost? {course.what}")
        else:
            course.set_phase("failed", course.what)
        self._save(course)

    def _again(self, course: ServeState) -> None:
        course.wait(self._pace)
        final = course.phase == "failed"
        self.requests.restarted(f"{course.what}; {course.detail}" if final else course.what, final=final)

    def _judge(self, course: ServeState, wrong: list[str], *, late: bool) -> None:
        """Whether a node was lost, which Ray notices seconds after vLLM has ended of it."""
        if wrong or late:
            course.judge_until = None
            if wrong:
                self._again(course)
            else:
                course.set_phase("failed", course.what)
            self._save(course)

    def _stop(self, start: Start, why: str, *, how: EndKind = "asked", then: Callable[[], None] = lambda: None) -> None:
        """Begin the end of every part, where `how` is empty once open requests have ended; `then` follows it."""
        start.ending, start.then = why, then
        start.end(how, self._pace)
        start.drained_by = time.monotonic() + self.requests.drain_seconds(self._pace.drain)
        if self.course:
            self.course.set_phase("stopping", why)
        self._parts.order(self._index, start)
        self._publish()

    def _drain_open(self, course: ServeState, start: Start) -> None:
        """End the parts once nothing is open there that the front has sent, or it has taken too long."""
        number = self._front.open(start.replica)
        if number == 0 or time.monotonic() >= start.drained_by:
            start.end("asked", self._pace)
            course.set_phase("stopping", start.ending)
        else:
            course.set_phase("stopping", f"{start.ending}; open requests end first: {number or 0}")

    def _finish(self, course: ServeState, start: Start, members: Collection[str]) -> None:
        """Do what follows a start of which nothing is left; what nodes have left that are away ends by itself there.

        What has not ended in time holds up only what needs the same host.
        """
        found = [(part, self._parts.state(start, part, members)) for part in start.parts]
        if waits := [self._parts.where(start, part) for part, state in found if state == "runs"]:
            course.set_phase("stopping", f"{start.ending}{unended(waits)}")
            return
        if late := [self._parts.where(start, part) for part, state in found if state == "overdue"]:
            start.overdue = unended(late)
            self._parts.complain(f"{start.placed.deployment.name}{start.overdue}")
        self._idle.release()
        start.then()
        self.start = None
        if self._next:
            wanted, fresh = self._next
            self._take(wanted, fresh=fresh)
