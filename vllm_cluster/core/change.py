"""What differs between the spec that a container was made from and the one that is wanted, field by field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from vllm_cluster.core.spec import ContainerSpec, GpuRequest, Mount
from vllm_cluster.text import redact

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


def compare(current: ContainerSpec, wanted: ContainerSpec) -> Change:
    """The fields in which a container differs from what is wanted, those of a list or a mapping one by one."""
    names = [field.name for field in fields(ContainerSpec) if field.name != "intent"]
    return Change(tuple(change for name in names for change in _field(name, current, wanted)))


def _field(name: str, current: ContainerSpec, wanted: ContainerSpec) -> Iterator[FieldChange]:
    before, after = getattr(current, name), getattr(wanted, name)
    if before == after:
        return
    old, new = _entries(name, before, current), _entries(name, after, wanted)
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            path = f"{name}.{key}" if key else name
            secret = name == "secrets" or (name == "environment" and any(word in key.upper() for word in _SECRET))
            texts = (redact(old.get(key, UNSET)), redact(new.get(key, UNSET)))
            # What differs in a secret alone reads the same now.
            texts = (CHANGED, CHANGED) if secret or texts[0] == texts[1] else texts
            yield FieldChange(path, *texts)


def _entries(name: str, value: Any, spec: ContainerSpec) -> dict[str, str]:
    """The parts of a field by their names, each as text; a field of one part has the name ""."""
    if name == "environment":
        # A path of a secret changes with the secret, one of compiled code with the image: each has its own line.
        return {key: _without_ids(text, spec) for key, text in value}
    if name == "secrets":
        return dict(value)
    if name == "mounts":
        return {mount.target: _mount(mount) for mount in value}
    if name == "command":
        options = dict(word.split("=", 1) for word in value if word.startswith("--") and "=" in word)
        return {"": " ".join(word for word in value if word.split("=", 1)[0] not in options), **options}
    if isinstance(value, GpuRequest):
        return {"": f"{WAYS[value.way]} {', '.join(value.ids)}"}
    if isinstance(value, tuple):
        return {"": ", ".join(value) or "none"}
    if isinstance(value, bool):
        return {"": "yes" if value else "no"}
    return {"": "none" if value is None else str(value)}


def _without_ids(text: str, spec: ContainerSpec) -> str:
    for name, identity in spec.secrets:
        text = text.replace(f"{name}-{identity}", name)
    compiled = dict(spec.environment).get("VCLUSTER_COMPILED")
    return text.replace(compiled, "IMAGE") if compiled else text


def _mount(mount: Mount) -> str:
    # A volume of secrets is named by what it holds; each of them has a line of its own.
    source = re.sub(r"(?<=-secrets-)[0-9a-f]{12}$", "ID", mount.source)
    return source + (" (read-only)" if mount.read_only else "")
