"""The sandbox's folder: an inventory, a key pair, known hosts and an ssh_config, all that a laptop needs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from vcluster_sandbox.hosts import LOOPBACK, SandboxHost
from vcluster_sandbox.names import CPU_IMAGE, USER
from vllm_cluster.kernel.errors import UsageError, VclusterError
from vllm_cluster.kernel.shell_line import command_line

_KEY = "id_ed25519"
_INVENTORY = "inventory.yaml"
_PUBLIC, _KNOWN = f"{_KEY}.pub", "known_hosts"
_FILES = (_INVENTORY, _KEY, _PUBLIC, _KNOWN, "ssh_config")
# Behind the public key: those of a person have other words there.
_MARK = " vcluster-sandbox\n"

_TEMPLATE = """\
# Made by `vcluster sandbox up`. Change it as you like: it is written again only when the hosts have changed.
version: 1
cluster: sandbox
image: {image}
accelerator: cpu            # each logical GPU of a host is carried by the CPU
model_cache: /models        # holds sandbox/tiny-llama
shm_size: 2g
environment: {{HF_HUB_OFFLINE: "1"}}
ssh: {{config: ssh_config}}   # beside this file
hosts:
{hosts}
"""


def ensure_key(folder: Path, *, hosts: bool = True) -> str:
    """The public key of the folder's key pair, which is made if it isn't there, or where no `hosts` have it.

    Raises:
        UsageError: the folder is a person's own.
    """
    if not _is_made_here(folder):
        text = f"{folder} is a link, or holds keys that no sandbox has made: nothing is changed there"
        raise UsageError(text, hint="vcluster sandbox up --dir FOLDER")
    private = folder / _KEY
    # A key that came with the folder, as in a repository, is one that others have too.
    if not (hosts and private.exists()):
        key = Ed25519PrivateKey.generate()
        write(folder / _PUBLIC, f"{_public(key)}{_MARK}")
        write(private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode(), mode=0o600)
    try:
        loaded = load_ssh_private_key(private.read_bytes(), password=None)
    except ValueError as error:
        raise VclusterError(
            f"{private} is not a private key: {error}", hint=command_line("rm", str(private)) + "\nvcluster sandbox up"
        ) from error
    public = _public(loaded)
    write(folder / _PUBLIC, f"{public}{_MARK}")
    return public


def _public(key: Any) -> str:
    text: bytes = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return text.decode()


def _is_made_here(folder: Path) -> bool:
    """Whether the keys in a folder were made here, or there are none.

    A repository may have a link there, to the folder of a person's own keys.
    """
    if folder.is_symlink():
        return False
    if not any(os.path.lexists(folder / name) for name in (_KEY, _PUBLIC, _KNOWN)):
        return True
    public = folder / _PUBLIC
    return public.is_file() and public.read_text("utf-8", "replace").endswith(_MARK)


def set_aside(folder: Path) -> Path | None:
    """Move an inventory aside that is there before the first host is; returns where it is now.

    One that came with the folder, as in a repository, may name the same hosts, and run commands on this machine.
    """
    inventory = folder / _INVENTORY
    if not (inventory.is_symlink() or _changed(inventory)):
        return None
    return inventory.replace(inventory.with_name(f"{_INVENTORY}.before"))


def write_files(folder: Path, hosts: Sequence[SandboxHost]) -> Path:
    """Write the files that hold the hosts' addresses; returns the inventory."""
    write(folder / _KNOWN, known_hosts(hosts))
    write(folder / "ssh_config", ssh_config(folder.resolve(), hosts))
    inventory = folder / _INVENTORY
    if _hosts_in(inventory) != {host.name: host.address for host in hosts}:
        write(inventory, inventory_text(hosts))
    return inventory


def has_files(folder: Path) -> bool:
    """Whether there is something for `remove_files` to remove."""
    there = [folder / name for name in _FILES if os.path.lexists(folder / name)]
    return _is_made_here(folder) and any(file.name != _INVENTORY or not _changed(file) for file in there)


def remove_files(folder: Path) -> Path | None:
    """Remove what was written here, and the folder when nothing else is in it; returns an inventory that stays.

    One that a person has changed is theirs, and so are keys that were not made here.
    """
    if not _is_made_here(folder):
        return None
    inventory = folder / _INVENTORY
    kept = inventory if _changed(inventory) else None
    for name in _FILES:
        if folder / name != kept:
            (folder / name).unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    return kept


def inventory_text(hosts: Sequence[SandboxHost]) -> str:
    """A ready inventory."""
    return _text_of({host.name: host.address for host in hosts})


def _text_of(addresses: Mapping[str, str]) -> str:
    lines = "\n".join(f"  {name}: {{address: {address}}}" for name, address in addresses.items())
    return _TEMPLATE.format(image=CPU_IMAGE, hosts=lines)


def _changed(inventory: Path) -> bool:
    """Whether an inventory is not as it was written here."""
    try:
        return inventory.read_text(encoding="utf-8") != _text_of(_hosts_in(inventory) or {})
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True


def known_hosts(hosts: Sequence[SandboxHost]) -> str:
    """One line a host, in the form that ssh looks up for a port of its own."""
    return "".join(f"[{LOOPBACK}]:{host.port} {host.key}\n" for host in hosts)


def ssh_config(folder: Path, hosts: Sequence[SandboxHost]) -> str:
    """One block a host; nothing of the user's own agent or files is asked."""
    return "\n".join(_block(folder, host) for host in hosts)


def _block(folder: Path, host: SandboxHost) -> str:
    lines = [
        f"Host {host.name}",
        f"  HostName {LOOPBACK}",
        f"  Port {host.port}",
        f"  User {USER}",
        f"  IdentityFile {_quoted(folder / _KEY)}",
        "  IdentitiesOnly yes",
        f"  UserKnownHostsFile {_quoted(folder / _KNOWN)}",
        "  GlobalKnownHostsFile /dev/null",
        "  StrictHostKeyChecking yes",
    ]
    return "\n".join(lines) + "\n"


def _quoted(path: Path) -> str:
    """A path as ssh_config reads it: blanks need quotes, and % begins a token."""
    return '"' + str(path).replace("%", "%%") + '"'


def _hosts_in(inventory: Path) -> dict[str, str] | None:
    """The hosts and addresses that an inventory names; None where there is no such file, or another image's."""
    try:
        content = YAML(typ="safe").load(inventory.read_text(encoding="utf-8"))
        if content["image"] != CPU_IMAGE:
            return None
        return {str(name): str(host["address"]) for name, host in content["hosts"].items()}
    except (OSError, YAMLError, KeyError, TypeError, AttributeError):
        return None


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file as a whole; its mode is right from the first moment."""
    partial = path.with_name(f".{path.name}.part")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(text)
    partial.replace(path)
