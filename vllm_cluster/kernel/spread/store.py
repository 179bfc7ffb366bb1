"""The files of a pull on this host's disk, laid out as huggingface_hub lays them out, or as a plain folder."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from vllm_cluster.kernel.spread.no_links import FILE, folder_of, link, remove_name, replace
from vllm_cluster.kernel.spread.plan import MAX_PLAN, PullError, new_hash
from vllm_cluster.wire.inside import beginning, open_inside
from vllm_cluster.wire.pull import HostPlan, Manifest, ManifestRow, ModelFile, digest_of
from vllm_cluster.wire.reading import RefusedDocument, read

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MANIFESTS = ".vcluster"
PIECE = 8 << 20
# hashlib lets other threads run.
STREAMS = 4


class TooLongError(PullError):
    """More comes than the list has."""


class Partial(io.FileIO):
    """The open file of a folder; to be read too. No link is followed, and no other file of that content written."""

    def __init__(self, name: str, size: int, folder: int) -> None:
        """Open it, or make it; one that is too long is emptied.

        Raises:
            PullError: what has its name is another file, too.
        """
        super().__init__(name, "ab+", opener=lambda path, more: os.open(path, more | FILE, 0o644, dir_fd=folder))
        self._size = size
        seen = os.fstat(self.fileno())
        # A pipe would take all of it; a second name is how a file of another model would be emptied here.
        if not stat.S_ISREG(seen.st_mode) or seen.st_nlink > 1:
            self.close()
            raise PullError(f"{name} is not a file of its own: remove it")
        if seen.st_size > size:
            self.truncate(0)

    @property
    def length(self) -> int:
        """How many bytes are there."""
        return os.fstat(self.fileno()).st_size

    def write(self, data: ReadableBuffer) -> int:
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
        self._cache = Path(plan.cache)
        self.root = self._cache / plan.folder
        self._hub = plan.kind == "hub"

    def claim(self) -> None:
        """Keep every other pull from writing here until this process ends, also one of another host or cluster.

        Raises:
            PullError: another one writes, or a link is in the way.
        """
        self._cache.mkdir(parents=True, exist_ok=True)
        for path in {path.parent / "x" for file in self._plan.files for path in (self._place(file), self._blob(file))}:
            with suppress(FileNotFoundError), self._folder_of(path):
                pass
        path = self.root / MANIFESTS / "lock"
        while True:
            with self._folder_of(path, make=True) as folder:
                self._lock = os.open(path.name, os.O_RDWR | os.O_CREAT | FILE, 0o644, dir_fd=folder)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PullError("another program writes this model in this cache: wait until it has ended") from None
            except OSError:
                return  # a file system without locks
            # Who removes a model holds the lock too: what was removed meanwhile guards nothing.
            with suppress(FileNotFoundError):
                if os.path.samestat(path.lstat(), os.fstat(self._lock)):
                    return
            os.close(self._lock)

    def _folder_of(self, path: Path, *, make: bool = False) -> AbstractContextManager[int]:
        return folder_of(path, self._cache, make=make)

    def complete(self, file: ModelFile) -> bool:
        """Return whether the file is whole, verified and in its place."""
        return _size(self._place(file)) == file.size

    def have(self, file: ModelFile) -> int:
        """Return how many bytes from the beginning can be read now."""
        if self.complete(file):
            return file.size
        return max(_size(self._blob(file)), min(_size(self.partial(file)), file.size), 0)

    def open(self, file: ModelFile) -> BinaryIO:
        """Open what is there, whole or partial.

        Raises:
            OSError: nothing is, or what is there leads elsewhere or is not a file.
        """
        for path in (self._place(file), self._blob(file), self.partial(file)):
            with suppress(FileNotFoundError):
                return self._open(path)
        raise FileNotFoundError(file.path)

    def _open(self, path: Path) -> BinaryIO:
        """Open a file of the folder, or of another model: another user's link may lead to a key, a pipe has no end."""
        return open_inside(self.root, str(path.relative_to(self.root)), self._cache)

    def content_hash(self, path: Path, file: ModelFile) -> str:
        """Return the hash of a file of the folder, of the kind that its blob's name has.

        Raises:
            OSError: it cannot be read, leads elsewhere, or is not a file.
        """
        found = new_hash(file)
        with self._open(path) as stream:
            while data := stream.read(PIECE):
                found.update(data)
        return str(found.hexdigest())

    def partial(self, file: ModelFile) -> Path:
        """Return where a receiver writes; files of the same content share it. The hub and vLLM read no such name."""
        path = self._blob(file)
        return path.with_name(f".{path.name}.vcluster-partial")

    def append(self, file: ModelFile) -> Partial:
        """Open the same to append what arrives; it takes no more than the size of the file.

        Raises:
            PullError: a link is in the way.
        """
        with self._folder_of(self.partial(file), make=True) as folder:
            return Partial(self.partial(file).name, file.size, folder)

    def drop_partial(self, file: ModelFile) -> None:
        """Remove it; who reads it reads on."""
        self._remove(self.partial(file))

    def _remove(self, path: Path) -> None:
        with suppress(FileNotFoundError), self._folder_of(path) as folder:
            remove_name(path.name, folder)

    def finish(self, file: ModelFile) -> None:
        """Put the verified partial, or the blob that another file has brought, in its place."""
        partial, blob, place = self.partial(file).name, self._blob(file), self._place(file)
        with self._folder_of(blob, make=True) as folder:
            with suppress(FileNotFoundError):
                _sync(os.open(partial, os.O_RDONLY | FILE, dir_fd=folder))
                os.rename(partial, blob.name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
        if self._hub:
            with self._folder_of(place, make=True) as folder:
                link(place.name, os.path.relpath(blob, place.parent), folder)
                os.fsync(folder)

    def prove(self) -> None:
        """Hash what is here and no manifest vouches for, and drop what is wrong; then put what is right in its place.

        Such files are of another revision, of the hub's own tools, were changed since, or were found damaged.
        """
        known = {row[:3]: row[3] for row in self._manifest() if row[0] not in self._plan.damaged}
        unknown = {}
        for file in self._plan.files:
            place = self._place(file)
            path = place if self.complete(file) else self._blob(file)
            if _size(path) < 0 or known.get((file.path, file.size, file.blob)) == path.stat().st_mtime_ns:
                continue
            unknown[path] = file
        with ThreadPoolExecutor(STREAMS) as pool:
            right = list(pool.map(self._is_right, unknown, unknown.values()))
        # Only once all are hashed: two files may share a blob, and what one drops, another thread may be opening.
        for path, file in [pair for pair, held in zip(unknown.items(), right, strict=True) if not held]:
            self._remove(path)
            self._remove(self._blob(file))
        for file in self._plan.files:
            if self._hub and not self.complete(file) and _size(self._blob(file)) == file.size:
                self.finish(file)

    def _is_right(self, path: Path, file: ModelFile) -> bool:
        try:
            return _size(path) == file.size and self.content_hash(path, file) == file.blob
        except OSError as error:
            # Where a disk was found to give it no more, and where it is not a file of the folder, it comes again.
            if file.path not in self._plan.damaged and error.errno != errno.ELOOP:
                raise
            return False

    def _manifest(self) -> tuple[ManifestRow, ...]:
        with suppress(OSError, RefusedDocument):
            return read(Manifest, beginning(self._manifest_path(), MAX_PLAN + 1), "the manifest", MAX_PLAN).files
        return ()

    def _manifest_path(self) -> Path:
        return self.root / MANIFESTS / f"{self._plan.commit or 'manifest'}.json"

    def conclude(self) -> None:
        """Once every file is there: the manifest, then the name of the branch or tag."""
        plan = self._plan
        rows = [(file.path, file.size, file.blob, self._place(file).stat().st_mtime_ns) for file in plan.files]
        found = Manifest(1, plan.model, plan.commit, digest_of(plan.files), tuple(rows))
        self._write(self._manifest_path(), json.dumps(asdict(found)))
        if self._hub and plan.reference:
            self._write(self.root / "refs" / plan.reference, plan.commit)

    def _write(self, path: Path, text: str) -> None:
        with self._folder_of(path, make=True) as folder:
            replace(path.name, text, folder)

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


def _sync(number: int) -> None:
    try:
        os.fsync(number)
    finally:
        os.close(number)
