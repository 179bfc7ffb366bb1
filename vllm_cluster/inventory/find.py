"""Where the inventory is, and its bytes; without the parsing libraries, so that a missing file is reported at once."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TextIO

from vllm_cluster.errors import InventoryError
from vllm_cluster.inventory.problems import file_name
from vllm_cluster.laptop import here

DEFAULT_NAME = "inventory.yaml"
# How a first one is written.
INIT = "vcluster init --host gpu1=10.0.0.11 --host gpu2=10.0.0.12"
# 256 hosts with every key take 150 kB. The YAML parser needs 10 s for 1 MB.
MAX_BYTES = 256_000


def read(path: Path | None, *, stdin: TextIO | None = None, cwd: Path | None = None) -> tuple[Path | None, bytes]:
    """The file at `path`, else the nearest inventory.yaml from `cwd` on; no path where `-` names standard input.

    Raises:
        InventoryError: there is none, or it cannot be read.
    """
    if path is not None and str(path) == "-":
        return None, _from_stdin(stdin)
    if path is not None and path.is_absolute():
        found = path
    else:
        found = find(cwd or here()) if path is None else (cwd or here()) / path
    return found, _from_file(found, file_name(found, cwd), cwd)


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
            # As the user typed it, with links unresolved: messages name this path.
            return cwd / DEFAULT_NAME if folder == start else folder / DEFAULT_NAME
        if folder == root:
            break
    up = f" or above it, up to {root}" if root != start else ""
    sandbox = Path("sandbox") / DEFAULT_NAME
    there = _seen(start / sandbox)
    raise InventoryError(
        f"no {DEFAULT_NAME} in {start}{up}",
        again=("-i", str(sandbox)) if there else None,
        hint=None if there else f"{INIT}\nname another file: -i FILE, or VCLUSTER_INVENTORY",
    )


def _remedy(file: str, cwd: Path | None) -> str:
    """What to do about a file that is not there: a relative one may be meant from a folder above."""
    path = Path(file)
    # The current folder may be gone; an absolute path needs none.
    cwd = cwd or (Path("/") if path.is_absolute() else here())
    above = None if path.is_absolute() else next((up / path for up in cwd.parents if _seen(up / path)), None)
    if above:
        return f"name the file: -i {shlex.quote(str(above))}"
    if path.parts[-2:] == ("sandbox", DEFAULT_NAME):
        return "vcluster sandbox up"
    folder = [] if (cwd / path).parent.is_dir() else [f"mkdir -p {shlex.quote(str(path.parent))}"]
    return "\n".join([*folder, f"{INIT} -o {shlex.quote(file)}"])


def _seen(path: Path) -> bool:
    """Whether it is there, and may be looked at: a folder above may belong to others."""
    try:
        return path.is_file() or (path.name == ".git" and path.exists())
    except OSError:
        return False


def _home() -> Path | None:
    try:
        return Path.home().resolve()
    except RuntimeError:
        return None


def _from_file(path: Path, file: str, cwd: Path | None) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InventoryError(f"{file}: no such file", hint=_remedy(file, cwd)) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        hint = f"name the file: -i {path / DEFAULT_NAME}" if isinstance(error, IsADirectoryError) else None
        raise InventoryError(f"{file}: cannot be read: {reason}", hint=hint) from None


def _from_stdin(stdin: TextIO | None) -> bytes:
    if stdin is None:
        raise InventoryError("-i - reads standard input, and there is none")
    try:
        # surrogateescape brings back the bytes that a lenient terminal encoding has let through.
        return stdin.read(MAX_BYTES + 1).encode("utf-8", "surrogateescape")
    except UnicodeError:
        raise InventoryError("<stdin>:1: is not UTF-8 text") from None
