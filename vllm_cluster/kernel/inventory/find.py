"""Where the inventory is, and its bytes; without the parsing libraries, so that a missing file is reported at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TextIO

from vllm_cluster.kernel.errors import InventoryError
from vllm_cluster.kernel.inventory.problems import file_name
from vllm_cluster.kernel.laptop import changed_by_others, here, open_given, others_write, read_given, real
from vllm_cluster.kernel.shell_line import Option, command_line, typed_words

DEFAULT_NAME = "inventory.yaml"
# How a first one is written.
INIT = "vcluster init --host gpu1=10.0.0.11 --host gpu2=10.0.0.12"
# Behind what others may do.
NAME_IT = "name the inventory with -i where you trust them"
# 256 hosts with every key take 150 kB. The YAML parser needs 10 s for 1 MB.
MAX_BYTES = 256_000


def read(
    path: Path | None, *, found: bool = False, stdin: TextIO | None = None, cwd: Path | None = None
) -> tuple[Path | None, bytes]:
    """The file at `path`, else the nearest inventory.yaml from `cwd` on; no path for a pipe, as `-` is one.

    One that another process of this call has `found` is not one that a person named.

    Raises:
        InventoryError: there is none, or it cannot be read.
    """
    if path is not None and str(path) == "-":
        return None, _from_stdin(stdin)
    if path is not None and path.is_absolute():
        file = path
    else:
        file = find(cwd or here()) if path is None else (cwd or here()) / path
    raw = _found_bytes(file) if path is None or found else _from_file(file, file_name(file, cwd), cwd)
    # A pipe of a shell is in no folder of the inventory's: what it names is found as with `-`.
    in_no_folder = not file.is_file() or any(map(file.is_relative_to, ("/dev/fd", "/dev/stdin", "/proc")))
    return (None if in_no_folder else file), raw


def find(cwd: Path) -> Path:
    """The nearest inventory.yaml from `cwd` up to the root of its git repository, never the home folder's.

    Raises:
        InventoryError: there is none.
    """
    start = cwd.resolve()
    root = next((folder for folder in (start, *start.parents) if _seen(folder / ".git")), start)
    for folder in (start, *start.parents):
        # A file in the home folder would silently serve every project below it.
        if folder != start and folder == _home():
            break
        if _seen(folder / DEFAULT_NAME):
            _ensure_kept(folder, start)
            # As the user typed it, with links unresolved: messages name this path.
            return cwd / DEFAULT_NAME if folder == start else folder / DEFAULT_NAME
        if folder == root:
            break
    up = f" or above it, up to {root}" if root != start else ""
    sandbox = Path("sandbox") / DEFAULT_NAME
    there = _is_own(start / sandbox)
    raise InventoryError(
        f"no {DEFAULT_NAME} in {start}{up}",
        again=("-i", str(sandbox)) if there else None,
        hint=None if there else f"{INIT}\nname another file: -i FILE, or VCLUSTER_INVENTORY",
    )


def _ensure_kept(folder: Path, start: Path) -> None:
    """Refuse an inventory above the current folder that was not named, where others may put another in its place.

    Raises:
        InventoryError: it is such a one.
    """
    if folder != start and (by := changed_by_others(folder)):
        path = folder / DEFAULT_NAME
        text = f"{path} is not in the current folder, and others may change {by}: it may have commands run here"
        raise InventoryError(f"{text}: {NAME_IT}", hint=command_line("stat", str(by)))


def _is_own(path: Path) -> bool:
    """Whether a file is there that a remedy may name: pasted, one that another user has put there may run commands."""
    try:
        return path.is_file() and not changed_by_others(path)
    except OSError:
        return False


def inventory_words(inventory: Path | None) -> list[str]:
    """Return the option that names an inventory, as a person did; none where the environment names it."""
    if inventory is None or str(inventory) == "-":
        return []
    named = os.environ.get("VCLUSTER_INVENTORY")
    return [] if named and real(Path(named)) == real(inventory) else ["-i", str(inventory)]


def _missing(file: str, cwd: Path | None) -> InventoryError:
    """The error for a file that is not there: a relative one may be meant from a folder above."""
    path, text = Path(file), f"{file}: no such file"
    # The current folder may be gone; an absolute path needs none.
    cwd = cwd or (Path("/") if path.is_absolute() else here())
    above = None if path.is_absolute() else next((up / path for up in cwd.parents if _is_own(up / path)), None)
    if above:
        return InventoryError(text, instead=_instead(file, above))
    if path.parts[-2:] == ("sandbox", DEFAULT_NAME):
        return InventoryError(text, hint="vcluster sandbox up")
    folder = [] if (cwd / path).parent.is_dir() else [command_line("mkdir", Option("-p"), str(path.parent))]
    return InventoryError(text, hint="\n".join([*folder, command_line(*typed_words(INIT.split()), Option("-o"), file)]))


def _instead(file: str, path: Path) -> dict[str, str]:
    """The words of the call that name a file, with those that name another one."""
    named, option = typed_words((str(path), f"--inventory={path}"))
    return {file: named, f"--inventory={file}": option}


def _seen(path: Path) -> bool:
    """Whether it is there, and may be looked at: a folder above may belong to others."""
    try:
        return path.is_file() or (path.name == ".git" and path.exists())
    except OSError:
        return False


def _home() -> Path | None:
    try:
        return real(Path.home())
    except RuntimeError:
        return None


def own_bytes(path: Path, owner: int | None = None) -> bytes:
    """What is in an inventory of this user, of root, or of an `owner` that a person has chosen, who then has the care.

    It is judged once it is open, as its name may lead elsewhere by then.

    Raises:
        InventoryError: it is another user's, or others may write it.
        OSError: it cannot be read.
    """
    with open_given(path) as stream:
        about = os.fstat(stream.fileno())
        if about.st_uid not in {0, os.geteuid(), owner}:
            text = f"{path} belongs to another user, who may have it run commands here: {NAME_IT}"
            raise InventoryError(text, hint=command_line("stat", str(path)))
        if owner is None and others_write(stream.fileno(), about):
            raise InventoryError(
                f"others may write {path}, and it may have commands run here: read it, and then close it to them",
                hint=command_line("chmod", "go-w", str(path)),
            )
        return stream.read(MAX_BYTES + 1)


def _found_bytes(path: Path) -> bytes:
    try:
        return own_bytes(path)
    except OSError as error:
        raise InventoryError(
            f"{path}: cannot be read: {error.strerror}", hint=command_line("stat", str(path))
        ) from None


def _from_file(path: Path, file: str, cwd: Path | None) -> bytes:
    try:
        return read_given(path, MAX_BYTES + 1)
    except FileNotFoundError:
        raise _missing(file, cwd) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        text, inside = f"{file}: cannot be read: {reason}", path / DEFAULT_NAME
        if isinstance(error, IsADirectoryError):
            if _seen(inside) and not _is_own(inside):
                text = f"{text}, and others may change its {DEFAULT_NAME}, which may have commands run here"
                raise InventoryError(text, hint=command_line("stat", str(inside))) from None
            missing = None if _seen(inside) else command_line(*typed_words(INIT.split()), Option("-o"), str(inside))
            # As it may have been typed: a dot is the current folder.
            typed = (file, f"{file}/", *((".", "./") if path == (cwd or here()) else ()))
            meant = {key: value for word in typed for key, value in _instead(word, inside).items()}
            raise InventoryError(text, instead={} if missing else meant, hint=missing) from None
        raise InventoryError(text, hint=command_line("stat", str(path))) from None


def _from_stdin(stdin: TextIO | None) -> bytes:
    if stdin is None:
        raise InventoryError("-i - reads standard input, and there is none", hint="vcluster status -i FILE")
    try:
        # surrogateescape brings back the bytes that a lenient terminal encoding has let through.
        return stdin.read(MAX_BYTES + 1).encode("utf-8", "surrogateescape")
    except UnicodeError:
        raise InventoryError("<stdin>:1: is not UTF-8 text", hint="save it as UTF-8") from None
