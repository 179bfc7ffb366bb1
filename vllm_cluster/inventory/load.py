"""Find the inventory, read it, and say everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from vllm_cluster.core.errors import InventoryError
from vllm_cluster.inventory.checks import check, ssh_key
from vllm_cluster.inventory.document import Document, parse
from vllm_cluster.inventory.model import Host, Inventory
from vllm_cluster.inventory.paths import anchor
from vllm_cluster.inventory.problems import file_name, told
from vllm_cluster.inventory.validate import validate
from vllm_cluster.laptop import here

DEFAULT_NAME = "inventory.yaml"
# 256 hosts with every key take 150 kB. The YAML parser needs 10 s for 1 MB, and 4 s for 100,000 brackets.
MAX_BYTES = 256_000
MAX_BRACKETS = 5_000


def load(path: Path | None, *, stdin: TextIO | None = None, cwd: Path | None = None) -> Inventory:
    """The inventory at `path`, from standard input for `-`, else the nearest inventory.yaml from `cwd` on.

    Raises:
        InventoryError: one line for each problem, with file, line and key.
    """
    if path is not None and str(path) == "-":
        return load_text(_from_stdin(stdin), path=None, cwd=cwd or here())
    if path is not None and path.is_absolute():
        found = path
    else:
        found = find(cwd or here()) if path is None else (cwd or here()) / path
    return load_text(_from_file(found, file_name(found, cwd)), path=found, cwd=cwd)


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
            # As the user stands, not as links resolve: messages name this path.
            return cwd / DEFAULT_NAME if folder == start else folder / DEFAULT_NAME
        if folder == root:
            break
    up = f" nor above it up to {root}" if root != start else ""
    raise InventoryError(
        f"no {DEFAULT_NAME} in {start}{up}",
        hint="write one with `vcluster init`, or name one with -i FILE or VCLUSTER_INVENTORY",
    )


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


def _from_file(path: Path, file: str) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InventoryError(f"{file}: no such file", hint="`vcluster init` writes an inventory") from None
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


def load_text(raw: bytes, *, path: Path | None, cwd: Path | None) -> Inventory:
    """The inventory that these bytes say; `path` is where they came from, None for standard input.

    Raises:
        InventoryError: one line for each problem, with file, line and key.
    """
    file = file_name(path, cwd)
    document = _document(raw)
    inventory = validate(document)
    check(document)
    if inventory is None or document.problems:
        raise told(document.problems, file)
    inventory = anchor(inventory, path.parent if path else cwd or here(), document)
    if document.problems:
        raise told(document.problems, file)
    hosts = {
        name: host.model_copy(update={"line": document.line(("hosts", name))}) for name, host in inventory.hosts.items()
    }
    return inventory.model_copy(update={"path": path, "hosts": hosts})


def _document(raw: bytes) -> Document:
    document = Document()
    if len(raw) > MAX_BYTES:
        document.blame((), f"larger than {MAX_BYTES // 1000} kB: this is no inventory")
        return document
    if raw.count(b"[") > MAX_BRACKETS:
        document.blame((), "nested too deep to be an inventory")
        return document
    try:
        return parse(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        document.blame((), "is not UTF-8 text: save the file as UTF-8", line)
        return document


def duplicates_by_resolution(inventory: Inventory, resolve: Callable[[Host], tuple[str | int, ...]]) -> None:
    """Refuse hosts that ssh_config sends to one place.

    `resolve` gives (host name, port), and may add what else tells two ways apart, such as a jump host.

    Raises:
        InventoryError: two hosts end at the same place.
    """
    seen: dict[tuple[object, ...], str] = {}
    lines: list[str] = []
    file = file_name(inventory.path)
    for name, host in inventory.hosts.items():
        way = ssh_key(host, inventory.ssh)
        jump = way[-1] if isinstance(way, tuple) else None
        end = resolve(host)
        first = seen.setdefault((*end, jump), name)
        if first != name:
            other = inventory.hosts[first]
            lines.append(
                f"{file}:{host.line or 1}: hosts.{name}: reaches {end[0]} port {end[1]}, as hosts.{first} "
                f"on line {other.line or 1} does: a machine is listed once"
            )
    if lines:
        raise InventoryError("\n".join(lines))
