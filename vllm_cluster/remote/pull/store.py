"""The files of a pull on this host's disk, laid out as huggingface_hub lays them out, or as a plain folder."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from vllm_cluster.remote.pull.plan import PullError, new_hash, write_whole
from vllm_cluster.wire.pull import HostPlan, ModelFile

MANIFESTS = ".vcluster"
PIECE = 8 << 20
# hashlib lets other threads run.
STREAMS = 4


class TooLongError(PullError):
    """More comes than the list has."""


class Partial(io.FileIO):
    """The open file; to be read too. No link is followed."""

    def __init__(self, path: Path, size: int) -> None:
        """Open it, or make it; one that is too long is emptied."""
        super().__init__(path, "ab+", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o644))
        self._size, self._name = size, path.name
        if self.length > size:
            self.truncate(0)

    @property
    def length(self) -> int:
        """How many bytes are there."""
        return os.fstat(self.fileno()).st_size

    def write(self, data: Any) -> int:
        """Append all of it.

        Raises:
            TooLongError: the file would be longer than it should be; nothing is written.
        """
        left = memoryview(data).cast("B")
        count = len(left)
        if self.length + count > self._size:
            raise TooLongError(f"more than {self._size} bytes come")
        while left:
            left = left[super().write(left) :]
        return count


class Store:
    """The files of one plan. A name that vLLM or the hub reads is made once what it names is whole and verified."""

    def __init__(self, plan: HostPlan) -> None:
        self._plan = plan
        self.root = Path(plan.cache) / plan.folder
        self._hub = plan.kind == "hub"

    def claim(self) -> None:
        """Keep every other pull from writing here until this process ends, also one of another host or cluster.

        Raises:
            PullError: another one writes, or a link leads out of this model's folder.
        """
        if self.root.is_symlink() and self.root.resolve().parent == self.root.parent.resolve():
            raise PullError(f"{self.root} is a link to another model")
        for file in self._plan.files:
            self._inside(self._place(file))
            self._inside(self._blob(file))
        path = self._made(self.root / MANIFESTS / "lock")
        self._lock = path.open("a")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PullError("another pull brings this model into this cache: wait until it has ended") from None
        except OSError:
            return  # a file system without locks

    def complete(self, file: ModelFile) -> bool:
        """Return whether the file is whole, verified and in its place."""
        return _size(self._place(file)) == file.size

    def have(self, file: ModelFile) -> int:
        """Return how many bytes from the beginning can be read now."""
        if self.complete(file):
            return file.size
        return max(_size(self._blob(file)), min(_size(self.partial(file)), file.size), 0)

    def open(self, file: ModelFile) -> BinaryIO:
        """Open what is there, whole or partial."""
        for path in (self._place(file), self._blob(file), self.partial(file)):
            with suppress(FileNotFoundError):
                return path.open("rb")
        raise FileNotFoundError(file.path)

    def partial(self, file: ModelFile) -> Path:
        """Return where a receiver writes; files of the same content share it. The hub and vLLM read no such name."""
        path = self._blob(file)
        return path.with_name(f".{path.name}.vcluster-partial")

    def append(self, file: ModelFile) -> Partial:
        """Open the same to append what arrives; it takes no more than the size of the file.

        Raises:
            PullError: a link leads out of this model's folder.
        """
        return Partial(self._made(self.partial(file)), file.size)

    def _inside(self, path: Path) -> Path:
        """The path, unless links on the way lead out of this model's folder."""
        if not path.parent.resolve().is_relative_to(self.root.resolve()):
            raise PullError(f"{path.parent} leads out of {self.root}")
        return path

    def _made(self, path: Path) -> Path:
        """The same with the folders above it made."""
        self._inside(path).parent.mkdir(parents=True, exist_ok=True)
        return path

    def finish(self, file: ModelFile) -> None:
        """Put the verified partial, or the blob that another file has brought, in its place."""
        partial, blob, place = self.partial(file), self._blob(file), self._place(file)
        if _size(partial) >= 0:
            with partial.open("rb+") as stream:
                os.fsync(stream.fileno())
            partial.replace(blob)
        if self._hub:
            fresh = self._made(place).with_name(f".{place.name}.vcluster-link")
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(os.path.relpath(blob, place.parent))
            fresh.replace(place)
        _sync_folder(blob.parent)
        _sync_folder(place.parent)

    def prove(self) -> None:
        """Hash what is here and no manifest vouches for, and drop what is wrong; then put what is right in its place.

        Such files are of another revision, of the hub's own tools, or were changed since.
        """
        known = {(path, size, blob): when for path, size, blob, when in self._manifest()}
        unknown = {}
        for file in self._plan.files:
            place = self._place(file)
            path = place if self.complete(file) else self._blob(file)
            if _size(path) < 0 or known.get((file.path, file.size, file.blob)) == path.stat().st_mtime_ns:
                continue
            unknown[path] = file
        with ThreadPoolExecutor(STREAMS) as pool:
            right = list(pool.map(_is_right, unknown, unknown.values()))
        # Only once all are hashed: two files may share a blob, and what one drops, another thread may be opening.
        for path, file in [pair for pair, held in zip(unknown.items(), right, strict=True) if not held]:
            path.unlink(missing_ok=True)
            self._blob(file).unlink(missing_ok=True)
        for file in self._plan.files:
            if self._hub and not self.complete(file) and _size(self._blob(file)) == file.size:
                self.finish(file)

    def _manifest(self) -> list[tuple[str, int, str, int]]:
        with suppress(OSError, ValueError, KeyError, TypeError):
            return [tuple(row) for row in json.loads(self._manifest_path().read_text())["files"]]
        return []

    def _manifest_path(self) -> Path:
        return self.root / MANIFESTS / f"{self._plan.commit or 'manifest'}.json"

    def conclude(self) -> None:
        """Once every file is there: the manifest, then the name of the branch or tag."""
        rows = []
        for file in self._plan.files:
            seen = self._place(file).stat()
            rows.append([file.path, file.size, file.blob, seen.st_mtime_ns])
        path = self._made(self._manifest_path())
        named = {"model": self._plan.model, "commit": self._plan.commit}
        write_whole(path, {"v": 1, **named, "digest": self.digest(), "files": rows})
        if self._hub and self._plan.reference:
            reference = self._made(self.root / "refs" / self._plan.reference)
            fresh = reference.with_name(f".{reference.name}.vcluster-new")
            fresh.write_text(self._plan.commit)
            fresh.replace(reference)

    def digest(self) -> str:
        """Return what hosts compare: a hash over name, size and content of every file."""
        rows = sorted(f"{file.path}\0{file.size}\0{file.blob}\n" for file in self._plan.files)
        return hashlib.sha256("".join(rows).encode()).hexdigest()

    def _place(self, file: ModelFile) -> Path:
        return self.root / "snapshots" / self._plan.commit / file.path if self._hub else self.root / file.path

    def _blob(self, file: ModelFile) -> Path:
        return self.root / "blobs" / file.blob if self._hub else self.root / file.path


def _size(path: Path) -> int:
    """The size of a file, also behind links; -1 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _is_right(path: Path, file: ModelFile) -> bool:
    return _size(path) == file.size and content_hash(path, file) == file.blob


def _sync_folder(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def content_hash(path: Path, file: ModelFile) -> str:
    """Return the hash of a file, of the kind that its blob's name has."""
    found = new_hash(file)
    with path.open("rb") as stream:
        while data := stream.read(PIECE):
            found.update(data)
    return str(found.hexdigest())
