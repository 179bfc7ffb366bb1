"""Consent: what a verb would stop, the question about it, and whether the answer still covers what is found later."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from vllm_cluster.kernel.errors import Aborted, ConnectionLost, HostError, PreflightFailed, UsageError
from vllm_cluster.kernel.facts.docker_objects import Container
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet
from vllm_cluster.kernel.hosts.program import python, read_message
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.plan.kept import left_by_head
from vllm_cluster.kernel.plan.node_status import UnreadableStatus
from vllm_cluster.kernel.plan.plan import MoveHead, Plan, RecordMembers, RemoveContainer, RestartNode
from vllm_cluster.kernel.plan.spec import CLUSTER, HEAD_ADDRESS, ROLE, node_name, stored_spec
from vllm_cluster.serving.changing import refuse_changing
from vllm_cluster.serving.hooks import KEPT_ON_HEAD
from vllm_cluster.serving.stops import Served, Stops
from vllm_cluster.wire.keys import NEEDED
from vllm_cluster.wire.order import read_order
from vllm_cluster.wire.programs import EngineLoad
from vllm_cluster.wire.status import ServeStatus

# Asks a person: yes, no, or None without a terminal.
Confirm = Callable[[str], bool | None]

LOAD_SECONDS = 10
# States in which a container holds its processes; a paused one continues where it was.
_RUNS = ("running", "paused")
# Phases in which the head's own front listens, and a model behind it.
_ANSWERS = ("ready", "hung")


@dataclass(frozen=True)
class Spare:
    """A command that stops less than what is asked about, and what it does, for the one who has to choose."""

    command: str
    effect: str


# Of one verb, each after a question or with the lease: people change a cluster less often, and a host may lie.
MAX_LOOKS = 8


class Consent:
    """One verb's question and its answer: nothing is stopped beyond what was confirmed."""

    def __init__(self, confirm: Confirm, cluster: str, why: str = "", spares: tuple[Spare, ...] = ()) -> None:
        """Ask by `confirm`; `why` is why anything must stop, and `spares` are remedies that stop less."""
        self._confirm, self._cluster, self._why, self._spares = confirm, cluster, why, spares
        self._confirmed: Stops | None = None
        self._left = MAX_LOOKS

    def covers(self, stops: Stops) -> bool:
        """Whether this may be stopped without another question."""
        return not stops.anything or (self._confirmed is not None and stops.within(self._confirmed))

    def ask(self, stops: Stops, then: str = "", *, always: bool = False) -> None:
        """Ask before anything is stopped; nothing where nothing is, or where it was confirmed already.

        `then` is what follows, for the question: ` and serve lab/llama`. With `always` a person is asked about that
        alone too; where no person is, it needs no answer.

        Raises:
            Aborted: the answer is no.
            UsageError, PreflightFailed: there is no terminal; the latter where the cluster changed since the question,
                or changes between all looks.
        """
        self._left -= 1
        if self._left < 0:
            then_ = self._confirmed or Stops()
            shown = (("node", then_.nodes, stops.nodes), ("pull", then_.pulls, stops.pulls))
            raise refuse_changing(self._cluster, MAX_LOOKS, shown)
        first = self._confirmed is None
        what = f"{stops.action(self._cluster)}{then}".removeprefix(" and ")
        if not self.covers(stops):
            _require_yes(self._confirm, what, first=first, why=self._why, spares=self._spares)
        elif always and first and self._confirm(_question(what)) is False:
            raise Aborted
        self._confirmed = stops


def ask_removal(what: str, confirm: Confirm) -> None:
    """Ask before something is removed that stops nothing.

    Raises:
        Aborted: the answer is no.
        UsageError: there is no terminal.
    """
    _require_yes(confirm, f"remove {what}", first=True)


def _question(what: str) -> str:
    return f"{what[0].upper()}{what[1:]}?"


def _require_yes(confirm: Confirm, what: str, *, first: bool, why: str = "", spares: tuple[Spare, ...] = ()) -> None:
    since = f"{why}: " if why else ""
    answer = confirm(_question(since + what))
    if answer is None and first:
        text = f"{since}this would {what}; there is no terminal to ask"
        # In the order of the remedies.
        effects = (f"fix {number}: {one.effect}" for number, one in enumerate(spares, 1))
        raise UsageError(text, *effects, hint="\n".join(one.command for one in spares) or None, again=("--yes",))
    if answer is None:
        text = f"the cluster has changed: this would now {what}; there is no terminal to ask"
        raise PreflightFailed(text, again=("--yes",))
    if not answer:
        raise Aborted


def stopped_by(plan: Plan, facts: Mapping[str, HostFacts], fleet: Fleet, heads: Collection[str]) -> Stops:
    """What a plan stops: running nodes that it removes or restarts, and the model that runs on them or changes.

    And the batches on a head that is none any more: only the head of now is asked for them.
    """
    containers = {host: seen.containers for host, seen in facts.items()}
    running = {host: {c.id for c in there if c.state in _RUNS} for host, there in containers.items()}
    nodes = {
        operation.host: operation.id
        for operation in plan.operations()
        if isinstance(operation, RemoveContainer | RestartNode)
        if operation.name == node_name(plan.cluster) and operation.id in running[operation.host]
    }
    written = next((one.request for one in plan.operations() if isinstance(one, RecordMembers) and one.request), "")
    outside = {one.host: fleet.outside[one.host] for one in plan.operations() if one.host in fleet.outside}
    left = replace(_left_behind(plan, containers, fleet), outside=outside)
    if not (nodes or written):
        return left
    found = served_by(plan.cluster, containers, fleet, heads)
    found = replace(found, unknown=found.unknown or left_by_head(plan.cluster, facts[plan.head]))
    wanted = read_order(written.encode()).deployments if written else None
    # An order is also written where only what is served in its place changes.
    stay = None if wanted is None else {one.generation for one in wanted}
    moved = tuple(one for one in found.served if stay is not None and one.generation not in stay)
    on = {one.name: _left(one, nodes.values(), containers) for one in found.served if one not in moved}
    stops = tuple(one for one in found.served if not on.get(one.name))
    kept = [(one.name, on[one.name], len(one.replicas)) for one in found.served if on.get(one.name)]
    fewer = "; ".join(f"{name} continues with {some} of {all_} replicas" for name, some, all_ in kept if some < all_)
    left = replace(left, nodes=nodes, fewer=fewer)
    if not (stops or found.unknown):
        return replace(left, stays=", ".join(name for name, some, all_ in kept if nodes and some == all_))
    names = {one.deployment.name for one in wanted or ()}
    again = all(one not in moved or one.name in names for one in stops)
    return replace(left, served=stops, unknown=found.unknown, again=again)


def _left_behind(plan: Plan, containers: Mapping[str, Iterable[Container]], fleet: Fleet) -> Stops:
    """The batches that stay on the host from which the head moves."""
    stops = Stops()
    for host in {one.source for one in plan.operations() if isinstance(one, MoveHead)}:
        for one in containers[host]:
            if one.name == node_name(plan.cluster):
                stops = batches_beside(stops, NodeHandle(fleet.connections[host], plan.cluster), one.state)
    return replace(stops, left_behind=bool(stops.batches or stops.unlisted))


def _left(served: Served, nodes: Iterable[str], containers: Mapping[str, Iterable[Container]]) -> int:
    """How many replicas of a model have their ranks, and its front, on other nodes than these; none if none answers."""
    labels = [one.labels for there in containers.values() for one in there if one.id in set(nodes)]
    specs = [stored_spec(entry) for entry in labels]
    if any(spec is None or spec.role == "head" for spec in specs):
        return 0
    lost = {spec.address for spec in specs if spec}
    left = [answers for answers, ranks in served.replicas if not lost or (ranks and not ranks & lost)]
    return len(left) if len(left) == len(served.replicas) or any(left) else 0


def served_by(
    cluster: str, containers: Mapping[str, Iterable[Container]], fleet: Fleet, heads: Collection[str]
) -> Stops:
    """What the `heads` serve or load, by the containers of each host.

    Only they know, and the word of another host that calls itself the head takes none of theirs away. Where a node runs
    whose head was not looked at, or is none, more may be served.
    """
    # By name too: what runs from a committed image has inherited a node's labels.
    running = [
        (host, container.labels)
        for host, there in containers.items()
        for container in there
        if container.name == node_name(cluster) and container.labels.get(CLUSTER) == cluster
        if container.state in _RUNS
    ]
    there = [host for host, labels in running if host in heads and labels.get(ROLE) == "head"]
    found = [served_on(NodeHandle(fleet.connections[host], cluster)) for host in there]
    unknown = [stops.unknown for stops in found if stops.unknown]
    for host, labels in running:
        # Also where a head was found: another host may call itself one.
        address = labels.get(HEAD_ADDRESS, "?")
        head = fleet.addresses.get(address)
        if head not in containers:
            unknown.append(f"the head {head or f'at {address}'} did not answer")
        elif head not in heads:
            unknown.append(f"{host} names {head} as its head, and the inventory another")
    served = tuple(one for stops in found for one in stops.served)
    return Stops(served, "; ".join(dict.fromkeys(unknown)))


def batches_beside(stops: Stops, node: NodeHandle, state: str) -> Stops:
    """The same with the batches of a head, whose container is in a state, that are not fetched.

    What cannot be listed is not taken for none: Docker shows the folder also of a container that does not run.

    Raises:
        ConnectionLost: the host is away.
    """
    why = f"its container is {state}"
    try:
        if state == "running":
            listed = [kept.listed(node) for kept in KEPT_ON_HEAD.given()]
            found = {key: text for rows in listed for key, text in rows.items()}
            return replace(stops, batches={**stops.batches, **found})
    except ConnectionLost:
        raise
    except HostError as error:
        why = (error.detail.splitlines() or [why])[0]
    try:
        there = any(kept.is_there(node) for kept in KEPT_ON_HEAD.given())
    except ConnectionLost:
        raise
    except HostError:
        there = True
    unlisted = f"{node.host} that cannot be listed ({why})" if there else ""
    return replace(stops, unlisted=" and those on ".join(filter(None, (stops.unlisted, unlisted))))


def served_on(node: NodeHandle) -> Stops:
    """What this head serves or loads; a start that has failed for good is neither."""
    there = node.container()
    if there is None or there.status not in _RUNS:
        return Stops()
    try:
        rows = [one for one in node.state().replicas if one.phase != "failed"]
    except UnreadableStatus as error:
        return Stops(unknown=error.message)
    if not rows:
        return Stops()
    now, requests = _load(node, next((one for one in rows if one.phase in _ANSWERS), rows[0]))
    names = dict.fromkeys(one.name for one in rows)
    served = []
    for name in names:
        own = [one for one in rows if one.name == name]
        seconds = None if now is None else max(0.0, now - own[0].since)
        # By the order's own numbers: what a replica calls its model does not count. One alone may have none.
        alone = requests.get("") if len(rows) == 1 else None
        numbers = [requests.get(str(one.index), alone) for one in own if one.phase in _ANSWERS]
        known = [number for number in numbers if number is not None]
        replicas = tuple((one.phase == "ready", frozenset(one.ranks)) for one in own)
        number = sum(known) if known else None
        silent = len(numbers) - len(known)
        served.append(Served(own[0].generation, name, own[0].phase, seconds, number, replicas, silent))
    return Stops(tuple(served))


def _load(node: NodeHandle, serve: ServeStatus) -> tuple[float | None, Mapping[str, int]]:
    """The head's clock, and how many requests each replica works on, by its number, where that is known."""
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(serve.host, serve.host)  # noqa: S104 - asked at loopback
    # What does not answer yet is not asked: at port 0 there is none.
    port = serve.port if serve.phase in _ANSWERS else 0
    words, needs = (address, str(port), str(LOAD_SECONDS / 2)), (*NEEDED, "wire.listeners", "wire.metrics")
    program = python("serving.on_host", "vllm_load", *words, seconds=LOAD_SECONDS, needs=needs)
    try:
        rows = node.connection.once(program.name, lambda: node.run(program, LOAD_SECONDS + 5)).messages
        load = read_message(EngineLoad, node.host, program.name, rows[-1])
    except ConnectionLost:
        raise
    except (HostError, LookupError):
        return None, {}
    return load.now, load.requests
