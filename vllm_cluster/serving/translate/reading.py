"""What reading one text from elsewhere may take, with all that its variables, texts within it and aliases become."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vllm_cluster.kernel.errors import UsageError

# The longest recipe of vLLM's book has 60 kB. The YAML parser needs 10 s for 1 MB.
MAX_BYTES = 256_000
# A text within a text within a text is read once at each level; the rest is for variables and aliases.
TIMES, AND_MORE = 5, 100_000
MAX_WORDS = 20_000
MAX_COMMANDS = 5_000
# Those of several hosts, or of several ways to serve one model.
MAX_SERVING = 200
# A command with its variables, and what a batch script does before it.
MAX_ROWS = 2_000
INSTEAD = "give only the command that serves"

What = Literal["characters", "words", "commands", "serving", "rows"]
_LONG = "too long for one command that serves"
_SPENT: dict[What, str] = {
    "characters": _LONG,
    "words": _LONG,
    "commands": f"more than {MAX_COMMANDS} commands",
    "serving": f"more than {MAX_SERVING} commands that serve",
    "rows": f"more than {MAX_ROWS} options, variables and lines of setup",
}


@dataclass(frozen=True)
class Reading:
    """One text while it is read: how errors name it, and what is left for it.

    It is made where a text begins to be read, and given to all that reads a part of it. With limits of its own for
    each part, 8 kB took 6 GB: a part may be there a hundred times, and each of its parts again.
    """

    place: str
    left: dict[What, int]

    @classmethod
    def of(cls, text: str, place: str) -> Reading:
        """Begin to read a text; `place` names it in errors.

        Raises:
            UsageError: it is too long.
        """
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > MAX_BYTES:
            raise UsageError(f"{place}: longer than {MAX_BYTES // 1000} kB", hint=INSTEAD)
        left: dict[What, int] = {"characters": TIMES * size + AND_MORE, "words": MAX_WORDS}
        return cls(place, {**left, "commands": MAX_COMMANDS, "serving": MAX_SERVING, "rows": MAX_ROWS})

    def spend(self, what: What, number: int, line: int) -> None:
        """Count something before it is made.

        Raises:
            UsageError: there is too much of it.
        """
        self.left[what] -= number
        if self.left[what] < 0:
            raise UsageError(f"{self.place}:{line}: {_SPENT[what]}", hint=INSTEAD)
