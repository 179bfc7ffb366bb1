"""Downloads on the one host that reaches the hub, with the image's own huggingface_hub: several files at once.

It writes into the same partial files as a host that receives: huggingface_hub from 2.0 on resumes nothing after its
process was killed, as it names the file of each attempt by chance.
"""

from __future__ import annotations

import errno
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from huggingface_hub import constants, hf_hub_url
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from vllm_cluster.remote.pull.plan import HostPlan, PulledFile, PullError
from vllm_cluster.remote.pull.store import Store, content_hash

STREAMS = 4
# What a broken answer loses at most, and by what the others wait behind; the library's own is ten times as much.
CHUNK = 1 << 20
# Without any byte for this long the hub is taken for gone; a 429 or a restart of a proxy is over before.
PATIENCE_SECONDS = 600.0
FIRST_PAUSE, MAX_PAUSE = 1.0, 30.0
# A file that comes wrong so often is wrong at the hub.
ATTEMPTS = 2
_FINAL = (401, 403, 404)
# It has no byte where the list has more: the file is shorter than listed.
_BEYOND = 416


class Download:
    """One download; `trouble` is what it waits out now."""

    def __init__(self, plan: HostPlan, store: Store, token: str | None) -> None:
        self._plan, self._store, self._token = plan, store, token
        self.trouble = ""
        self._stop = threading.Event()
        self._moved = time.monotonic()

    def run(self) -> None:
        """Download every file that is not there, in the order of the plan, and verify each.

        Raises:
            PullError, OSError: one cannot be had; what is there is kept.
        """
        left: dict[str, PulledFile] = {file.blob: file for file in self._plan.files if not self._store.complete(file)}
        with ThreadPoolExecutor(STREAMS) as pool:
            futures = [pool.submit(self._one, file) for file in left.values()]
            try:
                for future in as_completed(futures):
                    if error := future.exception():
                        raise error
            except BaseException:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                raise
        for file in self._plan.files:
            if not self._store.complete(file):
                self._store.finish(file)

    def _one(self, file: PulledFile) -> None:
        for _ in range(ATTEMPTS):
            self._fetch(file)
            partial = self._store.partial(file)
            if partial.stat().st_size == file.size and content_hash(partial, file) == file.blob:
                self._store.finish(file)
                return
            partial.unlink()
        raise PullError(f"{file.path}: {self._plan.endpoint} sends another content than it lists")

    def _fetch(self, file: PulledFile) -> None:
        pause, partial = FIRST_PAUSE, self._store.writable(file)
        while not self._stop.is_set():
            before = max(0, self._store.have(file))
            try:
                with partial.open("ab", buffering=0) as stream:
                    if before > file.size:
                        stream.truncate(before := 0)
                    if before < file.size:
                        _get(self._plan, file, self._token, stream, before)
                self._moved, self.trouble = time.monotonic(), ""
                return
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
        code = getattr(getattr(error, "response", None), "status_code", None)
        # The message has addresses of objects, signed URLs and the request's id behind its first line.
        what = f"the hub answers {code}" if code else str(error).split("\n")[0].split("(Request ID")[0].strip()[:200]
        if code == _BEYOND:
            self._store.partial(file).unlink(missing_ok=True)
            raise PullError(f"{file.path}: {self._plan.endpoint} sends another size than it lists") from error
        if code in _FINAL:
            raise PullError(f"{file.path}: {what}") from error
        if moved:
            self._moved = time.monotonic()
        self.trouble = f"{file.path}: {what or type(error).__name__}"
        if time.monotonic() - self._moved > PATIENCE_SECONDS:
            raise PullError(f"no byte for {PATIENCE_SECONDS:.0f} s: {self.trouble}") from error
        self._stop.wait(pause * (0.5 + random.random()))  # noqa: S311 - to spread the tries


def _get(plan: HostPlan, file: PulledFile, token: str | None, stream: Any, begin: int) -> None:
    constants.DOWNLOAD_CHUNK_SIZE = CHUNK
    url = hf_hub_url(plan.model, file.path, revision=plan.commit, endpoint=plan.endpoint)
    # Its expected size is for its own messages, and makes it refuse files above 50 GB; the real one is in the plan.
    get: Callable[..., None] = http_get
    get(url, stream, resume_size=begin, headers=build_hf_headers(token=token or False))
    if stream.tell() < file.size:
        raise ConnectionError(f"the download ended at {stream.tell()} of {file.size} bytes")
