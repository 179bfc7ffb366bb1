"""The file of the API key: the key alone, or what a rotation writes in its place.

The file keeps its name, which is the id of the first key: the node's container names it, and is not made again for a
new key. `remote/node/key_file.py` reads the same form on the head, at each request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

MARK = "#vcluster-keys\n"
FIELDS = 2


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


def parse_key_file(text: str) -> KeyFile:
    """The content as what it means; what was cut off has an empty key."""
    if not text.startswith(MARK):
        return KeyFile(text)
    lines = [line for line in text.removeprefix(MARK).splitlines(keepends=True) if line.endswith("\n")]
    rows = [words for line in lines if len(words := line.split()) == FIELDS]
    if not rows:
        return KeyFile("", "")
    return KeyFile(rows[0][0], rows[0][1], {key: float(until) for key, until in rows[1:]})


def is_whole(text: str, identity: str, identify: Callable[[str], str]) -> bool:
    """Whether this is what the file with this id held, and no part of it."""
    found = parse_key_file(text)
    return identify(found.key) == (identity if found.identity is None else found.identity)
