"""What must hold, judged by looking at the world itself and not through the product."""

from __future__ import annotations

from collections.abc import Iterable

from tests.support.sim import lab, life
from tests.support.sim.lab import Outcome
from tests.support.sim.world import Box, Machine, World, belongs_to_lab
from vllm_cluster.kernel.backends import joining
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.images import node_image_name
from vllm_cluster.kernel.plan.kept import secret_ids
from vllm_cluster.kernel.plan.spec import BASE_IMAGE, secrets_volume


def converged(world: World, inventory: Inventory) -> None:
    """Exactly one right container a host, Ray's members exact, nothing else of it, and no run holds the lease."""
    gpus: dict[str, int] = {}
    for name, host in inventory.hosts.items():
        machine = world.machines[name]
        gpus[host.address] = host.gpu_number or machine.gpus
        mine = [box for box in machine.boxes.values() if belongs_to_lab(box)]
        assert [box.name for box in mine] == ["vcluster-lab"], f"{name}: {[(b.name, b.state) for b in mine]}"
        node = mine[0]
        assert node.state == "running", f"{name}: {node.state} {node.log}"
        assert life.role(node) == ("head" if name == inventory.head_name else "worker"), name
        # What the head means by the name: on another host it may mean another image.
        base = world.machines[inventory.head_name].picture(inventory.image)
        # Where its name was pruned away, the node knows what it was made from.
        assert base is None or node.labels[BASE_IMAGE] == base.id, f"{name}: made from another image"
        engine = machine.images[node.image]
        more = joining(inventory).requirements(inventory)
        assert base is None or machine.picture(node_image_name(base.id, more)) is engine, name
        assert "ray" in engine.have or inventory.backend == "mp", f"{name}: no Ray in it"
        assert node.environment["VLLM_HOST_IP"] == host.address
        for key, value in inventory.environment.items():
            assert node.environment[key] == value, f"{name}: {key}"
        assert node.body["HostConfig"]["ShmSize"] == inventory.shm_size
        assert life.gpus_of(node) == gpus[host.address]
        volumes = {v.name for v in machine.volumes.values() if belongs_to_lab(v) or v.name in ("vcluster-lab-state",)}
        holds = secrets_volume("lab", secret_ids(node.labels))
        assert volumes == {"vcluster-lab-state", holds}, f"{name}: {volumes}"
        mounted = [source for source, _ in node.binds.values() if "-secrets" in source]
        assert mounted == [holds], f"{name}: mounts {mounted}, its labels mean {holds}"
        labels = machine.volumes[holds].labels
        assert secret_ids(labels) == secret_ids(node.labels), f"{name}: the volume's labels are {labels}"
        secrets = set(machine.volumes[holds].files)
        wanted = {"ray-token", "api-key"} if name == inventory.head_name else {"ray-token"}
        assert {file.rsplit("-", 1)[0] for file in secrets} == wanted, f"{name}: {secrets}"
        assert len(secrets) == len(wanted), f"{name}: old secrets are kept: {secrets}"
        assert life.token(machine, node), f"{name}: no token"
    head = world.machines[inventory.head_name].box("vcluster-lab")
    assert head and life.members(head) == gpus, f"Ray has {life.members(head) if head else None}, not {gpus}"
    assert not life.ghosts(head), f"Ray still counts nodes that have ended: {life.ghosts(head)}"
    _same_key(world, inventory, head)
    bases = {box.labels[BASE_IMAGE] for _, box in world.nodes()}
    assert len(bases) == 1, f"nodes of different images: {bases}"
    no_lease_left(world)


def _same_key(world: World, inventory: Inventory, head: Box) -> None:
    """Clients keep the key that they have, or learn of another one."""
    found = world.machines[inventory.head_name].read(head, head.environment["VCLUSTER_API_KEY_FILE"])
    if world.api_key not in (None, found) and inventory.api_key is None:
        assert world.new_keys, "the API key changed in silence"
    world.api_key, world.new_keys = found, 0


def no_lease_left(world: World) -> None:
    """No lease is left."""
    held = [(machine.name, machine.lock.who) for machine in world.machines.values() if machine.lock]
    assert not held, held


def nothing_left(world: World) -> None:
    """No container, volume or lock of the cluster on any host."""
    clean(world.machines.values())
    no_lease_left(world)


def clean(machines: Iterable[Machine]) -> None:
    """No container and no volume of the cluster on these hosts."""
    for machine in machines:
        left = [box.name for box in machine.boxes.values() if belongs_to_lab(box)]
        left += [volume.name for volume in machine.volumes.values() if belongs_to_lab(volume)]
        assert not left, f"{machine.name}: {left}"


def one_node_at_most(world: World) -> None:
    """Never two nodes on one host, nor two heads that share a token."""
    heads: dict[bytes | None, list[str]] = {}
    seen: set[str] = set()
    for machine, box in world.nodes():
        if belongs_to_lab(box):
            assert machine.name not in seen, f"two nodes on {machine.name}"
            seen.add(machine.name)
            if life.role(box) == "head":
                heads.setdefault(life.token(machine, box), []).append(machine.name)
    assert all(len(names) == 1 for names in heads.values()), f"two heads: {heads}"


def honest(before: Outcome, outcome: Outcome, inventory: Inventory) -> None:
    """P3: what `plan` printed is what the plan event had is what ran, and only hosts of the plan were changed."""
    assert not before.script.changing, f"plan changes: {before.story()}"
    if outcome.error is None:
        said = lab.texts(before.value)
        ran = outcome.operations
        assert sorted(map(str, said)) == sorted(map(str, ran)), f"plan said {said}, ran {ran}"
        assert sorted(map(str, outcome.planned)) == sorted(map(str, ran))
    hosts = {host for host, _ in outcome.operations} | {inventory.head_name}
    changed = {call.host for call in outcome.script.changing}
    assert changed <= hosts, f"{changed} changed, of the plan are {hosts}"


def untouched(outcome: Outcome) -> None:
    """P2: nothing was done, nothing was sent that changes, and seven round trips to the head did."""
    assert outcome.error is None, outcome.story()
    assert not outcome.operations
    assert not outcome.script.changing, outcome.story()
    trips = {host: sum(call.host == host for call in outcome.script.calls) - 1 for host in outcome.script_hosts()}
    assert max(trips.values()) <= 7, trips
