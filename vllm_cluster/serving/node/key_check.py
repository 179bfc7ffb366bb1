"""Whether a request has the cluster's key: one judgement, for the front and for vLLM behind it."""

from __future__ import annotations

import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_cluster.wire.keys import read_key_file, valid_keys

# Answers that reveal only that the server lives. Exactly these: a path that only looks like one is not open.
OPEN = frozenset((method, path) for method in ("GET", "HEAD") for path in ("/health", "/ping"))
KEY_FILE = "VCLUSTER_API_KEY_FILE"


class KeyReader:
    """The keys of a file. A rotation rewrites it: a look at it, 2 µs a request, is all that a new key needs."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._seen: object = None
        self._content = b""

    def keys(self) -> list[bytes]:
        """The keys that are valid now; what was read last where the file is being written at this moment."""
        try:
            found = self._path.stat()
            # Not the time of its content: Docker writes that of the archive, 1970 for each key, into the same inode.
            seen = (found.st_ino, found.st_ctime_ns, found.st_size)
            if seen != self._seen:
                content = read_key_file(self._path)
                if valid_keys(content):
                    self._content, self._seen = content, seen
        except OSError:
            pass
        return valid_keys(self._content)


def has_key(given: Sequence[bytes], keys: Sequence[bytes]) -> bool:
    """Whether the values of all Authorization headers are one, with one of these keys."""
    if len(given) != 1:
        return False
    scheme, _, token = given[0].partition(b" ")
    right = [hmac.compare_digest(token.strip(), key) for key in keys]
    return scheme.lower() == b"bearer" and any(right)


@dataclass(frozen=True)
class Refusal:
    """An answer in place of the model's, in OpenAI's shape of an error."""

    status: int
    code: str
    message: str
    retry_after: int | None = None
    kind: str = ""

    def body(self) -> bytes:
        """The document."""
        kind = self.kind or ("invalid_request_error" if self.status < 500 else "service_unavailable_error")
        error = {"message": self.message, "type": kind, "param": None, "code": self.code}
        return json.dumps({"error": error}).encode()


def refusal(keys: Sequence[bytes]) -> Refusal:
    """The answer to a request without one of these keys; without any key there is no way in."""
    kind = "authentication_error"
    if not keys:
        text = f"the server has no key: the file that {KEY_FILE} names is not there"
        return Refusal(503, "no_api_key", text, kind=kind)
    text = "missing or wrong API key: send Authorization: Bearer KEY (vcluster endpoint --key prints it)"
    return Refusal(401, "invalid_api_key", text, kind=kind)
