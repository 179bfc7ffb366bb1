"""Carries out a plan, stage by stage, each operation so that doing it again does no harm."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from vllm_cluster.kernel.apply.barrier import await_gpus, await_head, ensure_same_image, members_at
from vllm_cluster.kernel.apply.members import record_members
from vllm_cluster.kernel.apply.moved_head import move_head
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.docker.client import DockerApi
from vllm_cluster.kernel.docker.container_body import node_body
from vllm_cluster.kernel.docker.one_by_one import OneByOne
from vllm_cluster.kernel.docker.tar_stream import TarStream
from vllm_cluster.kernel.docker.temporary import TemporaryContainer
from vllm_cluster.kernel.errors import CommandFailed, HostError, VclusterError, combine
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.hosts.program import python, run_program
from vllm_cluster.kernel.hosts.secrets import Secrets
from vllm_cluster.kernel.images import wheels
from vllm_cluster.kernel.images.contents import OPTIONS, ImageContents, read_contents
from vllm_cluster.kernel.images.inspect import LIFE_SECONDS
from vllm_cluster.kernel.images.supply import ImageSupply
from vllm_cluster.kernel.laptop import whoami
from vllm_cluster.kernel.lease.lease import Lease
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.node.program import node_files
from vllm_cluster.kernel.node.secret_files import provide, remove_orphaned, remove_unused
from vllm_cluster.kernel.plan.desired import STATE_FOLDER
from vllm_cluster.kernel.plan.diff import grace_of, graces_of
from vllm_cluster.kernel.plan.identity import Owner, owner_of
from vllm_cluster.kernel.plan.images import NODE_IMAGE_REPOSITORY, node_image_name, node_image_tag
from vllm_cluster.kernel.plan.plan import (
    Barrier,
    CreateNode,
    GpusJoined,
    HeadReady,
    MoveHead,
    Operation,
    Plan,
    PrepareImage,
    RecordMembers,
    RemoveContainer,
    RemoveVolume,
    RestartNode,
    SameImage,
    SecretsWritten,
    Stage,
    StartNode,
)
from vllm_cluster.kernel.plan.spec import (
    BASE_IMAGE,
    BUILT_FOR,
    SPEC,
    VLLM_VERSION,
    ContainerSpec,
    Mount,
    node_name,
    user_numbers,
)
from vllm_cluster.kernel.text import end_of
from vllm_cluster.wire.order import FRESH
from vllm_cluster.wire.parts import REPLACING, Replacing
from vllm_cluster.wire.reading import RefusedDocument

BUILD_SECONDS = 900.0
# The wheels are sent within the build; bytes a second.
MIN_UPLOAD = 256 << 10
PROBE_SECONDS = 120.0
# Where the container that changes its owner sees the state volume.
STATE = "/state"


@dataclass
class PlanExecution:
    """One run of one plan."""

    plan: Plan
    fleet: Fleet
    lease: Lease
    emit: Emit
    secrets: Secrets
    cache: Path
    _images: ImageSupply = field(init=False)
    _contexts: dict[ImageContents, TarStream] = field(default_factory=dict)
    # By host: the container through which its node's secrets were written.
    _doors: dict[str, str] = field(default_factory=dict)
    _downloading: threading.Lock = field(default_factory=threading.Lock)
    # In Ray, of the nodes that this run replaces.
    _former: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self._images = ImageSupply(self.plan, self.fleet, self.emit)

    def run(self) -> None:
        """Every stage in order; a stage begins when the one before it is done and its barrier holds.

        Raises:
            FleetError, HostError: operations failed; those of other hosts in the same stage were finished.
        """
        with self._replacing():
            for stage in self.plan.stages:
                with closing(self._images):
                    self._stage(stage)
                    images = [one for one in stage.operations if isinstance(one, PrepareImage)]
                    if more := self._images.corrected(images):
                        self._stage(Stage("one image", tuple(more)))
                for barrier in stage.barriers:
                    self._hold(barrier)

    def _hold(self, barrier: Barrier) -> None:
        match barrier:
            case SecretsWritten():
                self._write_secrets()
            case SameImage(image, base):
                ensure_same_image(image, self._images.image_for(image), self.plan, self.fleet, known=bool(base))
            case HeadReady(host):
                await_head(self.fleet.connections[host], self.plan, self.emit)
            case GpusJoined():
                await_gpus(self.fleet, self.plan, self.emit, self._former)

    @contextmanager
    def _replacing(self) -> Iterator[None]:
        """Note which nodes end meanwhile: their ids in Ray here, and with the head, whose model has not failed then.

        Neither where the head's node ends, with all that its Ray knows and all that it serves.
        """
        started = {one.host for one in self.plan.operations() if isinstance(one, CreateNode | StartNode | RestartNode)}
        if not started or self.plan.head in started:
            yield
            return
        addresses = tuple(address for address, name in self.fleet.addresses.items() if name in started)
        head = NodeHandle(self.fleet.connections[self.plan.head], self.plan.cluster)
        self._former = members_at(addresses, state := head.state())
        if not state.replicas:
            yield
            return
        note = Replacing(self.fleet.runtime.token(8), whoami(), addresses)
        head.write(REPLACING, note.document)
        yield
        # Where this run breaks off the note stays, and counts once.
        head.write(REPLACING, replace(note, addresses=()).document)

    def _stage(self, stage: Stage) -> None:
        self.lease.check()
        self.emit(Event("phase", stage.title))
        by_host: dict[str, list[Operation]] = {}
        for operation in stage.operations:
            by_host.setdefault(operation.host, []).append(operation)

        def work(connection: HostConnection) -> None:
            operations = by_host[connection.name]
            names = [one.name for one in operations if isinstance(one, RemoveContainer | RemoveVolume)]
            grace = graces_of(self.plan.cluster, names)
            time = OneByOne(connection.name, stage.title, len(names), connection.runtime.after, grace=grace)
            try:
                for operation in operations:
                    self._do(connection, operation, time)
            except VclusterError as error:
                if not self.fleet.stopping:
                    self.emit(Event("failed", error.message, connection.name))
                raise

        _, failures = self.fleet.each(work, by_host)
        if failures:
            raise combine(failures)

    def _do(self, connection: HostConnection, operation: Operation, time: OneByOne) -> None:
        self.lease.check()
        data = {"operation": operation.verb, "message": operation.text}
        self.emit(Event("start", operation.text, connection.name, data))
        try:
            self._carry_out(connection, operation, time)
        except HostError as error:
            raise error.with_step(operation.verb) from error.__cause__
        self.emit(Event("done", operation.past, connection.name, data))

    def _carry_out(self, connection: HostConnection, operation: Operation, time: OneByOne) -> None:
        match operation:
            case PrepareImage():
                self._prepare_image(connection, operation)
            case RemoveContainer():
                with time.one() as deadline:
                    self._remove(connection.docker, operation, deadline)
            case CreateNode():
                self._create(connection, operation.spec)
            case StartNode():
                connection.docker.start(operation.id)
            case RestartNode():
                connection.docker.restart(operation.id)
            case RemoveVolume():
                with time.one() as deadline:
                    connection.docker.volumes.remove(operation.name, deadline)
            case MoveHead():
                self._move_head(connection, operation)
            case RecordMembers():
                record_members(connection, operation, self.emit)

    def _remove(self, docker: DockerApi, operation: RemoveContainer, deadline: Deadline) -> None:
        docker.remove(operation.id, grace_of(self.plan.cluster, operation.name), deadline)
        created = any(isinstance(op, CreateNode) and op.host == operation.host for op in self.plan.operations())
        here = operation.host in self.fleet.names and not created
        if operation.name != node_name(self.plan.cluster) and here:
            # A run that broke off may have left the volume that it was writing; with a new node that is seen to there.
            remove_orphaned(docker, Owner(self.plan.cluster, self.plan.id), deadline)

    def _move_head(self, connection: HostConnection, operation: MoveHead) -> None:
        created = (op for op in self.plan.operations() if isinstance(op, CreateNode))
        spec = next(op.spec for op in created if op.host == operation.host)
        _, image = self._names(connection, spec)
        source = NodeHandle(self.fleet.connections[operation.source], self.plan.cluster)
        move_head(source, connection, spec, image, operation)

    def _prepare_image(self, connection: HostConnection, operation: PrepareImage) -> None:
        docker = connection.docker
        base = self._images.bring(connection, operation)
        name = node_image_name(base, operation.requirements)
        if docker.image_info(name):
            return
        inside = self._probe(connection, operation.image, base)
        if inside.is_complete:
            self.emit(Event("note", f"{operation.image} brings {inside.brings}", connection.name))
            docker.tag(base, NODE_IMAGE_REPOSITORY, node_image_tag(base, operation.requirements))
            return
        requirement = inside.to_add(operation.requirements)
        text = f"{operation.image} has {inside.problem}: adding {requirement}"
        self.emit(Event("note", text, connection.name))
        self.emit(Event("progress", f"downloading {requirement}", connection.name))
        context = self._context(inside, requirement)
        arguments = wheels.arguments(base, requirement)
        deadline = connection.runtime.after(BUILD_SECONDS + context.size / MIN_UPLOAD)
        size = f"{context.size / 1e6:.0f} MB"
        self.emit(Event("progress", f"sending {size} of wheels, building {name}", connection.name))
        labels = {BASE_IMAGE: base, BUILT_FOR: self.plan.cluster, VLLM_VERSION: inside.version("vllm") or ""}
        docker.build(context, name, arguments, labels, deadline)

    def _probe(self, connection: HostConnection, image: str, base: str) -> ImageContents:
        # With the head's address: where a run breaks off before there is a node, the next one finds the id by it.
        owner = Owner(self.plan.cluster, self.plan.id, self.plan.head_address)
        program = python("kernel.images.on_host", "inspect_image", "", *OPTIONS, seconds=LIFE_SECONDS)
        place = TemporaryContainer(owner, "probe", base)
        ended = run_program(connection, program, place, connection.runtime.after(PROBE_SECONDS))
        try:
            inside, _ = read_contents(ended.messages)
        except RefusedDocument as refused:
            text = f"{image} describes itself by what cannot be: {refused.field} {refused.why}"
            raise HostError(connection.name, text, hint="set image to a vLLM image") from None
        except ValueError:
            tail = end_of(ended.text, 500)
            text = f"{image} does not run Python (exit {ended.code}): {tail}"
            raise CommandFailed(
                connection.name, text, exit_code=ended.code, stderr=tail, hint="set image to a vLLM image"
            ) from None
        if inside.refusal:
            raise HostError(connection.name, f"{image} {inside.refusal}", hint="set image to a vLLM image")
        return inside

    def _context(self, inside: ImageContents, requirement: str) -> TarStream:
        # Hosts with one image need one download; the others wait for it here.
        with self._downloading:
            if inside not in self._contexts:
                self._contexts[inside] = wheels.context(
                    wheels.wheels(inside, requirement, self.cache, self.fleet.runtime.processes)
                )
            return self._contexts[inside]

    def _write_secrets(self) -> None:
        """Before anything is removed: what was generated is then still on the head after any failure."""
        specs = {op.host: op.spec for op in self.plan.operations() if isinstance(op, CreateNode)}

        def write(connection: HostConnection) -> None:
            self.lease.check()
            spec = specs[connection.name]
            self._provide(connection.docker, spec, self._names(connection, spec)[1])

        _, failures = self.fleet.each(write, specs)
        if failures:
            raise combine(failures)

    def _provide(self, docker: DockerApi, spec: ContainerSpec, image: str) -> None:
        if door := provide(docker, spec, image, self.secrets):
            self._doors[docker.host] = door

    def _create(self, connection: HostConnection, spec: ContainerSpec) -> None:
        docker = connection.docker
        base, image = self._names(connection, spec)
        docker.volumes.create(spec.state_volume, owner_of(spec).labels)
        if docker.host not in self._doors:
            self._provide(docker, spec, image)
        if spec.user:
            self._give(connection, spec, image)
        container = self._create_or_adopt(docker, spec, node_body(spec, image, base))
        docker.put_files(container, "/", {path: (content, 0o644) for path, content in node_files().items()})
        if spec.role == "worker":
            # Should this host be the head again one day, nothing of then may be served by itself.
            docker.put_files(container, STATE_FOLDER, {name: (data, 0o600) for name, data in FRESH.items()})
        # Before the start: a node that runs counts as done, and nothing would come back for these.
        if door := self._doors.pop(docker.host, None):
            docker.remove(door, grace=0)
        remove_unused(docker, spec)
        docker.start(container)

    def _give(self, connection: HostConnection, spec: ContainerSpec, image: str) -> None:
        """Let the node's user write its state, also what an earlier node wrote as another user."""
        state = Mount(spec.state_volume, STATE)
        program = python(
            "kernel.apply.on_host", "give_files", STATE, *map(str, user_numbers(spec.user)), seconds=PROBE_SECONDS
        )
        place = TemporaryContainer(owner_of(spec), "probe", image, user="0:0", volume=state)
        ended = run_program(connection, program, place, connection.runtime.after(PROBE_SECONDS))
        if ended.code:
            text = f"cannot give its state to {spec.user}: {end_of(ended.text, 300)}"
            raise CommandFailed(connection.name, text, exit_code=ended.code, stderr=ended.text, again=())

    def _names(self, connection: HostConnection, spec: ContainerSpec) -> tuple[str, str]:
        """The id on a host of the image that the inventory names, and the name of the one that its node runs."""
        base = self._images.id_on(connection, spec.image)
        return base, node_image_name(base, spec.requirements)

    def _create_or_adopt(self, docker: DockerApi, spec: ContainerSpec, body: Mapping[str, object]) -> str:
        try:
            return docker.create(spec.name, body)
        except CommandFailed as error:
            # Docker refuses a second container of one name. The wanted one, of a lost answer, will do.
            there = docker.container_info(spec.name) if error.returncode == 409 else None
            if there and there.labels.get(SPEC) == spec.document:
                return there.id
            raise
