"""What a pull brings: the files of a model as hubs and hosts list them, and the plan that each host gets and checks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from vllm_cluster.wire.values import (
    MAX_NAME,
    Address,
    Count,
    HubUrl,
    Line,
    Name,
    RelativePath,
    Sha256,
    Shown,
    Size,
    between,
    inside,
    shaped,
    unlike_remedy,
)

# In place of a folder of the host: the laptop sends the files.
HERE = "laptop"


def _inside_or_empty(text: str) -> str:
    return inside(text) if text else text


Blob = Annotated[str, shaped("([0-9a-f]{40}([0-9a-f]{24})?)?", "the hash of a file")]
Commit = Annotated[str, shaped("([0-9a-f]{40})?", "a commit")]
Stamp = Annotated[str, shaped(r"(-?[0-9]{1,20}(:-?[0-9]{1,20}){4})?", "what a file is known again by")]
Digest = Annotated[str, shaped("([0-9a-f]{64})?", "a sha256")]


def _printable(text: str) -> str:
    # Behind any end of a line, of which Unicode has more than \n, it would look like a remedy of its own.
    if len(text) > MAX_NAME or not text.isprintable():
        raise ValueError("is not a line of text")
    return unlike_remedy(text)


Text = Annotated[str, _printable]


@dataclass(frozen=True)
class ModelFile:
    """A file below the model's folder; `blob` is its sha256 (64 digits) or its git blob id (40), empty where unread."""

    path: RelativePath
    size: Size
    blob: Blob = ""


def digest_of(files: Iterable[ModelFile]) -> str:
    """What hosts and this machine compare: a hash over name, size and content of every file."""
    rows = sorted(f"{file.path}\0{file.size}\0{file.blob}\n" for file in files)
    return hashlib.sha256("".join(rows).encode()).hexdigest()


# As a `ModelFile`, and the time of its last change in nanoseconds.
ManifestRow = tuple[RelativePath, Size, Blob, Annotated[int, between(0, 1 << 63)]]


# How far the program of a pull on a host is.
PullPhase = Literal["starting", "verifying", "receiving", "downloading", "copying", "serving", "done", "failed"]


@dataclass(frozen=True)
class Manifest:
    """What was brought and verified, beside it in the cache."""

    v: Literal[1]
    model: Text
    commit: Commit
    digest: Sha256
    files: tuple[ManifestRow, ...]


@dataclass(frozen=True)
class HubAnswer:
    """The last line of what a host asks the hub: the commit of the files before it, or the `problem`."""

    endpoint: HubUrl
    commit: Commit = ""
    name: Line = ""
    problem: Literal["", "gated", "missing", "revision", "name", "answer", "wrong", "many", "slow", "unreachable"] = ""
    code: int | None = None
    words: Shown = ""


@dataclass(frozen=True)
class DamagedFile(ModelFile):
    """One whose content on a host is not what its manifest has."""

    why: Line = ""


@dataclass(frozen=True)
class CacheRow:
    """A line of what a host finds in its model cache: how far it is, or one file or link.

    `stamp` differs once that file was written; empty where it may have changed since it was read. `lost` is a link to
    what the program does not read, `to` where it leads.
    """

    bytes: Count = 0
    total: Count = 0
    file: ModelFile | None = None
    stamp: Stamp = ""
    damaged: DamagedFile | None = None
    lost: Line = ""
    to: Line = ""


@dataclass(frozen=True)
class CacheModel:
    """What a host's cache has of the wanted files, in bytes; `digest` is of a manifest that its files agree with.

    `named` is whether the branch or tag points to the commit there, `changed` the first file that is not as it was.
    """

    whole: Count = 0
    bytes: Count = 0
    free: Count = 0
    writable: bool = True
    digest: Digest = ""
    named: bool = True
    commit: str = ""
    changed: str = ""
    # Weights of an earlier folder of this name.
    stale: tuple[str, ...] = ()


@dataclass(frozen=True)
class CacheManifest:
    """The last line where a host has listed or hashed the files of its manifest."""

    commit: str = ""
    digest: Digest = ""
    bytes: Count = 0


@dataclass(frozen=True)
class CacheMarks:
    """The marks of hosts that a host sees in its cache."""

    seen: tuple[Text, ...]


@dataclass(frozen=True)
class CacheSize:
    """Whether a model is in a cache, and the bytes that it takes there, or took."""

    size: Count
    there: bool = False
    # A pull writes it now, perhaps of another cluster.
    locked: bool = False


@dataclass(frozen=True)
class ChainHost:
    """A host of the chain, by its private address and the pinned port."""

    name: Name
    address: Address
    port: Annotated[int, between(0, 65535)]


@dataclass(frozen=True)
class SpreadAsk:
    """What a host asks another one of its pull: a file from a byte on, what it has, or, of the source, whom to ask.

    `bytes` are what it has itself, `failed` is the host that it could not use; `proof` is over all else.
    """

    what: Literal["have", "file", "report"]
    me: Name
    nonce: Annotated[str, shaped("[0-9a-f]{32}", "a nonce")]
    proof: Digest
    file: Count = 0
    start: Count = 0
    bytes: Count = 0
    failed: Text = ""


@dataclass(frozen=True)
class SpreadHave:
    """The bytes that a host has of each file, the size plus one where it is verified."""

    files: tuple[Count, ...]


@dataclass(frozen=True)
class SpreadOrder:
    """From whom a host gets, and which hosts are not complete."""

    upstream: Text
    waiting_for: tuple[Text, ...]


@dataclass(frozen=True)
class HostPlan:
    """What is pulled, and by which hosts, the source first. `folder` is below the cache; sizes are in bytes.

    `reference` is the branch or tag that points to the commit once all is there; empty where a commit was named.
    `endpoint` is the hub from which the source downloads, `origin` what it has them from else: `HERE`, or a
    folder of this host; both are empty where it has all files. `damaged` are those that were found so on this host.
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
    damaged: tuple[RelativePath, ...] = ()

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
