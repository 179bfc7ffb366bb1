"""The patterns of ssh: `*` and `?`, as known_hosts and the `Host` lines of ssh_config have them."""

from __future__ import annotations


def wildcard(pattern: str, text: str) -> bool:
    """Return whether a pattern matches a whole text.

    Not fnmatch: brackets are part of a name here ("[host]:port"), not a set of characters. Not a regex: its time grows
    with a power of the stars, and a line of 2,000 stars was never left.
    """
    at = here = 0
    star = back = -1
    while here < len(text):
        char = pattern[at : at + 1]
        if char == "*":
            star, back, at = at, here, at + 1
        elif char and char in ("?", text[here]):
            at, here = at + 1, here + 1
        elif star >= 0:
            # The last star takes one character more; those before it never have to.
            back += 1
            at, here = star + 1, back
        else:
            return False
    return not pattern[at:].strip("*")
