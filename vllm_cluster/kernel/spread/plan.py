"""The plan of a pull, as the laptop writes it beside this program on each host."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_cluster.wire.pull import HostPlan, ModelFile
from vllm_cluster.wire.reading import RefusedDocument, read

if TYPE_CHECKING:
    from hashlib import _Hash


MAX_PLAN = 64 << 20


class PullError(Exception):
    """The files cannot be had, for a reason that neither waiting nor another host removes."""


def read_plan(path: Path) -> HostPlan:
    """Read the plan beside this program: who writes trusts no other to look.

    Raises:
        PullError: it has what no model can have.
    """
    try:
        plan = read(HostPlan, path.read_bytes(), "the plan", MAX_PLAN)
    except RefusedDocument as refused:
        raise PullError(str(refused)) from None
    if unread := next((file.path for file in plan.files if not file.blob), None):
        raise PullError(f"the plan has no hash of {unread}")
    return plan


def new_hash(file: ModelFile) -> _Hash:
    """Return the beginning of a file's hash: sha256, or git's id of a blob, which the hub has for small files."""
    if len(file.blob) == 40:
        return hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    return hashlib.sha256()


def write_json(path: Path, content: dict[str, object]) -> None:
    """Replace a JSON file so that a reader sees the old one or the new one."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    with fresh.open("w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
