"""Downloads the objects of an S3 bucket on the one host that reaches it, each by an address that was signed for it.

Standard library alone, and no secret but these addresses. Each request names the ETag that was listed, so that the
bytes of two objects never mix.
"""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import BinaryIO

from vllm_cluster.remote.pull.fetching import CHUNK, Fetching
from vllm_cluster.remote.pull.plan import HostPlan, PulledFile, PullError
from vllm_cluster.remote.pull.store import Store

# S3 itself answers within some; it is the time without a byte.
SILENT_SECONDS = 30.0
MAX_ERROR = 4096
_CODE = re.compile(rb"<Code>(\w{1,64})</Code>")
_AGAIN = "run the same command again"
_FINAL = {
    404: f"is not in the bucket any more: {_AGAIN}",
    412: f"has changed in the bucket since it was listed: {_AGAIN}",
    416: f"has another size than the bucket lists: {_AGAIN}",
}


class Objects(Fetching):
    """One download from a bucket; `addresses` are by the paths of the files."""

    def __init__(self, plan: HostPlan, store: Store, addresses: Mapping[str, str], expires: float) -> None:
        super().__init__(plan, store)
        self._addresses, self._expires = addresses, expires

    def get(self, file: PulledFile, stream: BinaryIO, begin: int) -> None:
        """Append what the bucket sends from this byte on.

        Raises:
            PullError: the object has changed, its address has expired, or it is not given.
            OSError: another try may succeed.
        """
        headers = {"If-Match": file.etag, "User-Agent": "vcluster"} | ({"Range": f"bytes={begin}-"} if begin else {})
        try:
            asked = urllib.request.Request(self._addresses[file.path], headers=headers)  # noqa: S310 - of the plan
            with urllib.request.urlopen(asked, timeout=SILENT_SECONDS) as answer:  # noqa: S310 - as above
                # A proxy may know no ranges, and send the object from its beginning.
                skip = begin if answer.status == 200 else 0
                while not self._stop.is_set() and (data := answer.read1(CHUNK)):
                    fresh = memoryview(data)[skip:]
                    skip -= min(skip, len(data))
                    while fresh:
                        fresh = fresh[stream.write(fresh) :]
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(file, error) from None

    def _refusal(self, file: PulledFile, error: urllib.error.HTTPError) -> Exception:
        if error.code in _FINAL:
            self._store.partial(file).unlink(missing_ok=True)
            return PullError(f"{file.path} {_FINAL[error.code]}")
        text = error.read(MAX_ERROR)
        code = next((found[1].decode() for found in [_CODE.search(text)] if found), "")
        words = f"the bucket answers {error.code} {code}".rstrip()
        if error.code in (401, 403) or code == "ExpiredToken":
            if time.time() >= self._expires or b"xpired" in text:
                return PullError(f"{file.path}: the credentials of this pull have expired: {_AGAIN}")
            return PullError(f"{file.path}: {words}")
        return ConnectionError(words)
