"""The ssh process that holds a shared connection (ControlMaster)."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from vllm_cluster.core.errors import UsageError
from vllm_cluster.transport import _process, _sshlog
from vllm_cluster.transport.base import Deadline, Target
from vllm_cluster.transport.sshconfig import Resolved, ssh_options

STEP_SECONDS = 10.0
# ssh listens under a temporary name, 17 characters longer, and no socket's name may pass 104 (macOS).
MAX_SOCKET_PATH = 85
_OPTIONS = (
    "BatchMode=yes",
    "ClearAllForwardings=yes",
    "ConnectTimeout=10",
    "ControlPersist=no",
    "ForwardAgent=no",
    "ForwardX11=no",
    "LogLevel=DEBUG1",
    "PermitLocalCommand=no",
    "RemoteCommand=none",
    "RequestTTY=no",
    "ServerAliveCountMax=3",
    "ServerAliveInterval=5",
)
# Lives as long as its input, which ends with this program however that dies; so no master is ever left behind.
_STAY = "exec sh -c 'echo; exec cat > /dev/null'"


class Master:
    """The ssh process that holds the connection, and the folder of its socket."""

    def __init__(self, target: Target, resolved: Resolved, deadline: Deadline) -> None:
        self.resolved = resolved
        self._folder = _short_folder()
        self.socket = self._folder / "m"
        self._log = self._folder / "log"
        argv = [*_connecting(target, resolved), "-M", "-S", str(self.socket), "--", target.destination, _STAY]
        try:
            # A file, not a pipe: nobody reads it while the connection lives.
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    argv,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                    env={**os.environ, "SSH_ASKPASS_REQUIRE": "never"},
                )
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        try:
            self._wait(deadline)
        except BaseException:
            self.close()
            raise

    def alive(self) -> bool:
        """Whether the connection stands."""
        return self._process.poll() is None

    def gone(self) -> bool:
        """Whether the connection is gone, looked at after a moment: clients end just before their master does."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_process.GRACE_SECONDS)
        return not self.alive()

    def last_words(self) -> str:
        """What ssh said at the end."""
        lines = [line for line in self._read_log().splitlines() if not line.startswith("debug")]
        return lines[-1].strip() if lines else "ssh ended"

    def close(self) -> None:
        """End it; may be called twice."""
        _process.stop(self._process)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait(self, deadline: Deadline) -> None:
        stdout = self._process.stdout
        assert stdout is not None  # noqa: S101 - it was asked for above
        limit = deadline.sooner(2 * STEP_SECONDS)
        poll = select.poll()
        poll.register(stdout, select.POLLIN)
        started = limit.left()
        while not poll.poll(limit.left() * 1000):
            if not limit.left():
                raise _sshlog.explain(self._read_log(), self.resolved, started)
        if not os.read(stdout.fileno(), 1):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_process.GRACE_SECONDS)
            raise _sshlog.explain(self._read_log(), self.resolved, STEP_SECONDS)

    def _read_log(self) -> str:
        try:
            return self._log.read_text("utf-8", "replace")
        except OSError:
            return ""


def _connecting(target: Target, resolved: Resolved) -> list[str]:
    proxy: list[str] = []
    if resolved.jump is not None:
        # Not -J: ssh would pass neither our options nor the strictness on to the jump hosts.
        hop = replace(target, destination=resolved.jump.destination, user=None, port=None, identity=None, jump=None)
        # This ssh puts its own target into the first %h and %p; what stands for further hops is doubled past that.
        inner = [word.replace("%", "%%") for word in (*_connecting(hop, resolved.jump), "--", hop.destination)]
        words = [*inner[:-2], "-W", "[%h]:%p", *inner[-2:]]
        proxy = ["-o", f"ProxyCommand={shlex.join(words)}"]
    strict = "accept-new" if resolved.accept_new_keys else "yes"
    options = [word for option in (*_OPTIONS, f"StrictHostKeyChecking={strict}") for word in ("-o", option)]
    return ["ssh", *ssh_options(replace(target, jump=None)), *options, *proxy]


def _short_folder() -> Path:
    for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp")):  # noqa: S108 - the folder made in it is private
        with contextlib.suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix="vc-", dir=parent))
            if len(os.fsencode(folder)) + 2 <= MAX_SOCKET_PATH:
                return folder
            folder.rmdir()
    raise UsageError("there is no folder for ssh's socket with a short enough name", hint="set TMPDIR to a short path")
