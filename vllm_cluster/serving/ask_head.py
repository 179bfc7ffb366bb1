"""What `serve`, `stop` and `rollback` share: write a request on the head, and follow it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from vllm_cluster.kernel.errors import HostError, Interrupted, PreflightFailed, Replaced, VclusterError
from vllm_cluster.kernel.events import Emit, Event, show_waiting_once
from vllm_cluster.kernel.hosts.connection import Fleet
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.lease.lease import Lease
from vllm_cluster.kernel.node.handle import NodeHandle, NodeState, refuse_failing
from vllm_cluster.kernel.node.history import command_of, known_requests, last_other, record
from vllm_cluster.kernel.plan.cached_model import as_asked
from vllm_cluster.kernel.plan.members import Record
from vllm_cluster.kernel.plan.placement import serve_command, summary
from vllm_cluster.kernel.plan.spec import node_name
from vllm_cluster.kernel.shell_line import command_line
from vllm_cluster.serving.consent import Consent
from vllm_cluster.serving.others import change, stopped_for
from vllm_cluster.wire.order import Placement
from vllm_cluster.wire.parts import RECORD_FILE
from vllm_cluster.wire.reading import RefusedDocument
from vllm_cluster.wire.status import ServeFailure, ServeStatus
from vllm_cluster.wire.values import LOOPBACK


def models_by_name(*rows: Placement) -> dict[str, str]:
    """The models of these, by the names under which they are served."""
    return {one.deployment.name: one.deployment.model for one in rows}


@dataclass(frozen=True)
class Endpoint:
    """Where the model answers, on the head's loopback unless exposed; and all that is `served`, the models by name."""

    model: str
    host: str
    head: str
    port: int
    served: Mapping[str, str] = field(default_factory=dict)

    @property
    def several(self) -> bool:
        """Whether it is one of several models."""
        return len(self.served) > 1

    @property
    def exposed(self) -> bool:
        """Whether other machines can reach it without a tunnel."""
        return self.host != LOOPBACK


def ask_head(
    node: NodeHandle,
    wanted: tuple[Placement, ...],
    emit: Emit,
    *,
    goes: Collection[str] | None,
    verb: str,
    entry: str = "",
    consent: Consent,
    names: Mapping[str, str],
    gpus: Mapping[str, int] | None = None,
    then: str = "",
    wait: float = 0.0,
    drain: float | None = None,
) -> int:
    """Write what is wanted beside other models, once what that stops is confirmed; returns the request's number.

    `goes` are the models that end for it, None for all; the others stay. `entry` is what the history has before the
    request, if not the verb; `then` is what follows the stop, for the question; `names` are those of the hosts, and
    `gpus` their GPUs as they were looked at, by address; `drain` are the seconds that open requests have.

    Raises:
        Aborted, UsageError, PreflightFailed: as `Consent.ask`.
        Locked: another run holds the lease.
    """
    while True:
        # Never asked with the lease in hand: a person who is away from the terminal would lock everybody out.
        consent.ask(stopped_for(node, change(node, wanted, goes)), then)
        with Lease([node.connection], node.cluster, verb) as lease:
            lease.acquire(wait, show_waiting_once(emit))
            if gpus:
                _require_same(node, gpus)
            made = change(node, wanted, goes)
            if consent.covers(stopped_for(node, made)):
                number = node.ask(made.rows, drain)
                # What ends is named where something is left beside it.
                what = [summary(wanted[0], names)] if wanted else made.goes if made.stays else ()
                record(node, verb, [" ".join((entry or verb, *what))], emit, request=number)
                return number


def _require_same(node: NodeHandle, gpus: Mapping[str, int]) -> None:
    """Refuse a layout over hosts that are others by now: while the lease is held they stay as they are.

    Raises:
        PreflightFailed: hosts joined or left since they were looked at.
    """
    found, _ = Record.read(node.read(RECORD_FILE))
    now = {member.address: member.gpus for member in found.members if not member.leaving} if found else {}
    if now and now != gpus:
        text = f"{node.host}: the hosts of {node.cluster} have changed since they were looked at; nothing was changed"
        raise PreflightFailed(text, again=())


def follow(
    fleet: Fleet,
    inventory: Inventory,
    number: int,
    wanted: tuple[Placement, ...],
    emit: Emit,
    *,
    title: str,
    drain: float | None = None,
    again: bool = True,
) -> None:
    """Show how far the head is with a request, until each replica has answered; the same command can do it `again`."""
    emit(Event("phase", title))
    with continues_on_interrupt(inventory.cluster, wanted[0].deployment.name, again=again):
        Follower(fleet, inventory, number, emit, wanted, drain=drain or 0.0).follow()


POLL = 0.3
# The node program looks at what is wanted several times a second; silence for this long means it does not.
PICKUP_SECONDS = 30.0
# Who has just written the request writes the history right after.
AUDIT_LOOKS, AUDIT_POLL = 5, 0.3
# A start that moves is followed for as long as it takes; these phases do not move by themselves.
IDLE_PHASES = ("waiting", "backoff", "stopping", "hung", "unknown")
IDLE_SECONDS = 300.0
# What does not change is shown again so often: importing is silent for half a minute.
BEAT_SECONDS = 5.0


@contextmanager
def continues_on_interrupt(cluster: str, served: str, *, again: bool = True) -> Iterator[None]:
    """Ctrl-C ends this program, and not the start on the hosts, which the same command follows `again`."""
    try:
        yield
    except KeyboardInterrupt:
        text = f"Interrupted. {cluster} continues to start {served}"
        # By its name: beside other models `stop` alone is refused.
        stop = command_line("vcluster", "stop", served)
        if again:
            text += "; run the same command to follow it."
            raise Interrupted(text, hint=f"vcluster status\n{stop}", again=()) from None
        raise Interrupted(f"{text}.", hint=f"vcluster status --wait\n{stop}") from None


class Follower:
    """Shows how far one request is, until each of its replicas has answered."""

    def __init__(
        self,
        fleet: Fleet,
        inventory: Inventory,
        number: int,
        emit: Emit,
        wanted: tuple[Placement, ...],
        *,
        drain: float = 0.0,
    ) -> None:
        self._number, self._after = number, fleet.runtime.after
        self._head, self._clock = fleet.connections[inventory.head_name], fleet.runtime.clock
        self._node = NodeHandle(self._head, inventory.cluster)
        self._pickup, self._generation = self._after(PICKUP_SECONDS), wanted[0].generation
        self._ended: dict[str, int] = {}
        idle, several = IDLE_SECONDS + drain, len(wanted) > 1
        self._left = [_Course(fleet, inventory, emit, one, idle=idle, several=several) for one in wanted]

    def follow(self) -> None:
        """Show each change until the model has answered.

        Raises:
            HostError: it never will, and why; and what is served in its place. Or it waits for something that does
                not come; the request stays.
        """
        while True:
            node = self._node.state()
            refuse_failing(self._head.name, node, self._ended)
            self._look(node)
            if not self._left:
                return
            self._clock.sleep(POLL)

    def _look(self, node: NodeState) -> None:
        """Show each replica that has begun with it: of several that change, the head begins one after another."""
        begun = [
            (course, serving)
            for course in self._left
            if (serving := node.replica(course.index)) and serving.request == self._number
        ]
        if not begun:
            self._await_pickup(node)
            return
        self._pickup = self._after(PICKUP_SECONDS)
        for course, serving in begun:
            if course.see(serving):
                self._left.remove(course)

    def _await_pickup(self, node: NodeState) -> None:
        self._number = _current_number(self._node, self._number, self._generation)
        if node.status and node.status.role == "worker":
            text = f"{self._head.name}: serve: another run moved the head to another host"
            raise Replaced(text, hint="vcluster status")
        if not self._pickup.left():
            raise HostError(
                self._head.name,
                f"serve: the head did not pick up the request within {PICKUP_SECONDS:.0f} s",
                hint="vcluster status\nvcluster up",
            )


class _Course:
    """How far one replica is, as it was last shown."""

    def __init__(
        self, fleet: Fleet, inventory: Inventory, emit: Emit, asked: Placement, *, idle: float, several: bool
    ) -> None:
        self._fleet, self._inventory, self._emit = fleet, inventory, emit
        self._asked, self._several, self.index = asked, several, asked.index
        self._head, self._after = inventory.head_name, fleet.runtime.after
        self._idle_seconds = idle
        self._idle, self._beat = self._after(idle), self._after(BEAT_SECONDS)
        self._shown: tuple[str, str] | None = None
        self._error: VclusterError | None = None

    def see(self, serving: ServeStatus) -> bool:
        """Show a status; whether it is the end."""
        if serving.instead_of and self._error is None:
            self._error = _failure(self._fleet, self._inventory, self._asked, serving.instead_of)
            text = f"{serving.instead_of.name} cannot be served: {serving.instead_of.summary}"
            text += f"; serving the previous request again: {serving.name}"
            self._emit(Event("warning", text, data={"rollback_to": serving.name}))
        self._show(serving)
        if serving.phase in ("ready", "failed") and self._error:
            raise _with_rollback(self._error, serving, self._fewer(serving) if serving.phase == "ready" else "")
        if serving.phase == "failed":
            raise _failure(self._fleet, self._inventory, self._asked, _whole(serving))
        self._refuse_idle(serving)
        return serving.phase == "ready"

    def _show(self, serving: ServeStatus) -> None:
        # The error names why it failed.
        detail = "" if serving.phase == "failed" else serving.detail
        before, self._shown = self._shown, (serving.phase, f"{detail}{serving.last_line}")
        if self._shown == before and self._beat.left() > 0:
            return
        self._beat = self._after(BEAT_SECONDS)
        text = f"{serving.phase}: {detail}" if detail else serving.phase
        if serving.phase == "ready" and before and serving.seconds_to_ready is not None:
            text = f"ready after {serving.seconds_to_ready:.0f} s"
        text = f"replica {self._asked.index}: {text}" if self._several else text
        if self._error:
            # Else it reads as if what was asked for had become ready.
            text = f"the previous request, {serving.name}: {text}"
        data: dict[str, object] = {
            "phase": serving.phase,
            "detail": detail,
            "progress": serving.progress,
            "attempt": serving.attempt,
        }
        # The phases of a start that was over before this program looked are of no interest.
        passed = serving.phases if before or serving.phase != "ready" else ()
        data |= {"phases": passed, "last_line": serving.last_line, "replica": self.index}
        self._emit(Event("progress", text, data=data))

    def _fewer(self, serving: ServeStatus) -> str:
        """The command for all replicas that were served before, where fewer are back: those with a number of now."""
        node = NodeHandle(self._fleet.connections[self._head], self._inventory.cluster)
        back = next((one.deployment for one in known_requests(node) if one.generation == serving.generation), None)
        if back is None or back.replicas <= self._asked.deployment.replicas:
            return ""
        return command_of(self._inventory, node, serving)

    def _refuse_idle(self, serving: ServeStatus) -> None:
        if serving.phase not in IDLE_PHASES:
            self._idle = self._after(self._idle_seconds)
        elif self._idle.left() <= 0:
            text = f"serve: {serving.name} does not start for {self._idle_seconds:.0f} s: {serving.words}"
            hint = f"vcluster status\n{command_line('vcluster', 'stop', serving.name)}"
            raise HostError(self._head, f"{text}; the request is kept and is served once this ends", hint=hint)


def _whole(serving: ServeStatus) -> ServeFailure | None:
    """Its first failure, and why it is not started again where that is another reason."""
    first, last = serving.first_failure, serving.failure
    if first is None or serving.detail in ("", first.summary, last.summary if last else ""):
        return first
    return replace(first, summary=f"{serving.detail}; the first failure: {first.summary}")


def _with_rollback(error: VclusterError, serving: ServeStatus, fewer: str) -> VclusterError:
    """The failure of a request, and whether what was served before it is back; `fewer` is the command for all of it."""
    if serving.phase == "ready":
        away = "" if serving.away_seconds is None else f", after {serving.away_seconds:.0f} s without it"
        less = ", with fewer replicas than before" if fewer else ""
        error.lines.append(f"the previous request is back: {serving.name} is served again{away}{less}")
        if fewer:
            error.hint = "\n".join(filter(None, (fewer, error.hint)))
    else:
        why = f": {serving.first_failure.summary}" if serving.first_failure else ""
        error.lines.append(f"the previous request, {serving.name}, did not become ready again{why}")
    return error


def _failure(fleet: Fleet, inventory: Inventory, asked: Placement, found: ServeFailure | None) -> VclusterError:
    """The error for a request that cannot be served; its last remedy is the command that asked for it."""
    host = inventory.head_name
    if found is None:
        return HostError(
            host,
            "vLLM failed without an error",
            hint=command_line("docker", "logs", node_name(inventory.cluster), on=host),
        )
    error = HostError(
        host,
        f"{asked.deployment.name} cannot be served: {found.summary}",
        hint=serve_command(asked.deployment, fleet.addresses),
    )
    last_words = "\n" + "\n".join(found.lines[-30:])
    # All known failures are read with it, which takes a tenth of a second that a request without a failure does not.
    from vllm_cluster.serving.explain.explain import add_cause  # noqa: PLC0415

    model = as_asked(asked.deployment.model, inventory.model_cache)
    return add_cause(error, fleet, inventory, last_words, model=model)


def _current_number(node: NodeHandle, number: int, generation: str) -> int:
    """The number that a request has now: it gets another where only what is served in its place has changed.

    Raises:
        Replaced: another one was written since; with who asked for what, and when.
    """
    try:
        order = node.order()
    except RefusedDocument:
        return number
    if order is None or order.epoch <= number:
        return number
    if found := next((one for one in order.deployments if one.generation == generation), None):
        return found.asked or order.epoch
    other = last_other(node)
    for _ in range(AUDIT_LOOKS):
        if other:
            break
        node.connection.runtime.clock.sleep(AUDIT_POLL)
        other = last_other(node)
    raise Replaced(
        f"{node.host}: serve: superseded by another request: {other or 'the history does not name it'}",
        hint="vcluster status",
    )
