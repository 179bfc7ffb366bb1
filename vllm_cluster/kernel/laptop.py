"""This machine as it is: its folders and its user, and what an error of its operating system means."""

from __future__ import annotations

import errno
import os
import selectors
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from vllm_cluster.kernel.errors import UsageError, VclusterError
from vllm_cluster.kernel.shell_line import Option, command_line, shell_line

if TYPE_CHECKING:
    from vllm_cluster.kernel.clock import Deadline

T = TypeVar("T")
# What a person can do about an error; FOLDER is the folder of the path that could not be used.
_REMEDIES = {
    errno.ENOENT: "mkdir -p {folder}, or name another path",
    errno.ENOTDIR: "ls -ld {folder}: a file is in the place of a folder",
    errno.EISDIR: "name a file: {path} is a folder",
    errno.EACCES: "ls -ld {folder} shows who may use it; name another path",
    errno.EPERM: "ls -ld {folder} shows who may use it; name another path",
    errno.EROFS: "name a path on a file system that can be written",
    errno.ENOSPC: "df -h {folder}: free some space, or name another path",
    errno.EDQUOT: "quota: free some space, or name another path",
    errno.EMFILE: "ulimit -n 4096",
    errno.ENFILE: "close other programs: the whole machine has too many open files",
    errno.ENOMEM: "close other programs: this machine is out of memory",
}
STANDARD_OUTPUT = "standard output"
# What is read of a file that vcluster keeps; of any other size it is not its own.
MAX_KEPT = 3 << 20
# Until all has come through a pipe: its writer may be a tool that asks for a passphrase.
PIPE_SECONDS = 30.0
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# As many as Linux follows for one path.
_MAX_LINKS = 40
# With those at the top and those above the home folder.
_OF_ROOT = (Path("/run/user"), Path("/var/tmp"))  # noqa: S108 - what is in it is looked at apart
# These are about the machine also where the error names no file.
_OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def own_python(start: Callable[..., T], words: Sequence[str], settings: Mapping[str, str] = {}, **given: object) -> T:
    """Start this Python by `start`, which takes what subprocess.run takes: it imports what is installed, and no more.

    The current folder may be anybody's. `-I` would be the same without what `pip install --user` has installed.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return start([sys.executable, "-E", "-P", *words], cwd="/", env={**environment, **settings}, **given)


def here() -> Path:
    """The current folder.

    Raises:
        UsageError: it has been removed, or may not be entered.
    """
    try:
        return Path.cwd()
    except OSError as error:
        raise UsageError(f"the current folder cannot be used: {error.strerror}", hint="cd to another folder") from None


def home() -> Path:
    """The home folder.

    Raises:
        UsageError: this user has none, or HOME is one of the current folder, which may be anybody's.
    """
    try:
        found = Path.home()
    except RuntimeError:
        raise UsageError(f"user {user()} has no home folder", hint="export HOME=FOLDER") from None
    if not found.is_absolute():
        raise UsageError(f"HOME is {str(found)!r}, which depends on the current folder", hint="export HOME=FOLDER")
    return found


def expanded(path: str | Path) -> Path:
    """A path with its leading ~ as the home folder; as it is for a user who has none."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises for a user without a home


def real(path: Path) -> Path:
    """Return where a path leads to; of a link that leads to itself, that link, where `Path.resolve` may raise."""
    return Path(os.path.realpath(path))


def cache_folder() -> Path:
    """Where downloads are kept; removing it is harmless.

    Raises:
        UsageError: this user has no home folder, another user has made it, or others may write in it.
    """
    # A relative one is of the current folder, which may be anybody's; the XDG specification has it ignored.
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = (base if base.is_absolute() else home() / ".cache") / "vcluster"
    # What is built into images and which local ports get the key comes from it.
    there = real(folder)
    for path in (folder, *folder.parents, there, *there.parents):
        if _planted(path):
            text = f"{path} belongs to another user, in a folder where others may write"
            raise UsageError(text, hint="export XDG_CACHE_HOME=FOLDER, a folder of your own")
    if _shared(there):
        remove, close = command_line("rm", Option("-r"), str(there)), command_line("chmod", "go-w", str(there))
        hint = f"{remove}\nor, where only you are of its group: {close}"
        raise UsageError(f"others may write in {there}, so what is in it may be theirs", hint=hint)
    return folder


def _planted(path: Path) -> bool:
    """Whether another user may have put this there, as in /tmp or in a folder of a group."""
    try:
        return path.lstat().st_uid not in (0, os.geteuid()) and bool(path.parent.stat().st_mode & _OTHERS_WRITE)
    except OSError:
        return False


def _shared(folder: Path) -> bool:
    """Whether others may put files into a folder, as into one that was made with umask 002."""
    try:
        return bool(folder.stat().st_mode & _OTHERS_WRITE)
    except OSError:
        return False


def changed_by_others(file: Path) -> Path | None:
    """Find what lets another user change a file, or what is in a folder: itself, or one on the way; else None."""
    there = real(file)
    for path in _way_to(file.absolute()):
        try:
            about = path.lstat()
        except OSError:  # it is made later, or cannot be used
            continue
        # In a sticky folder, as /tmp, others may add, but not rename.
        added = path == there or not about.st_mode & stat.S_ISVTX
        kept = stat.S_ISDIR(about.st_mode) or stat.S_ISREG(about.st_mode)
        writable = kept and added and others_write(path, about)
        if writable or not (about.st_uid in (0, os.geteuid()) or _of_unmapped_root(path, about.st_uid)):
            return path
    return None


def _way_to(path: Path) -> Iterator[Path]:
    """Every folder and link that the system looks into for a path, also those of links on the way."""
    at, names, links = Path(path.anchor), list(reversed(path.parts[1:])), 0
    yield at
    while names:
        step = at / names.pop()
        yield step
        if not os.path.islink(step):  # noqa: PTH114 - Path.is_symlink raises for what may not be entered
            # What is above a folder is its parent, where no link is left.
            at = at.parent if step.name == ".." else step
            continue
        links += 1
        if links > _MAX_LINKS:
            return
        target = step.readlink()
        at = Path(target.anchor or at)
        names += reversed(target.parts[1:] if target.anchor else target.parts)


def others_write(file: Path | int, about: os.stat_result) -> bool:
    """Whether another user may write a file; not for a group of this user alone, which umask 002 is made for.

    By its descriptor where it is open: by then its name may lead elsewhere.
    """
    import grp  # noqa: PLC0415 - help and completion do not wait for it
    import pwd  # noqa: PLC0415 - as above

    if not about.st_mode & stat.S_IWGRP or about.st_mode & stat.S_IWOTH:
        return bool(about.st_mode & stat.S_IWOTH)
    if _has_acl(file):
        return True
    try:
        group, me = grp.getgrgid(about.st_gid), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return True
    # Another account may have it as its first group, which its members do not show.
    members = {*group.gr_mem, *(one.pw_name for one in pwd.getpwall() if one.pw_gid == about.st_gid)}
    return group.gr_name != me or not {me}.issuperset(members)


def _has_acl(file: Path | int) -> bool:
    """Whether more than owner, group and others have rights; the group's bits are then the most that any has."""
    look = getattr(os, "getxattr", None)  # Linux alone has it
    try:
        return bool(look and look(file, "system.posix_acl_access"))
    except OSError as error:
        # NFSv4 has ACLs of its own, and does not show them here.
        return error.errno != errno.ENODATA


def _of_unmapped_root(path: Path, owner: int) -> bool:
    """Whether this is a folder of root in a container of a user without rights, as of toolbox.

    There root's folders have the number of all who are not known, other users of the machine with them. So those alone
    count which only root makes.
    """
    if len(path.parts) > 2 and path not in (*home().parents, *_OF_ROOT):
        return False
    try:
        if Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]:
            return False
        return owner == int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return False


def make_private(folder: Path) -> None:
    """Make a folder for this user alone, and so those above it that are missing: mkdir leaves them to the umask."""
    if not folder.parent.exists():
        make_private(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def read_own_file(path: Path, most: int = MAX_KEPT) -> bytes:
    """What vcluster keeps in a file on this machine.

    Raises:
        OSError: there is none, or it is not a plain file of this user, or a longer one: none is waited for.
    """
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_uid not in (0, os.geteuid()):
            raise PermissionError(errno.EPERM, "not a file of this user", str(path))
        with open(file, "rb", closefd=False) as stream:
            found = stream.read(most + 1)
        if len(found) > most:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    finally:
        os.close(file)
    return found


def read_given(path: Path, most: int) -> bytes:
    """The first `most` bytes of a file that a person named; of a pipe, as a shell has for <(...), what comes in time.

    Raises:
        OSError: it cannot be read, or no end came through the pipe, as where no program writes into it.
    """
    with naming(path), open_given(path) as stream:
        if not _is_pipe(stream.fileno()):
            return stream.read(most)
        try:
            return first_bytes(stream.fileno(), most, _pipe_deadline())
        except TimeoutError:
            raise _silent(path, "no end") from None


def open_given(path: Path) -> BinaryIO:
    """Open a file that a person named, to read it in pieces; a pipe, once something comes through it.

    Raises:
        OSError: it cannot be read, or nothing came in time.
    """
    with naming(path):
        # Without O_NONBLOCK a named pipe without a writer is waited for without end.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if stat.S_ISDIR(os.fstat(number).st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            if _is_pipe(number) and not _comes(number, _pipe_deadline()):
                raise _silent(path, "nothing")
            os.set_blocking(number, True)
            return os.fdopen(number, "rb")
        except BaseException:
            os.close(number)
            raise


def write_given(path: Path, text: str) -> None:
    """Write a file that a person named; a pipe that no program reads is not waited for.

    Raises:
        OSError: it cannot be written.
    """
    with naming(path):
        if path.is_file() and os.access(path.parent, os.W_OK):
            # What is there stays until the new text is whole: a disk may be full.
            write_whole(real(path), text, stat.S_IMODE(path.stat().st_mode))
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o666), "w", encoding="utf-8") as file:
            os.set_blocking(file.fileno(), True)
            file.write(text)


def first_bytes(number: int, most: int, deadline: Deadline) -> bytes:
    """What comes through a pipe until its end, at most so many bytes: output without end must not fill the memory.

    Raises:
        TimeoutError: neither has come by the deadline.
    """
    found = bytearray()
    while len(found) < most:
        # A program that the writer started may hold the pipe for longer than the writer lives.
        if not _comes(number, deadline):
            raise TimeoutError
        if not (data := os.read(number, most - len(found))):
            break
        found += data
    return bytes(found)


def _pipe_deadline() -> Deadline:
    from vllm_cluster.kernel.clock import Deadline  # noqa: PLC0415 - help and completion do not wait for it

    return Deadline.after(PIPE_SECONDS)


def _is_pipe(number: int) -> bool:
    return stat.S_ISFIFO(os.fstat(number).st_mode)


def _comes(number: int, deadline: Deadline) -> bool:
    """Whether bytes or the end come; the end of a pipe that no program has opened yet is none."""
    with selectors.DefaultSelector() as ready:
        ready.register(number, selectors.EVENT_READ)
        return bool(ready.select(deadline.left()))


def _silent(path: Path, what: str) -> OSError:
    return OSError(errno.ETIMEDOUT, f"{what} came through this pipe in {PIPE_SECONDS:.0f} s", str(path))


def user() -> str:
    """The user's name; the number where the name is known nowhere, as in containers."""
    import getpass  # noqa: PLC0415 - help and completion do not wait for it

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def whoami() -> str:
    """Who changes a cluster, for its audit log and for those who wait."""
    import socket  # noqa: PLC0415 - as above

    return f"{user()}@{socket.gethostname()}"


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Put the path into an error of the operating system, which leaves it out of a failed write."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def fresh_file(path: Path, mode: int) -> int:
    """Open a new file to write; what was in its place is removed, neither followed as a link nor waited for as a pipe.

    Raises:
        OSError: a folder is there, or it cannot be made.
    """
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)


def write_whole(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file so that a reader, or a second writer, sees the old one or the new one."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with os.fdopen(fresh_file(new, mode), "w", encoding="utf-8") as file:
            file.write(text)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def meaning(error: OSError) -> VclusterError | None:
    """The error in one line with its remedy; None where it is not about this machine."""
    if error.filename is None and error.errno not in _OF_THE_MACHINE:
        return None
    path = "" if error.filename is None else os.fsdecode(error.filename)
    what = f"cannot use {path}" if path else "cannot continue on this machine"
    folder = shell_line([str(Path(path).parent)])
    remedy = "" if path == STANDARD_OUTPUT else _REMEDIES.get(error.errno or 0, "")
    return VclusterError(
        f"{what}: {error.strerror or error}", hint=remedy.format(path=shell_line([path]), folder=folder) or None
    )
