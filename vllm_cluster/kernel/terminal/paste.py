"""Remedies as lines to paste: a command for a host becomes one of ssh, with the options of the inventory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from vllm_cluster.kernel.shell_line import QUOTED, shell_line

if TYPE_CHECKING:
    from vllm_cluster.kernel.inventory.model import Inventory

_HOST = re.compile(r"[\w.-]+")
_ON = re.compile(r"on ([^:]+): (.+)")
# A remedy that begins with another word is a sentence.
_PROGRAMS = (
    *("chronyc", "cp", "docker", "du", "echo", "ibstat", "ip", "journalctl", "ls", "mkdir", "nvidia-smi", "ps", "rm"),
    *("hostnamectl", "sh", "ss", "stat", "sudo", "tail", "timedatectl"),
)
_COMMAND = re.compile(rf"(then |or )?((?:{'|'.join(_PROGRAMS)})\b.*)")
# Where the command ends and a sentence, or another command, begins; what is quoted belongs to the command.
_END = re.compile(rf"{QUOTED}|(?P<end>; | \(|, (?:then|or|for good|and|with|if)\b|, (?=[a-z-]+ ps\b))")


def pasteable(text: str, hosts: Mapping[str, Sequence[str]]) -> str:
    """The text, in which `on HOST: COMMAND` is a line of ssh; `hosts` are the words behind `ssh` for each host."""
    return "\n".join(line for one in text.split("\n") for line in _lines(one, hosts))


def _lines(line: str, hosts: Mapping[str, Sequence[str]]) -> Iterator[str]:
    found = _ON.fullmatch(line)
    names = list(takewhile(_HOST.fullmatch, found[1].split(", "))) if found else []
    if not found or hosts.keys().isdisjoint(names) or not _COMMAND.fullmatch(found[2]):
        yield line
        return
    if ", ".join(names) != found[1]:  # with a condition
        yield f"on {found[1]}:"
    rest = found[2]
    while there := _COMMAND.fullmatch(rest):
        command, rest = _split(there[2])
        yield from ["or:"] if there[1] == "or " else []
        yield from (_on(name, command, hosts) for name in names)
    yield from [rest] if rest else []


def _split(text: str) -> tuple[str, str]:
    """The command at the beginning of a text, and what follows it."""
    end = next((part.start() for part in _END.finditer(text) if part["end"]), len(text))
    return text[:end], text[end:].strip(" ;,")


def _on(name: str, command: str, hosts: Mapping[str, Sequence[str]]) -> str:
    """A command on a host, which SSH may not lead to."""
    if name not in hosts:
        return f"on {name}: {command}"
    # sudo asks for its password on a terminal.
    terminal = ["-t"] if re.search(r"\bsudo ", command) else []
    return shell_line(["ssh", *terminal, *hosts[name], command])


def ssh_arguments(inventory: Inventory) -> dict[str, list[str]]:
    """What follows `ssh` for each host that SSH leads to: options as in the inventory, and the destination."""
    from vllm_cluster.kernel.hosts.connection import ssh_target
    from vllm_cluster.kernel.transport.ssh_config import ssh_options

    targets = {
        name: ssh_target(inventory, host) for name, host in inventory.hosts.items() if host.destination != "local"
    }
    return {name: [*ssh_options(one), one.destination] for name, one in targets.items()}
