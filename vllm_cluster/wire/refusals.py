"""What can be read in the words with which vLLM refuses a request; the laptop and a batch on the head read them."""

from __future__ import annotations

import re

_LENGTH = re.compile(
    r"(?:maximum context length is|cannot be greater than max_model_len=)[ a-z_=]{0,100}([0-9]{1,9})\b"
)
# Where vLLM did not count to the end it writes "at least".
_PROMPT = re.compile(r"(?:has|contains) ([0-9]{1,9}) input tokens")


def is_too_long(message: str) -> bool:
    """Return whether prompt and answer together are longer than the context."""
    return _LENGTH.search(message) is not None


def fitting_tokens(message: str) -> int | None:
    """Return how many tokens an answer beside that prompt may have; None where the message does not show it."""
    length, prompt = _LENGTH.search(message), _PROMPT.search(message)
    return max(0, int(length[1]) - int(prompt[1])) if length and prompt else None
