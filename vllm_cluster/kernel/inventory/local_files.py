"""Files of this machine that an inventory names: whether they are there, and which are meant where they are not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from vllm_cluster.kernel.errors import InventoryError
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.inventory.problems import file_name, key_of
from vllm_cluster.kernel.inventory.words import nearest
from vllm_cluster.kernel.text import printable

# Of a folder with more, the name that was meant may not be found.
MAX_NAMES = 2000


def ensure_ssh_config(inventory: Inventory) -> None:
    """Refuse an ssh_config that is not there: ssh reads no other one in its place.

    Raises:
        InventoryError: with the file and the line that name it.
    """
    config = inventory.ssh.config
    if config and (text := _missing(config)):
        where = _at(inventory, ("ssh", "config"), text)
        raise InventoryError(where, hint="name an ssh_config that is there, or leave ssh.config out")


def missing_identities(inventory: Inventory) -> Iterator[str]:
    """The private keys that the inventory names and that are not there, each with its file, line and key.

    ssh passes such a one over, and offers others. Of a key that an agent holds the public half is enough.
    """
    own = [(("hosts", name, "ssh", "identity"), host.ssh.identity) for name, host in inventory.hosts.items()]
    named: list[tuple[tuple[str, ...], Path | None]] = [(("ssh", "identity"), inventory.ssh.identity), *own]
    for key, path in named:
        # ssh fills in what has a %.
        if path is None or "%" in str(path) or not _missing(Path(f"{path}.pub")):
            continue
        if text := _missing(path):
            yield _at(inventory, key, text)


def _at(inventory: Inventory, key: tuple[str, ...], text: str) -> str:
    return f"{file_name(inventory.path)}:{inventory.lines.get('.'.join(key), 1)}: {key_of(key)}: {text}"


def _missing(path: Path) -> str:
    """What is wrong with a path where nothing is; empty where something is, or where that cannot be known."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        near = _near(path)
        return f"{file_name(path)} is not there" + (f", did you mean {printable(near)}?" if near else "")
    except (OSError, ValueError):
        pass  # ssh names the reason
    return ""


def _near(path: Path) -> str:
    try:
        with os.scandir(path.parent) as names:
            return nearest(path.name, [one.name for one in islice(names, MAX_NAMES)]) or ""
    except OSError:
        return ""
