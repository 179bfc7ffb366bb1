"""Docker's answers as types of `facts.docker_objects`: an answer of another shape is refused where it is read."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from vllm_cluster.kernel.facts.docker_objects import (
    BuildRow,
    Container,
    ContainerInfo,
    DockerVolume,
    ExecInfo,
    Image,
    ImageInfo,
)
from vllm_cluster.wire.reading import RefusedDocument, convert

T = TypeVar("T")
SENDER = "Docker"
# Of an inspected container, which has 8: each line of what is shown begins with as many spaces.
MAX_DEPTH = 32
# Of an image's config: what is about the container that it was made from, which no other gets and containerd's store
# does not show, and what has a meaning on Windows alone.
MEANINGLESS = frozenset(
    {"Hostname", "Domainname", "Image", "AttachStdin", "AttachStdout", "AttachStderr", "Tty", "OpenStdin", "StdinOnce"}
    | {"StopTimeout", "ArgsEscaped"}
)


def text(value: object, key: str) -> str:
    """The text under a key of an object.

    Raises:
        RefusedDocument: it is not there; so do all functions here where an answer has another shape.
    """
    found = _object(value).get(key)
    if not isinstance(found, str):
        raise RefusedDocument(SENDER, key, "must be text")
    return found


def listed_container(row: object) -> Container:
    """A container of a list."""
    return _read(Container, row, {"Name": _name(row)})


def listed_image(row: object) -> Image:
    """An image of a list."""
    return _read(Image, row)


def volumes(value: object) -> tuple[DockerVolume, ...]:
    """A list of volumes."""
    return tuple(map(read_volume, _list(_object(value).get("Volumes"))))


def read_volume(value: object) -> DockerVolume:
    """One volume."""
    return _read(DockerVolume, value, _object(value).get("UsageData"))


def container(value: object) -> ContainerInfo:
    """The output of `docker inspect` for a container."""
    there = _object(value)
    labels = _object(there.get("Config")).get("Labels")
    return _read(ContainerInfo, there.get("State"), {"Id": there.get("Id"), "Labels": labels})


def read_image(value: object) -> ImageInfo:
    """The output of `docker image inspect`."""
    there = _object(value)
    config = whole(there.get("Config"))
    found = _read(ImageInfo, there, config, there.get("RootFS"), there.get("GraphDriver"))
    return replace(found, configuration=_digest(config), created=_second(there.get("Created")))


def _second(moment: object) -> int:
    """A moment as lists of Docker have it; 0 where there is none."""
    try:
        return math.floor(datetime.fromisoformat(str(moment)).timestamp())
    except (ValueError, OverflowError):
        return 0


def _digest(config: Mapping[str, object]) -> str:
    """The digest of what an image gives to its containers and to what is built upon it.

    All counts but what is known to mean nothing there, so that the next field of Docker counts by itself.
    """
    given = {key: value for key, value in config.items() if value and key not in MEANINGLESS}
    if given.get("WorkingDir") == "/":
        del given["WorkingDir"]
    return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()


def read_exec(value: object) -> ExecInfo:
    """The output of an inspection of a command in a container."""
    return _read(ExecInfo, value)


def build_row(value: object) -> BuildRow:
    """A line that a build prints."""
    return _read(BuildRow, value)


def whole(value: object) -> dict[str, object]:
    """All of an object, to be shown as it is."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for one in level for inner in _inner(one)]
    if level:
        raise RefusedDocument(SENDER, "", "is nested too deeply")
    return _object(value)


def _inner(value: object) -> Iterable[object]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _read(kind: type[T], *parts: object) -> T:
    """These objects as one; Docker writes null for what is empty."""
    row = {key: value for part in parts for key, value in _object(part).items() if value is not None}
    return convert(kind, row, SENDER)


def _name(row: object) -> object:
    names = _list(_object(row).get("Names"))
    return names[0].lstrip("/") if names and isinstance(names[0], str) else names[0] if names else ""


def _list(value: object) -> list[object]:
    if not isinstance(value, list | None):
        raise RefusedDocument(SENDER, "", "no list")
    return value or []


def _object(value: object) -> dict[str, object]:
    if not isinstance(value, dict | None):
        raise RefusedDocument(SENDER, "", "no object")
    return value or {}
