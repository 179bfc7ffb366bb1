"""Which folders a container can get; every refusal is a ValueError in plain words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from vllm_cluster.inventory.reserved import RESERVED_FOLDERS
from vllm_cluster.inventory.words import shown

# Below these the kernel answers: nothing can be mounted there.
_KERNEL_FOLDERS = ("/proc", "/sys", "/dev")
# A mount hides what an image has there: its programs and libraries, our program, Ray's and vLLM's own files.
_SYSTEM = re.compile(
    r"/(bin|boot|etc|lib(32|64|x32)?|opt|run(/secrets)?|sbin|tmp"
    r"|usr(/(s?bin|lib(32|64|exec)?|local(/(s?bin|lib))?|share))?|var(/(cache|lib|log|tmp))?)?"
)


def folder(text: str) -> str:
    """An absolute path on the hosts, without the characters that mount syntax claims."""
    if text.startswith("~"):
        raise ValueError("~ is another folder on each host: write the whole path, beginning with /")
    if not text.startswith("/"):
        raise ValueError(f"{shown(text)} is not absolute: it is a path on the hosts and begins with /")
    if any(c in ":," or not c.isprintable() for c in text):
        raise ValueError(f"{shown(text)} holds a colon, a comma or an unprintable character")
    path = PurePosixPath("/" + text.lstrip("/"))
    if ".." in path.parts:
        raise ValueError(f"{shown(text)} goes up with ..: write where it ends")
    return str(path)


def mount_target(text: str) -> str:
    """A folder that a container can get without losing its own system."""
    path = folder(text)
    # In every image /var/run is a link to /run.
    real = re.sub(r"^/var/run(?=/|$)", "/run", path)
    if _SYSTEM.fullmatch(real) or _within(real, _KERNEL_FOLDERS):
        raise ValueError(f"{shown(path)} belongs to the container's system: choose another, such as /data/huggingface")
    if _within(real, RESERVED_FOLDERS):
        raise ValueError(f"{shown(path)} is vcluster's own in the container: choose another, such as /data/huggingface")
    return path


def _within(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)
