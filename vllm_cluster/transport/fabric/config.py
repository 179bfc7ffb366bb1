"""paramiko's reading of ssh_config, for machines without the ssh command."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Any

import paramiko

from vllm_cluster.core.errors import UsageError
from vllm_cluster.transport.base import Target

_DEFAULTS = {
    "identityfile": ["~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa"],
    "userknownhostsfile": ["~/.ssh/known_hosts ~/.ssh/known_hosts2"],
    "globalknownhostsfile": ["/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"],
}


def parsed_words(target: Target) -> dict[str, list[str]]:
    """The options for a host in the form of `ssh_words`; Include is not followed."""
    config = paramiko.SSHConfig()
    files = [target.config] if target.config else [Path("~/.ssh/config").expanduser(), Path("/etc/ssh/ssh_config")]
    for file in files:
        if target.config or file.is_file():
            try:
                config.parse(file.read_text("utf-8").splitlines(keepends=True))
            except (OSError, paramiko.ConfigParseError) as error:
                raise UsageError(f"{target.name}: cannot read {file}: {error}") from None
    user, _, host = target.destination.rpartition("@")
    found = config.lookup(host)
    # Its values are strings, but lists for the few keys that may stand several times.
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
    words.setdefault("user", [getpass.getuser()])
    return {**_DEFAULTS, **words}
