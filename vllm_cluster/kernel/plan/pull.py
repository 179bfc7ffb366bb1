"""What a pull brings to which hosts, and from where: pure."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, TypedDict

from vllm_cluster.kernel.inventory.model import Host, Inventory
from vllm_cluster.kernel.plan.cached_model import repository_folder
from vllm_cluster.kernel.plan.spec import LABEL, ContainerSpec, Mount, node_name
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.wire.pull import CacheModel, ChainHost, HostPlan, ModelFile
from vllm_cluster.wire.values import Url

FOLDER = "/opt/vcluster-pull"
# Files of the program beside it, where any user of a container may write.
PLAN, TOKEN, STATUS = "/tmp/vcluster-plan.json", "/tmp/vcluster-token", "/tmp/vcluster-status.json"  # noqa: S108
# Labels of its container: what is pulled, until its status has it, and the id of the pull that made it.
PULLED, MAKER = LABEL + "pull", LABEL + "pull-made-by"
# Left free on a disk: logs and the cache's own small files.
SPARE = 1 << 30
COMMIT = re.compile("[0-9a-f]{40}")
# Copies of the weights for other programs, and what no program reads.
_OTHER_FOLDERS = ("original", "onnx", "openvino", "coreml", "metal", "tflite", "runs", "assets")
_OTHER_FILES = (
    *("*.h5", "*.msgpack", "*.ot", "*.onnx", "*.onnx_data", "*.tflite", "*.mlmodel", "*.npz"),
    *("optimizer*.pt", "scheduler*.pt", "training_args.bin", "rng_state*.pth"),
    *(".gitattributes", "*.md", "*.png", "*.jpg", "*.jpeg", "*.gif", "*.webp", "*.svg", "*.pdf", "*.mp4", "*.wav"),
)
_WEIGHTS = ("*.safetensors", "*.gguf")
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True)
class HubModel:
    """A repository of a hub at a commit.

    A model ./NAME has no commit and no endpoint. `origin` is `HERE` where this machine sends the files, or a folder
    of the host that has them.
    """

    name: str
    commit: str
    endpoint: Url
    files: tuple[ModelFile, ...]
    origin: str = ""

    @property
    def size(self) -> int:
        """Return the bytes of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Held(CacheModel):
    """The same, with what this machine knows."""

    # Files that were hashed and are wrong there.
    damaged: tuple[str, ...] = ()
    # The host whose cache this one is too.
    shares: str = ""


@dataclass(frozen=True)
class PullPlan:
    """What is brought where: `chain` are the hosts in their order, the source first; `idle` have all of it."""

    model: HubModel
    reference: str
    chain: tuple[str, ...]
    idle: tuple[str, ...]
    held: Mapping[str, Held]
    skipped: tuple[ModelFile, ...] = ()
    downloads: bool = True
    cache: str = ""
    # Of each host; what a firewall between them must let through.
    port: int = 0
    addresses: Mapping[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> dict[str, int]:
        """Return the bytes that each host of the chain gets."""
        return {name: self.model.size - self.held[name].bytes for name in self.chain}

    @property
    def pulled(self) -> dict[str, str]:
        """What is pulled, as the status of each host has it too."""
        return {"model": self.model.name, "commit": self.model.commit, "reference": self.reference}

    def for_host(self, identity: str, key: str, me: str) -> HostPlan:
        """The plan as the program on a host reads it."""
        return HostPlan(
            id=identity,
            key=key,
            **self.pulled,
            endpoint=self.model.endpoint.whole if self.downloads and not self.model.origin else "",
            origin=self.model.origin if self.downloads else "",
            cache=self.cache,
            **place_of(self.model.name),
            me=me,
            hosts=tuple(ChainHost(name, self.addresses[name], self.port) for name in self.chain),
            files=self.model.files,
            damaged=self.held[me].damaged,
        )


class ModelPlace(TypedDict):
    """Where a model is below a cache, and of which kind."""

    folder: str
    kind: Literal["hub", "folder"]


def place_of(model: str) -> ModelPlace:
    """Where a model is below a cache, and of which kind: a repository of the hub, or a folder ./NAME."""
    if model.startswith("./"):
        return {"folder": model.removeprefix("./"), "kind": "folder"}
    return {"folder": repository_folder(model), "kind": "hub"}


def through_folder(model: str) -> str:
    """The commands that bring a repository of the hub by a folder of this machine, for hosts that reach no hub."""
    folder = f"./{model.rpartition('/')[2]}"
    fetch = command_line("hf", "download", model, Option("--local-dir"), folder)
    return "\n".join((fetch, command_line("vcluster", "pull", folder)))


def outside(cache: str, folder: str) -> str:
    """A folder of a host that a container with the cache must get too; empty where it is in the cache."""
    return "" if f"{folder}/".startswith(f"{cache.rstrip('/')}/") else folder


def container_name(cluster: str) -> str:
    """The name of the pull's container: one a host, so that Docker itself refuses a second pull."""
    return f"{node_name(cluster)}-pull"


def choose_files(files: Sequence[ModelFile]) -> tuple[tuple[ModelFile, ...], tuple[ModelFile, ...]]:
    """The files that vLLM reads, the large ones last, and those that it does not: copies in other formats.

    In a folder with safetensors no pickled weights are read; where the repository also has Mistral's own format, vLLM
    takes that one.
    """
    tensors = {_folder(file.path) for file in files if file.path.endswith(".safetensors")}
    names = {file.path for file in files}
    mistral = "params.json" in names and any(fnmatch.fnmatchcase(name, "consolidated*.safetensors") for name in names)

    def read(file: ModelFile) -> bool:
        name, inside = file.path.rpartition("/")[2], _folder(file.path)
        if inside.split("/")[0] in _OTHER_FOLDERS or _matches(name, _OTHER_FILES):
            return False
        if _matches(name, _PICKLED):
            return inside not in tensors
        copy = mistral and not inside and name.endswith(".safetensors")
        return not copy or name.startswith("consolidated")

    kept = sorted((file for file in files if read(file)), key=lambda file: (file.size, file.path))
    # First what is small: a tokenizer that cannot be had is known at once. Then the weights in their order.
    small = [file for file in kept if file.size < 64 << 20]
    large = sorted((file for file in kept if file.size >= 64 << 20), key=lambda file: file.path)
    return (*small, *large), tuple(file for file in files if not read(file))


def unfit_path(files: Iterable[ModelFile]) -> str | None:
    """The first path that no host may have: outside of the model, not in UTF-8, on two lines, twice or a folder too."""
    # In this order what is below a path follows it. All paths above each were 36 ms for one of 2,000 parts.
    ordered = sorted((file.path for file in files), key=lambda path: path.replace("/", "\0"))
    for before, path in pairwise(("", *ordered)):
        # What is not UTF-8 comes as lone surrogates, which are not printable.
        if {"", ".", ".."} & {*path.split("/")} or not path.isprintable() or f"{path}/".startswith(f"{before}/"):
            return path
    return None


def has_weights(files: Iterable[ModelFile]) -> bool:
    """Whether there is a file that weights can be in."""
    return any(file.size and _matches(file.path.rpartition("/")[2], (*_PICKLED, *_WEIGHTS)) for file in files)


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def plan_pull(
    inventory: Inventory,
    model: HubModel,
    reference: str,
    held: Mapping[str, Held],
    via: str,
    *,
    named: bool = False,
) -> PullPlan:
    """The plan for hosts with this in their caches; `via` downloads what no host has.

    Where a person has `named` it, or the hub asks for a token, no host is the source in its place that has the files by
    their size alone: what of them is damaged comes from the hub again, and by its word no host gets the token.
    """
    wanted, skipped = choose_files(model.files)
    chosen = replace(model, files=wanted)
    writers = [name for name in held if not held[name].shares]
    whole = [name for name in writers if held[name].whole == len(wanted)]
    proved = [name for name in whole if held[name].digest]
    idle = [name for name in proved if held[name].named]
    lacking = [name for name in writers if name not in idle]
    # One whose files agree with a manifest, before one where they have only the right size, and may be damaged.
    # Only one host has the folder from which a damaged file would come again.
    again = model.origin.startswith("/") if model.origin else inventory.hf_token is not None
    others = [name for name in whole if name == via or not (named or again)]
    source = next(iter([*idle, *proved, *others]), via)
    chain = [source, *(name for name in lacking if name != source)] if lacking else []
    return PullPlan(
        chosen,
        reference,
        tuple(chain),
        tuple(name for name in idle if name not in chain),
        held,
        skipped,
        downloads=bool(chain) and source not in proved,
        cache=inventory.model_cache,
        port=inventory.ports.pull,
        addresses={name: host.address for name, host in inventory.hosts.items()},
    )


def share_writers(seen: Mapping[str, Iterable[str]], via: str) -> dict[str, str]:
    """Of hosts and the hosts whose marks they see in their cache: who writes for whom.

    The host that downloads writes for all that share its cache, else the first one.
    """
    order, found = sorted(seen, key=lambda name: name != via), dict[str, str]()
    for name in order:
        first = next(other for other in order if other == name or (other in seen[name] and other not in found))
        if first != name:
            found[name] = first
    return found


def container_spec(inventory: Inventory, host: Host, reads: str = "") -> ContainerSpec:
    """A container with the cache, and a folder that it `reads`, on the host's network, without GPUs."""
    home = {"HOME": "/tmp", "USER": "vcluster", "LOGNAME": "vcluster"}  # noqa: S108 - of the container
    values = {**home, **inventory.environment, "HF_HOME": inventory.model_cache}
    # Where nothing is to be downloaded in secret; this is asked for. Without Xet and hf_transfer a file arrives in
    # its order, and the others get it while it arrives.
    values |= {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
    values |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_ENABLE_HF_TRANSFER": "0"}
    return ContainerSpec(
        host=host.name,
        cluster=inventory.cluster,
        role="worker",
        address=host.address,
        head_address=inventory.hosts[inventory.head_name].address,
        image=inventory.image,
        requirements=(),
        gpu_count=0,
        command=("python3", f"{FOLDER}/main.py"),
        environment=tuple(sorted({**values, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}.items())),
        mounts=(Mount(inventory.model_cache, inventory.model_cache), *([Mount(reads, reads, True)] if reads else [])),
        shm_size=64 << 20,
        user=inventory.user or "",
    )
