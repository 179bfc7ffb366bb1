"""The hosts of a cluster, connected, and work spread over them."""

from __future__ import annotations

import queue
import resource
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from typing import Literal, TypeVar, cast

from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.docker.client import DIAL, DockerApi
from vllm_cluster.kernel.docker.temporary import TemporaryContainers
from vllm_cluster.kernel.errors import ConnectionLost, HostError, VclusterError, combine
from vllm_cluster.kernel.held import ONE_HOST, OWN, Memory, SharedMemory, let_go, share_heap
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.inventory.load import duplicates_by_resolution
from vllm_cluster.kernel.inventory.model import Host, Inventory
from vllm_cluster.kernel.shell_line import shell_line
from vllm_cluster.kernel.transport import locate
from vllm_cluster.kernel.transport.base import Stream, Target, Transport
from vllm_cluster.kernel.transport.jumps import Jumps
from vllm_cluster.kernel.transport.ssh_answers import SshAnswers
from vllm_cluster.kernel.transport.ssh_config import SshEndpoint, ensure_safe_names, ssh_options

# sshd takes about ten new connections at a time (MaxStartups); a laptop's file table has its end too.
WORKERS = 32
CONNECT_SECONDS, CLOSE_SECONDS = 20.0, 5.0
# For what would stay on a host once its connection has ended; a person waits for it.
CLEAR_SECONDS = 3.0
DIAL_SECONDS = 30.0
# An answer that took longer is kept where a verb asks for it at each look.
SLOW_SECONDS = 2.0
# A connection takes up to five; the usual limit is 1024 for a process, and 256 on macOS.
OPEN_FILES = 8192

T = TypeVar("T")


class HostConnection:
    """One host: its connection, and its Docker engine once the API version is known."""

    def __init__(
        self, name: str, transport: Transport, runtime: Runtime = SYSTEM, ssh: str = "", memory: Memory | None = None
    ) -> None:
        """`ssh` is the command that leads there, for people to paste; empty where the host is this machine."""
        self.name = name
        self.ssh = ssh
        self.transport = transport
        self.runtime = runtime
        self.may_change = False
        self._guard: Callable[[], None] = self._refuse
        self._through: tuple[str, ...] = ()
        self._docker_api: DockerApi | None = None
        self._docker_id = ""
        # Why an observation has found no engine, for who asks it nevertheless.
        self.no_docker: HostError | None = None
        # Which machine it is; empty where only the connection itself has found out where SSH leads.
        self.machine = ""
        # Of its facts; a fleet's hosts share what there is.
        self.memory = memory or Memory(ONE_HOST)
        self._kept: dict[str, object] = {}
        self.temporary = TemporaryContainers(lambda: self.docker)

    def fence(self, guard: Callable[[], None], through: Sequence[str]) -> None:
        """From now on ask `guard` before each call that changes the host, and reach Docker through this command."""
        self._guard, self._through = guard, tuple(through)
        if self._docker_api:
            self._docker_api.fence(self._dial)

    def unfence(self) -> None:
        """Change nothing more on the host; what is read from now on comes over streams that no lease ends."""
        self._guard, self._through = self._refuse, ()
        if self._docker_api:
            # Those of the lease are not kept: where the host gave it up, they have ended, and only the next call
            # would notice.
            self._docker_api.fence(self._dial)

    def ask(self) -> None:
        """Raise where the host may not be changed now: asked right before each call that does."""
        self._guard()

    def open_changing(self, argv: Sequence[str], deadline: Deadline) -> Stream:
        """Start a command that changes the host: like a call to Docker, only under the lease, and ended with it."""
        self.ask()
        return self.open_stream([*self._through, *argv], deadline)

    def open_stream(self, argv: Sequence[str], deadline: Deadline) -> Stream:
        """Start a command and talk to it; what is idle of Docker's streams makes place for it."""
        with self._docker_api.without_idle() if self._docker_api else nullcontext():
            return self.transport.open_stream(argv, deadline)

    def _dial(self) -> Stream:
        return self.transport.open_stream([*self._through, *DIAL], self.runtime.after(DIAL_SECONDS))

    def _refuse(self) -> None:
        if not self.may_change:
            raise RuntimeError(f"{self.name}: a call that changes the host, without the lease")

    def connect(self) -> None:
        """Connect to the host."""
        self.transport.connect(self.runtime.after(CONNECT_SECONDS))

    def reconnect(self) -> None:
        """Connect again after the connection broke; Docker is reached over new streams."""
        self.connect()
        self.docker.fence(self._dial)

    def open_docker(self, api_version: str, docker_id: str = "") -> DockerApi:
        """Speak to the host's Docker engine in a version that it knows; `docker_id` is what it calls itself."""
        if self._docker_api is None:
            self._docker_id = docker_id
            self._docker_api = self.runtime.docker(self.transport, api_version, self.runtime.clock)
            self._docker_api.guard = self.ask
            self._docker_api.fence(self._dial)
        return self._docker_api

    @property
    def docker(self) -> DockerApi:
        """The host's Docker engine, after an observation.

        Raises:
            HostError: the observation has found none that can be used.
        """
        if self._docker_api is None:
            raise self.no_docker or RuntimeError(f"{self.name} was not observed")
        return self._docker_api

    @property
    def docker_id(self) -> str:
        """What the host's Docker engine calls itself, by every way to it; after an observation.

        Raises:
            HostError: as `docker`.
        """
        return self._docker_id if self.docker else ""

    @property
    def round_trips(self) -> int:
        """What was asked of the host so far, over the transport and over the Engine API."""
        return self.transport.round_trips + (self._docker_api.requests if self._docker_api else 0)

    def once(self, what: str, ask: Callable[[], T]) -> T:
        """The answer to a question that a verb has at each of its looks.

        Where the host took its time over it, what came of it is kept, also a failure, and it is not asked again: each
        look would take as long, some of them with the lease.

        Raises:
            HostError: it failed, now or then.
        """
        kept = cast("T | HostError | None", self._kept.get(what))
        if kept is None:
            began = self.runtime.clock.monotonic()
            try:
                kept = ask()
            except ConnectionLost:
                raise
            except HostError as error:
                let_go(error)
                kept = error
            if self.runtime.clock.monotonic() - began > SLOW_SECONDS:
                self._kept[what] = kept
        if isinstance(kept, HostError):
            raise kept
        return kept

    def close(self) -> None:
        """Close the engine's streams and the connection."""
        if self._docker_api:
            self._docker_api.close()
        self.transport.close()


class Fleet:
    """All hosts of an inventory, or these alone. Work runs on at most `WORKERS` of them at once.

    Raises:
        InventoryError: ssh_config sends two hosts to one place.
    """

    def __init__(self, inventory: Inventory, runtime: Runtime = SYSTEM, hosts: Iterable[str] | None = None) -> None:
        self.runtime = runtime
        wanted = set(inventory.hosts if hosts is None else hosts)
        at = {name: host for name, host in inventory.hosts.items() if name in wanted}
        self.addresses = {host.address: name for name, host in inventory.hosts.items()}
        self.pull_port = inventory.ports.pull
        _allow_open_files()
        share_heap()
        self._facts_memory = SharedMemory(len(inventory.hosts))
        self._jumps = Jumps()
        # Those that are not reached are not asked for.
        found = endpoints(inventory, runtime, at.values())
        _ensure_unique_hosts(inventory, found)
        self.connections = {name: self._connection(inventory, host, found.get(name)) for name, host in at.items()}
        self.names = tuple(at)
        self._apart: dict[str, VclusterError] = {}
        # Where SSH leads for hosts that are not of the inventory, by their names, which are the head's word.
        self.outside: dict[str, str] = {}
        self._stopping = threading.Event()

    def join(self, inventory: Inventory, hosts: Iterable[Host]) -> dict[str, VclusterError]:
        """Connect to hosts that are not of the inventory; why some cannot be reached, also when that was found before.

        Work goes there only where it is named.
        """
        names = {host.name: host for host in hosts}
        self.outside |= {name: host.destination for name, host in names.items()}
        fresh = [host for name, host in names.items() if name not in self.connections]
        for host in fresh:
            self.connections[host.name] = self._connection(inventory, host, None)
        self._apart |= self.connect([host.name for host in fresh])[1] if fresh else {}
        return {name: error for name, error in self._apart.items() if name in names}

    def _connection(self, inventory: Inventory, host: Host, endpoint: SshEndpoint | None) -> HostConnection:
        at, kind = ssh_target(inventory, host), _kind(inventory, host)
        ssh = "" if kind == "local" else shell_line(["ssh", *ssh_options(at), at.destination])
        carrier = self.runtime.connect(at, kind, endpoint, self._jumps)
        made = HostConnection(host.name, carrier, self.runtime, ssh, Memory(OWN, self._facts_memory, ONE_HOST))
        made.machine = _machine(inventory, host, endpoint)
        return made

    def each(
        self, work: Callable[[HostConnection], T], hosts: Iterable[str] | None = None
    ) -> tuple[dict[str, T], dict[str, VclusterError]]:
        """Run `work` on every host of the inventory, or on these, side by side; answers and failures by host, in order.

        One host's failure stops no other host.
        """
        wanted = set(self.names if hosts is None else hosts)
        names = [name for name in self.connections if name in wanted]
        pool = self.runtime.pool(min(WORKERS, max(1, len(names))))
        try:
            futures: Mapping[str, Future[T]] = {name: pool.submit(self._guarded, work, name) for name in names}
            answers: dict[str, T] = {}
            failures: dict[str, VclusterError] = {}
            for name, future in futures.items():
                try:
                    answers[name] = future.result()
                except VclusterError as error:
                    failures[name] = error
            return answers, failures
        except KeyboardInterrupt:
            self.stop()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def all(self, work: Callable[[HostConnection], T], hosts: Iterable[str] | None = None) -> dict[str, T]:
        """As `each`, where every host must succeed.

        Raises:
            FleetError: some failed; with one failure, that failure itself.
        """
        answers, failures = self.each(work, hosts)
        if failures:
            raise combine(failures)
        return answers

    def without_lease(self) -> None:
        """Let temporary containers be made without the lease: they touch no node, and what runs continues."""
        for connection in self.connections.values():
            connection.may_change = True

    def connect(self, hosts: Iterable[str] | None = None) -> tuple[dict[str, None], dict[str, VclusterError]]:
        """Connect to the hosts, as `each`."""
        return self.each(HostConnection.connect, hosts)

    def _guarded(self, work: Callable[[HostConnection], T], name: str) -> T:
        if self._stopping.is_set():
            raise VclusterError(f"{name}: not started")
        try:
            return work(self.connections[name])
        except VclusterError as error:
            let_go(error)  # of 64 hosts
            raise

    @property
    def stopping(self) -> bool:
        """Whether what runs is being broken off: what fails then is not a failure of a host."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Start nothing more, and break off what runs: a closed connection ends its call, and removes no container."""
        self._stopping.set()
        deadline = self.runtime.after(CLEAR_SECONDS)
        self._side_by_side(lambda connection: connection.temporary.end(deadline), "clear", deadline)
        self.close()

    def close(self) -> None:
        """End every connection, side by side: a dead host must not hold up the others."""
        self._side_by_side(HostConnection.close, "close", self.runtime.after(CLOSE_SECONDS))
        # Last, since the connections behind a jump host end through it.
        self._jumps.close()

    def _side_by_side(self, work: Callable[[HostConnection], None], name: str, deadline: Deadline) -> None:
        """Do the work for every connection, and wait for it until the deadline; it needs no pool, which may be full."""
        links = queue.SimpleQueue[HostConnection]()
        for connection in self.connections.values():
            links.put(connection)

        def work_on_some() -> None:
            with suppress(queue.Empty):
                while True:
                    work(links.get_nowait())

        working = [self.runtime.background(work_on_some, name) for _ in range(min(WORKERS, len(self.connections)))]
        for one in working:
            one.join(deadline.left())

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _allow_open_files() -> None:
    """Raise this process's limit of open files, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def ssh_target(inventory: Inventory, host: Host) -> Target:
    """The inventory's words on how to reach a host, the host's own before the cluster's."""
    ssh, own = inventory.ssh, host.ssh
    return Target(
        name=host.name,
        destination=own.host or host.name,
        user=own.user or ssh.user,
        port=own.port or ssh.port,
        identity=own.identity or ssh.identity,
        jump=own.jump or ssh.jump,
        config=ssh.config,
        accept_new_keys=ssh.host_keys == "accept-new",
    )


def ssh_line(inventory: Inventory, host: Host) -> list[str]:
    """The ssh command that leads to a host, for a person's own terminal; empty where the host is this machine."""
    if _kind(inventory, host) == "local":
        return []
    at = ssh_target(inventory, host)
    ensure_safe_names(at)
    keys = ["-o", "StrictHostKeyChecking=accept-new"] if at.accept_new_keys else []
    return ["ssh", *ssh_options(at), *keys, at.destination]


def endpoints(inventory: Inventory, runtime: Runtime, of: Iterable[Host]) -> dict[str, SshEndpoint | None]:
    """Where ssh_config sends each of these hosts that SSH leads to; None where that cannot be found out."""

    answers = SshAnswers(runtime.processes)

    def ask(host: Host) -> SshEndpoint | None:
        with suppress(VclusterError):  # the connection asks once more, and fails in the name of its host
            return locate(ssh_target(inventory, host), answers)
        return None

    hosts = [host for host in of if _kind(inventory, host) != "local"]
    with runtime.pool(min(WORKERS, max(1, len(hosts)))) as pool:
        return dict(zip((host.name for host in hosts), pool.map(ask, hosts), strict=True))


def machine_of(inventory: Inventory, host: Host, runtime: Runtime) -> str:
    """Which machine a host is by where SSH leads now, as its connection has it; empty where that is not known."""
    return _machine(inventory, host, endpoints(inventory, runtime, [host]).get(host.name))


def _machine(inventory: Inventory, host: Host, endpoint: SshEndpoint | None) -> str:
    if _kind(inventory, host) == "local":
        return "local"
    return endpoint.machine if endpoint else ""


def _ensure_unique_hosts(inventory: Inventory, found: Mapping[str, SshEndpoint | None]) -> None:
    def end(host: Host) -> tuple[str | int, ...]:
        at = found.get(host.name)
        # Two that are this machine itself were refused when the inventory was read.
        return (at.host, at.port, at.jump.where if at.jump else at.proxy_command or "") if at else ("", host.name)

    duplicates_by_resolution(inventory, end)


def _kind(inventory: Inventory, host: Host) -> Literal["fabric", "openssh", "local"]:
    return "local" if host.destination == "local" else inventory.ssh.transport
