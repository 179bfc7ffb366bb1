"""The file of the API key: the key alone, or what a rotation writes in its place.

The file keeps its name, which is the id of the first key: the node's container names it, and is not made again for a
new key. Docker writes it while vLLM's middleware, the node program and a batch read it, at each request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vllm_cluster.wire.inside import beginning

MARK = "#vcluster-keys\n"
FIELDS = 2
# What a program on a host needs to read it.
NEEDED = ("wire.inside", "wire.keys")
# A key has 4 kB at most, a rotation keeps the older ones beside it: of any other size the file is not vcluster's.
MAX_KEYS = 64 << 10


@dataclass(frozen=True)
class KeyFile:
    """The key, its own id once it was rotated, and older keys that are valid until a moment (seconds since 1970)."""

    key: str = field(repr=False)
    identity: str | None = None
    older: Mapping[str, float] = field(default_factory=dict, repr=False)

    def text(self) -> str:
        """The content of the file."""
        lines = [f"{self.key} {self.identity}", *(f"{key} {until:.0f}" for key, until in self.older.items())]
        return MARK + "".join(f"{line}\n" for line in lines)

    @classmethod
    def read(cls, text: str) -> KeyFile:
        """Read the content; what was cut off has an empty key."""
        if not text.startswith(MARK):
            # In any form: a person may have thought it up.
            return cls(text)
        lines = [line for line in text.removeprefix(MARK).splitlines(keepends=True) if line.endswith("\n")]
        rows = [words for line in lines if len(words := line.split()) == FIELDS]
        if not rows:
            return cls("", "")
        return cls(rows[0][0], rows[0][1], {key: _moment(until) for key, until in rows[1:]})

    def is_whole(self, identity: str, identify: Callable[[str], str]) -> bool:
        """Whether this is what the file with this id held, and no part of it."""
        return identify(self.key) == (identity if self.identity is None else self.identity)


def valid_keys(content: bytes, now: float | None = None) -> list[bytes]:
    """The keys of a file that are valid now, the one to use first; none where it was cut off, or is too long."""
    if len(content) > MAX_KEYS:
        return []
    # A key that is not UTF-8 comes back as it was.
    found = KeyFile.read(content.decode("utf-8", "surrogateescape"))
    now = time.time() if now is None else now
    keys = [found.key.strip(), *(key for key, until in found.older.items() if until > now)]
    return [key.encode("utf-8", "surrogateescape") for key in keys if key]


def read_key_file(path: Path) -> bytes:
    """Read the content, as far as it may have any.

    Raises:
        OSError: it cannot be read, or is not a plain file, which is not waited for.
    """
    return beginning(path, MAX_KEYS + 1)


def key_to_use(path: Path) -> str:
    """The key with which to ask; empty while its file holds none, as while it is replaced.

    Raises:
        OSError: it cannot be read, or is not a plain file.
    """
    return next(iter(valid_keys(read_key_file(path))), b"").decode("utf-8", "surrogateescape")


def _moment(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
