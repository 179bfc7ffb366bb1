"""A program on a terminal of its own: what it shows there, and keys that a person presses."""

from __future__ import annotations

import fcntl
import os
import pty
import selectors
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

CTRL_C, CTRL_D = "\x03", "\x04"


class Terminal:
    """Runs a program whose standard input, output and error are one terminal of some rows and columns."""

    def __init__(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        size: tuple[int, int] = (50, 200),
    ) -> None:
        self._near, far = pty.openpty()
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        self.shown = ""
        self.process = subprocess.Popen(
            # Ctrl-C is a signal only on the terminal that controls the session.
            ["setsid", "--ctty", *argv],
            stdin=far,
            stdout=far,
            stderr=far,
            env={**(os.environ if env is None else env), "TERM": "xterm"},
            cwd=cwd,
        )
        os.close(far)

    def until(self, text: str, seconds: float = 60, *, after: int = 0) -> str:
        """Read until the terminal has shown this, after so many characters; returns all that it has shown."""
        deadline = time.monotonic() + seconds
        while text not in self.shown[after:]:
            if not self._read(deadline):
                raise AssertionError(f"{text!r} was never shown:\n{self.shown}")
        return self.shown

    def until_more(self, shown: str, seconds: float = 60) -> None:
        """Read until the terminal has shown more than this."""
        deadline = time.monotonic() + seconds
        while len(self.shown) <= len(shown):
            if not self._read(deadline):
                raise AssertionError(f"nothing came after {shown!r}")

    def press(self, keys: str) -> None:
        """Type on the keyboard."""
        os.write(self._near, keys.encode())

    def end(self, seconds: float = 60) -> int:
        """Read to the end; returns the exit code."""
        deadline = time.monotonic() + seconds
        while self._read(deadline):
            pass
        return self.process.wait(max(0.1, deadline - time.monotonic()))

    def close(self) -> None:
        """Close the terminal's window."""
        if self._near >= 0:
            os.close(self._near)
        self._near = -1

    def _read(self, deadline: float) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._near, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise AssertionError(f"nothing more was shown:\n{self.shown}")
        try:
            data = os.read(self._near, 65_536)
        except OSError:  # how Linux reports that no program has the terminal open any more
            return False
        self.shown += data.decode("utf-8", "replace")
        return bool(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.close()
