"""The logs that a person names, as sources: files, packed or not, folders of them, and standard input."""

from __future__ import annotations

import gzip
import os
import re
import stat
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from typing import IO, cast

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.explain.log_line import UNDATED
from vllm_cluster.kernel.explain.scan import LogSource
from vllm_cluster.kernel.laptop import open_given
from vllm_cluster.kernel.shell_line import command_line

PART = 1 << 20
LOOKED_AT = 64 << 10
# Where a log was cut while its program wrote on, or its host lost power, it has a run of these.
_NEVER_WRITTEN = re.compile(rb"\0{16,}")
MAX_BYTES = 64 << 30
# What all packed files of a call may unpack to: 0.5 MB held 500 MB, and took 95 s without a line of an error in it.
MAX_UNPACKED_BYTES = 256 << 20
MAX_FILES = 1000
# No log is older: in 2023.
FIRST_RELEASE = 1_672_531_200.0
# What vLLM, Ray, Docker and log rotation name a log, in a folder that may hold other files too.
_LOG = re.compile(r"\.(log|out|err|txt)(\.\d+)?(\.gz)?$")


@dataclass
class _Unpacked:
    """How many bytes the packed files of a call have unpacked to."""

    size: int = 0

    def add(self, name: str, part: bytes) -> None:
        self.size += len(part)
        if self.size > MAX_UNPACKED_BYTES:
            text = f"{name}: the packed logs are together more than {MAX_UNPACKED_BYTES >> 20} MiB when unpacked"
            raise UsageError(text, hint="give the end of one: gzip -dc FILE | tail -c 100M | vcluster explain -")


def sources_of(paths: Sequence[Path]) -> tuple[list[LogSource], int]:
    """The sources, and how many bytes they have as they lie there.

    Raises:
        UsageError: one of them cannot be read, or is not a log; some of it only while it is read.
    """
    paths = [file for path in paths for file in _files(path)]
    if len(paths) > MAX_FILES:
        raise UsageError(f"{len(paths)} files are more than {MAX_FILES}", hint="give the logs of one failure")
    unpacked = _Unpacked()
    opened = [_open(path, unpacked) for path in paths]
    return opened, sum(path.stat().st_size for path in paths if path.is_file())


def holds_logs(path: Path) -> bool:
    """Whether it is a file, or a folder of logs; that of a model has texts, as merges.txt, beside its config.json."""
    of_model = (path / "config.json").is_file()
    return path.exists() and any(not (of_model and ".txt" in one.name) for one in _logs(path))


def _logs(path: Path) -> Sequence[Path]:
    """The logs of a folder and of those below it; a file as it is."""
    if not path.is_dir():
        return [path]
    return sorted(one for one in path.rglob("*") if one.is_file() and _LOG.search(one.name))


def _files(path: Path) -> Sequence[Path]:
    """As `_logs`, for a folder that has some.

    Raises:
        UsageError: the folder holds none.
    """
    found = _logs(path)
    if not found:
        raise UsageError(f"{path} holds no logs", hint="name the files: their names need not end in .log, .out or .err")
    return found


def _open(path: Path, unpacked: _Unpacked) -> LogSource:
    """A file as a source; what it is, is looked at before anything is read."""
    if str(path) == "-":
        parts = _parts("standard input", lambda: sys.stdin.buffer, unpacked)
        return LogSource("standard input", parts, newest=datetime.now(UTC).timestamp())
    try:
        about = path.stat()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="vcluster explain FILE…") from None
    # A pipe is what a shell makes of <(docker logs NAME).
    if not (stat.S_ISREG(about.st_mode) or stat.S_ISFIFO(about.st_mode)):
        raise UsageError(f"{path} is not a file", hint="vcluster explain FILE…")
    if not os.access(path, os.R_OK):
        raise UsageError(f"{path} cannot be read: permission denied", hint=command_line("stat", str(path)))
    parts = _parts(str(path), lambda: open_given(path), unpacked)
    # An archive may have kept no times: there was no vLLM then.
    return LogSource(str(path), parts, newest=about.st_mtime if about.st_mtime > FIRST_RELEASE else UNDATED)


def _parts(name: str, start: Callable[[], IO[bytes]], unpacked: _Unpacked) -> Iterator[tuple[int, bytes]]:
    """Pieces of whole lines, packed or not; a line of more than a piece is cut.

    Raises:
        UsageError: it is not text, or is broken.
    """
    number, size, rest = 1, 0, b""
    try:
        with start() as stream:
            for read in _read(name, stream, unpacked):
                part = _NEVER_WRITTEN.sub(b"", read) if b"\0" in read else read
                if not size and (b"\0" in part[:LOOKED_AT] or part.startswith((b"\xff\xfe", b"\xfe\xff"))):
                    raise UsageError(f"{name} is not text", hint="give a log: lines of text in UTF-8")
                size += len(part)
                if size > MAX_BYTES:
                    raise UsageError(f"{name} is more than {MAX_BYTES >> 30} GiB", hint="give its end: tail -c 1G")
                rest += part
                cut = rest.rfind(b"\n") + 1
                if cut or len(rest) >= PART:
                    piece, rest = (rest[:cut], rest[cut:]) if cut else (rest, b"")
                    yield number, piece
                    number += piece.count(b"\n")
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{name} cannot be read to its end: {_reason(error)}", hint="vcluster explain FILE…") from None
    if rest:
        yield number, rest


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _read(name: str, stream: IO[bytes], unpacked: _Unpacked) -> Iterator[bytes]:
    packed = cast(BufferedReader, stream).peek(2).startswith(b"\x1f\x8b")
    stream = cast(IO[bytes], gzip.GzipFile(fileobj=stream)) if packed else stream
    while part := stream.read(PART):
        if packed:
            unpacked.add(name, part)
        yield part
