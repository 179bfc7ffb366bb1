"""Programs that vcluster leaves in the background of this machine: found again, and ended."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.laptop import fresh_file, make_private, own_python, read_own_file, write_whole
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.wire.reading import RefusedDocument, read
from vllm_cluster.wire.values import Port, between

START_SECONDS, END_SECONDS, PS_SECONDS = 60.0, 15.0, 10.0
POLL = 0.05


@dataclass(frozen=True)
class Detached:
    """A program in the background: its process, by its start time too as numbers come again; and its local port.

    That port leads to an end that has the API key with this id itself, or nowhere.
    """

    # No number of a group: of 0 that is one's own.
    pid: Annotated[int, between(1, 1 << 31)]
    started: str
    port: Port
    # Empty in a note of an earlier version: such a one can be ended alone.
    key_id: str = ""

    @property
    def runs(self) -> bool:
        """Whether this process, and not another one of its number, is there."""
        return start_time(self.pid) == self.started


def start_time(pid: int) -> str | None:
    """When a process was started, as this system counts it; None where there is none."""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return None
        # A zombie has ended; its parent has not looked yet.
        return None if fields[0] == "Z" else f"{boot} {fields[19]}"
    argv = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    shown = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PS_SECONDS)
    state, _, when = shown.stdout.strip().partition(" ")
    return when.strip() if when and not state.startswith("Z") else None


class State:
    """Where a program in the background is noted, for its user alone."""

    def __init__(self, folder: Path, key: str) -> None:
        self.path, self.log = folder / f"{key}.json", folder / f"{key}.log"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among the programs that find, start or end it.

        Raises:
            VclusterError: a folder is where a file of it would be.
        """
        make_private(self.path.parent)
        for path in (self.path, self.log):
            if path.is_dir() and not path.is_symlink():
                text = f"{path} is a folder where a file of a tunnel would be"
                raise VclusterError(text, hint=command_line("rm", Option("-r"), str(path)))
        # The folder itself: a file for the lock would be left, or removed under another one's hands.
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def read(self) -> Detached | None:
        """What is noted; None where nothing is, or it cannot be read."""
        try:
            return read(Detached, read_own_file(self.path), str(self.path))
        except (OSError, RefusedDocument):
            return None

    def running(self) -> Detached | None:
        """What runs; what is noted of a process that has ended is None."""
        found = self.read()
        return found if found and found.runs else None

    def note_this(self, port: int, key_id: str) -> None:
        """Note this process, whole or not at all."""
        mine = Detached(os.getpid(), start_time(os.getpid()) or "", port, key_id)
        write_whole(self.path, json.dumps(asdict(mine)), 0o600)

    def start(self, words: Sequence[str]) -> Detached:
        """Start a program of this Python that notes itself, and wait until it has.

        Raises:
            VclusterError: it ended before, with what it printed.
        """
        with os.fdopen(fresh_file(self.log, 0o600), "wb") as log:
            child = own_python(
                subprocess.Popen, words, start_new_session=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_SECONDS
        try:
            while child.poll() is None and time.monotonic() < deadline:
                found = self.running()
                if found and found.pid == child.pid:
                    child.returncode = 0  # it outlives this process, which does not wait for it
                    return found
                time.sleep(POLL)
        except BaseException:
            _end(child.pid, start_time(child.pid))
            raise
        _end(child.pid, start_time(child.pid))
        errors, fixes = self._last_words("error: "), self._last_words("fix: ")
        late = f"the tunnel did not open within {START_SECONDS:.0f} s"
        raise VclusterError(*(errors or [late]), hint="\n".join(fixes) or None, again=())

    def end(self) -> bool:
        """End it and remove what was noted; whether it ran."""
        found = self.running()
        if found:
            _end(found.pid, found.started)
        for path in (self.path, self.log):
            path.unlink(missing_ok=True)
        return found is not None

    def forget(self) -> None:
        """Remove what this process noted; nothing where another one has its place."""
        found = self.read()
        if found and found.pid == os.getpid():
            self.path.unlink(missing_ok=True)

    def why_ended(self) -> str:
        """The error with which the last one ended by itself; empty where it was ended, or is not known."""
        return "; ".join(self._last_words("error: "))

    def _last_words(self, label: str) -> list[str]:
        with suppress(OSError):
            lines = read_own_file(self.log).decode("utf-8", "replace").split("\n")
            return [line.removeprefix(label).strip() for line in lines if line.startswith(label)]
        return []


def keep_log_own() -> None:
    """Write nothing but this program's own words into its log, of which the next call shows errors and remedies.

    What the commands of an inventory write there may come from any server that they ask.
    """
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    with open(os.devnull, "wb") as nothing:  # noqa: PTH123 - its number is needed
        os.dup2(nothing.fileno(), 2)


def _end(pid: int, started: str | None) -> None:
    """Ask a process to end, and make it after a while."""
    for number, seconds in ((signal.SIGTERM, END_SECONDS), (signal.SIGKILL, END_SECONDS)):
        if started is None or start_time(pid) != started:
            return
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + seconds
        while start_time(pid) == started and time.monotonic() < deadline:
            time.sleep(POLL)
