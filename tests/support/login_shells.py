"""Login shells on a real sshd: each with a home folder and a start-up file of its own."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from tests.support.sshd import Sshd

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
