"""The OpenSSH command as the carrier: hardware keys, certificates and Kerberos work as they do in a terminal."""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Sequence

from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import ConnectionLost, HostError, NoSession, ShellUnusable, TimedOut, UsageError
from vllm_cluster.kernel.text import host_port
from vllm_cluster.kernel.transport import command_line, connect_errors, process
from vllm_cluster.kernel.transport.base import Forward, Result, Stream, Target
from vllm_cluster.kernel.transport.carrier import RETRY_SECONDS, SshCarrier, lost
from vllm_cluster.kernel.transport.forward import LoopbackForward, Pipe, SocketPipe
from vllm_cluster.kernel.transport.jumps import Jumps
from vllm_cluster.kernel.transport.ssh_config import SshEndpoint, resolve_endpoint
from vllm_cluster.kernel.transport.ssh_master import STEP_SECONDS, SshMaster, open_master, shared_command

# A refusal comes within a round trip; a host that is silent for longer shows it when the stream is read.
REFUSAL_SECONDS = 2.0


class OpenSshTransport(SshCarrier):
    """One host over `ssh` with a shared connection. Safe to use from several threads."""

    kind = "openssh"

    def __init__(self, target: Target, jumps: Jumps, endpoint: SshEndpoint | None = None) -> None:
        super().__init__(target, jumps, endpoint)
        self._master: SshMaster | None = None
        self._open: set[process.ProcessStream] = set()

    def _connect(self, deadline: Deadline) -> None:
        with self._connecting:
            if self._master is not None and self._master.alive():
                return
            self._close()
            endpoint = self._endpoint or resolve_endpoint(self._target)
            self._master = open_master(self._target, endpoint, self._jumps, deadline)

    def _run(self, argv: Sequence[str], deadline: Deadline, stdin: bytes, most: int) -> Result:
        master, doing = self._open_master(), f"`{command_line.shorten_command(argv)}`"
        command_line.encoded(argv)
        with self._command(deadline, doing):
            return self._talk(master, argv, stdin, deadline, doing, most=most)

    def _open_stream(self, argv: Sequence[str], deadline: Deadline) -> Stream:
        master, doing = self._open_master(), f"`{command_line.shorten_command(argv)}`"
        command, opening = command_line.without_timeout(argv), deadline.sooner(STEP_SECONDS)
        while True:
            self._take(self._streams, deadline, doing)
            stream = self._start(master, doing)
            try:
                # Where the host takes no input, nothing has started, which shows when the stream is read.
                with contextlib.suppress(BrokenPipeError):
                    stream.sendall(command.first)
                stream.wait_for_output(min(opening.left(), REFUSAL_SECONDS))
            except NoSession:
                # A stream that was closed keeps its session until the host has ended it.
                stream.close()
                if not opening.left():
                    raise
                time.sleep(RETRY_SECONDS)
            except HostError:
                break  # whoever reads the stream gets it
            else:
                break
        return command_line.MarkedStream(stream, command, lambda out, err: self._refused(master, out, err))

    def _start(self, master: SshMaster, doing: str) -> process.ProcessStream:
        def check_end(code: int) -> None:
            if code != 255:
                return
            if master.gone():
                raise self._lost(master, doing)
            if "refused by peer" in stream.stderr_tail():
                raise connect_errors.no_session(self.host, master.resolved.where)

        def on_close() -> None:
            self._open.discard(stream)
            self._streams.release()

        try:
            stream = process.ProcessStream(shared_command(master.socket, command_line.LINE), check_end, on_close)
        except BaseException:
            self._streams.release()
            raise
        self._count()
        self._open.add(stream)
        return stream

    def _forward(self, remote_port: int, local_port: int, remote_host: str) -> Forward:
        return _MuxForward(self._open_master(), remote_port, local_port, remote_host)

    def require_alive(self) -> None:
        """Raise where the connection is gone; ssh's keepalives find out."""
        self._open_master()

    def _close(self) -> None:
        for stream in list(self._open):
            stream.close()
        if self._master is not None:
            self._master.close()
            self._master = None

    def _talk(
        self, master: SshMaster, argv: Sequence[str], stdin: bytes, deadline: Deadline, doing: str, *, most: int
    ) -> Result:
        opening, started = deadline.sooner(STEP_SECONDS), deadline.left()
        while True:
            self._count()
            command = command_line.with_timeout(argv, deadline.left())
            line, given = shared_command(master.socket, command_line.LINE), command.first + stdin
            result = process.run_process(line, given, deadline, most=most, mark=command.mark)
            if result is None:
                raise self._not_ended(doing, started)
            if result.returncode != 255 or command.own_255(result):
                if not command.started(result):
                    raise self._refused(master, result.stdout, result.stderr)
                return command.own(result, most)
            if b"refused by peer" not in result.stderr:
                raise self._lost(master, doing)
            # A command that timed out keeps its session until the host has ended it.
            if not opening.left():
                raise connect_errors.no_session(self.host, master.resolved.where)
            time.sleep(RETRY_SECONDS)

    def _refused(self, master: SshMaster, out: bytes, err: bytes) -> ShellUnusable:
        def ask() -> Result | None:
            self._count()
            return process.run_process(
                shared_command(master.socket, command_line.ASK), b"", Deadline.after(command_line.ASK_SECONDS)
            )

        return command_line.refusal(self._target, master.resolved.where, out, err, ask)

    def _open_master(self) -> SshMaster:
        master = self._master
        if master is None:
            raise self._unconnected()
        if not master.alive():
            raise self._gone(master.resolved.where, master.last_words())
        return master

    def _lost(self, master: SshMaster, doing: str) -> ConnectionLost:
        # While it is open its last words are those of its own first command.
        why = master.last_words() if master.gone() else "it ended without an exit code"
        return lost(self.host, master.resolved.where, doing, why)


class _MuxForward:
    """A port here whose connections go through a socket of the master's: a port of its own would be free when ssh ends.

    Another program could take that one, and get what clients send before the end is noticed.
    """

    def __init__(self, master: SshMaster, remote_port: int, local_port: int, remote_host: str) -> None:
        self._master, self._socket = master, master.socket.with_name(secrets.token_hex(4))
        self._what = f"{self._socket}:{host_port(remote_host, remote_port)}"
        self._forward = LoopbackForward(master.resolved.name, self._dial, local_port)
        self.local_port = self._forward.local_port
        try:
            self._control("forward")
        except BaseException:
            self._forward.close()
            raise

    def close(self) -> None:
        """Stop listening; may be called twice."""
        self._forward.close()
        with contextlib.suppress(HostError, UsageError):
            if self._socket.exists() and self._master.alive():
                self._control("cancel")
        self._socket.unlink(missing_ok=True)

    def _dial(self) -> Pipe:
        near = socket.socket(socket.AF_UNIX)
        try:
            near.connect(str(self._socket))
        except BaseException:
            near.close()
            raise
        return SocketPipe(near)

    def _control(self, verb: str) -> None:
        argv = ["ssh", "-F", "none", "-S", str(self._master.socket), "-O", verb, "-L", self._what, "--", "shared"]
        name = self._master.resolved.name
        done = process.run_process(argv, b"", Deadline.after(STEP_SECONDS))
        if done is None:
            raise TimedOut(name, f"ssh did not {verb} {self._what}", again=())
        if done.returncode:
            why = done.stderr.decode("utf-8", "replace").strip()
            raise UsageError(f"{name}: ssh cannot {verb} {self._what}: {why}", hint="vcluster check")
