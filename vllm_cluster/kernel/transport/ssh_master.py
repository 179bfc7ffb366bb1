"""The ssh process that holds a shared connection (ControlMaster)."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import HostError, UsageError
from vllm_cluster.kernel.laptop import changed_by_others, real
from vllm_cluster.kernel.transport import command_line, connect_errors, process, ssh_log
from vllm_cluster.kernel.transport.base import Result, Target
from vllm_cluster.kernel.transport.jumps import Jumps
from vllm_cluster.kernel.transport.ssh_config import SshEndpoint, ssh_options

STEP_SECONDS = 10.0
# ssh listens under a temporary name, 17 characters longer, and no socket's name may pass 104 (macOS).
MAX_SOCKET_PATH = 85
# Of its log: a login with 20 keys takes 10 kB.
MAX_LOG = 64 << 10
# For the first command to begin, before the host is asked why it has not.
PATIENCE_SECONDS = 4.0
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
# Without the proxy, a client whose master refuses it would connect by itself, past every option that vcluster sets.
_CLIENT = ("BatchMode=yes", "LogLevel=ERROR", "ProxyCommand=false", "RequestTTY=no")
# Lives as long as its input, which ends with this program however that dies; so no master is ever left behind.
_STAY = ("sh", "-c", "exec cat > /dev/null")


# Ends a connection that runs no command, and so has no input of its own, likewise: with the input of this.
_LEASH = 'cat > /dev/null; exec "$@"'
_LOOK_SECONDS = 0.02


class SshMaster:
    """The ssh process that holds the connection, its log, and the folder of its socket.

    A jump host only forwards: nothing is run there, so that its account needs no shell.
    """

    def __init__(
        self,
        target: Target,
        resolved: SshEndpoint,
        through: SshMaster | None,
        deadline: Deadline,
        *,
        jump: bool = False,
    ) -> None:
        self.resolved = resolved
        self._folder = _private_folder()
        self.socket = self._folder / "m"
        # -N is a word about the session itself, and cannot be combined.
        session = () if jump else resolved.session
        options = [*ssh_options(replace(target, jump=None)), *_options(resolved, through, session)]
        self._target = target
        self._answer: Result | None = None
        self._leash: subprocess.Popen[bytes] | None = None
        self._alone: list[bytes | str] = ["ssh", *options]
        # What ssh itself writes goes there; the host's banner, and the words of a login shell and of a proxy, do not.
        log_pipe = self._folder / "log"
        self._log = process.ErrorOutput(first=MAX_LOG, path=log_pipe)
        ssh = [*self._alone, "-E", str(log_pipe), "-M", "-S", str(self.socket)]
        try:
            with process.ErrorOutput(first=MAX_LOG) as self._errors:
                if jump:
                    self._process = _started([*ssh, "-N", "--", target.destination], self._errors.sink, piped=False)
                    end = [*client(self.socket), "-O", "exit", "--", "shared"]
                    self._leash = _started(["sh", "-c", _LEASH, "leash", *end], subprocess.DEVNULL, piped=True)
                else:
                    line = [*ssh, "--", target.destination, command_line.LINE]
                    self._process = _started(line, self._errors.sink, piped=True)
        except BaseException:
            self._log.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        try:
            if jump:
                self._wait_for_socket(deadline)
            else:
                self._wait(deadline)
        except BaseException:
            self.close()
            raise

    def alive(self) -> bool:
        """Whether the connection is open."""
        return self._process.poll() is None

    def gone(self) -> bool:
        """Whether the connection is gone, looked at after a moment: clients end just before their master does."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(process.GRACE_SECONDS)
        return not self.alive()

    def last_words(self) -> str:
        """The last output of ssh."""
        words = ssh_log.words(self._read_log())
        return words[-1] if words else "ssh ended"

    def close(self) -> None:
        """End it; may be called twice."""
        process.stop(self._process)
        if self._leash:
            process.stop(self._leash)
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait_for_socket(self, deadline: Deadline) -> None:
        """Wait until the login is over: ssh makes the socket right after it."""
        limit = deadline.sooner(2 * STEP_SECONDS)
        started = limit.left()
        while not self.socket.exists():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(min(_LOOK_SECONDS, limit.left()))
            if not self.alive() or not limit.left():
                raise self._explained(started)

    def _wait(self, deadline: Deadline) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None  # noqa: S101 - they were asked for above
        command = command_line.without_timeout(_STAY)
        with contextlib.suppress(BrokenPipeError):
            os.write(stdin.fileno(), command.first)
        limit, greeting = deadline.sooner(2 * STEP_SECONDS), command.kept()
        patience = limit.sooner(PATIENCE_SECONDS)
        poll = select.poll()
        poll.register(stdout, select.POLLIN)
        started = limit.left()
        while not greeting.begun:
            if not poll.poll(patience.left() * 1000):
                if not limit.left():
                    raise self._late(greeting.whole(), started)
                if self._another_ends() and not poll.poll(0):
                    raise self._failure(greeting.whole(), started)
                patience = limit
                continue
            data = os.read(stdout.fileno(), 1 << 16)
            greeting.add(data)
            if not data or command.hopeless(greeting):
                raise self._failure(greeting.whole(), STEP_SECONDS)

    def _late(self, greeting: bytes, seconds: float) -> HostError:
        """Why nothing has begun in time."""
        if ssh_log.let_in(self._read_log()):
            return command_line.late(self._target, seconds)
        return self._failure(greeting, seconds)

    def _failure(self, greeting: bytes, seconds: float) -> HostError:
        """Why there is no connection, or no use of it."""
        assert self._process.stdin is not None  # noqa: S101 - it was asked for above
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(process.GRACE_SECONDS)
        log = self._read_log()
        if ssh_log.let_in(log) and ssh_log.opened_no_session(log):
            return connect_errors.no_session(self.resolved.name, self.resolved.where)
        if ssh_log.let_in(log) and (why := ssh_log.ended(log)):
            return connect_errors.lost_at_once(self.resolved, why)
        if ssh_log.let_in(log):
            words = "\n".join(ssh_log.words(self._errors.text())).encode("utf-8", "replace")
            return command_line.refusal(self._target, self.resolved.where, greeting, words, self._ask)
        return self._explained(seconds)

    def _explained(self, seconds: float) -> HostError:
        return ssh_log.explain(self._read_log(), self.resolved, seconds, of_proxy=self._errors.text())

    def _another_ends(self) -> bool:
        """Whether a later session without input ends on the host: then a slow host does not delay the next session."""
        if not ssh_log.let_in(self._read_log()):
            return False
        result = self._ask()
        return result is not None and result.returncode != 255

    def _ask(self) -> Result | None:
        if self._answer is None:
            argv = [*self._alone, "--", self._target.destination, command_line.ASK]
            self._answer = process.run_process(argv, b"", Deadline.after(command_line.ASK_SECONDS))
        return self._answer

    def _read_log(self) -> str:
        if not self.alive():
            self._log.close()
            for output in (self._log, self._errors):
                output.join(process.GRACE_SECONDS)
        return self._log.text()


def _private_folder() -> Path:
    """Make a folder for ssh's socket, with a name that is short enough for a socket.

    Raises:
        UsageError: there is none, or another user may put a folder of his in its place, and so get every command.
    """
    why = "there is no folder for ssh's socket with a short enough name"
    # ssh reads % and ${ in the name of its socket as words of its own, and not in that of its log.
    parents = (one for one in (tempfile.gettempdir(), "/tmp") if not {"%", "$"} & set(one))  # noqa: S108 - private below
    for parent in dict.fromkeys(parents):
        with contextlib.suppress(OSError):
            folder = real(Path(tempfile.mkdtemp(prefix="vc-", dir=parent)))
            theirs = changed_by_others(folder)
            if theirs is None and len(os.fsencode(folder)) + 2 <= MAX_SOCKET_PATH:
                return folder
            folder.rmdir()
            if theirs:
                why = f"other users may change what is in {theirs}, where ssh's socket would be"
    raise UsageError(why, hint="export TMPDIR=FOLDER, a folder of your own with a short path")


def open_master(
    target: Target, resolved: SshEndpoint, jumps: Jumps, deadline: Deadline, *, jumped: bool = False
) -> SshMaster:
    """The shared connection to a host, through its jump hosts; `jumped` where the host is itself one."""
    jump, through = resolved.jump, None
    if jump is not None:
        # Not -J: ssh would pass neither our options nor the strictness on to the jump hosts.
        hop = replace(target, destination=jump.destination, user=None, port=None, identity=None, jump=None)
        through = jumps.through(jump, lambda: open_master(hop, jump, jumps, deadline, jumped=True), deadline)
    return connect_errors.connect_with_retry(
        lambda: SshMaster(target, resolved, through, deadline, jump=jumped), deadline
    )


def _started(argv: Sequence[bytes | str], errors: int, *, piped: bool) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE if piped else subprocess.DEVNULL
    environment = {**os.environ, "SSH_ASKPASS_REQUIRE": "never"}
    return subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=errors, start_new_session=True, env=environment)


def client(master: Path) -> list[bytes | str]:
    """The beginning of a command that goes over a shared connection."""
    return ["ssh", "-F", "none", "-S", str(master), *(word for option in _CLIENT for word in ("-o", option))]


def shared_command(master: Path, line: bytes) -> list[bytes | str]:
    """A command line over a shared connection."""
    return [*client(master), "--", "shared", line]


def _options(resolved: SshEndpoint, through: SshMaster | None, session: Sequence[str]) -> list[str]:
    options = [*_OPTIONS, *session, f"StrictHostKeyChecking={'accept-new' if resolved.accept_new_keys else 'yes'}"]
    if through is not None:
        words = map(str, client(through.socket))
        options.append(f"ProxyCommand={shlex.join(words).replace('%', '%%')} -W '[%h]:%p' -- shared")
    return [word for option in options for word in ("-o", option)]
