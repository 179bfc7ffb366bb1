"""The files of a folder, on this host or on a laptop, in place of a hub: into the same partial files as a download."""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

from vllm_cluster.kernel.spread.plan import PullError
from vllm_cluster.kernel.spread.store import Store
from vllm_cluster.wire.inside import open_inside
from vllm_cluster.wire.pull import HostPlan, ModelFile

PIECE = 8 << 20
# Files at a time.
STREAMS = 4
# Whoever feeds it holds a lock on this file, beside the plan.
FED = "vcluster-fed"
# Without a laptop for as long it ends: the same command continues with what is there.
PATIENCE_SECONDS = 600.0


class Copy:
    """Copies from a folder of this host; `trouble` is what it waits out."""

    trouble = ""

    def __init__(self, plan: HostPlan, store: Store) -> None:
        self._plan, self._store = plan, store
        self._stop = threading.Event()

    def run(self) -> None:
        """Copy every file that is not there, and verify each.

        Raises:
            PullError, OSError: one cannot be copied; what is there is kept.
        """
        for_each((file for file in self._plan.files if not self._store.complete(file)), self._one, self._stop)

    def _one(self, file: ModelFile) -> None:
        partial = self._store.partial(file)
        origin, cache = Path(self._plan.origin), Path(self._plan.cache)
        with open_inside(origin, file.path, cache) as source, self._store.append(file) as target:
            source.seek(target.length)
            # One that has grown since it was listed is not what was hashed.
            while target.length < file.size and not self._stop.is_set():
                if not (data := source.read(min(PIECE, file.size - target.length))):
                    break
                target.write(data)
        if self._stop.is_set():
            return
        if partial.stat().st_size != file.size or self._store.content_hash(partial, file) != file.blob:
            self._store.drop_partial(file)
            raise PullError(f"{file.path} changes while it is copied")
        self._store.finish(file)


class Fed:
    """Waits for the files that a laptop sends through `feed.py`; `trouble` is whether none does."""

    def __init__(self, plan: HostPlan, store: Store, folder: Path) -> None:
        self._plan, self._store, self._folder = plan, store, folder
        self.trouble = ""

    def run(self) -> None:
        """Return once every file is there and verified.

        Raises:
            PullError: no machine sends them.
        """
        seen = time.monotonic()
        while not all(self._store.complete(file) for file in self._plan.files):
            if is_fed(self._folder):
                seen, self.trouble = time.monotonic(), ""
            elif time.monotonic() - seen > PATIENCE_SECONDS:
                raise PullError(f"no machine has sent the files for {PATIENCE_SECONDS:.0f} s")
            else:
                self.trouble = "no machine sends the files"
            time.sleep(0.2)


def is_fed(folder: Path) -> bool:
    """Whether a machine sends files now."""
    with suppress(OSError), (folder / FED).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def for_each(files: Iterable[ModelFile], work: Callable[[ModelFile], None], stop: threading.Event) -> None:
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
