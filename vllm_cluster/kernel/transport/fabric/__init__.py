"""The default carrier: Fabric and paramiko, with a limit on every wait and a check of every key."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import ConnectionLost, ShellUnusable, TimedOut, Unreachable
from vllm_cluster.kernel.transport import command_line, connect_errors, locate
from vllm_cluster.kernel.transport.base import Forward, Result, Stream, Target
from vllm_cluster.kernel.transport.carrier import RETRY_SECONDS, SshCarrier
from vllm_cluster.kernel.transport.fabric.dial import STEP_SECONDS, open_connection
from vllm_cluster.kernel.transport.forward import LoopbackForward
from vllm_cluster.kernel.transport.jumps import Jumps
from vllm_cluster.kernel.transport.kept import Kept
from vllm_cluster.kernel.transport.ssh_config import SshEndpoint

if TYPE_CHECKING:
    import paramiko

    from vllm_cluster.kernel.transport.fabric.stream import FabricConnection


# Of a session, what may come before it is read: with paramiko's 2 MiB, 64 hosts that print 1 MB on both outputs took
# 143 MB in `logs`. A host that is 100 ms away sends 5 MB/s in it.
WINDOW = 512 << 10


class FabricTransport(SshCarrier):
    """One host over Fabric. Safe to use from several threads."""

    kind = "fabric"

    def __init__(self, target: Target, jumps: Jumps, endpoint: SshEndpoint | None = None) -> None:
        super().__init__(target, jumps, endpoint)
        self._open: FabricConnection | None = None

    def _connect(self, deadline: Deadline) -> None:
        with self._connecting:
            if self._open is not None and self._open.alive():
                return
            self._close()
            if self._endpoint is None:
                self._endpoint = locate(self._target)
            self._open = open_connection(self._endpoint, self._jumps, deadline)

    def _run(self, argv: Sequence[str], deadline: Deadline, stdin: bytes, most: int) -> Result:
        link, doing = self._link(), f"`{command_line.shorten_command(argv)}`"
        command_line.encoded(argv)
        with self._command(deadline, doing):
            command = command_line.with_timeout(argv, deadline.left())
            given, out, err = command.first + stdin, command.kept(most), command.kept(most)
            result = self._talk(link, command_line.LINE, given, deadline, doing, out=out, err=err)
        if not command.started(result):
            raise self._refused(link, result.stdout, result.stderr)
        return command.own(result, most)

    def _open_stream(self, argv: Sequence[str], deadline: Deadline) -> Stream:
        link, doing = self._link(), f"`{command_line.shorten_command(argv)}`"
        command = command_line.without_timeout(argv)
        self._take(self._streams, deadline, doing)
        try:
            channel = self._session(link, deadline, doing)
            stream = link.open_stream(channel, doing, self._streams.release)
        except BaseException:
            self._streams.release()
            raise
        try:
            link.session.begin(channel, command_line.LINE)
            stream.settimeout(max(deadline.left(), 0.001))
            # Where the host takes no input, nothing has started, which shows when the stream is read.
            with contextlib.suppress(BrokenPipeError):
                stream.sendall(command.first)
        except BaseException as error:
            stream.close()
            if isinstance(error, TimeoutError):
                raise TimedOut(self.host, f"{doing} did not start in time", again=()) from error
            if isinstance(error, link.BROKEN):
                raise link.lost(doing) from error
            raise
        return command_line.MarkedStream(stream, command, lambda out, err: self._refused(link, out, err))

    def _forward(self, remote_port: int, local_port: int, remote_host: str) -> Forward:
        link = self._link()
        doing = f"the tunnel to {remote_host}:{remote_port}"

        def dial() -> Stream:
            channel = link.session.open_channel(
                "direct-tcpip", (remote_host, remote_port), ("127.0.0.1", 0), timeout=STEP_SECONDS
            )
            return link.open_stream(channel, doing, lambda: None)

        return LoopbackForward(self.host, dial, local_port)

    def require_alive(self) -> None:
        """Raise where the connection is gone; keepalives find out."""
        self._link()

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _link(self) -> FabricConnection:
        link = self._open
        if link is None:
            raise self._unconnected()
        if not link.alive():
            raise self._gone(link.where, link.wire.failure or "it was closed")
        return link

    def _session(self, link: FabricConnection, deadline: Deadline, doing: str) -> paramiko.Channel:
        limit = deadline.sooner(STEP_SECONDS)
        while True:
            try:
                channel = link.session.open_session(WINDOW, timeout=max(limit.left(), 0.001))
            except link.REFUSED:
                # A command that timed out keeps its session until the host has ended it.
                if not limit.left():
                    raise connect_errors.no_session(self.host, link.where) from None
                time.sleep(RETRY_SECONDS)
            except link.BROKEN as error:
                if not link.alive():
                    lost = link.lost(doing)
                    raise Unreachable(self.host, lost.detail, hint=lost.hint, again=lost.again) from error
                # Of two sessions that are refused at one moment, paramiko keeps the reason for one alone.
                if not limit.left():
                    raise TimedOut(
                        self.host, f"sshd at {link.where} gave no session in time for {doing}", again=()
                    ) from error
                time.sleep(RETRY_SECONDS)
            else:
                self._count()
                return channel

    def _talk(
        self,
        link: FabricConnection,
        line: bytes,
        stdin: bytes,
        deadline: Deadline,
        doing: str,
        *,
        out: Kept,
        err: Kept,
    ) -> Result:
        channel = self._session(link, deadline, doing)
        started = deadline.left()
        try:
            link.session.begin(channel, line)
            result = link.collect(channel, stdin, deadline, out, err)
        except link.BROKEN as error:
            raise link.lost(doing) from error
        if result is None:
            # Closing sends a packet, and on a stuck connection that waits; no caller has to wait for it here.
            threading.Thread(target=_close_quietly, args=(link, channel), daemon=True).start()
            # Where sshd has answered, the login shell was started.
            if started >= command_line.LATE_SECONDS and channel.event_ready and not out.begun:
                raise command_line.late(self._target, started)
            raise self._not_ended(doing, started)
        _close_quietly(link, channel)
        if result.returncode == -1:
            raise self._no_exit_code(link, channel, doing)
        return result

    def _refused(self, link: FabricConnection, out: bytes, err: bytes) -> ShellUnusable:
        def ask() -> Result:
            deadline, doing = Deadline.after(command_line.ASK_SECONDS), "asking for the login shell"
            return self._talk(link, command_line.ASK, b"", deadline, doing, out=Kept(), err=Kept())

        return command_line.refusal(self._target, link.where, out, err, ask)

    def _no_exit_code(
        self, link: FabricConnection, channel: paramiko.Channel, doing: str
    ) -> ConnectionLost | Unreachable:
        if link.alive() and not channel.event_ready:
            return Unreachable(
                self.host, f"sshd at {link.where} refused to run {doing}", hint="may this user run commands there?"
            )
        if link.alive():
            return ConnectionLost(
                self.host, f"{doing} ended without an exit code: something killed its shell", again=()
            )
        return link.lost(doing)


def _close_quietly(link: FabricConnection, channel: paramiko.Channel) -> None:
    with contextlib.suppress(*link.BROKEN):
        channel.close()
