"""Files of a repository, downloaded by this machine with huggingface_hub and passed on piece by piece: none is kept."""

from __future__ import annotations

import io
import logging
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm_cluster.clock import SYSTEM_CLOCK, Clock
from vllm_cluster.errors import VclusterError

PIECE = 1 << 20
# Without any byte for this long the hub is taken for gone; a 429 or a restart of a proxy is over before.
PATIENCE_SECONDS = 600.0
FIRST_PAUSE, MAX_PAUSE = 1.0, 30.0
_FINAL = (401, 403, 404)
# It has no byte where the list has more: the file is shorter than listed.
_BEYOND = 416

Put = Callable[[bytes], object]


class _Onward(io.BytesIO):
    """Passes on what is written to it, each byte once: a hub without ranges sends a file from its beginning again."""

    def __init__(self, begin: int, size: int, put: Put) -> None:
        super().__init__()
        self.passed, self.size, self._put = begin, size, put
        self.seek(begin)

    def write(self, data: Any) -> int:
        """Pass on what lies behind the bytes that were passed on before; nothing is kept."""
        at = self.tell()
        if at + len(data) > self.size:
            raise _Longer
        fresh = memoryview(data)[max(0, self.passed - at) :]
        self.seek(at + len(data))
        if fresh:
            self._put(bytes(fresh))
            self.passed += len(fresh)
        return len(data)


class _Longer(Exception):
    """A file is longer than listed."""


class HubDownload:
    """The files of one commit; `report` gets what keeps it waiting."""

    def __init__(
        self,
        model: str,
        commit: str,
        endpoint: str,
        token: str | None,
        *,
        report: Callable[[str], object] = lambda _text: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._model, self._commit, self._endpoint = model, commit, endpoint
        self._token, self._report, self._clock = token, report, clock
        self._from_cache: set[str] = set()

    def send(self, path: str, size: int, blob: str, begin: int, put: Put) -> None:
        """Pass on a file from this byte to its end: from the hub's cache of this machine where it is there.

        Raises:
            VclusterError: it cannot be had, or what `put` raises.
        """
        onward = _Onward(begin, size, put)
        cached = self._cached(blob, size)
        if cached:
            self._from_cache.add(blob)
            with cached.open("rb") as stream:
                stream.seek(begin)
                while data := stream.read(PIECE):
                    onward.write(data)
            return
        moved, pause = self._clock.monotonic(), FIRST_PAUSE
        while onward.passed < size:
            before = onward.passed
            try:
                self._get(path, onward)
            except VclusterError:
                raise
            except Exception as error:  # the tree of huggingface_hub's errors differs by its version
                self._ensure_passing(path, error)
                if onward.passed > before:
                    moved, pause = self._clock.monotonic(), FIRST_PAUSE
                what = _words(error)
                if self._clock.monotonic() - moved > PATIENCE_SECONDS:
                    text = f"{self._endpoint} has sent no byte for {PATIENCE_SECONDS:.0f} s: {path}: {what}"
                    hint = "check the network of this machine, then run the command again"
                    raise VclusterError(text, hint=hint) from None
                self._report(f"waiting for {self._endpoint}: {path}: {what}")
                self._clock.sleep(pause * (0.5 + random.random()))  # noqa: S311 - to spread the tries
                pause = min(2 * pause, MAX_PAUSE)

    def _cached(self, blob: str, size: int) -> Path | None:
        """The file in this machine's cache of the hub; once: what the host found wrong comes from the hub."""
        cache = Path(_library().constants.HF_HUB_CACHE)
        place = cache / f"models--{self._model.replace('/', '--')}" / "blobs" / blob
        return place if blob not in self._from_cache and place.is_file() and place.stat().st_size == size else None

    def _get(self, path: str, onward: _Onward) -> None:
        hub = _library()
        hub.constants.DOWNLOAD_CHUNK_SIZE = PIECE
        url = hub.hf_hub_url(self._model, path, revision=self._commit, endpoint=self._endpoint)
        headers = hub.utils.build_hf_headers(token=self._token or False)
        onward.seek(onward.passed)
        # Its expected size is for its own messages, and makes it refuse files above 50 GB.
        hub.file_download.http_get(url, onward, resume_size=onward.passed, headers=headers)
        if onward.tell() < onward.size:
            raise ConnectionError(f"the download ended at {onward.tell()} bytes")

    def _ensure_passing(self, path: str, error: Exception) -> None:
        """Raise what no other try would change."""
        code = _code(error)
        if code in _FINAL:
            page = f"open {self._endpoint}/{self._model} and accept its terms, or set hf_token in the inventory"
            text = f"{path}: {self._endpoint} answers {code}"
            raise VclusterError(text, hint=page) from None
        if code == _BEYOND or isinstance(error, _Longer):
            text = f"{path}: {self._endpoint} sends another size than it lists"
            raise VclusterError(text, hint="run the command again") from None


def _library() -> Any:
    """huggingface_hub, which is not everywhere and takes 0.3 s."""
    # Read when it is imported; what is asked for here is downloaded also where nothing is to be in secret.
    os.environ["HF_HUB_OFFLINE"] = "0"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    import huggingface_hub.file_download  # noqa: PLC0415

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    return huggingface_hub


def _code(error: Exception) -> int | None:
    found = getattr(getattr(error, "response", None), "status_code", None)
    return found if isinstance(found, int) else None


def _words(error: Exception) -> str:
    if code := _code(error):
        return f"it answers {code}"
    # Behind the first line are addresses of objects, signed URLs and the request's id.
    return str(error).split("\n")[0].split("(Request ID")[0].strip()[:200] or type(error).__name__
