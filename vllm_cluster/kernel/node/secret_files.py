"""The volumes of secrets on a host: each is named by what it holds, so none that is in use is ever emptied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.docker.client import DockerApi, packed
from vllm_cluster.kernel.docker.container_body import volume_writer_body
from vllm_cluster.kernel.docker.one_by_one import OneByOne
from vllm_cluster.kernel.docker.temporary import temporary_name
from vllm_cluster.kernel.errors import CommandFailed
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.hosts.secrets import GENERATED, KeptSecret, Secrets
from vllm_cluster.kernel.plan.desired import SECRETS_FOLDER
from vllm_cluster.kernel.plan.identity import Owner, is_volume_name, owner_of
from vllm_cluster.kernel.plan.images import NODE_IMAGE_REPOSITORY
from vllm_cluster.kernel.plan.kept import Holder
from vllm_cluster.kernel.plan.spec import BUILT_FOR, CLUSTER, ID, SECRET, ContainerSpec, Mount, node_name, state_volume
from vllm_cluster.wire.keys import KeyFile

CONFLICT = 409
EMPTY_IMAGE, BUILD_SECONDS = f"{NODE_IMAGE_REPOSITORY}:empty", 60.0


def provide(docker: DockerApi, spec: ContainerSpec, image: str, secrets: Secrets) -> str | None:
    """Write a node's secrets into their volume, again where they are there; None where that could not be done.

    Returns the container through which they were written, which stays until the node is there: a run that breaks off
    leaves it, and so the next one sees that there may be a volume that no node uses.
    The labels name what the volume holds. Docker makes a volume without them for a container whose own was removed
    meanwhile: it is empty, and makes room unless that container still has it.
    """
    owner, ids = owner_of(spec), dict(spec.secrets)
    labels = {SECRET + name: identity for name, identity in ids.items()}
    has = docker.volumes.labelled(f"{CLUSTER}={spec.cluster}").get(spec.secrets_volume)
    if has is not None and not labels.items() <= has.items() and _in_use(docker, spec.secrets_volume):
        return None
    # The node sees the volume read-only, and Docker writes through no read-only mount: so through this door.
    # Both are made by one call: a volume alone would stay unseen, should this break off.
    door = temporary_name(spec.cluster, "door")
    docker.create(door, volume_writer_body(owner, image, Mount(spec.secrets_volume, SECRETS_FOLDER), labels))
    docker.put_files(door, SECRETS_FOLDER, secrets.files(ids))
    return door


def remove_unused(docker: DockerApi, spec: ContainerSpec) -> None:
    """Remove what earlier nodes of this cluster were given, where no container uses it, and what Docker half made."""
    docker.volumes.remove_unlabelled(node_name(spec.cluster), partial(is_volume_name, spec.cluster))
    unused = list[str]()
    for name, labels in docker.volumes.labelled(f"{CLUSTER}={spec.cluster}").items():
        own = is_volume_name(spec.cluster, name) and labels.get(ID, spec.cluster_id) == spec.cluster_id
        if own and name not in (spec.state_volume, spec.secrets_volume):
            unused.append(name)
    time = OneByOne(docker.host, "remove volumes", len(unused), docker.after)
    for name in unused:
        with time.one() as deadline:
            _in_use(docker, name, deadline)


def remove_orphaned(docker: DockerApi, owner: Owner, deadline: Deadline) -> None:
    """Remove the volumes of secrets that no container uses, where the node has its own."""
    for name, labels in docker.volumes.labelled(f"{CLUSTER}={owner.cluster}").items():
        own = is_volume_name(owner.cluster, name) and labels.get(ID) == owner.id
        if own and name != state_volume(owner.cluster):
            _in_use(docker, name, deadline)


def read_kept(
    cluster: str, holders: Iterable[Holder], facts: Mapping[str, HostFacts], fleet: Fleet, *, locked: bool = True
) -> dict[str, KeptSecret]:
    """The generated secrets that these holders still have; of two the first one's.

    Without the lease only those in nodes: what a volume alone holds is read through a container.
    """
    found: dict[str, KeptSecret] = {}
    for holder in holders:
        wanted = {name: holder.ids[name] for name in GENERATED if name in holder.ids and name not in found}
        if wanted:
            images = [image.id for image in facts[holder.host].images] if locked else None
            read = _read(fleet.connections[holder.host], cluster, holder, wanted, images)
            # A file that was cut off while it was written does not hold what its name promises.
            for name, text in read.items():
                identify = partial(fleet.runtime.secret_id, cluster, name)
                if KeyFile.read(text).is_whole(wanted[name], identify):
                    found[name] = KeptSecret(wanted[name], text)
    return found


def _read(
    connection: HostConnection, cluster: str, holder: Holder, wanted: Mapping[str, str], images: list[str] | None
) -> dict[str, str]:
    docker = connection.docker
    if holder.has_node:
        found = _files(docker, node_name(cluster), wanted)
        if len(found) == len(wanted):
            return found
    there = docker.volumes.labelled(f"{CLUSTER}={cluster}").get(holder.volume)
    if there is None or images is None:
        return {}
    owner = Owner(cluster, there.get(ID))
    with through_volume(connection, owner, Mount(holder.volume, SECRETS_FOLDER), images) as door:
        return _files(docker, door, wanted)


@contextmanager
def through_volume(connection: HostConnection, owner: Owner, volume: Mount, images: Iterable[str]) -> Iterator[str]:
    """A container, while this lasts, through which the files of a volume are read that no node has."""
    with (
        some_image(connection.docker, owner.cluster, images) as image,
        connection.temporary.door(owner.cluster, volume_writer_body(owner, image, volume)) as door,
    ):
        yield door


@contextmanager
def some_image(docker: DockerApi, cluster: str, images: Iterable[str]) -> Iterator[str]:
    """An image for a container that never starts; an empty one, for as long as this lasts, where the host has none.

    `docker system prune --all` takes the images of a node that is gone, and leaves its volumes.
    """
    if (one := next(iter(images), None)) is not None:
        yield one
        return
    recipe = packed({"Dockerfile": (b"FROM scratch\n", 0o600)})
    try:
        yield docker.build(recipe, EMPTY_IMAGE, {}, {BUILT_FOR: cluster}, docker.after(BUILD_SECONDS))
    finally:
        docker.remove_image(EMPTY_IMAGE)


def _files(docker: DockerApi, container: str, wanted: Mapping[str, str]) -> dict[str, str]:
    contents = {
        name: docker.read_file(container, f"{SECRETS_FOLDER}/{name}-{identity}") for name, identity in wanted.items()
    }
    return {name: content.decode("utf-8", "replace") for name, content in contents.items() if content}


def _in_use(docker: DockerApi, volume: str, deadline: Deadline | None = None) -> bool:
    """Remove a volume; whether that cannot be, since a container uses it."""
    try:
        docker.volumes.remove(volume, deadline)
    except CommandFailed as error:
        if error.returncode != CONFLICT:
            raise
        return True
    return False
