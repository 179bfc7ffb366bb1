"""Which lines of a log report an error: by their level, by their words, and the tracebacks between them."""

from __future__ import annotations

from collections.abc import Hashable

from vllm_cluster.kernel.explain.catalogue import HARMLESS
from vllm_cluster.kernel.explain.log_line import parse_line
from vllm_cluster.kernel.explain.progress import is_trouble

_BEGINNING = "Traceback (most recent call last)"
# A host may make up any number of ranks.
MAX_INSIDE = 4096


class ErrorLines:
    """Recognises the lines of errors in several logs that are read side by side."""

    def __init__(self) -> None:
        # The logs that are inside a traceback, the latest last.
        self._inside: dict[Hashable, None] = {}

    def __call__(self, log: Hashable, text: str) -> bool:
        """Whether a line of a log is part of an error, to the end of its traceback, and not known to be harmless."""
        parsed = parse_line(text.encode("utf-8", "replace"))
        if _BEGINNING in parsed.words:
            if len(self._inside) >= MAX_INSIDE:
                self._inside.pop(next(iter(self._inside)))
            self._inside[log] = None
            return True
        if log in self._inside:
            if text[:1].strip():
                del self._inside[log]
            return True
        if parsed.calm or any(one["needle"] in parsed.words for one in HARMLESS):
            return False
        return parsed.loud or is_trouble(parsed.words)
