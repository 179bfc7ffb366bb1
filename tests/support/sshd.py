"""A real sshd on 127.0.0.1 for one test: its own configuration, keys and port."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.ports import free_port

SSHD = Path("/usr/sbin/sshd")


def require_sshd() -> None:
    """Name what is missing instead of passing without a test."""
    missing = [name for name in (str(SSHD), "ssh", "ssh-keygen") if shutil.which(name) is None]
    if missing:
        raise AssertionError(
            f"{', '.join(missing)} not found; install them: apt-get install openssh-server openssh-client"
        )


def keygen(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    """A new key pair; the path of the private half."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return path


@dataclass
class Sshd:
    """One server process and everything that a client needs to know of it."""

    folder: Path
    user_key: Path
    port: int = field(default_factory=free_port)
    options: tuple[str, ...] = ()
    host_key_kinds: tuple[str, ...] = ("ed25519",)
    process: subprocess.Popen[bytes] | None = None

    @property
    def host_keys(self) -> list[Path]:
        """The private halves of the server's keys."""
        return [self.folder / f"host_{kind}" for kind in self.host_key_kinds]

    def public(self, kind: str = "") -> str:
        """Type and body of a host key."""
        return " ".join((self.folder / f"host_{kind or self.host_key_kinds[0]}.pub").read_text().split()[:2])

    def known_line(self, name: str | None = None, kind: str = "") -> str:
        """The line of known_hosts for this server."""
        return f"{name or f'[127.0.0.1]:{self.port}'} {self.public(kind)}\n"

    def start(self) -> Sshd:
        """Write its files, start it and wait until it listens."""
        config = self._write_files()
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", config], stderr=log, stdin=subprocess.DEVNULL)
        until = time.monotonic() + 10
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.01)
        raise AssertionError(f"sshd did not start: {(self.folder / 'log').read_text()}")

    def _write_files(self) -> Path:
        self.folder.mkdir(exist_ok=True)
        for key, kind in zip(self.host_keys, self.host_key_kinds, strict=True):
            if not key.exists():
                keygen(key, kind)
        authorized = self.folder / "authorized_keys"
        authorized.write_bytes(self.user_key.with_suffix(".pub").read_bytes())
        config = self.folder / "sshd_config"
        config.write_text(
            "\n".join(
                (
                    *self.options,
                    f"Port {self.port}",
                    "ListenAddress 127.0.0.1",
                    *(f"HostKey {key}" for key in self.host_keys),
                    f"AuthorizedKeysFile {authorized}",
                    f"PidFile {self.folder}/sshd.pid",
                    "UsePAM no",
                    "StrictModes no",
                    "PasswordAuthentication no",
                    "KbdInteractiveAuthentication no",
                    "PermitRootLogin yes",
                    # A deeper shell level keeps bash from reading the tester's .bashrc, which can take long.
                    "SetEnv SHLVL=2",
                    "LogLevel VERBOSE",
                )
            )
            + "\n"
        )
        return config

    def children(self) -> list[int]:
        """The processes that serve connections, and the commands that they run."""
        assert self.process is not None
        return descendants(self.process.pid)

    def connections(self) -> list[int]:
        """The processes of sshd that serve connections, without the commands that they run."""
        return [pid for pid in self.children() if process_name(pid).startswith("sshd")]

    def drop_connections(self) -> None:
        """Kill what serves the connections; the listener stays, and so do the commands."""
        for pid in self.connections():
            signal_pid(pid, signal.SIGKILL)

    def stop(self) -> None:
        """End the server and its connections."""
        if self.process is None:
            return
        children = self.children()
        self.process.terminate()
        self.process.wait(10)
        for pid in children:
            signal_pid(pid, signal.SIGCONT)
            signal_pid(pid, signal.SIGKILL)


def signal_pid(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def process_name(pid: int) -> str:
    """What a process is called; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def descendants(pid: int) -> list[int]:
    """Every process below one."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        parents.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    found, todo = [], [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


USER = getpass.getuser()
