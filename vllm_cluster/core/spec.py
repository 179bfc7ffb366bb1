"""A node's container as data: what is compared, shown as a command line, and created."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from vllm_cluster import __version__

Role = Literal["head", "worker"]

# Raised when the meaning of a label or of a file in the container changes.
FORMAT = 1

LABEL = "io.vcluster."
CLUSTER = LABEL + "cluster"
NODE = LABEL + "node"
ROLE = LABEL + "role"
SPEC_HASH = LABEL + "spec-hash"
HEAD_ADDRESS = LABEL + "head-address"
BASE_IMAGE = LABEL + "base-image"
RAY_LAYER = LABEL + "ray"
VERSION = LABEL + "version"
FORMAT_LABEL = LABEL + "format"
SECRET = LABEL + "secret."


def volume_names(cluster: str) -> tuple[str, str]:
    """The volumes of a node: of its state, and of its secrets."""
    return f"vcluster-{cluster}-state", f"vcluster-{cluster}-secrets"


@dataclass(frozen=True)
class Mount:
    """A bind mount (an absolute source) or a named volume at a path of the container."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class GpuRequest:
    """GPUs handed to a container: by CDI where the engine has it, else by a device request to the runtime."""

    cdi: bool
    ids: tuple[str, ...]


@dataclass(frozen=True)
class ContainerSpec:
    """Everything that decides what a node's container is. Values of secrets are left out; their ids are not."""

    host: str
    cluster: str
    role: Role
    address: str
    head_address: str
    image: str
    ray: str
    gpu_count: int
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    mounts: tuple[Mount, ...]
    shm_size: int
    gpus: GpuRequest | None = None
    devices: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    unlimited_memlock: bool = False
    privileged: bool = False
    files: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """The container's name: one a cluster and host, so that Docker itself refuses a second."""
        return f"vcluster-{self.cluster}"

    @property
    def state_volume(self) -> str:
        """The volume that outlives the container: what to serve, status, logs, audit."""
        return volume_names(self.cluster)[0]

    @property
    def secrets_volume(self) -> str:
        """The volume that holds the secrets, mounted read-only."""
        return volume_names(self.cluster)[1]

    @property
    def spec_hash(self) -> str:
        """A short name of the canonical form: equal hashes, equal containers."""
        canonical = json.dumps([FORMAT, asdict(self)], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def labels(self) -> dict[str, str]:
        """The labels by which any laptop finds this container again and knows what it is."""
        return {
            CLUSTER: self.cluster,
            NODE: self.host,
            ROLE: self.role,
            HEAD_ADDRESS: self.head_address,
            SPEC_HASH: self.spec_hash,
            RAY_LAYER: self.ray,
            FORMAT_LABEL: str(FORMAT),
            VERSION: __version__,
            **{SECRET + name: identity for name, identity in self.secrets},
        }


def changes(spec: ContainerSpec, labels: Mapping[str, str]) -> str:
    """Why a container with these labels is not this spec, in a few words; empty when it is."""
    if labels.get(SPEC_HASH) == spec.spec_hash:
        return ""
    if labels.get(ROLE) != spec.role:
        return f"it was the {labels.get(ROLE, 'unknown')}, now it is the {spec.role}"
    if labels.get(HEAD_ADDRESS) != spec.head_address:
        return f"its head was {labels.get(HEAD_ADDRESS)}, now it is {spec.head_address}"
    for name, identity in spec.secrets:
        if labels.get(SECRET + name) != identity:
            return f"the {name.replace('-', ' ')} changed"
    return "its settings changed"


def docker_run_line(spec: ContainerSpec) -> str:
    """The `docker run` line that a person could paste to get the same container; secrets and files not in it."""
    argv = ["docker", "run", "--detach", "--name", spec.name, "--network", "host", "--ipc", "private", "--init"]
    argv += ["--restart", "unless-stopped", "--shm-size", str(spec.shm_size)]
    argv += ["--privileged"] if spec.privileged else []
    if spec.gpus and spec.gpus.cdi:
        argv += [word for device in spec.gpus.ids for word in ("--device", device)]
    elif spec.gpus:
        argv += ["--gpus", f'"device={",".join(spec.gpus.ids)}"']
    argv += [word for device in spec.devices for word in ("--device", device)]
    argv += [word for capability in spec.capabilities for word in ("--cap-add", capability)]
    argv += ["--ulimit", "memlock=-1:-1"] if spec.unlimited_memlock else []
    for mount in spec.mounts:
        argv += ["--volume", f"{mount.source}:{mount.target}" + (":ro" if mount.read_only else "")]
    argv += [word for key, value in spec.environment for word in ("--env", f"{key}={value}")]
    argv += ["--entrypoint", spec.command[0], spec.image, *spec.command[1:]]
    return shlex.join(argv)
