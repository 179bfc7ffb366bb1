"""Carries what the head keeps to another host: each file is read and written again by its type, within bounds."""

from __future__ import annotations

import json

from vllm_cluster.kernel.docker.container_body import volume_writer_body
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.node.history import MAX_FILE, written_again
from vllm_cluster.kernel.node.named_files import NamedFiles
from vllm_cluster.kernel.plan.desired import STATE_FOLDER
from vllm_cluster.kernel.plan.followed import asked_last, carried, follow
from vllm_cluster.kernel.plan.history import AUDIT_FILE
from vllm_cluster.kernel.plan.identity import owner_of
from vllm_cluster.kernel.plan.placement import Cluster
from vllm_cluster.kernel.plan.plan import MoveHead
from vllm_cluster.kernel.plan.spec import ContainerSpec, Mount
from vllm_cluster.wire.history import AuditLine, ResultLine
from vllm_cluster.wire.order import FRESH, READY, RESULTS, TAKEN, WANTED, Ready, Taken, of_replica
from vllm_cluster.wire.parts import RECORD_FILE
from vllm_cluster.wire.reading import MAX_BYTES

# With the lease held; what is read and what is written both count. An honest head of 256 replicas has some 5 MB.
MAX_MOVED, MOVE_SECONDS = 32 * 1000**2, 300.0
_LINES: dict[str, type[AuditLine | ResultLine]] = {AUDIT_FILE: AuditLine, RESULTS: ResultLine}


def move_head(source: NodeHandle, target: HostConnection, spec: ContainerSpec, image: str, operation: MoveHead) -> None:
    """Copy what the head keeps from one host to another, whose node is not the head yet.

    Raises:
        HostError: the head of before has too much, or takes too long for it; nothing was written.
    """
    found, further = _kept(source, operation.change)
    # Last: with it the change is done, and is not looked for again.
    found[RECORD_FILE] = operation.record.document.encode()
    owner = owner_of(spec)
    target.docker.volumes.create(spec.state_volume, owner.labels)
    body = volume_writer_body(owner, image, Mount(spec.state_volume, STATE_FOLDER))
    with target.temporary.door(spec.cluster, body) as door:
        files = {name: (content, 0o600) for name, content in found.items()}
        target.docker.put_files(door, STATE_FOLDER, files, folders=[of_replica("", index) for index in further])


def _kept(source: NodeHandle, change: Cluster) -> tuple[dict[str, bytes], tuple[int, ...]]:
    """What a head keeps beside its members, for another host, and the replicas that have a folder of their own."""
    files = NamedFiles(source, MOVE_SECONDS, MAX_MOVED)
    # Always one: what an earlier head left there must not be served again.
    found = dict(FRESH)

    def keep(name: str, content: bytes) -> None:
        files.count(name, len(content))
        # A larger one would be refused where it is read.
        found.update({name: content} if len(content) <= MAX_BYTES else {})

    raw, taken = files.read(WANTED), files.read(TAKEN)
    last, followed = asked_last(raw, taken), follow(raw, change, taken)
    keep(WANTED, followed.content if followed else last.document)
    keep(TAKEN, _document(carried(taken)))
    further = tuple(one.index for one in last.deployments if one.index)
    for name in (f"{file}{part}" for file in _LINES for part in ("", ".1")):
        if lines := files.read(name, MAX_FILE):
            keep(name, written_again(_LINES[name.removesuffix(".1")], lines, f"{source.host}: {name}"))
    for index in (0, *further):
        keep(of_replica(READY, index), _document(Ready(files.ready(index))))
    for index in further:
        name = of_replica(TAKEN, index)
        keep(name, _document(carried(files.read(name))))
    return found, further


def _document(of: Ready | Taken) -> bytes:
    return json.dumps(of.document).encode()
