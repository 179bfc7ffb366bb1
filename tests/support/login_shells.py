"""Login shells on a real sshd: each with a home folder and a start-up file of its own; and how one is refused."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.support.sshd import Sshd
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import HostError, ShellUnusable
from vllm_cluster.kernel.hosts.connection import CONNECT_SECONDS
from vllm_cluster.kernel.transport import Kind
from vllm_cluster.kernel.transport.base import Target, Transport

Connect = Callable[[Target, Kind], Transport]

# Installed by scripts/setup-sshd.sh.
SHELLS = ("sh", "dash", "bash", "zsh", "fish", "tcsh", "bsd-csh")
# What each of them reads before a command; sh and dash read nothing.
STARTUP: Mapping[str, str] = {
    "bash": ".bashrc",
    "zsh": ".zshenv",
    "fish": ".config/fish/config.fish",
    "tcsh": ".tcshrc",
    "bsd-csh": ".cshrc",
}


def login_shell(folder: Path, key: Path, shell: str, startup: str = "") -> Sshd:
    """A server whose user has this login shell, and this text in the file that the shell reads first.

    It runs the shell as sshd does for a user whose shell it is: `SHELL -c COMMAND` in the user's home.
    """
    home = folder / "home"
    home.mkdir(parents=True)
    if startup:
        file = home / STARTUP[shell]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(startup + "\n")
    words = {"HOME": str(home), "SHELL": f"/usr/bin/{shell}", "SHLVL": "0"}
    environment = " ".join(f"{name}={shlex.quote(value)}" for name, value in words.items())
    return forced(folder / "sshd", key, f'{environment} exec /usr/bin/{shell} -c "$SSH_ORIGINAL_COMMAND"')


def forced(folder: Path, key: Path, command: str) -> Sshd:
    """A server that runs this instead of what it is asked for."""
    return Sshd(folder, key, options=(f"ForceCommand {command}",)).start()


def soon() -> Deadline:
    """More than any of these calls takes."""
    return Deadline.after(20)


def refused(connect: Connect, target: Target, kind: Kind, call: Callable[[Transport], object]) -> ShellUnusable:
    """The error of the connection or, at the latest, of the first call on it, within the time of a connection."""
    began = time.monotonic()
    with pytest.raises(HostError) as caught:
        call(connect(target, kind))
    assert isinstance(caught.value, ShellUnusable), caught.value
    assert time.monotonic() - began < CONNECT_SECONDS
    assert caught.value.exit_code == 3
    assert caught.value.message.startswith("gpu1: login shell: ")
    return caught.value


def first_words(host: Transport) -> object:
    """Run a command that prints nothing."""
    return host.run(["true"], soon())
