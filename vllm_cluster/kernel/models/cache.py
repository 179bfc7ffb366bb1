"""Runs `model_cache.py` or `remove_model.py` beside a host's cache: in its node, else in a temporary container."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from vllm_cluster.kernel.clock import MovingDeadline
from vllm_cluster.kernel.docker.temporary import TemporaryContainer
from vllm_cluster.kernel.errors import CommandFailed, HostError
from vllm_cluster.kernel.facts.docker_objects import Container
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.hosts.program import InNode, Place, RunningProgram, python, start
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.identity import node_of, without_lease
from vllm_cluster.kernel.plan.images import find_image
from vllm_cluster.kernel.plan.pull import COMMIT, container_spec, outside
from vllm_cluster.kernel.plan.spec import stored_spec
from vllm_cluster.wire.pull import CacheManifest, CacheRow, ModelFile, digest_of
from vllm_cluster.wire.reading import RefusedDocument, convert
from vllm_cluster.wire.values import words

# A container and Python, on a host that is busy.
START_SECONDS = 60.0
# Until the next line: a network file system answers for each of many files.
LINE_SECONDS = 120.0
# 10 TB at 200 MB/s; and for what reads no content, with 100,000 files on a slow network file system.
MAX_SECONDS, LOOK_SECONDS = 50_000.0, 1800.0
# While contents are hashed a line comes each second, also of a disk that gives nothing.
STILL_SECONDS = 900.0
_OF_REMOVAL, _OF_CONTENT = ("size", "remove"), ("hash", "verify")

T = TypeVar("T")


def proved(host: str, end: CacheManifest, files: Sequence[ModelFile]) -> tuple[str, str]:
    """The commit and the digest of the manifest that a host lists; empty where it has none.

    Raises:
        HostError: they are not of these files.
    """
    if end.digest and (end.digest != digest_of(files) or not (end.commit == "" or COMMIT.fullmatch(end.commit))):
        raise HostError(host, "the model cache has a manifest that is not of the files that it lists", again=())
    return end.commit, end.digest


def locate_cache(inventory: Inventory, facts: HostFacts, reads: str = "") -> Place:
    """Where a program sees the cache, and a folder that it `reads`, with the rights of the containers.

    Raises:
        HostError: the image is not there.
    """
    node = node_of(inventory.cluster, facts)
    if node is not None and node.state == "running" and not reads and sees_cache(node, inventory.model_cache):
        return InNode(node.name)
    image = image_id(inventory, facts)
    spec = container_spec(inventory, inventory.hosts[facts.host], reads)
    return TemporaryContainer(without_lease(inventory.cluster), "cache", image, like=spec, user=spec.user)


def sees_cache(node: Container, cache: str) -> bool:
    """Whether a node has this cache: the inventory may have moved it since the node was made."""
    spec = stored_spec(node.labels)
    return spec is None or any(mount.target == cache for mount in spec.mounts)


def image_id(inventory: Inventory, facts: HostFacts) -> str:
    """The image that brings and reads a host's cache, by its id.

    Raises:
        HostError: it is not there.
    """
    image = find_image(inventory.image, facts.images)
    if image is None:
        raise HostError(facts.host, f"pull: {inventory.image} is not there", hint="vcluster up")
    return image.id


@contextmanager
def running(
    connection: HostConnection, inventory: Inventory, facts: HostFacts, asked: Mapping[str, object]
) -> Iterator[RunningProgram]:
    """The program with its first message sent; leaving it ends it.

    Raises:
        HostError: it cannot be started.
    """
    removes = asked["do"] in _OF_REMOVAL
    name, needs = (
        ("remove_model", ())
        if removes
        else ("model_cache", ("wire.inside", "wire.labels", "wire.values", "wire.reading"))
    )
    program = python("kernel.models.on_host", name, seconds=MAX_SECONDS, needs=needs)
    root = str(asked.get("root", ""))
    where = locate_cache(inventory, facts, outside(inventory.model_cache, root) if root else "")
    with start(connection, program, where, connection.runtime.after(START_SECONDS)) as there:
        there.send({"cache": inventory.model_cache, **asked})
        yield there


def ask_cache(
    connection: HostConnection,
    inventory: Inventory,
    facts: HostFacts,
    asked: Mapping[str, object],
    kind: type[T],
    *,
    see: Callable[[CacheRow], None] = lambda _row: None,
) -> T:
    """The last line of the program's answer; `see` gets those before it.

    Raises:
        HostError: the cache cannot be read, or the program's answer is none.
    """
    after, rows = connection.runtime.after, 0
    if asked["do"] in _OF_CONTENT:
        due = MovingDeadline(STILL_SECONDS, after(MAX_SECONDS))
    else:
        due = MovingDeadline(LINE_SECONDS, after(LOOK_SECONDS))
    with running(connection, inventory, facts, asked) as there:
        while True:
            row = there.next(due)
            if "error" in row:
                why = words(str(row["error"]))
                raise CommandFailed(connection.name, f"the model cache: {why}", exit_code=1, stderr="", again=())
            if row.get("end"):
                return taken(kind, connection.name, row)
            seen = taken(CacheRow, connection.name, row)
            rows += not seen.total
            due.move(seen.bytes + rows)
            see(seen)


def taken(kind: type[T], host: str, row: Mapping[str, object]) -> T:
    """A line of the program as what it should be.

    Raises:
        HostError: it is not that.
    """
    try:
        return convert(kind, row, "the model cache")
    except RefusedDocument as refused:
        raise HostError(
            host, f"the model cache gives what cannot be: {refused.field} {refused.why}", again=()
        ) from None
