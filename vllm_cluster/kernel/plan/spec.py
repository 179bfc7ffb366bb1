"""A node's container as data: what is compared, shown and created."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Literal

from vllm_cluster import __version__
from vllm_cluster.kernel.facts import docker_objects
from vllm_cluster.kernel.text import redact
from vllm_cluster.wire.reading import RefusedDocument, read
from vllm_cluster.wire.values import Count, Long

Role = Literal["head", "worker"]
# How Docker hands out GPUs: CDI devices, the device request behind `--gpus`, or the runtime called nvidia.
Way = Literal["cdi", "request", "runtime"]

# Raised when the meaning of a label or of a file in the container changes, so that an older vcluster refuses the node.
# Format 1 kept a hash and not the spec; format 2 had one order, which held a command line.
FORMAT = 3

LABEL = docker_objects.LABEL
CLUSTER = LABEL + "cluster"
ID = LABEL + "id"
NODE = LABEL + "node"
ROLE = LABEL + "role"
SPEC = LABEL + "spec"
HEAD_ADDRESS = LABEL + "head-address"
BASE_IMAGE = LABEL + "base-image"
REQUIREMENTS = LABEL + "requirements"
VERSION = LABEL + "version"
FORMAT_LABEL = LABEL + "format"
SECRET = LABEL + "secret."
# Of a node image, and inherited by containers: the name of the cluster that it was built for, and its vLLM.
BUILT_FOR = LABEL + "built-for"
VLLM_VERSION = LABEL + "vllm"

# The node program ends so where a file of its secrets is not there (EX_CONFIG); only another container can help.
NO_SECRETS = 78


def node_name(cluster: str) -> str:
    """The name of a cluster's container on every host."""
    return f"vcluster-{cluster}"


def state_volume(cluster: str) -> str:
    """The volume that outlives a node: what to serve, status, logs, audit."""
    return f"vcluster-{cluster}-state"


def secrets_volume(cluster: str, ids: Mapping[str, str]) -> str:
    """The volume of these secrets. Other secrets are in another volume: a mount and the ids beside it always agree."""
    held = hashlib.sha256(json.dumps(sorted(ids.items())).encode()).hexdigest()[:12]
    return f"vcluster-{cluster}-secrets-{held}"


def user_numbers(user: str) -> tuple[int, int]:
    """User and group of a container's processes; Docker takes root's group where none is named."""
    name, _, group = user.partition(":")
    return int(name or 0), int(group or 0)


# As it is in the label: what is compared with what is wanted is not cleaned first.
Exact = Long


@dataclass(frozen=True)
class Mount:
    """A bind mount (an absolute source) or a named volume at a path of the container."""

    source: Exact
    target: Exact
    read_only: bool = False


@dataclass(frozen=True)
class GpuRequest:
    """GPUs handed to a container, and the way: see `kernel.plan.gpus`."""

    ids: tuple[Exact, ...]
    way: Way = "request"


@dataclass(frozen=True)
class ContainerSpec:
    """Everything that decides what a node's container is. Values of secrets are left out; their ids are not.

    `program` is a hash of the files of the node program, `requirements` (name==version) are added to an image that
    lacks them. A new field needs a default that means what was before it.
    """

    host: Exact
    cluster: Exact
    role: Role
    address: Exact
    head_address: Exact
    image: Exact
    gpu_count: Count
    command: tuple[Exact, ...]
    environment: tuple[tuple[Exact, Exact], ...]
    mounts: tuple[Mount, ...]
    shm_size: Count
    gpus: GpuRequest | None = None
    devices: tuple[Exact, ...] = ()
    capabilities: tuple[Exact, ...] = ()
    unlimited_memlock: bool = False
    privileged: bool = False
    program: Exact = ""
    secrets: tuple[tuple[Exact, Exact], ...] = ()
    cluster_id: Exact = ""
    user: Exact = ""
    requirements: tuple[Exact, ...] = ()
    # What the inventory sets, and does not leave to what is found; no part of the container.
    intent: tuple[tuple[Exact, Exact], ...] = ()

    @property
    def name(self) -> str:
        """The container's name: one a cluster and host, so that Docker itself refuses a second."""
        return node_name(self.cluster)

    @property
    def state_volume(self) -> str:
        """The volume that outlives the container: what to serve, status, logs, audit."""
        return state_volume(self.cluster)

    @property
    def secrets_volume(self) -> str:
        """The volume that holds the secrets, mounted read-only."""
        return secrets_volume(self.cluster, dict(self.secrets))

    @property
    def document(self) -> str:
        """The canonical form, as the container's label keeps it."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    def labels(self) -> dict[str, str]:
        """The labels by which any laptop finds this container again and knows what it is."""
        return {
            CLUSTER: self.cluster,
            ID: self.cluster_id,
            NODE: self.host,
            ROLE: self.role,
            HEAD_ADDRESS: self.head_address,
            SPEC: self.document,
            REQUIREMENTS: " ".join(self.requirements),
            FORMAT_LABEL: str(FORMAT),
            VERSION: __version__,
            **{SECRET + name: identity for name, identity in self.secrets},
        }


def stored_spec(labels: Mapping[str, str]) -> ContainerSpec | None:
    """The spec that a container was made from; None where its labels hold none that can be read.

    Keys that this version does not know are skipped, and absent ones take their default: another version's node is
    compared by what both know.
    """
    try:
        return read(ContainerSpec, labels.get(SPEC, "").encode("utf-8", "replace"), SPEC)
    except RefusedDocument:
        return None


# How many fields a reason of one line names.
MAX_NAMED = 3
WAYS = {"cdi": "by CDI", "request": "by a device request", "runtime": "by the runtime nvidia"}
UNSET = "(unset)"
CHANGED = "changed"
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")


@dataclass(frozen=True)
class FieldChange:
    """One field, as `environment.NCCL_DEBUG`, and its text before and after; what is secret is only "changed"."""

    field: str
    before: str
    after: str

    @property
    def text(self) -> str:
        """The change in a line."""
        if self.after == CHANGED:
            return f"{self.field} {CHANGED}"
        if self.field == "program":
            # A hash alone means nothing to people.
            return f"made by another version of vcluster (program {self.before} -> {self.after})"
        return f"{self.field}: {self.before} -> {self.after}"


@dataclass(frozen=True)
class Change:
    """Every field that differs."""

    fields: tuple[FieldChange, ...] = ()

    @property
    def text(self) -> str:
        """Why, in one line: the change where it is one, else the names of the fields."""
        if len(self.fields) < 2:
            return "".join(field.text for field in self.fields)
        names = [field.field for field in self.fields]
        return (
            ", ".join(names[:MAX_NAMED])
            + (f" and {len(names) - MAX_NAMED} more" * (len(names) > MAX_NAMED))
            + " change"
        )


def compare_specs(current: ContainerSpec, wanted: ContainerSpec) -> Change:
    """The fields in which a container differs from what is wanted, those of a list or a mapping one by one."""
    names = [field.name for field in fields(ContainerSpec) if field.name != "intent"]
    return Change(tuple(change for name in names for change in _field(name, current, wanted)))


def _field(name: str, current: ContainerSpec, wanted: ContainerSpec) -> Iterator[FieldChange]:
    before, after = getattr(current, name), getattr(wanted, name)
    if before == after:
        return
    old, new = _entries(name, current), _entries(name, wanted)
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            path = f"{name}.{key}" if key else name
            secret = name == "secrets" or (name == "environment" and any(word in key.upper() for word in _SECRET))
            texts = (redact(old.get(key, UNSET)), redact(new.get(key, UNSET)))
            # What differs in a secret alone reads the same now.
            texts = (CHANGED, CHANGED) if secret or texts[0] == texts[1] else texts
            yield FieldChange(path, *texts)


def _entries(name: str, spec: ContainerSpec) -> dict[str, str]:
    """The parts of a field by their names, each as text; a field of one part has the name ""."""
    if name == "environment":
        # A path of a secret changes with the secret, one of compiled code with the image: each has its own line.
        return {key: _without_ids(text, spec) for key, text in spec.environment}
    if name == "secrets":
        return dict(spec.secrets)
    if name == "mounts":
        return {mount.target: _mount(mount) for mount in spec.mounts}
    if name == "command":
        options = dict(word.split("=", 1) for word in spec.command if word.startswith("--") and "=" in word)
        return {"": " ".join(word for word in spec.command if word.split("=", 1)[0] not in options), **options}
    if name == "shm_size":
        return {"": _size(spec.shm_size)}
    value: object = getattr(spec, name)
    if isinstance(value, GpuRequest):
        return {"": f"{WAYS[value.way]} {', '.join(value.ids)}"}
    if isinstance(value, tuple):
        return {"": ", ".join(value) or "none"}
    if isinstance(value, bool):
        return {"": "yes" if value else "no"}
    return {"": "none" if value is None else str(value)}


def _size(number: int) -> str:
    """A number of bytes as an inventory has it: 16g."""
    for unit, size in (("g", 1 << 30), ("m", 1 << 20), ("k", 1 << 10)):
        if number % size == 0:
            return f"{number // size}{unit}"
    return str(number)


def _without_ids(text: str, spec: ContainerSpec) -> str:
    for name, identity in spec.secrets:
        text = text.replace(f"{name}-{identity}", name)
    compiled = dict(spec.environment).get("VCLUSTER_COMPILED")
    return text.replace(compiled, "IMAGE") if compiled else text


def _mount(mount: Mount) -> str:
    # A volume of secrets is named by what it holds; each of them has a line of its own.
    source = re.sub(r"(?<=-secrets-)[0-9a-f]{12}$", "ID", mount.source)
    return source + (" (read-only)" if mount.read_only else "")
