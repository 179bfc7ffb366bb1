"""This machine itself as a host, without SSH."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace

from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.transport import command_line, process
from vllm_cluster.kernel.transport.base import Forward, Result, Stream, Target
from vllm_cluster.kernel.transport.carrier import Carrier
from vllm_cluster.kernel.transport.forward import LoopbackForward, SocketPipe

_DIAL_SECONDS = 10.0
# No command of a host meets the current folder: Python would import a json.py that lies there.
_FOLDER = "/"


class LocalTransport(Carrier):
    """Commands of this machine, with the manners of a remote one."""

    kind = "local"

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._streams: set[process.ProcessStream] = set()
        self._running: set[subprocess.Popen[bytes]] = set()

    def _connect(self, deadline: Deadline) -> None:
        """Nothing to do: it is here."""

    def _run(self, argv: Sequence[str], deadline: Deadline, stdin: bytes, most: int) -> Result:
        words, seconds = command_line.encoded(argv), deadline.left()
        self._count()
        try:
            result = process.run_process(words, stdin, deadline, _FOLDER, most=most, running=self._running)
        except OSError as error:
            return _not_started(argv, error)
        if result is None:
            raise self._not_ended(f"`{command_line.shorten_command(argv)}`", seconds)
        return replace(result, stdout=result.stdout[:most], stderr=result.stderr[:most])

    def _open_stream(self, argv: Sequence[str], deadline: Deadline) -> Stream:
        # Through a shell, so that a command that does not exist is reported on standard error as it does remotely.
        line = command_line.posix_line(argv)
        self._count()
        stream = process.ProcessStream(
            ["sh", "-c", line], lambda code: None, lambda: self._streams.discard(stream), _FOLDER
        )
        self._streams.add(stream)
        return stream

    def _forward(self, remote_port: int, local_port: int, remote_host: str) -> Forward:
        return LoopbackForward(self.host, lambda: SocketPipe.dial(remote_host, remote_port, _DIAL_SECONDS), local_port)

    def require_alive(self) -> None:
        """This machine is always there."""

    def close(self) -> None:
        """End the streams that are still open, and the commands that still run, as the end of a connection does."""
        for stream in list(self._streams):
            stream.close()
        for one in list(self._running):
            process.end(one)


def _not_started(argv: Sequence[str], error: OSError) -> Result:
    code = 127 if isinstance(error, FileNotFoundError) else 126
    return Result(code, b"", f"{argv[0]}: {error.strerror}\n".encode("utf-8", "surrogateescape"))
