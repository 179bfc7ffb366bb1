"""The difference between what is desired and what was found, as a plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.plan.identity import is_leftover, is_volume_name, node_of
from vllm_cluster.kernel.plan.images import ResolvedImage, find_image, node_image_name, resolve_image
from vllm_cluster.kernel.plan.members import Membership
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
from vllm_cluster.kernel.plan.pull import container_name
from vllm_cluster.kernel.plan.spec import (
    BASE_IMAGE,
    ID,
    NO_SECRETS,
    VERSION,
    ContainerSpec,
    FieldChange,
    compare_specs,
    node_name,
    stored_spec,
)

LEFT = "the host left the inventory"


def diff(specs: Sequence[ContainerSpec], facts: Mapping[str, HostFacts], members: Membership | None = None) -> Plan:
    """What must be done for the hosts to match the specs; empty when they are.

    Images come first, since nothing should go down for an image that cannot be had; then old containers are removed;
    then the head, and the workers once Ray answers there.
    """
    head, *workers = specs
    image = resolve_image(head.image, [spec.host for spec in specs], head.cluster, facts)
    reasons = {spec.host: _reason(spec, facts[spec.host], image) for spec in specs}
    images = tuple(op for spec in specs if reasons[spec.host].why for op in _image(spec, facts[spec.host], image))
    removals = tuple(op for spec in specs for op in _removals(spec, facts[spec.host], reasons[spec.host].why))
    left = members.former.items() if members else ()
    new_head = bool(reasons[head.host].why)
    gpus = {spec.address: spec.gpu_count for spec in specs}
    stages = (
        Stage("images", images, _before_nodes(specs, reasons, image)),
        # Before the head goes, which alone knows of them.
        Stage(
            "leave",
            tuple(op for host, entry in left for op in remove_member(head.cluster, head.cluster_id, host, entry)),
        ),
        Stage("move head", _move(head, members)),
        Stage("remove old containers", removals),
        Stage("head", _node(head, facts[head.host], reasons[head.host], False), (HeadReady(head.host),)),
        # Before a worker is made: one that is not recorded would be forgotten, should this break off.
        Stage("members", _record(head, members)),
        Stage(
            "workers",
            tuple(op for spec in workers for op in _node(spec, facts[spec.host], reasons[spec.host], new_head)),
            (GpusJoined(gpus),),
        ),
    )
    outside = {"lost": members.lost, "alone": members.alone} if members else {}
    nodes = any(reason.why for reason in reasons.values())
    # A stage without operations has nothing to wait for, but that for which new nodes wait.
    filled = tuple(stage for number, stage in enumerate(stages) if stage.operations or (nodes and not number))
    return Plan(head.cluster, head.cluster_id, filled, gpus, head.host, head_address=head.head_address, **outside)


def _before_nodes(
    specs: Sequence[ContainerSpec], reasons: Mapping[str, _Reason], image: ResolvedImage
) -> tuple[Barrier, ...]:
    """What must hold before the first node is removed or made."""
    new = tuple(spec.host for spec in specs if reasons[spec.host].why)
    return (SameImage(specs[0].image, image.id), SecretsWritten(new)) if new else ()


@dataclass(frozen=True)
class _Reason:
    """Why a node must be created; no text where it need not. `changes` are the fields where a node is replaced."""

    why: str = ""
    changes: tuple[FieldChange, ...] = ()


def _reason(spec: ContainerSpec, facts: HostFacts, image: ResolvedImage) -> _Reason:
    container = node_of(spec.cluster, facts)
    if container is None:
        return _Reason("missing")
    if container.state == "created":
        return _Reason("never started (interrupted run)")
    if container.state in ("dead", "removing"):
        return _Reason(f"its Docker state is {container.state}")
    if container.state == "restarting" and f"({NO_SECRETS})" in container.status:
        return _Reason("its secret files are missing")
    current = stored_spec(container.labels)
    if current is None:
        return _Reason(f"made by an earlier version of vcluster ({container.labels.get(VERSION, 'unknown')})")
    change = compare_specs(current, spec)
    if change.fields:
        return _Reason(change.text, change.fields)
    made_from = container.labels.get(BASE_IMAGE)
    if image.id and made_from and not image.means(made_from, facts.images):
        moved = FieldChange("image id", made_from, image.id)
        return _Reason(f"{spec.image} is another image now", (moved,))
    return _Reason()


def other_program(cluster: str, facts: HostFacts, program: str) -> str:
    """The problem of a node that runs another node program than this one, empty where there is none."""
    container = node_of(cluster, facts)
    if container is None or container.state != "running":
        return ""
    spec = stored_spec(container.labels)
    if spec and spec.program == program:
        return ""
    version = container.labels.get(VERSION, "unknown")
    return f"its node program is of another version of vcluster ({version}, program {spec.program if spec else '?'})"


def _image(spec: ContainerSpec, facts: HostFacts, image: ResolvedImage) -> tuple[Operation, ...]:
    if not image.id:
        lacks = find_image(spec.image, facts.images) is None
        offer = {"source": image.source, "offered": image.offered, "content": image.content} if lacks else {}
        return (PrepareImage(spec.host, spec.image, spec.requirements, pull=lacks, **offer),)
    found = image.on(facts.images)
    base = found.id if found else image.id
    if find_image(node_image_name(base, spec.requirements), facts.images):
        return ()
    there = found is not None or image.source == spec.host
    way = {} if there else {"digest": image.digest, "source": image.source}
    return (PrepareImage(spec.host, spec.image, spec.requirements, pull=not there, base=base, **way),)


def _move(head: ContainerSpec, members: Membership | None) -> tuple[Operation, ...]:
    if members is None or members.change is None or not members.moved_from:
        return ()
    return (MoveHead(head.host, members.moved_from, members.record, members.change),)


def _record(head: ContainerSpec, members: Membership | None) -> tuple[Operation, ...]:
    if members is None or not (members.changed or members.request):
        return ()
    request = members.request
    texts = (request.content.decode(), request.text) if request else ("", "")
    change = None if members.moved_from else members.change
    return (RecordMembers(head.host, members.record, members.changed, members.known, *texts, change),)


def remove_member(cluster: str, identity: str, host: str, facts: HostFacts) -> Iterator[Operation]:
    """What removes a node, its leftovers and its volumes from a member that left the inventory.

    The volumes of secrets last: what they hold proves whose the rest is, should this break off.
    """
    node = node_of(cluster, facts)
    if node and node.labels.get(ID) == identity:
        yield RemoveContainer(host, node.id, node.name, LEFT)
    for container in facts.containers:
        if is_leftover(cluster, identity, container):
            yield RemoveContainer(host, container.id, container.name, LEFT)
    for name, labels in sorted(facts.volumes.items(), reverse=True):
        if is_volume_name(cluster, name) and labels.get(ID) == identity:
            yield RemoveVolume(host, name, LEFT)


def grace_of(cluster: str, name: str) -> int:
    """How many seconds a container has to end by itself; what a run left over has nothing to bring to an end."""
    return 30 if name in (node_name(cluster), container_name(cluster)) else 0


def graces_of(cluster: str, names: Iterable[str]) -> int:
    """How many seconds all of these have for that; a host that lists one name often has them once."""
    return sum(grace_of(cluster, name) for name in set(names))


def _removals(spec: ContainerSpec, facts: HostFacts, why: str) -> tuple[Operation, ...]:
    node = node_of(spec.cluster, facts)
    left = [c for c in facts.containers if is_leftover(spec.cluster, spec.cluster_id, c)]
    return (
        *((RemoveContainer(spec.host, node.id, node.name, why),) if node and why else ()),
        *(RemoveContainer(spec.host, c.id, c.name, "left over from an interrupted run") for c in left),
    )


def _node(spec: ContainerSpec, facts: HostFacts, reason: _Reason, new_head: bool) -> tuple[Operation, ...]:
    container = node_of(spec.cluster, facts)
    if reason.why or container is None:
        return (CreateNode(spec.host, spec, reason.why, reason.changes),)
    if container.state == "exited":
        return (StartNode(spec.host, container.id, container.name, "stopped"),)
    if container.state == "paused" or new_head:
        why = "paused" if container.state == "paused" else "its head is recreated"
        return (RestartNode(spec.host, container.id, container.name, why),)
    return ()
