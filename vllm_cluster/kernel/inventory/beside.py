"""What an inventory that was found, and not named, may use of this machine: nothing that others may change."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from glob import glob, has_magic
from pathlib import Path

from vllm_cluster.kernel.inventory.find import NAME_IT
from vllm_cluster.kernel.laptop import changed_by_others, expanded
from vllm_cluster.kernel.text import printable

# What divides the words of a shell, or an option and its value.
_DIVIDES = re.compile(r"""[\s;|&<>()='"`:,{}]+""")
# Of what a person writes, few words are folders.
MAX_FOLDERS = 8


def others_change(path: Path) -> str:
    """What is wrong with a file that is read, or the place where it would be; empty where nothing is."""
    try:
        by = changed_by_others(path)
    except (OSError, ValueError):  # no name of a file, or one that may not be followed
        return ""
    return f"others may change {printable(str(by))}: {NAME_IT}" if by else ""


def others_change_command(command: str, base: Path) -> str:
    """What is wrong with a command, for the folder in which it runs and each file that its words name.

    Also in a folder that another word names, as behind `cd`. What those files read is not known.
    """
    names = dict.fromkeys(filter(None, _names(command, base)))
    folders = [base, *(base / name for name in names if _is_folder(base / name))]
    if len(folders) > MAX_FOLDERS:
        return f"the command names more than {MAX_FOLDERS} folders: {NAME_IT}"
    files = (folder / found for folder in folders for name in names for found in (name, *_matching(name, folder)))
    return next(filter(None, map(others_change, (base, *files))), "")


def _names(command: str, base: Path) -> Iterator[str]:
    """What may be names of files in a command: its words, those of a word that a shell gets, and pieces of each."""
    words = _split(command)
    for word in {*words, *(inner for one in words for inner in _split(one))}:
        # Behind an option of one letter its value may follow at once.
        for piece in (word, *_DIVIDES.split(word)):
            for name in (piece, piece[2:] if piece.startswith("-") else ""):
                yield _expanded(name.replace("${PWD}", str(base)).replace("$PWD", str(base)))


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote does not end: who runs the command names it
        return []


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
