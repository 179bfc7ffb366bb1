"""This machine's terminal, signals and streams, lent to a command elsewhere."""

from __future__ import annotations

import os
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_cluster.actions.exec import Controlled, Size

_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
# A command that ignores a signal so often is left to itself.
PATIENCE = 3
CHUNK = 32_768


class LocalEnds:
    """Standard input, output and error; with `terminal` the terminal too, in raw mode."""

    def __init__(self, *, terminal: bool) -> None:
        self._terminal = terminal
        self._commands: list[Controlled] = []
        self._signals = 0

    def size(self) -> Size | None:
        """The terminal's rows and columns."""
        if not self._terminal:
            return None
        size = os.get_terminal_size(sys.stdin.fileno())
        return size.lines, size.columns

    def environment(self) -> Mapping[str, str]:
        """The kind of terminal."""
        return {"TERM": os.environ.get("TERM", "xterm")} if self._terminal else {}

    def out(self, of_errors: bool, data: bytes, /) -> None:
        """Write it as it is."""
        stream = sys.stderr if of_errors else sys.stdout
        stream.buffer.write(data)
        stream.buffer.flush()

    def read(self) -> bytes:
        """The next of standard input."""
        try:
            return os.read(0, CHUNK)
        except OSError:
            return b""  # it is closed

    def attach(self, command: Controlled) -> None:
        """Send signals and sizes to this command, too."""
        self._commands.append(command)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Forward signals, and keys as they are pressed, until the command has ended."""
        before = {name: signal.signal(getattr(signal, name), self._forward) for name in _FORWARDED}
        if self._terminal:
            before["SIGWINCH"] = signal.signal(signal.SIGWINCH, self._resize)
        modes = termios.tcgetattr(0) if self._terminal else None
        try:
            if modes:
                tty.setraw(0)
            yield
        finally:
            if modes:
                termios.tcsetattr(0, termios.TCSADRAIN, modes)
            for name, handler in before.items():
                signal.signal(getattr(signal, name), handler)

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        self._signals += 1
        if self._terminal or self._signals > PATIENCE or not self._commands:
            # In raw mode Ctrl-C is a key; a signal is meant for this program.
            raise KeyboardInterrupt
        name = signal.Signals(number).name.removeprefix("SIG")
        self._each(lambda command: command.signal(name))

    def _resize(self, _number: int, _frame: FrameType | None) -> None:
        if size := self.size():
            self._each(lambda command: command.resize(size))

    def _each(self, work: Callable[[Controlled], None]) -> None:
        # Not in the handler: what it interrupts may hold the locks that a call to the host needs.
        for command in self._commands:
            threading.Thread(target=work, args=(command,), daemon=True).start()
