"""What every host should run, from the inventory and what was found on the hosts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from vllm_cluster.kernel.backends import TOKEN, joining
from vllm_cluster.kernel.facts.host_facts import Hca, HostFacts
from vllm_cluster.kernel.plan import adapters, gpus
from vllm_cluster.kernel.plan.identity import node_of
from vllm_cluster.kernel.plan.spec import ContainerSpec, Mount, Role, secrets_volume, state_volume, stored_spec
from vllm_cluster.kernel.text import host_port

if TYPE_CHECKING:
    from vllm_cluster.kernel.inventory.model import Host, Inventory

CODE_FOLDER = "/opt/vcluster"
STATE_FOLDER = "/var/lib/vcluster"
SECRETS_FOLDER = "/run/secrets/vcluster"
# Begins the names of secrets that become environment variables.
VARIABLE = "env-"
# Composed here from more than the inventory's field of that name.
COMPOSED = frozenset({"environment", "secrets"})
NODE_PROGRAM = f"{CODE_FOLDER}/node.py"


@dataclass(frozen=True)
class Inputs:
    """What a desired state needs beside inventory and facts.

    `program` is a hash of the files of the node program; `secrets` are ids by name, each an opaque name that changes
    with the value; `id` is that of the cluster.
    """

    program: str
    secrets: Mapping[str, str]
    id: str = ""


def gpu_count(host: Host, facts: HostFacts, accelerator: str) -> int:
    """How many GPUs the host brings: as many as in the inventory, else what was found."""
    if host.gpu_number is not None:
        return host.gpu_number
    return found_gpus(facts, accelerator)


def found_gpus(facts: HostFacts, accelerator: str) -> int:
    """How many GPUs the host has; on a CPU host, how many logical ones it offers."""
    return (facts.logical_gpus or 0) if accelerator == "cpu" else len(facts.gpus)


def choose_interface(host: Host, facts: HostFacts) -> str | None:
    """The interface for traffic between nodes: the inventory's, else the one that holds the host's address."""
    if host.interface:
        return host.interface
    nic = facts.interface_of(host.address)
    return nic.name if nic else None


def hcas(host: Host, facts: HostFacts) -> tuple[Hca, ...]:
    """The adapter ports that NCCL may use, for the GPUs that the node gets."""
    return adapters.used(host, facts, gpus.chosen(host, facts))


def desired(inventory: Inventory, facts: Mapping[str, HostFacts], inputs: Inputs) -> tuple[ContainerSpec, ...]:
    """One container for each host that was looked at, the head first."""
    names = sorted((name for name in inventory.hosts if name in facts), key=lambda name: name != inventory.head_name)
    return tuple(_node(inventory, inventory.hosts[name], facts[name], inputs) for name in names)


def _node(inventory: Inventory, host: Host, facts: HostFacts, inputs: Inputs) -> ContainerSpec:
    role: Role = "head" if host.name == inventory.head_name else "worker"
    head_address = inventory.hosts[inventory.head_name].address
    count = gpu_count(host, facts, inventory.accelerator)
    secrets = {name: value for name, value in inputs.secrets.items() if role == "head" or name != "api-key"}
    ports = hcas(host, facts)
    way = joining(inventory)
    argv = way.start_argv(role, address=host.address, head_address=head_address, gpus=count, ports=inventory.ports)
    waits_for = [] if role == "head" or not argv else ["--head", host_port(head_address, inventory.ports.gcs)]
    roll = ["--roll", host_port(head_address, inventory.ports.nodes), "--name", host.name, "--address", host.address]
    spec_secrets = tuple(sorted(secrets.items()))
    spec = ContainerSpec(
        host=host.name,
        cluster=inventory.cluster,
        image=inventory.image,
        shm_size=inventory.shm_size,
        role=role,
        address=host.address,
        head_address=head_address,
        requirements=way.requirements(inventory),
        gpu_count=count,
        command=("python3", NODE_PROGRAM, role, *waits_for, *roll, f"{_GPUS}{count}", *(["--", *argv] if argv else [])),
        environment=tuple(sorted(_environment(inventory, host, facts, secrets, head_address).items())),
        mounts=_mounts(inventory, secrets),
        gpus=gpus.request(host, facts) if inventory.accelerator == "nvidia" else None,
        devices=_devices(ports),
        capabilities=("IPC_LOCK",) if ports else (),
        unlimited_memlock=bool(ports),
        program=inputs.program,
        secrets=spec_secrets,
        cluster_id=inputs.id,
        intent=intent(host),
    )
    return _as_given(spec, inventory)


def _as_given(spec: ContainerSpec, inventory: Inventory) -> ContainerSpec:
    """The spec with what is in the inventory under the same name; where that is absent, the default stays."""
    names = {field.name for field in fields(ContainerSpec)} - COMPOSED
    values = {name: getattr(inventory, name) for name in names & type(inventory).model_fields.keys()}
    change: Callable[..., ContainerSpec] = replace
    return change(spec, **{name: value for name, value in values.items() if value is not None})


def intent(host: Host) -> tuple[tuple[str, str], ...]:
    """What the inventory itself sets of that which is otherwise found, to distinguish the two later."""
    words = {"gpus": host.gpus, "hcas": host.hcas, "interface": host.interface}
    return tuple((key, "found" if value is None else json.dumps(value)) for key, value in words.items())


def _environment(
    inventory: Inventory, host: Host, facts: HostFacts, secrets: Mapping[str, str], head_address: str
) -> dict[str, str]:
    nic = choose_interface(host, facts)
    ports = hcas(host, facts)
    variables = sorted((name, identity) for name, identity in secrets.items() if name.startswith(VARIABLE))
    values = {
        # A number without a name has no home, and Python asks the environment who it is.
        **({"HOME": f"{STATE_FOLDER}/home", "USER": "vcluster", "LOGNAME": "vcluster"} if inventory.user else {}),
        **inventory.environment,
        **_compiled(inventory),
        **joining(inventory).environment(
            head_address=head_address,
            ports=inventory.ports,
            token_file=f"{SECRETS_FOLDER}/{TOKEN}-{secrets[TOKEN]}",
        ),
        "VLLM_HOST_IP": host.address,
        "VLLM_CONFIG_ROOT": f"{CODE_FOLDER}/config",
        "HF_HOME": inventory.model_cache,
    }
    if nic:
        # Without "=" NCCL takes the name as a prefix: eth1 would also match eth10. Gloo wants the bare name.
        values |= {"NCCL_SOCKET_IFNAME": f"={nic}", "GLOO_SOCKET_IFNAME": nic}
    if ports:
        values["NCCL_IB_HCA"] = "=" + ",".join(f"{port.device}:{port.port}" for port in ports)
    if "NCCL_IB_GID_INDEX" not in values and (index := adapters.gid_index(ports, facts)) is not None:
        values["NCCL_IB_GID_INDEX"] = str(index)
    if "hf-token" in secrets:
        values["HF_TOKEN_PATH"] = f"{SECRETS_FOLDER}/hf-token-{secrets['hf-token']}"
    if hidden := {name.removeprefix(VARIABLE): f"{SECRETS_FOLDER}/{name}-{identity}" for name, identity in variables}:
        # The node program sets these: here docker inspect would show their values.
        values["VCLUSTER_SECRET_ENVIRONMENT"] = json.dumps(hidden)
    if "api-key" in secrets:
        values["VCLUSTER_API_KEY_FILE"] = f"{SECRETS_FOLDER}/api-key-{secrets['api-key']}"
    return values


def _compiled(inventory: Inventory) -> dict[str, str]:
    """Where vLLM and what it uses keep the code that they compile: by image, in the volume of this host's own state.

    Not in the model cache, which hosts may share: files there are locked badly or not at all, and what lies in such a
    cache is loaded and run without a check.
    """
    key = hashlib.sha256(" ".join([inventory.image, *joining(inventory).requirements(inventory)]).encode()).hexdigest()[
        :12
    ]
    folder = f"{STATE_FOLDER}/compiled/{key}"
    names = {
        "VLLM_CACHE_ROOT": "vllm",
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "TRITON_CACHE_DIR": "triton",
        "FLASHINFER_WORKSPACE_BASE": "flashinfer",
        "CUDA_CACHE_PATH": "cuda",
    }
    return {"VCLUSTER_COMPILED": key, **{name: f"{folder}/{part}" for name, part in names.items()}}


def _mounts(inventory: Inventory, secrets: Mapping[str, str]) -> tuple[Mount, ...]:
    return (
        Mount(state_volume(inventory.cluster), STATE_FOLDER),
        Mount(secrets_volume(inventory.cluster, secrets), SECRETS_FOLDER, read_only=True),
        # The same path inside and outside, so that a path in a command has one meaning.
        Mount(inventory.model_cache, inventory.model_cache),
        *(Mount(volume.source, volume.target, volume.read_only) for volume in inventory.volumes),
    )


def _devices(ports: tuple[Hca, ...]) -> tuple[str, ...]:
    if not ports:
        return ()
    return ("/dev/infiniband/rdma_cm", *sorted({device for port in ports for device in port.uverbs}))


HCAS, GID = "NCCL_IB_HCA", "NCCL_IB_GID_INDEX"
# The number of GPUs, for the node program and for Ray.
_GPUS, _NUMBER = "--gpus=", "--num-gpus="


@dataclass(frozen=True)
class Less:
    """What a host had when its node was made, and has not now."""

    host: str
    text: str


def settled(
    specs: Iterable[ContainerSpec], facts: Mapping[str, HostFacts]
) -> tuple[tuple[ContainerSpec, ...], tuple[Less, ...]]:
    """The specs, with what each running node was made with where less is found now; and what is less."""
    kept, less = [], []
    for wanted in specs:
        node = node_of(wanted.cluster, facts[wanted.host])
        current = stored_spec(node.labels) if node and node.state == "running" else None
        same = current is not None and current.intent == wanted.intent
        spec, texts = _settle(current, wanted) if current and same else (wanted, [])
        kept.append(spec)
        less += [Less(spec.host, text) for text in texts]
    return tuple(kept), tuple(less)


def _settle(current: ContainerSpec, wanted: ContainerSpec) -> tuple[ContainerSpec, list[str]]:
    texts = []
    had, has = _ports(current), _ports(wanted)
    if had > has:
        texts.append(f"{', '.join(sorted(had - has))} was ACTIVE when its node was made, and is not now")
        wanted = _with_adapters(wanted, current)
    if (wanted.gpus is None) == (current.gpus is None) and current.gpu_count >= wanted.gpu_count:
        if current.gpu_count > wanted.gpu_count:
            texts.append(f"{current.gpu_count} GPUs were found when its node was made, {wanted.gpu_count} now")
        command = tuple(
            next((f"{option}{current.gpu_count}" for option in (_GPUS, _NUMBER) if word.startswith(option)), word)
            for word in wanted.command
        )
        wanted = replace(wanted, gpus=current.gpus, gpu_count=current.gpu_count, command=command)
    return wanted, texts


def _ports(spec: ContainerSpec) -> set[str]:
    return set(filter(None, dict(spec.environment).get(HCAS, "").removeprefix("=").split(",")))


def _with_adapters(wanted: ContainerSpec, current: ContainerSpec) -> ContainerSpec:
    """With the adapters, and all that a container needs for them, of the node as it is."""
    theirs = {key: value for key, value in current.environment if key in (HCAS, GID)}
    rest = {key: value for key, value in wanted.environment if key not in (HCAS, GID)}
    return replace(
        wanted,
        environment=tuple(sorted({**rest, **theirs}.items())),
        devices=current.devices,
        capabilities=current.capabilities,
        unlimited_memlock=current.unlimited_memlock,
    )
