"""One cluster's node on one host: its container, what its node program writes, and its files."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from vllm_cluster.kernel.checks.own import require_own
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.docker.client import MAX_FILE
from vllm_cluster.kernel.errors import CommandFailed, HostError, NodeMissing, VclusterError
from vllm_cluster.kernel.facts.docker_objects import ContainerInfo
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.hosts.observe import observe, usable
from vllm_cluster.kernel.hosts.program import Finished, InNode, Message, RemoteProgram, run_program
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.laptop import whoami
from vllm_cluster.kernel.plan.desired import SECRETS_FOLDER, STATE_FOLDER
from vllm_cluster.kernel.plan.identity import node_of
from vllm_cluster.kernel.plan.node_status import current, parse_status
from vllm_cluster.kernel.plan.spec import node_name
from vllm_cluster.kernel.shell_line import command_line
from vllm_cluster.wire.order import ACCEPTED, WANTED, Order, Placement, read_order
from vllm_cluster.wire.reading import RefusedDocument
from vllm_cluster.wire.status import NodeStatus, ServeStatus

_ENDED = ("exited", "dead", "restarting")
LAST_LINES = 20
MAX_SECRET = 64 << 10
# What joins the nodes, ending this often at once, is not bad luck.
ATTEMPTS = 3


@dataclass(frozen=True)
class NodeState:
    """The container as Docker describes it, and the node program's status; None before it has written one."""

    container: ContainerInfo
    status: NodeStatus | None

    @property
    def started(self) -> float:
        """When the container was started, by the host's clock: seconds since 1970."""
        return self.container.started

    @property
    def replicas(self) -> tuple[ServeStatus, ...]:
        """Every replica of what it serves or starts."""
        return self.status.serves if self.status else ()

    def replica(self, index: int) -> ServeStatus | None:
        """One of them."""
        return next((one for one in self.replicas if one.index == index), None)


class NodeHandle:
    """What can be asked of a node, and written to it, over the connection to its host."""

    def __init__(self, connection: HostConnection, cluster: str) -> None:
        self.connection, self.host, self.cluster, self.name = connection, connection.name, cluster, node_name(cluster)

    def container(self) -> ContainerInfo | None:
        """The container as `docker inspect` shows it; None where there is none."""
        return self.connection.docker.container_info(self.name)

    def state(self) -> NodeState:
        """The container that runs, and its status.

        Raises:
            HostError: the container is gone, or has ended; with its last log lines.
        """
        found = self.container()
        if found is None:
            raise HostError(self.host, f"container {self.name} is missing", hint="vcluster up")
        if found.status in _ENDED:
            raise self.exit_error(found)
        return self._described(found)

    def ensure_running(self) -> ContainerInfo:
        """The container, which must run, for a command that only asks: what it printed last is `vcluster logs`' affair.

        Raises:
            NodeMissing: it does not run.
        """
        found = self.container()
        if found is None:
            raise NodeMissing(f"{self.host}: the node is missing", hint="vcluster up")
        if found.status == "paused":
            fix = command_line("docker", "unpause", self.name, on=self.host)
            raise NodeMissing(f"{self.host}: the node is paused", hint=fix)
        if found.status != "running":
            memory = ", killed for lack of memory" if found.out_of_memory else ""
            text = f"{self.host}: the node does not run: {found.status} with code {found.exit_code}{memory}"
            raise NodeMissing(text, hint="vcluster up\nvcluster explain")
        return found

    def running(self) -> NodeState:
        """The container and its status, as `state`.

        Raises:
            NodeMissing: as `ensure_running`.
        """
        return self._described(self.ensure_running())

    def _described(self, found: ContainerInfo) -> NodeState:
        raw = self.read("status.json")
        status = parse_status(raw, self.host) if raw else None
        # The file outlives the container, and the node program may have stopped.
        now = self.connection.docker.now
        return NodeState(found, current(status, found.started, now) if status else None)

    def state_if_running(self) -> NodeState | None:
        """The same; None where the container does not run, or its status cannot be read."""
        with suppress(VclusterError):
            return self.state()
        return None

    def exit_error(self, found: ContainerInfo) -> CommandFailed:
        """A container that should run and does not, with what it printed last."""
        tail = "\n".join(self.connection.docker.logs(self.name, tail=LAST_LINES).strip().splitlines()[-LAST_LINES:])
        memory = " (killed for lack of memory)" if found.out_of_memory else ""
        return CommandFailed(
            self.host,
            f"container {self.name} exited with code {found.exit_code}{memory}; last log lines:\n{tail}",
            exit_code=found.exit_code,
            stderr=tail,
            hint="vcluster explain\nvcluster up",
        )

    def read(self, file: str, limit: int | None = None, until: Deadline | None = None) -> bytes | None:
        """A file of the state volume; None where it is not there."""
        most = MAX_FILE if limit is None else limit
        return self.connection.docker.read_file(self.name, f"{STATE_FOLDER}/{file}", most, until)

    def read_end(self, file: str, limit: int, kept: int) -> bytes | None:
        """The end of what the first `limit` bytes of a file of the state volume are; None where it is not there."""
        return self.connection.docker.read_end(self.name, f"{STATE_FOLDER}/{file}", limit, kept)

    def write(self, file: str, content: bytes) -> None:
        """Write a file of the state volume, for its owner alone; only under the lease."""
        self.connection.docker.put_files(self.name, STATE_FOLDER, {file: (content, 0o600)})

    def order(self) -> Order | None:
        """What it was asked to serve; None where it never was asked.

        Raises:
            RefusedDocument: that cannot be read.
        """
        raw = self.read(WANTED)
        return None if raw is None else read_order(raw, f"{self.host}: {WANTED}")

    def ask(self, wanted: tuple[Placement, ...], drain: float | None = None) -> int:
        """Ask for these replicas to be served, or nothing; only under the lease. Returns the number of the order.

        What ends for it has `drain` seconds for its open requests.
        """
        order = Order(self._epoch() + 1, whoami(), wanted, drain=drain)
        self.write(WANTED, order.document)
        return order.epoch

    def _epoch(self) -> int:
        """The number of the last order, by what the head accepted where the file itself cannot be read."""
        for file in (WANTED, ACCEPTED):
            with suppress(RefusedDocument):
                raw = self.read(file)
                return read_order(raw).epoch if raw is not None else 0
        return 0

    def secret(self, name: str, identity: str) -> bytes | None:
        """A secret by its name and the id of its value; None where it is not there."""
        return self.connection.docker.read_file(self.name, f"{SECRETS_FOLDER}/{name}-{identity}", MAX_SECRET)

    def run(self, program: RemoteProgram, seconds: float, first: Message | None = None) -> Finished:
        """Run a program in the container; see `kernel.hosts.program`."""
        return run_program(self.connection, program, InNode(self.name), self.connection.runtime.after(seconds), first)


def connect_and_observe(inventory: Inventory, connection: HostConnection) -> HostFacts:
    """Connect to a host and open its engine.

    Raises:
        HostError: it does not answer, or its Docker does not.
    """
    connection.connect()
    return usable(observe(inventory, connection))


def open_node(inventory: Inventory, connection: HostConnection) -> NodeHandle:
    """The node of this cluster on a host, which is connected for it; the node may have stopped.

    Raises:
        HostError: the host or its Docker does not answer.
        NodeMissing: there is no such node.
        PreflightFailed: it is of another cluster, or a worker on the inventory's head.
    """
    facts = connect_and_observe(inventory, connection)
    require_own(inventory, facts)
    if node_of(inventory.cluster, facts) is None:
        raise NodeMissing(f"{connection.name}: the node is missing", hint="vcluster up")
    return NodeHandle(connection, inventory.cluster)


def refuse_failing(host: str, node: NodeState, before: dict[str, int]) -> None:
    """Refuse a Ray that keeps ending; `before` remembers how often it had ended when it was first looked at.

    One that had failed often before is given one more start: what was wrong may have been corrected meanwhile.

    Raises:
        CommandFailed: with Ray's own last words.
    """
    group = node.status.group if node.status else None
    if group is None:
        return
    ends = group.restarts - before.setdefault(host, group.restarts)
    if group.ended and ends and max(ends, group.failures) >= ATTEMPTS:
        text = f"Ray failed to start {max(ends, group.failures)} times; last output:\n{group.error}"
        raise CommandFailed(
            host, text, exit_code=1, stderr=str(group.error), hint="vcluster logs --only ray\nvcluster explain"
        )
