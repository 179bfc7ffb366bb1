"""Looks at a model in a host's cache, or hashes it, as the user of the containers. Needs a module of vcluster.

The first message has `do` and what it needs; paths are below the cache. Prints JSON lines, the last one with `end`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

from vllm_cluster.wire.inside import beginning, is_inside, open_inside, open_plain
from vllm_cluster.wire.reading import bounded

PIECE = 8 << 20
MANIFESTS = ".vcluster"
MAX_NAMES, MAX_MANIFEST = 200, 64 << 20
# A file system's clock may tick so seldom: what changed just before it was read may change again within one tick.
TICK_NANOSECONDS = 2_000_000_000
T = TypeVar("T")
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


def print_row(row: dict[str, object]) -> None:
    """Print one line, whole."""
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def stat_of(path: Path) -> tuple[int, int]:
    """Size and time of a file behind its links; -1 where there is none."""
    try:
        seen = path.stat()
    except OSError:
        return -1, 0
    return seen.st_size, seen.st_mtime_ns


def stamp_of(seen: os.stat_result) -> str:
    """What differs once a file was written: no program sets the time of the last change of its inode (ctime)."""
    return f"{seen.st_dev}:{seen.st_ino}:{seen.st_size}:{seen.st_mtime_ns}:{seen.st_ctime_ns}"


def is_file(path: object, size: object, blob: object) -> bool:
    """Return whether a model can have such a file."""
    parts = path.split("/") if isinstance(path, str) else [""]
    whole = isinstance(blob, str) and re.fullmatch("([0-9a-f]{40}([0-9a-f]{24})?)?", blob)
    return not {"", ".", ".."} & {*parts} and type(size) is int and bool(whole)


class FileRow(NamedTuple):
    """A file below the model's folder; `blob` is its hash."""

    path: str
    size: int
    blob: str


# What was brought: each file with the time of its last change, the commit, and the digest.
Manifest = tuple[Sequence[tuple[str, int, str, int]], str, str]


class ModelFolder:
    """Where a model is: `root` below the cache, its files in a snapshot or in the folder itself."""

    def __init__(self, asked: Mapping[str, str], files: Iterable[Mapping[str, object]]) -> None:
        self.cache = Path(asked["cache"])
        self.root = self.cache / asked["folder"]
        self.hub = asked["kind"] == "hub"
        self.commit = (asked.get("commit") or self._commit(asked.get("revision") or "main")) if self.hub else ""
        self.files = [*map(_file, files)]
        reference = asked.get("reference", "") if self.hub else ""
        if not re.fullmatch(r"(\w[\w.+@-]*)?", self.commit):
            self.commit = "-"  # a branch that is not here: no manifest has its name
        self.named = not reference or self._commit(reference) == self.commit

    def _commit(self, revision: str) -> str:
        with suppress(OSError, ValueError):
            return beginning(self.root / "refs" / revision, 100).decode().strip()
        return revision

    def place(self, path: str) -> Path:
        """Return where vLLM reads a file."""
        return self.root / "snapshots" / self.commit / path if self.hub else self.root / path

    def blob(self, file: FileRow) -> Path:
        """Return where its content is."""
        return self.root / "blobs" / file.blob if self.hub else self.root / file.path

    def partial(self, file: FileRow) -> Path:
        """Return where a pull writes it before it is whole."""
        return self.blob(file).with_name(f".{self.blob(file).name}.vcluster-partial")

    def manifest(self) -> Manifest:
        """Return the manifest; empty where there is none that can be read."""
        with suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
            path = self.root / MANIFESTS / f"{self.commit or 'manifest'}.json"
            found = json.loads(bounded(beginning(path, MAX_MANIFEST), MAX_MANIFEST))
            files = [(path, size, blob, int(when)) for path, size, blob, when in found["files"]]
            if found["v"] == 1 and all(is_file(*row[:3]) for row in files):
                return files, str(found.get("commit", "")), str(found.get("digest", ""))
        return (), "", ""

    def changed(self) -> tuple[Manifest, str]:
        """Return the manifest, and the first file that is not as it was; names, sizes and times are compared."""
        found = self.manifest()
        changed = (path for path, size, _, when in found[0] if stat_of(self.place(path)) != (size, when))
        return found, next(changed, "")


def _file(row: Mapping[str, object]) -> FileRow:
    path, size, blob = row["path"], row["size"], row["blob"]
    if not (is_file(path, size, blob) and isinstance(size, int)):
        raise OSError("a file that cannot be is asked for")
    return FileRow(str(path), size, str(blob))


def look(model: ModelFolder) -> dict[str, object]:
    """What is here of the files that are asked for, in bytes, and room on the disk."""
    (rows, _, digest), changed = model.changed()
    before = {path: blob for path, _, blob, _ in rows}
    known = {file.path: file.blob for file in model.files}
    same = not model.files or model.hub or before == known
    whole, there = 0, 0
    for file in model.files:
        sizes = (stat_of(model.place(file.path))[0], stat_of(model.blob(file))[0])
        # A folder whose weights were trained again has files of the same sizes.
        complete = file.size in sizes and before.get(file.path, file.blob) == file.blob
        whole += complete
        there += file.size if complete else max(0, min(stat_of(model.partial(file))[0], file.size))
    folder = next(one for one in (model.cache, *model.cache.parents) if one.exists())
    return {
        "whole": whole,
        "bytes": there,
        "free": shutil.disk_usage(folder).free,
        "writable": os.access(folder, os.W_OK | os.X_OK),
        "digest": digest if same and not changed else "",
        "changed": changed,
        "named": model.named,
        "commit": model.commit,
        "stale": stale(model),
        "files": len(rows),
        "size": sum(size for _, size, *_ in rows),
    }


def visible(root: Path) -> Iterator[Path]:
    """The files below a folder, and links to folders, which are not followed; but for hidden ones."""
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if not name.startswith(".")]
        links = [name for name in names if (Path(folder) / name).is_symlink()]
        yield from (Path(folder) / name for name in (*links, *files) if not name.startswith("."))


def stale(model: ModelFolder) -> list[str]:
    """Weights in a folder that are not among those asked for: of an earlier model of this name."""
    wanted = {file.path for file in model.files}
    paths = (str(path.relative_to(model.root)) for path in visible(model.root) if path.name.endswith(WEIGHTS))
    return [] if model.hub else sorted(path for path in paths if path not in wanted)[:MAX_NAMES]


def seek(model: ModelFolder, mark: str) -> dict[str, object]:
    """Leave a mark, and look for those of others: hosts that see each other's share this cache."""
    path = model.cache / f".vcluster-mark-{mark}"
    with suppress(OSError):  # a host that may only read its cache sees the marks of those that write
        path.touch()
        for old in model.cache.glob(".vcluster-mark-*"):  # of programs that were killed
            if stat_of(old)[1] < time.time_ns() - 86400 * 10**9:
                old.unlink(missing_ok=True)
    try:
        print_row({"marked": mark})
        others = json.loads(sys.stdin.readline() or "{}").get("others", [])
        # By name, not from a list of the folder, which a network file system may answer from memory.
        print_row({"seen": [other for other in others if (model.cache / f".vcluster-mark-{other}").exists()]})
        sys.stdin.readline()  # the others look too
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
    return {}


def _content_hash(stream: BinaryIO, found: hashlib._Hash, done: list[int]) -> str:
    """The hash of a file; `done` gets the bytes of each piece that was read, of several threads."""
    while data := stream.read(PIECE):
        found.update(data)
        done.append(len(data))
    return found.hexdigest()


def each(rows: Sequence[T], work: Callable[[T], None], done: list[int], total: int) -> None:
    """Do the work for every row, several at once; print how many bytes are done."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        futures = [pool.submit(work, row) for row in rows]
        while not all(future.done() for future in futures):
            print_row({"bytes": sum(done), "total": total})
            time.sleep(1)
        for error in filter(None, [future.exception() for future in futures]):
            raise error


def files_of(root: Path, cache: Path) -> dict[str, object]:
    """Print the files of a folder with their sizes, but for hidden ones; elsewhere are others' files, and a token."""
    for path in visible(root):
        name = str(path.relative_to(root))
        is_here = path.exists() and is_inside(path.resolve(), root, cache)
        if path.is_symlink() and (path.is_dir() or not is_here):
            print_row({"lost": name, "to": str(path.readlink())})
        elif path.is_file():
            seen = path.stat()
            print_row({"file": {"path": name, "size": seen.st_size, "blob": ""}, "stamp": stamp_of(seen)})
    return {}


def hash_files(root: Path, files: list[FileRow], cache: Path) -> dict[str, object]:
    """Print these files of a folder with their hashes, and with the stamps of those that did not change meanwhile."""
    done: list[int] = []
    found: dict[FileRow, tuple[str, str]] = {}

    def work(file: FileRow) -> None:
        with open_inside(root, file.path, cache) as stream:
            before = os.fstat(stream.fileno())
            blob = _content_hash(stream, hashlib.sha256(), done)
        settled = before.st_ctime_ns < time.time_ns() - TICK_NANOSECONDS
        same = stamp_of(before) == stamp_of((root / file.path).stat())
        found[file] = (blob, stamp_of(before) if settled and same else "")

    each(files, work, done, sum(file.size for file in files))
    for file in files:
        blob, stamp = found[file]
        print_row({"file": file._replace(blob=blob)._asdict(), "stamp": stamp})
    return {}


def verify(model: ModelFolder) -> dict[str, object]:
    """Hash every file of the manifest, and name what is damaged."""
    rows, commit, digest = model.manifest()
    if not rows:
        return {"manifest": False}
    done: list[int] = []
    damaged: list[dict[str, object]] = []

    def check(row: tuple[str, int, str, int]) -> None:
        path, size, blob, _ = row
        place = model.place(path)
        wrong = "missing" if stat_of(place)[0] < 0 else "" if stat_of(place)[0] == size else "wrong size"
        found = hashlib.sha256() if len(blob) == 64 else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        if not wrong:
            try:
                with open_plain(place) as stream:
                    wrong = "" if _content_hash(stream, found, done) == blob else "content differs"
            except OSError as error:
                wrong = f"cannot be read: {error.strerror}"
        if wrong:
            damaged.append({"path": path, "size": size, "blob": blob, "why": wrong})

    each(rows, check, done, sum(row[1] for row in rows))
    for row in damaged:
        print_row({"damaged": row})
    for path, size, blob, _ in rows:
        print_row({"file": {"path": path, "size": size, "blob": blob}})
    return {"manifest": True, "commit": commit, "digest": digest, "bytes": sum(done)}


def listed(model: ModelFolder) -> dict[str, object]:
    """Print the files of the manifest, where they are as it has them; by name, size and time."""
    (rows, _, digest), changed = model.changed()
    for path, size, blob, _ in () if changed else rows:
        print_row({"file": {"path": path, "size": size, "blob": blob}})
    return {"commit": model.commit, "digest": "" if changed else digest, "changed": changed}


def answer(asked: Mapping[str, str], files: Iterable[Mapping[str, object]]) -> dict[str, object]:
    """Do what is asked for, of these files, and return the last row."""
    model, do = ModelFolder(asked, files), asked["do"]
    if do in ("list", "hash"):
        root = Path(asked["root"])
        return files_of(root, model.cache) if do == "list" else hash_files(root, model.files, model.cache)
    if do == "seek":
        return seek(model, asked["mark"])
    simple = {"look": look, "manifest": listed, "verify": verify}
    return simple[do](model)


def main() -> None:
    """Answer the first message."""
    asked = json.loads(sys.stdin.readline())
    try:
        print_row({"end": True, **answer(asked, asked.get("files") or ())})
    except OSError as error:
        print_row({"end": True, "error": f"{error.strerror or error}: {error.filename or asked['folder']}"})


if __name__ == "__main__":
    main()
