"""Containers, images and volumes as Docker describes them: what is used of its answers, by its keys, all bounded.

Names and labels are one line of printable text: whoever may use a host's Docker writes them, and they are shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from vllm_cluster.kernel.text import printable
from vllm_cluster.wire.reading import KEY
from vllm_cluster.wire.values import MAX_LONG, MAX_NAME, Shown, Size, between, quoted_labels


def _short(text: str) -> str:
    if len(text) > MAX_NAME:
        raise ValueError(f"has more than {MAX_NAME} characters")
    return text


# What the names of vcluster's labels begin with.
LABEL = "io.vcluster."
CLUSTER, ID = LABEL + "cluster", LABEL + "id"
_IS_ID = re.compile("[0-9a-f]{16}")
# One for all: a host has hundreds of images without.
NO_LABELS: Mapping[str, str] = {}


def _line(text: str) -> str:
    if len(text) > MAX_LONG:
        raise ValueError(f"has more than {MAX_LONG} characters")
    return quoted_labels(printable(text))


def _with_id(labels: Mapping[str, str]) -> Mapping[str, str]:
    """These labels; without a cluster's name where the id beside it is none: what has them is not of this vcluster.

    An id goes onto what is made on other hosts, and into names and commands there.
    """
    if ID in labels and not _IS_ID.fullmatch(labels[ID]):
        return {key: value for key, value in labels.items() if key not in (CLUSTER, ID)}
    return labels


def _own(labels: Mapping[str, str]) -> Mapping[str, str]:
    """The labels that vcluster writes: no other of a listed object is read, and a bill of materials may be in one."""
    return {key: value for key, value in labels.items() if key.startswith(LABEL)} or NO_LABELS


def _moment(text: str) -> str:
    try:
        # Without a zone the years 1 and 9999 are dates, and no times.
        datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise ValueError("is not a date with a time") from None
    return text


Line = Annotated[str, _line]
Listed = Annotated[str, _short, _line]
Moment = Annotated[str, _moment]
Labels = Annotated[Mapping[Line, Line], _with_id]
OwnLabels = Annotated[Labels, _own]
# -1 is what Docker has not counted; an image without a date is of the year 1.
Counted = Annotated[int, between(-1, 1 << 62)]
UnixTime = Annotated[int, between(-(1 << 53), 1 << 53)]


@dataclass(frozen=True, slots=True)
class Container:
    """A container as Docker lists it; `status` is its state in Docker's words: Restarting (78) 5 seconds ago."""

    id: Listed = field(metadata={KEY: "Id"})
    name: Listed = field(metadata={KEY: "Name"})
    state: Listed = field(metadata={KEY: "State"})
    image_id: Listed = field(metadata={KEY: "ImageID"})
    labels: OwnLabels = field(default_factory=lambda: NO_LABELS, metadata={KEY: "Labels"})
    image: Listed = field(default="", metadata={KEY: "Image"})
    status: Listed = field(default="", metadata={KEY: "Status"})


@dataclass(frozen=True, slots=True)
class Image:
    """An image of a host with the names and digests it answers to; its size, and when it was made (Unix).

    `content` is the same wherever the image is, while its id depends on how the host's Docker keeps it; asked for
    where hosts know the images in question by several ids.
    """

    id: Listed = field(metadata={KEY: "Id"})
    tags: tuple[Listed, ...] = field(default=(), metadata={KEY: "RepoTags"})
    digests: tuple[Listed, ...] = field(default=(), metadata={KEY: "RepoDigests"})
    labels: OwnLabels = field(default_factory=lambda: NO_LABELS, metadata={KEY: "Labels"})
    size_bytes: Size = field(default=0, metadata={KEY: "Size"})
    created: UnixTime = field(default=0, metadata={KEY: "Created"})
    content: str = ""


@dataclass(frozen=True)
class ContainerInfo:
    """The output of `docker inspect` for a container; one that never ran was started and ended in the year 1."""

    id: Line = field(metadata={KEY: "Id"})
    status: Line = field(metadata={KEY: "Status"})
    started_at: Moment = field(metadata={KEY: "StartedAt"})
    finished_at: Line = field(default="", metadata={KEY: "FinishedAt"})
    running: bool = field(default=False, metadata={KEY: "Running"})
    exit_code: Annotated[int, between(-(1 << 32), 1 << 32)] = field(default=0, metadata={KEY: "ExitCode"})
    out_of_memory: bool = field(default=False, metadata={KEY: "OOMKilled"})
    error: Line = field(default="", metadata={KEY: "Error"})
    labels: Labels = field(default_factory=dict, metadata={KEY: "Labels"})

    @property
    def started(self) -> float:
        """When it was started, by the host's clock: seconds since 1970."""
        # To the fraction: what was written a moment before a restart must not count as new.
        return datetime.fromisoformat(self.started_at).timestamp()


@dataclass(frozen=True)
class ImageInfo:
    """The output of `docker image inspect`: where it can run, its layers, and what a container of it is given.

    `configuration` is the digest of all of that, as this Docker knows it; `created` is in Unix time.
    """

    id: Line = field(metadata={KEY: "Id"})
    digests: tuple[Line, ...] = field(default=(), metadata={KEY: "RepoDigests"})
    architecture: Line = field(default="", metadata={KEY: "Architecture"})
    size_bytes: Size = field(default=0, metadata={KEY: "Size"})
    layers: tuple[Line, ...] = field(default=(), metadata={KEY: "Layers"})
    driver: Line = field(default="", metadata={KEY: "Name"})
    environment: tuple[Line, ...] = field(default=(), metadata={KEY: "Env"})
    entrypoint: tuple[Line, ...] = field(default=(), metadata={KEY: "Entrypoint"})
    labels: Labels = field(default_factory=dict, metadata={KEY: "Labels"})
    configuration: str = ""
    created: UnixTime = 0


@dataclass(frozen=True)
class DockerVolume:
    """A volume; its bytes and users are known where they were asked for."""

    name: Line = field(metadata={KEY: "Name"})
    labels: Labels = field(default_factory=dict, metadata={KEY: "Labels"})
    options: Mapping[Line, Line] = field(default_factory=dict, metadata={KEY: "Options"})
    size_bytes: Counted = field(default=-1, metadata={KEY: "Size"})
    users: Counted = field(default=-1, metadata={KEY: "RefCount"})


@dataclass(frozen=True)
class BuildRow:
    """A line of a build: a piece of its log, or why it failed, of which Docker may give no reason."""

    stream: Shown = ""
    error: Shown | None = None


@dataclass(frozen=True)
class ExecInfo:
    """A command in a container; its exit code once it has ended."""

    running: bool = field(metadata={KEY: "Running"})
    exit_code: Annotated[int, between(0, 255)] = field(default=0, metadata={KEY: "ExitCode"})
