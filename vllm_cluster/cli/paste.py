"""Remedies as lines to paste: a command for a host becomes one of ssh, with the options of the inventory."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_cluster.inventory.model import Inventory

_ON = re.compile(r"on ([\w.-]+)(, [^:]{1,60})?: (.+)")
# A remedy that begins with another word is a sentence.
_PROGRAMS = (
    *("chronyc", "docker", "du", "ibstat", "ip", "journalctl", "ls", "mkdir", "nvidia-smi", "rm", "ss", "stat", "sudo"),
    *("tail", "timedatectl"),
)
# Where the command ends and a sentence begins.
_END = re.compile(r"(; | \(|, (?:then|or|for good|and|with|if)\b|, (?=[a-z-]+ ps\b))")


def pasteable(text: str, hosts: Mapping[str, Sequence[str]]) -> str:
    """The text, in which `on HOST: COMMAND` is a line of ssh; `hosts` are the words behind `ssh` for each host."""
    return "\n".join(_line(line, hosts) for line in text.splitlines())


def _line(line: str, hosts: Mapping[str, Sequence[str]]) -> str:
    found = _ON.fullmatch(line)
    if not found or found[1] not in hosts or not found[3].startswith(tuple(f"{name} " for name in _PROGRAMS)):
        return line
    command, *rest = _END.split(found[3], maxsplit=1)
    # sudo asks for its password on a terminal.
    terminal = ["-t"] if command.startswith("sudo ") else []
    lines = [f"on {found[1]}{found[2]}:"] if found[2] else []
    lines.append(shlex.join(["ssh", *terminal, *hosts[found[1]], command]))
    more = "".join(rest).strip(" ;,")
    return "\n".join([*lines, more] if more else lines)


def ssh_words(inventory: Inventory) -> dict[str, list[str]]:
    """What follows `ssh` for each host that SSH leads to: options as in the inventory, and the destination."""
    from vllm_cluster.run.connection import ssh_target
    from vllm_cluster.transport.ssh_config import ssh_options

    targets = {
        name: ssh_target(inventory, host) for name, host in inventory.hosts.items() if host.destination != "local"
    }
    return {name: [*ssh_options(one), one.destination] for name, one in targets.items()}
