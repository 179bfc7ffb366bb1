"""Docker's answers as the types that the rest relies on: an answer of another shape is refused where it is read.

Names and labels become one line of printable text: whoever may use a host's Docker writes them, and they are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

from vllm_cluster.facts.host_facts import Container, Image
from vllm_cluster.text import printable


def text(value: Any) -> str:
    """A text, its unprintable characters escaped.

    Raises:
        TypeError: it is of another type; so do all functions here.
    """
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {value!r:.40}")
    return printable(value)


def labels(value: Any) -> dict[str, str]:
    """Labels by name; Docker writes null where there are none."""
    return {text(name): text(content) for name, content in _mapping(value or {}).items()}


def containers(value: Any) -> tuple[Container, ...]:
    """A list of containers."""
    return tuple(
        Container(
            text(row["Id"]),
            text((row["Names"] or ["/"])[0]).lstrip("/"),
            text(row["State"]),
            text(row["ImageID"]),
            labels(row.get("Labels")),
            text(row.get("Image", "")),
            text(row.get("Status", "")),
        )
        for row in _list(value)
    )


def images(value: Any) -> tuple[Image, ...]:
    """A list of images."""
    return tuple(
        Image(
            text(row["Id"]),
            _texts(row.get("RepoTags")),
            _texts(row.get("RepoDigests")),
            labels(row.get("Labels")),
            int(row.get("Size") or 0),
            int(row.get("Created") or 0),
        )
        for row in _list(value)
    )


def volumes(value: Any) -> list[Mapping[str, Any]]:
    """A list of volumes, their labels by name."""
    rows = _list(value["Volumes"] or [])
    return [
        {
            **row,
            "Name": text(row["Name"]),
            "Labels": labels(row.get("Labels")),
            "UsageData": _mapping(row.get("UsageData") or {}),
        }
        for row in rows
    ]


def container(value: Any) -> Mapping[str, Any]:
    """The output of `docker inspect` for a container: its state, when it started and its labels can be relied on."""
    state, config = _mapping(value["State"]), _mapping(value["Config"])
    text(value["Id"])
    text(state["Status"])
    datetime.fromisoformat(text(state["StartedAt"]))
    return {
        **value,
        "State": {**state, "ExitCode": int(state.get("ExitCode") or 0)},
        "Config": {**config, "Env": _texts(config.get("Env")), "Labels": labels(config.get("Labels"))},
    }


def image(value: Any) -> Mapping[str, Any]:
    """The output of `docker image inspect`: its id, variables, entrypoint and digests can be relied on."""
    config = _mapping(value.get("Config") or {})
    text(value["Id"])
    inner = {**config, "Env": _texts(config.get("Env")), "Entrypoint": _texts(config.get("Entrypoint"))}
    return {**value, "RepoDigests": _texts(value.get("RepoDigests")), "Config": inner}


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(text(entry) for entry in _list(value or []))


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("no list")
    return value


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("no object")
    return cast(Mapping[str, Any], value)
