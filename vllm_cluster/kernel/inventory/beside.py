"""What an inventory that was found, and not named, may use of this machine: nothing that others may change."""

from __future__ import annotations

import os
import re
import shlex
from glob import glob, has_magic
from pathlib import Path

from vllm_cluster.kernel.inventory.find import NAME_IT
from vllm_cluster.kernel.laptop import changed_by_others, expanded
from vllm_cluster.kernel.text import printable

# What divides the words of a shell, or an option and its value.
_DIVIDES = re.compile(r"""[\s;|&<>()='"`]+""")
# Of what a person writes, a word is a folder for the others at most so often.
MAX_FOLDERS = 8


def others_change(path: Path) -> str:
    """What is wrong with a file that is read, or the place where it would be; empty where nothing is."""
    by = changed_by_others(path)
    return f"others may change {printable(str(by))}: {NAME_IT}" if by else ""


def others_change_command(command: str, base: Path) -> str:
    """What is wrong with a command, for the folder in which it runs and each file that its words name.

    Also in a folder that another word names, as behind `cd`. What those files read is not known.
    """
    words = shlex.split(command)
    names = {_expanded(name): None for word in words for name in (word, *_DIVIDES.split(word)) if name}
    folders = [base, *(base / name for name in names if _is_folder(base / name))][:MAX_FOLDERS]
    files = (folder / found for folder in folders for name in names for found in (name, *_matching(name, folder)))
    return next(filter(None, map(others_change, (base, *files))), "")


def _expanded(name: str) -> str:
    return os.path.expandvars(expanded(name))


def _matching(name: str, folder: Path) -> list[str]:
    try:
        return glob(name, root_dir=folder) if has_magic(name) else []  # noqa: PTH207 - a name may be absolute
    except (OSError, ValueError):
        return []


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # no name of a file
        return False
