"""A picture as PNG, by resvg."""

from __future__ import annotations

import re

# Twice as many pixels as the picture is wide: it stays sharp where it is enlarged.
ZOOM = 2.0
_WORDS = re.compile(r"<text\b.*?</text>", re.DOTALL)


def png(svg: str, *, fonts: bool = True) -> bytes | None:
    """The picture; None where no font for its words is installed, as resvg would leave them out without a word.

    Raises:
        ImportError: resvg-py is not installed.
    """
    from resvg_py import svg_to_bytes

    drawn = svg_to_bytes(svg_string=svg, zoom=ZOOM, skip_system_fonts=not fonts)
    wordless, words = _WORDS.subn("", svg)
    return None if words and drawn == svg_to_bytes(svg_string=wordless, zoom=ZOOM, skip_system_fonts=True) else drawn
