"""A person's own command in a node's container: its input and output, its signals, its terminal, its exit code."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence

from vllm_cluster.kernel.docker.log_frames import OutputFrames
from vllm_cluster.kernel.docker.streams import RunningExec
from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.hosts.program import RemoteProgram
from vllm_cluster.kernel.node.handle import NodeHandle

# Docker has no way to signal a command that it runs: its number is the first line that it prints.
_NUMBERED = 'echo "$$"; exec "$@"'
# A command of which only the session is known, as it may clear its environment.
_NOTED = 'echo "$$" 2>/dev/null >"/tmp/vcluster.$VCLUSTER_EXEC"; '
_SIGNAL = 'kill -s "$1" -- "-$2" 2>/dev/null || kill -s "$1" "$2"'
# Docker leaves a command alone when its caller is gone, and a closed input may be the caller's intention. So a second
# command waits for the end of its own input, and then ends all that carries the mark, also what starts late, and all
# of the command's session, which has no mark after env -i.
MARK = "VCLUSTER_EXEC"
_LIFELINE = """read -r _; ended=$?
session=$(cat "/tmp/vcluster.$1"); rm -f "/tmp/vcluster.$1"
[ $ended = 0 ] && exit
for signal in HUP HUP HUP KILL KILL KILL; do
  for one in $(grep -alsF "VCLUSTER_EXEC=$1" /proc/[0-9]*/environ); do
    one=${one#/proc/}; kill -s $signal "${one%/environ}"
  done
  for one in /proc/[0-9]*/stat; do
    read -r row <$one || continue
    set -- "$1" ${row##*) }
    [ "${5:-none}" = "$session" ] && one=${one#/proc/} && kill -s $signal "${one%/stat}"
  done
  sleep 1
done 2>/dev/null"""
SIGNAL_SECONDS = 10.0
CODE_SECONDS = 10.0
CODE_PAUSE = 0.05
# Of a process, in characters.
MAX_NUMBER = 20
# Whether it is standard error, and what was printed.
Out = Callable[[bool, bytes], None]


class NodeCommand:
    """One command in a node; `size` is that of the terminal that it gets, None for none."""

    def __init__(
        self, node: NodeHandle, argv: Sequence[str], size: tuple[int, int] | None, environment: Mapping[str, str]
    ) -> None:
        self._node, self._argv, self._size, self._environment = node, list(argv), size, environment
        self._running: RunningExec | None = None
        self._pid: str | None = None
        self._known = threading.Event()

    def run(self, out: Out, read: Callable[[], bytes] | None) -> int:
        """Run it to its end, with what `read` gives as its input; the exit code.

        Raises:
            NodeMissing: the node does not run.
            HostError: it could not be started, or the connection broke.
        """
        node, terminal = self._node, self._size is not None
        node.ensure_running()
        script = _NOTED + ('exec "$@"' if terminal else _NUMBERED)
        argv = ["sh", "-c", script, "sh", *self._argv]
        streams, mark = node.connection.docker.streams, node.connection.runtime.token(16)
        environment = {**self._environment, MARK: mark}
        with (
            streams.exec(node.name, ["sh", "-c", _LIFELINE, "sh", mark]) as lifeline,
            streams.exec(node.name, argv, terminal=terminal, environment=environment) as running,
        ):
            self._running = running
            if self._size:
                self.resize(self._size)
            if read:
                node.connection.runtime.background(lambda: _feed(running, read), "input")
            else:
                running.end_input()
            if terminal:
                for data in running.output():
                    out(False, data)
            else:
                self._print(running, out)
            code = self._code(running)
            with contextlib.suppress(HostError):
                lifeline.send(b"\n")  # what it left running on purpose stays
            return code

    def _print(self, running: RunningExec, out: Out) -> None:
        frames, head = OutputFrames(), b""
        try:
            for piece in running.output():
                for of_errors, content in frames.parts(piece):
                    if self._pid is not None or of_errors:
                        out(of_errors, content)
                        continue
                    head += content
                    number, end, rest = head.partition(b"\n")
                    if len(number) > MAX_NUMBER:
                        raise ValueError("it does not begin with the number of the command")
                    if end:
                        self._pid = number.decode("ascii", "replace")
                        self._known.set()
                        out(False, rest)
        except ValueError as error:
            raise HostError(self._node.host, f"exec: Docker's answer cannot be read: {error}", again=()) from error

    def _code(self, running: RunningExec) -> int:
        """Its exit code, which Docker knows a moment after its output has ended."""
        runtime = self._node.connection.runtime
        deadline = runtime.after(CODE_SECONDS)
        while (code := running.code()) is None:
            if not deadline.left():
                raise HostError(self._node.host, "exec: its output has ended, and the command runs on", again=())
            runtime.clock.sleep(CODE_PAUSE)
        return code

    def resize(self, size: tuple[int, int]) -> None:
        """Give its terminal another size; one that has ended needs none."""
        if self._running:
            with contextlib.suppress(HostError):
                self._running.resize(*size)

    def signal(self, name: str) -> None:
        """Send a signal to the command and what it has started; with a terminal the terminal does that."""
        if self._size is not None or not self._known.wait(SIGNAL_SECONDS):
            return
        program = RemoteProgram("signal", ("sh", "-c", _SIGNAL, "sh", name, str(self._pid)), SIGNAL_SECONDS)
        with contextlib.suppress(HostError):
            self._node.run(program, SIGNAL_SECONDS)


def _feed(running: RunningExec, read: Callable[[], bytes]) -> None:
    # A command may end without reading its input.
    with contextlib.suppress(HostError, OSError):
        while data := read():
            running.send(data)
        running.end_input()
