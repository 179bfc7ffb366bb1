"""Child processes: their lines, their ends, and what they leave behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from vllm_cluster.serving.node.backends import backend
from vllm_cluster.serving.node.proc import processes
from vllm_cluster.wire.keys import valid_keys

KEPT_LINES = 40
MAX_LINE = 16 * 1024
# The file of the cluster's token, where nothing else names it.
NODE_TOKEN = "VCLUSTER_NODE_TOKEN_FILE"  # noqa: S105 (a name)
SECRET_FILES = (NODE_TOKEN, backend.TOKEN_PATH, "VCLUSTER_API_KEY_FILE", "HF_TOKEN_PATH")
# JSON: the variables that only processes below this one get, and the file with the value of each.
HIDDEN_VARIABLES = "VCLUSTER_SECRET_ENVIRONMENT"
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def log_line(name: str, line: str) -> None:
    """Print one line to the container's log; in one write, because threads print too."""
    sys.stdout.write(f"[{name}] {line}\n")
    sys.stdout.flush()


def lines_of(pipe: int, longest: int) -> Iterator[str]:
    """The lines of a pipe without colours, each cut to a length: one endless line must not fill the memory."""
    rest = b""
    while data := os.read(pipe, 65536):
        *whole, rest = re.split(rb"[\r\n]", rest + data)
        rest = rest[: longest + 1]
        yield from (_clean(line, longest) for line in whole if line)
    if rest:
        yield _clean(rest, longest)


def _clean(raw: bytes, longest: int) -> str:
    text = _COLOURS.sub("", raw[:longest].decode("utf-8", "replace"))
    return text if len(raw) <= longest else f"{text} [cut]"


def secret_files() -> dict[str, Path]:
    """The files of secrets by the variable that names each, or that the node program sets to what the file holds."""
    named = {name: Path(os.environ[name]) for name in SECRET_FILES if os.environ.get(name)}
    more = json.loads(os.environ.get(HIDDEN_VARIABLES, "{}"))
    return {**named, **{name: Path(path) for name, path in more.items()}}


def missing_secrets() -> list[str]:
    """The files of secrets that cannot be read."""
    return [str(path) for path in secret_files().values() if not os.access(path, os.R_OK)]


def secret_environment() -> dict[str, str]:
    """The variables that Ray, vLLM and their ranks get with the values of secrets."""
    return {name: path.read_text() for name, path in secret_files().items() if name not in SECRET_FILES}


def secrets() -> tuple[str, ...]:
    """The values that no log may hold."""
    files = [path for path in secret_files().values() if os.access(path, os.R_OK)]
    values = [key.decode("utf-8", "replace") for file in files for key in valid_keys(file.read_bytes())]
    return tuple(value for value in values if len(value) >= 8)


def descendants() -> list[int]:
    """Every process below this one; orphans come to us when we are their subreaper."""
    table = processes()
    found = [os.getpid()]
    for parent in found:
        found += [pid for pid, (its_parent, _) in table.items() if its_parent == parent]
    return found[1:]


def end(alive: Callable[[], list[int]], grace: Callable[[], float], tend: Callable[[], object]) -> None:
    """Ask processes to end, and after the grace, which may shrink meanwhile, make them; `tend` reaps."""
    for sent, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, lambda: 5.0)):
        began = time.monotonic()
        for pid in alive():
            try:
                os.kill(pid, sent)
            except ProcessLookupError:
                continue
        while True:
            tend()
            if not alive():
                return
            if time.monotonic() - began >= wait():
                break
            time.sleep(0.02)


class Child:
    """A command in a session of its own: its lines are printed, and the last ones kept."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        see: Callable[[str], None],
        *,
        quiet: bool = False,
        stdin: int = subprocess.DEVNULL,
        max_line: int = MAX_LINE,
    ) -> None:
        self.name, self.began, self._max_line = name, time.monotonic(), max_line
        self.tail: deque[str] = deque(maxlen=KEPT_LINES)
        self._see, self._quiet, self._secrets = see, quiet, secrets()
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        out, err = subprocess.PIPE, subprocess.STDOUT
        try:
            self._process = subprocess.Popen(argv, env=env, stdin=stdin, stdout=out, stderr=err, start_new_session=True)
        except OSError as error:
            self._take(f"{argv[0]}: {error.strerror}")
            return
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int | None:
        """None when it could not be started."""
        return self._process.pid if self._process else None

    def code(self) -> int | None:
        """How it ended, as a shell counts; None while it runs."""
        if self._process is None:
            return 127
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def alive(self) -> list[int]:
        """What lives of its session: the command may have ended before what it started."""
        return [pid for pid, (_, session) in processes().items() if session == self.pid]

    def read_rest(self) -> None:
        """Wait for its last lines; a stray process that holds the pipe open must not stop us."""
        if self._reader:
            self._reader.join(2.0)

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdout:
            with process.stdout as pipe:
                for line in lines_of(pipe.fileno(), self._max_line):
                    self._take(line)

    def _take(self, line: str) -> None:
        for secret in self._secrets:
            line = line.replace(secret, "***")
        self.tail.append(line)
        if not self._quiet:
            log_line(self.name, line)
        try:
            self._see(line)
        except Exception as fault:  # without its reader a command ends at its next line
            log_line(self.name, f"the line above cannot be read: {type(fault).__name__}")
