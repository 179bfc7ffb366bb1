"""Downloads from a hub on the one host that reaches it, with the image's own huggingface_hub.

Its request alone, into the partial files that a receiver writes too: from 2.0 on its own files have names by chance and
are removed at any end, so that a kill would lose all of it, and the others could get nothing before a file is whole.
"""

from __future__ import annotations

import errno
import random
import threading
import time
from collections.abc import Callable

from huggingface_hub import constants, hf_hub_url
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from vllm_cluster.kernel.spread.origin import for_each
from vllm_cluster.kernel.spread.plan import PullError
from vllm_cluster.kernel.spread.store import Partial, Store, TooLongError
from vllm_cluster.wire.pull import HostPlan, ModelFile
from vllm_cluster.wire.values import Url, without_logins

# What a broken answer loses at most, and by what the others wait behind; huggingface_hub's own is ten times as much.
CHUNK = 1 << 20
# Without so much of any file for as long the hub is taken for gone; a 429 or a restart of a proxy is over before.
PATIENCE_SECONDS, PATIENCE_BYTES = 600.0, CHUNK
LOOK_SECONDS = 0.2
FIRST_PAUSE, MAX_PAUSE = 1.0, 30.0
# A file that comes wrong so often is wrong where it comes from.
ATTEMPTS = 2
_FINAL = (400, 401, 403, 404, 405, 410, 451)
# By name, of httpx and requests: which of them huggingface_hub uses differs by its version.
_BAD_ADDRESS = ("UnsupportedProtocol", "InvalidURL", "InvalidSchema", "MissingSchema")
_BAD_REDIRECT = "Invalid URL in location header"
# An answer that has come to its own end with another size than it announced, as a part of another file has.
_INCONSISTENT = "Consistency check failed"
# It has no byte where the list has more: the file is shorter than listed.
_BEYOND = 416
_NO_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


class Download:
    """One download; `trouble` is what it waits out now."""

    def __init__(self, plan: HostPlan, store: Store, token: str | None) -> None:
        self._plan, self._store, self._token = plan, store, token
        self.trouble = ""
        self._stop = threading.Event()
        self._moved = time.monotonic()
        # Up to where each file had come by then.
        self._marks: dict[str, int] = {}

    def run(self) -> None:
        """Download every file that is not there, in the order of the plan, and verify each.

        Raises:
            PullError, OSError: one cannot be had; what is there is kept.
        """
        missing = (file for file in self._plan.files if not self._store.complete(file))
        left: dict[str, ModelFile] = {file.blob: file for file in missing}
        for_each(left.values(), self._one, self._stop)
        for file in self._plan.files:
            if not self._store.complete(file):
                self._store.finish(file)

    def _one(self, file: ModelFile) -> None:
        partial = self._store.partial(file)
        for _ in range(ATTEMPTS):
            try:
                self._fetch(file)
            except TooLongError:
                self._store.drop_partial(file)
                continue
            if self._store.content_hash(partial, file) == file.blob:
                self._store.finish(file)
                return
            self._store.drop_partial(file)
        raise PullError(f"{file.path}: {Url(self._plan.endpoint)} sends another content than it lists")

    def _fetch(self, file: ModelFile) -> None:
        """Get the rest of a file, over as many answers as it takes."""
        pause, wrong = FIRST_PAUSE, 0
        with self._store.append(file) as partial:
            self._moved, self._marks[file.blob] = time.monotonic(), partial.length
            while (before := partial.length) < file.size:
                error = self._ask(file, partial)
                if error:
                    self._ensure_passing(file, error)
                grown = partial.length - before
                ended = error is None or _INCONSISTENT in str(error)
                wrong = wrong + 1 if ended and grown < PATIENCE_BYTES else 0
                if partial.length < file.size:
                    if wrong >= ATTEMPTS:
                        raise PullError(self._other_size(file))
                    pause = FIRST_PAUSE if grown > 0 else pause
                    self._stop.wait(pause * (0.5 + random.random()))  # noqa: S311 - to spread the tries
                    self._ensure_moving(file, partial)
                    pause = min(2 * pause, MAX_PAUSE)
        self._moved, self.trouble = time.monotonic(), ""

    def _ask(self, file: ModelFile, partial: Partial) -> Exception | None:
        """Get one answer of the hub; return what broke it off.

        Raises:
            PullError: it brings nothing for long, or another file has failed.
        """
        broken: list[Exception] = []

        def get() -> None:
            try:
                self._get(file)
            except Exception as error:  # the tree of huggingface_hub's errors differs by its version
                broken.append(error)

        # Headers that drip, and a body that unpacks to nothing, hold up who reads them without end.
        asking = threading.Thread(target=get, daemon=True)
        asking.start()
        while asking.is_alive():
            asking.join(LOOK_SECONDS)
            self._ensure_moving(file, partial)
        return broken[0] if broken else None

    def _get(self, file: ModelFile) -> None:
        constants.DOWNLOAD_CHUNK_SIZE = CHUNK
        url = hf_hub_url(self._plan.model, file.path, revision=self._plan.commit, endpoint=self._plan.endpoint)
        # Its expected size is for its own messages, and makes it refuse files above 50 GB; the real one is in the plan.
        send: Callable[..., None] = http_get
        # Opened here: whoever waits for this may have left.
        with self._store.append(file) as partial:
            send(url, partial, resume_size=partial.length, headers=build_hf_headers(token=self._token or False))
            self.trouble = f"{file.path}: the download ended at {partial.length} of {file.size} bytes"

    def _ensure_passing(self, file: ModelFile, error: Exception) -> None:
        """Note what went wrong.

        Raises:
            PullError, OSError: no other try would help.
        """
        if isinstance(error, PullError) or (isinstance(error, OSError) and error.errno in _NO_DISK):
            raise error
        code = getattr(getattr(error, "response", None), "status_code", None)
        # Behind the first line are addresses of objects, signed URLs and the request's id.
        words = without_logins(str(error).split("\n")[0].split("(Request ID")[0].strip())[:200]
        self.trouble = f"{file.path}: {f'the hub answers {code}' if code else words or type(error).__name__}"
        if code == _BEYOND:
            self._store.drop_partial(file)
            raise PullError(self._other_size(file)) from error
        if code in _FINAL or type(error).__name__ in _BAD_ADDRESS or _BAD_REDIRECT in str(error):
            raise PullError(self.trouble) from error

    def _other_size(self, file: ModelFile) -> str:
        return f"{file.path}: {Url(self._plan.endpoint)} sends another size than it lists"

    def _ensure_moving(self, file: ModelFile, partial: Partial) -> None:
        """Compare what comes with the clock.

        Raises:
            PullError: too little has come for long, or another file has failed.
        """
        if self._stop.is_set():
            raise PullError(f"{file.path}: another file failed")
        now, length = time.monotonic(), partial.length
        if length >= min(self._marks[file.blob] + PATIENCE_BYTES, file.size):
            self._moved, self._marks[file.blob] = now, length
        if now - self._moved > PATIENCE_SECONDS:
            trouble = self.trouble or f"{file.path}: the answer has not ended"
            raise PullError(f"nothing came from {Url(self._plan.endpoint)} for {PATIENCE_SECONDS:.0f} s: {trouble}")
