"""A first inventory with every key explained, for `vcluster init`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from vllm_cluster.kernel.inventory.model import Host, Inventory, Ports, Section, SshSettings
from vllm_cluster.kernel.shell_line import shell_line

SCHEMA_FILE = "inventory.schema.json"
_REQUIRED = ("version", "cluster", "image", "model_cache")
_NESTED: dict[str, Section] = {"ports": Ports, "ssh": SshSettings}
# Words that some YAML reader takes for something else than text.
_NOT_TEXT = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


@dataclass(frozen=True)
class HostSeed:
    """What is known of a host before the inventory is written."""

    name: str
    ssh: str | None = None
    address: str | None = None
    gpus: int | None = None


# How the schema is written, which editors complete with.
_WRITES = "vcluster init --schema"


def render(
    cluster: str,
    hosts: Sequence[HostSeed],
    image: str,
    model_cache: str,
    *,
    schema: str = SCHEMA_FILE,
    values: Mapping[str, str] = MappingProxyType({}),
    notes: Sequence[str] = (),
) -> str:
    """The text of an inventory, in which optional keys may have `values` already, with notes at its top."""
    known = {"version": "1", "cluster": _text(cluster), "image": _text(image), "model_cache": _text(model_cache)}
    lines = [
        f"# yaml-language-server: $schema={schema}",
        f"# `{_WRITES} > {shell_line([schema])}` writes the file named above, for completion in editors.",
        "# Keys behind # are optional; their values are examples or the defaults.",
        *(["", *(f"# {note}" for note in notes)] if notes else []),
    ]
    for key in _REQUIRED:
        lines += ["", f"# {Inventory.model_fields[key].description}", f"{key}: {known[key]}"]
    first = _text(hosts[0].name) if hosts else "NAME"
    for key in Inventory.written_keys():
        if key not in {*_REQUIRED, "hosts", "hosts_from"}:
            shown = [f"# {Inventory.model_fields[key].description}", f"{key}: {values[key]}"] if key in values else None
            lines += ["", *(shown or _optional(Inventory, key, example=first if key == "head" else None))]
    lines += ["", f"# {Inventory.model_fields['hosts'].description}", "hosts:"]
    for index, host in enumerate(hosts):
        lines += _host(host, explained=index == 0)
    return "\n".join(lines) + "\n"


def _optional(section: Section, key: str, *, example: str | None = None, indent: str = "") -> Iterator[str]:
    field = section.model_fields[key]
    yield f"{indent}# {field.description}"
    nested = _NESTED.get(key) if section is Inventory else None
    if nested is None:
        shown = example or (field.examples or [str(field.default)])[0]
        yield f"{indent}# {key}: {shown}"
        return
    yield f"{indent}# {key}:"
    for inner in nested.written_keys():
        explained = nested.model_fields[inner]
        shown = (explained.examples or [str(explained.default)])[0]
        yield f"{indent}#   {inner}: {shown}  # {explained.description}"


def _host(host: HostSeed, *, explained: bool) -> Iterator[str]:
    yield f"  {_text(host.name)}:"
    if host.ssh not in (None, host.name) or host.address is None:
        # A host of which nothing is written would be an empty value.
        yield f"    ssh: {_text(host.ssh or host.name)}"
    elif explained:
        yield from _optional(Host, "ssh", indent="    ")
    if host.address is not None:
        yield f"    address: {_text(host.address)}"
    elif explained:
        yield from _optional(Host, "address", indent="    ")
    if host.gpus is not None:
        yield f"    gpus: {host.gpus}"
    if explained:
        for key in ("gpus", "interface", "hcas")[host.gpus is not None :]:
            yield from _optional(Host, key, indent="    ")


def _text(value: str) -> str:
    """The value as YAML that every reader takes for text."""
    if re.fullmatch(r"[A-Za-z/][A-Za-z0-9._/@-]*|[0-9]+(\.[0-9]+){3}", value) and value.lower() not in _NOT_TEXT:
        return value
    return json.dumps(value, ensure_ascii=False)
