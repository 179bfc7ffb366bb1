"""paramiko's reading of ssh_config, for machines without the ssh command; what it cannot read is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import paramiko

from vllm_cluster import laptop
from vllm_cluster.errors import UsageError
from vllm_cluster.laptop import expanded
from vllm_cluster.laptop import user as user_here
from vllm_cluster.transport.base import Target
from vllm_cluster.transport.ssh_config import included

_DEFAULTS = {
    "identityfile": ["~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa"],
    "userknownhostsfile": ["~/.ssh/known_hosts ~/.ssh/known_hosts2"],
    "globalknownhostsfile": ["/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"],
}


# Files that Include names where ssh looks for them; Match may ask a command.
_NEEDS_SSH = re.compile(r"\s*(include|match)[\s=]+(.*)", re.I)


def _refuse_what_needs_ssh(file: Path, lines: list[str]) -> None:
    for number, line in enumerate(lines, 1):
        found = _NEEDS_SSH.match(line)
        if found and (found[1].lower() == "match" or any(map(included, found[2].split()))):
            raise UsageError(
                f"{file}:{number}: {found[1]} needs the ssh command, which is not installed here",
                hint="install the OpenSSH client",
            )


def parsed_words(target: Target) -> dict[str, list[str]]:
    """The options for a host in the form of `ssh_words`.

    Raises:
        UsageError: ssh_config holds what only ssh can read.
    """
    config = paramiko.SSHConfig()
    files = [target.config] if target.config else [expanded("~/.ssh/config"), Path("/etc/ssh/ssh_config")]
    for file in files:
        if target.config or file.is_file():
            try:
                lines = file.read_text("utf-8").splitlines(keepends=True)
                _refuse_what_needs_ssh(file, lines)
                config.parse(lines)
            except (OSError, paramiko.ConfigParseError) as error:
                raise UsageError(f"{target.name}: cannot read {file}: {error}") from None
    user, _, host = target.destination.rpartition("@")
    try:
        found = config.lookup(host)
    except KeyError:
        # The operating system knows no name for this user, and paramiko needs one for %u.
        raise UsageError(f"{target.name}: user {user_here()} has no name", hint="export USER=NAME") from None
    # Its values are strings, but lists for the few keys that may occur several times.
    values: dict[str, Any] = dict(found)
    words = {key: list(value) if isinstance(value, list) else [value] for key, value in values.items()}
    if target.identity:
        words.setdefault("identityfile", []).insert(0, str(target.identity))
    for key, value in (
        ("user", target.user or user or None),
        ("port", str(target.port) if target.port else None),
        ("proxyjump", target.jump),
    ):
        if value is not None:
            words[key] = [value]
    words.setdefault("user", [laptop.user()])
    return {**_DEFAULTS, **words}
