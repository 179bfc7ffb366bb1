"""What an inventory that was found, and not named, may use of this machine: nothing that others may change."""

from __future__ import annotations

import re
from pathlib import Path

from vllm_cluster.kernel.inventory.find import NAME_IT
from vllm_cluster.kernel.laptop import changed_by_others
from vllm_cluster.kernel.text import printable

# What divides the words of a command, also of one that a shell gets as a word.
_DIVIDES = re.compile(r"""[\s;|&<>()='"`$]+""")


def others_change(path: Path) -> str:
    """What is wrong with a file that is read, or the place where it would be; empty where nothing is."""
    by = changed_by_others(path)
    return f"others may change {printable(str(by))}: {NAME_IT}" if by else ""


def others_change_command(command: str, base: Path) -> str:
    """What is wrong with a command, for the folder in which it runs and each file that its words name.

    What those read is not known.
    """
    files = (base / word for word in _DIVIDES.split(command))
    return next(filter(None, (others_change(path) for path in (base, *files) if _is_there(path))), "")


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # no name of a file
        return False
