"""The files of a model in a folder of this machine: listed, hashed, and sent into the pull's container of a host."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NoReturn

from vllm_cluster.features.pull.known_hashes import KnownHashes, settled, stamp
from vllm_cluster.kernel.clock import Clock, Deadline
from vllm_cluster.kernel.errors import HostError, UsageError
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.hosts.program import InNode, RemoteProgram, RunningProgram, start
from vllm_cluster.kernel.laptop import real
from vllm_cluster.kernel.plan.pull import FOLDER, choose_files, container_name, unfit_path
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.text import count, printable
from vllm_cluster.wire.programs import FedRow
from vllm_cluster.wire.pull import ModelFile
from vllm_cluster.wire.values import MAX_SIZE

START_SECONDS = 60.0
# Until the program that feeds has begun: what a host has of the files is hashed first.
READY_SECONDS = 50_000.0
# 10 TB at 100 Mbit/s.
FEED_SECONDS = 1e6
# Until it has put a file in its place: a flush of a large one to a slow disk.
PLACE_SECONDS = 600.0
PIECE = 1 << 20
# Small files that are sent before an answer is awaited: the answers fit into any pipe.
AHEAD = 256
# Models have hundreds; each takes 2.5 KB of memory here until it is sent, and 23 bytes of the host's first answer.
MAX_FILES = 10_000
# Of links that are refused so many are named.
MAX_LINKS = 10
# How much it has of each of so many files, on one line.
MAX_ANSWER = 256 << 10
# Where the hub's cache and a folder of models have a model.
_DEEPER = ("*/config.json", "snapshots/*/config.json")
# A folder on the way to a file: entered, and not read, where the system knows that.
_STEP = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_FEED = f"import sys; sys.path.insert(0, {FOLDER!r}); from vllm_cluster.kernel.spread.feed import main; main()"


def listed(folder: Path, name: str) -> tuple[ModelFile, ...]:
    """The files of a folder, which is to get this name, empty for its own.

    Raises:
        UsageError: it is not a model, or cannot be read, or a link leads out of it.
    """
    if not (folder / "config.json").is_file():
        found = next((path.parent for form in _DEEPER for path in sorted(folder.glob(form))), None)
        raise UsageError(f"{folder} has no config.json: not a model", hint=pull_line(found or folder / "FOLDER", name))
    try:
        paths = islice(_visible(folder), MAX_FILES + 1)
        files = tuple(ModelFile(str(path.relative_to(folder)), path.stat().st_size, "") for path in paths)
    except OSError as error:
        raise UsageError(
            f"{error.filename or folder}: {error.strerror}",
            hint=command_line("stat", str(error.filename or folder)),
        ) from None
    if large := next((file for file in files if file.size > MAX_SIZE), None):
        text = f"{folder / large.path} has {large.size} bytes: at most {MAX_SIZE} are sent"
        raise UsageError(text, hint=command_line("stat", str(folder / large.path)))
    if len(files) > MAX_FILES:
        raise UsageError(f"{folder} has more than {MAX_FILES} files", hint=pull_line(folder / "FOLDER", name))
    if (wrong := unfit_path(files)) is not None:
        raise UsageError(f"{folder}: a file's name cannot be on every host: {wrong[:80]!a}", hint="rename that file")
    return files


def hashed(
    folder: Path, files: Sequence[ModelFile], count: Callable[[int], None], known: KnownHashes, clock: Clock
) -> tuple[ModelFile, ...]:
    """The same files, those that vLLM reads with their sha256; `count` gets the bytes that were hashed.

    A file that is as it was when its hash was `known` is not read again.

    Raises:
        UsageError: one cannot be read.
    """
    read, others = choose_files(files)
    stop = threading.Event()

    def found(file: ModelFile) -> str:
        return "" if stop.is_set() else _hash(folder, file, counted, known, clock)

    def counted(number: int) -> None:
        count(number)
        if stop.is_set():
            raise InterruptedError

    try:
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            try:
                hashes = list(pool.map(found, read))
            except BaseException:
                # The pool waits for its threads: of a file of terabytes until it is read.
                stop.set()
                raise
        return (*(replace(file, blob=blob) for file, blob in zip(read, hashes, strict=True)), *others)
    except OSError as error:
        raise UsageError(
            f"{error.filename or folder}: {error.strerror}",
            hint=command_line("stat", str(error.filename or folder)),
        ) from None


def pull_line(source: object, name: str) -> str:
    """The command that pulls a folder under this name, empty for its own."""
    return command_line("vcluster", "pull", str(source), *([Option("--as"), name] if name else []))


def refused_links(folder: str, links: Sequence[tuple[str, str]], on: str = "") -> tuple[str, str]:
    """What is wrong with these links of a folder, each with where it leads, and what a person does about them.

    No command copies what they lead to: one of them may be the model's, and the next lead to a private key.
    """
    shown = [f"{printable(name)} → {printable(target)}" for name, target in links[:MAX_LINKS]]
    more = [f"{len(links) - MAX_LINKS} more"] if len(links) > MAX_LINKS else []
    text = f"{folder} has {count(len(links), 'link')} that cannot be followed: {', '.join((*shown, *more))}"
    remedy = "put a model's own file or folder in place of its link, and remove the other links"
    return (
        text,
        f"{remedy}; to see them all:\n{command_line('find', folder, Option('-type'), 'l', Option('-ls'), on=on)}",
    )


def _visible(folder: Path) -> Iterator[Path]:
    """The files below a folder, but for hidden ones."""
    below = _below(real(folder))
    links: list[Path] = []
    for place, names, files in os.walk(folder, onerror=_refuse):
        names[:] = [name for name in names if not name.startswith(".")]
        links += [path for name in names if (path := Path(place) / name).is_symlink()]
        for path in (Path(place) / name for name in files if not name.startswith(".")):
            if path.is_symlink() and not path.exists():
                hint = f"{command_line('rm', str(path))}, or put the file there"
                raise UsageError(f"{path} is a link to {path.readlink()}, which is not there", hint=hint)
            if path.is_symlink() and not any(real(path).is_relative_to(one) for one in below):
                # Every host would get that file.
                links.append(path)
            elif path.is_file():
                yield path
            elif path.exists():
                # Left out it would be missed on every host, at the earliest when the model is loaded.
                raise UsageError(f"{path} is not a plain file", hint=command_line("rm", str(path)))
    if links:
        text, hint = refused_links(str(folder), [(str(one.relative_to(folder)), str(real(one))) for one in links])
        raise UsageError(f"{text}; every host would get what is there", hint=hint)


def _refuse(error: OSError) -> NoReturn:
    """Of a folder that cannot be listed no part is left out."""
    raise error


def _below(root: Path) -> tuple[Path, ...]:
    """Where the files of a folder may be: a snapshot in the hub's own cache has them beside it."""
    return (root, root.parents[1] / "blobs") if root.parent.name == "snapshots" else (root,)


def _open(folder: Path, name: str) -> BinaryIO:
    """Open a file of a folder, of which no part is a link.

    Whoever may write in it, or above it, can put a link to a private key in its place once it was listed.

    Raises:
        OSError: it leads out of the folder now, or cannot be read.
    """
    path = folder / name
    real = Path(os.path.realpath(path))
    if not any(map(real.is_relative_to, _below(folder))):
        raise OSError(errno.ELOOP, f"has become a link to {real}", str(path))
    step = os.open("/", _STEP)
    try:
        for part in real.parts[1:-1]:
            before, step = step, os.open(part, _STEP | os.O_NOFOLLOW, dir_fd=step)
            os.close(before)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        number = os.open(real.name, flags, dir_fd=step)
        if not stat.S_ISREG(os.fstat(number).st_mode):
            os.close(number)
            raise OSError(errno.EINVAL, "is not a plain file any more", str(path))
        return os.fdopen(number, "rb")
    finally:
        os.close(step)


def _hash(folder: Path, file: ModelFile, count: Callable[[int], None], known: KnownHashes, clock: Clock) -> str:
    found, left = hashlib.sha256(), file.size
    with _open(folder, file.path) as stream:
        before = os.fstat(stream.fileno())
        if there := known.find(stamp(before)):
            return there
        # One that grows while it is read would be read without end.
        while left and (piece := stream.read(min(left, PIECE))):
            found.update(piece)
            left -= len(piece)
            count(len(piece))
        if left or stream.read(1):
            raise OSError(errno.EBUSY, "changes while it is hashed", str(folder / file.path))
        known.keep(settled(before, os.fstat(stream.fileno()), clock.time()), found.hexdigest())
    return found.hexdigest()


def feed(connection: HostConnection, cluster: str, files: Sequence[ModelFile], folder: Path) -> None:
    """Send what the host lacks of these files of a folder, in their order, each from where it broke off.

    Raises:
        HostError: the host takes no more, or a file has another content than it should.
        UsageError: a file cannot be read, or has changed since it was hashed.
    """
    words = ("python3", "-u", "-c", _FEED)
    program = RemoteProgram("feed", words, FEED_SECONDS, changes=True, max_line=MAX_ANSWER)
    after = connection.runtime.after
    with start(connection, program, InNode(container_name(cluster)), after(START_SECONDS)) as there:
        row = _next(there, after(START_SECONDS))
        ready = after(READY_SECONDS)
        while row.have is None:
            # It reports every half second that it waits: without that, nothing is to be waited for.
            row = _next(there, ready.sooner(PLACE_SECONDS))
        if not len(files) == len(row.have) == len(row.whole):
            raise HostError(connection.name, f"pull: lists {len(row.have)} files of {len(files)}", again=())
        here = list(zip(files, row.have, row.whole, strict=True))
        if wrong := next((file for file, have, _ in here if have > file.size), None):
            raise HostError(connection.name, f"pull: has more of {wrong.path} than its {wrong.size} bytes", again=())
        left = [(at, have) for at, (_, have, whole) in enumerate(here) if not whole]
        for group in _groups(files, left):
            # What is wrong the host removes: an earlier run may have left it.
            again = [(at, 0) for at in _send_group(connection, there, files, folder, group)]
            if again and (still := _send_group(connection, there, files, folder, again)):
                text = f"pull: {files[still[0]].path} has changed since it was hashed"
                raise HostError(connection.name, text, again=())


def _groups(files: Sequence[ModelFile], left: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """What is sent before an answer is awaited: a large file, or so many small ones that few answers are waited for."""
    group, size = list[tuple[int, int]](), 0
    for at, have in left:
        group.append((at, have))
        size += files[at].size - have
        if size >= PIECE or len(group) == AHEAD:
            yield group
            group, size = [], 0
    if group:
        yield group


def _send_group(
    connection: HostConnection,
    there: RunningProgram,
    files: Sequence[ModelFile],
    folder: Path,
    group: Sequence[tuple[int, int]],
) -> list[int]:
    """Send files, each from a byte on; those whose content is another on the host."""
    for at, begin in group:
        size = files[at].size - begin
        there.send({"file": at, "size": size})
        _send(folder, files[at].path, begin, size, there.send_bytes)
    wrong = []
    for at, _ in group:
        row = _next(there, connection.runtime.after(PLACE_SECONDS))
        wrong += [at] if row.wrong is not None else []
    return wrong


def _send(folder: Path, name: str, begin: int, left: int, put: Callable[[bytes], None]) -> None:
    path = folder / name
    try:
        with _open(folder, name) as stream:
            stream.seek(begin)
            while left and (data := stream.read(min(left, PIECE))):
                put(data)
                left -= len(data)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint=command_line("stat", str(path))) from None
    if left:
        raise UsageError(f"{path} has become shorter since it was hashed", again=())


def _next(there: RunningProgram, deadline: Deadline) -> FedRow:
    row = there.read(FedRow, deadline)
    if row.error is not None:
        raise HostError(there.host, f"pull: {row.error}", again=())
    return row
