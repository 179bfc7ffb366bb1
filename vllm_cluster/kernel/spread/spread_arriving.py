"""A file while it arrives: written, hashed, and put in its place or dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_cluster.kernel.spread.plan import PullError, new_hash
from vllm_cluster.kernel.spread.spread_wire import FileBody
from vllm_cluster.kernel.spread.store import Partial, Store
from vllm_cluster.wire.pull import ModelFile

if TYPE_CHECKING:
    from hashlib import _Hash

BLOCK = 1 << 20
TERM_SECONDS = 30.0


class Arriving:
    """The content of one file, or of several alike; `index` is that of the first in the plan."""

    def __init__(self, store: Store, path: Path, files: Sequence[tuple[int, ModelFile]]) -> None:
        self._store, self._path, self._files = store, path, files
        self.index, self.file = files[0]
        self.bytes = min(path.stat().st_size, self.file.size) if path.exists() else 0
        self.taken = False
        # From whom its bytes came, and whether each of them had all of it verified before.
        self.senders: set[str] = set()
        self._verified = not self.bytes
        # What was wrong with it, once it was: from then on it comes whole from one host that has it verified.
        self.wrong = ""
        # How often the source gave it wrong: no other host may have it, and a bit can turn on the way.
        self.wrong_from_source = 0
        # How long another than the source may take to give it whole then, doubled after each round of all: no pace is
        # too slow for every link, and whoever made it up may be asked first.
        self.term = TERM_SECONDS
        self._hash: _Hash | None = None

    def missing(self) -> int:
        """Return how many bytes of the plan are not here."""
        return sum(file.size for _, file in self._files) - self.bytes

    def resume(self) -> None:
        """Hash what an earlier run left: nothing else records that it is right.

        Raises:
            PullError: this host cannot read it.
        """
        if self._hash is not None:
            return
        if not self.file.size:
            self._open().close()
        elif not self._path.exists() and self._store.have(self.file) >= self.file.size:
            # Another revision brought the content, verified: only its place is missing.
            self.bytes = self.file.size
            return
        new = new_hash(self.file)
        if self.bytes:
            try:
                self._hash_file(new)
            except OSError as exc:
                raise PullError(f"{self.file.path}: cannot read: {exc.strerror}") from exc
        self._hash = new

    def _hash_file(self, digest: _Hash) -> None:
        with self._store.append(self.file) as there:
            there.seek(0)
            buffer = memoryview(bytearray(BLOCK))
            while count := there.readinto(buffer):
                digest.update(buffer[:count])

    def culprit(self) -> str:
        """Return who is wrong where the content is: the only sender, if it had verified it; empty where open."""
        return next(iter(self.senders)) if self._verified and len(self.senders) == 1 else ""

    def append(self, body: FileBody, sender: str, wanted: Callable[[], bool], *, verified: bool) -> None:
        """Write what arrives until the answer ends or is no longer wanted.

        Whoever has not `verified` the file forwards what it gets itself, and cannot know that it is wrong.

        Raises:
            PullError: this host cannot write it.
            OSError: the connection is lost.
        """
        assert self._hash is not None  # noqa: S101
        buffer = memoryview(bytearray(BLOCK))
        with self._open() as target:
            while wanted() and (count := body.read(buffer)):
                self.senders.add(sender)
                self._verified &= verified
                self._write(target, buffer[:count])
                self._hash.update(buffer[:count])
                self.bytes += count

    def _open(self) -> Partial:
        try:
            return self._store.append(self.file)
        except OSError as exc:
            raise PullError(f"{self.file.path}: cannot write: {exc.strerror}") from exc

    def _write(self, target: Partial, block: memoryview) -> None:
        try:
            target.write(block)
        except OSError as exc:
            raise PullError(f"{self.file.path}: cannot write: {exc.strerror}") from exc

    def restart(self) -> None:
        """Drop what came."""
        # Not truncated: an answer that is being sent from it would continue with other bytes.
        self._store.drop_partial(self.file)
        self.senders, self.bytes, self._hash, self._verified = set(), 0, None, True

    def finish(self) -> bool:
        """Put the whole file in its place, or drop it where its hash is wrong; return whether it is right.

        Raises:
            PullError: it cannot be put in its place.
        """
        if self._hash is None or self._hash.hexdigest() == self.file.blob:
            try:
                for _, file in self._files:
                    self._store.finish(file)
            except OSError as exc:
                raise PullError(f"{self.file.path}: cannot put it in its place: {exc.strerror}") from exc
            return True
        senders = ", ".join(sorted(self.senders)) or "an earlier run"
        self.wrong = f"{self.file.path}: wrong hash ({'from' if self.culprit() else 'by way of'} {senders})"
        self.restart()
        return False
