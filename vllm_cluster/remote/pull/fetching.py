"""Downloads several files at once into the store's partial files, and waits out what passes; a subclass gets the bytes.

huggingface_hub from 2.0 on resumes nothing after its process was killed, as it names the file of each attempt by
chance: so what a receiver writes into is what a download writes into.
"""

from __future__ import annotations

import errno
import random
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed

from vllm_cluster.remote.pull.partial import Partial, TooLongError
from vllm_cluster.remote.pull.plan import HostPlan, PulledFile, PullError
from vllm_cluster.remote.pull.store import Store, content_hash

STREAMS = 4
# What a broken answer loses at most, and by what the others wait behind; huggingface_hub's own is ten times as much.
CHUNK = 1 << 20
# Without any byte for this long the sender is taken for gone; a 429 or a restart of a proxy is over before.
PATIENCE_SECONDS = 600.0
FIRST_PAUSE, MAX_PAUSE = 1.0, 30.0
# A file that comes wrong so often is wrong where it comes from.
ATTEMPTS = 2


class Fetching:
    """One download; `trouble` is what it waits out now."""

    def __init__(self, plan: HostPlan, store: Store) -> None:
        self._plan, self._store = plan, store
        self.trouble = ""
        self._stop = threading.Event()
        self._moved = time.monotonic()

    def get(self, file: PulledFile, stream: Partial, begin: int) -> None:
        """Append what comes from this byte on.

        Raises:
            PullError: no other try would help.
            Exception: another one may.
        """
        raise NotImplementedError

    def words(self, error: Exception) -> str:
        """What went wrong, in a line without an address that is secret."""
        return str(error).split("\n")[0].strip()[:200]

    def run(self) -> None:
        """Download every file that is not there, in the order of the plan, and verify each.

        Raises:
            PullError, OSError: one cannot be had; what is there is kept.
        """
        missing = (file for file in self._plan.files if not self._store.complete(file))
        left: dict[str, PulledFile] = {file.blob or file.path: file for file in missing}
        for_each(left.values(), self._one, self._stop)
        for file in self._plan.files:
            if not self._store.complete(file):
                self._store.finish(file)

    def _one(self, file: PulledFile) -> None:
        for _ in range(ATTEMPTS):
            partial = self._store.partial(file)
            try:
                self._fetch(file)
            except TooLongError:
                partial.unlink()
                continue
            if partial.stat().st_size == file.size and content_hash(partial, file) == file.blob:
                self._store.finish(file)
                return
            partial.unlink()
        raise PullError(f"{file.path}: {self._plan.endpoint or self._plan.origin} sends another content than it lists")

    def _fetch(self, file: PulledFile) -> None:
        pause = FIRST_PAUSE
        while not self._stop.is_set():
            before = max(0, self._store.have(file))
            try:
                with self._store.append(file) as stream:
                    if stream.length < file.size:
                        self.get(file, stream, stream.length)
                        if stream.length < file.size:
                            raise ConnectionError(f"the download ended at {stream.length} of {file.size} bytes")
                self._moved, self.trouble = time.monotonic(), ""
                return
            except PullError:
                raise
            except Exception as error:  # the tree of huggingface_hub's errors differs by its version
                self._wait_out(file, error, moved=self._store.have(file) > before, pause=pause)
            pause = FIRST_PAUSE if self._store.have(file) > before else min(2 * pause, MAX_PAUSE)
        raise PullError(f"{file.path}: another file failed")

    def _wait_out(self, file: PulledFile, error: Exception, *, moved: bool, pause: float) -> None:
        """Wait before the next try.

        Raises:
            PullError, OSError: none would help.
        """
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise error
        if moved:
            self._moved = time.monotonic()
        self.trouble = f"{file.path}: {self.words(error) or type(error).__name__}"
        if time.monotonic() - self._moved > PATIENCE_SECONDS:
            raise PullError(f"no byte for {PATIENCE_SECONDS:.0f} s: {self.trouble}") from error
        self._stop.wait(pause * (0.5 + random.random()))  # noqa: S311 - to spread the tries


def for_each(files: Iterable[PulledFile], work: Callable[[PulledFile], None], stop: threading.Event) -> None:
    """Do the work for several files at once; where it fails for one, end it for all and raise that."""
    with ThreadPoolExecutor(STREAMS) as pool:
        try:
            for future in as_completed([pool.submit(work, file) for file in files]):
                if error := future.exception():
                    raise error
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
