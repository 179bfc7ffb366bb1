"""What a pull brings: the files of a model as hubs and hosts list them, and the plan that each host gets and checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from vllm_cluster.wire.values import MAX_NAME, Address, Name, RelativePath, Sha256, Size, between, inside, shaped

# In place of a folder of the host: the laptop sends the files.
HERE = "laptop"


def _inside_or_empty(text: str) -> str:
    return inside(text) if text else text


Blob = Annotated[str, shaped("([0-9a-f]{40}([0-9a-f]{24})?)?", "the hash of a file")]
Commit = Annotated[str, shaped("([0-9a-f]{40})?", "a commit")]
Text = Annotated[str, shaped(f"[^\\x00-\\x1f\\x7f]{{0,{MAX_NAME}}}", "a line of text")]


@dataclass(frozen=True)
class ModelFile:
    """A file below the model's folder; `blob` is its sha256 (64 digits) or its git blob id (40), empty where unread."""

    path: RelativePath
    size: Size
    blob: Blob = ""


@dataclass(frozen=True)
class ChainHost:
    """A host of the chain, by its private address and the pinned port."""

    name: Name
    address: Address
    port: Annotated[int, between(0, 65535)]


@dataclass(frozen=True)
class HostPlan:
    """What is pulled, and by which hosts, the source first. `folder` is below the cache; sizes are in bytes.

    `reference` is the branch or tag that points to the commit once all is there; empty where a commit was named.
    `endpoint` is the hub from which the source downloads, `origin` what it has them from else: `HERE`, or a
    folder of this host; both are empty where it has all files.
    """

    id: Text
    key: Sha256
    model: Name
    commit: Commit
    reference: Annotated[str, _inside_or_empty]
    endpoint: Text
    cache: Name
    folder: RelativePath
    kind: Literal["hub", "folder"]
    me: Name
    hosts: tuple[ChainHost, ...]
    files: tuple[ModelFile, ...]
    origin: Text = ""

    def __post_init__(self) -> None:
        # No plan reaches the folder of another model.
        first, *below = self.folder.split("/")
        if self.kind == "hub" and not (self.commit and first == "hub" and len(below) == 1):
            raise ValueError("is not the folder of a repository at a commit")
        if self.kind == "hub" and not below[0].startswith("models--"):
            raise ValueError("is not the folder of a repository")
        if self.kind == "folder" and (first == "hub" or self.commit):
            raise ValueError("has the folder of a repository for a folder")

    def host(self, name: str) -> ChainHost:
        """Return the host of that name."""
        return next(host for host in self.hosts if host.name == name)

    @property
    def total(self) -> int:
        """Return the bytes of all files."""
        return sum(file.size for file in self.files)
