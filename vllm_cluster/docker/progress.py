"""What a pull and a build print while they run: read to the end, and no more of it kept than fits a screen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

# An image has at most 127 layers.
MAX_LAYERS = 1000
MAX_ID = 64
MAX_TAIL = 2000
MAX_ERROR = 4000


def pulled(messages: Iterable[Mapping[str, Any]], reference: str, progress: Callable[[str], None]) -> str:
    """Read what a pull prints, and report how far it is; returns the error in it, empty where it succeeded."""
    layers: dict[str, tuple[int, int]] = {}
    shown = ""
    for message in messages:
        if error := _error(message):
            return error
        detail = message.get("progressDetail")
        if message.get("status") != "Downloading" or not isinstance(detail, dict):
            continue
        layer, done, total = str(message.get("id"))[:MAX_ID], detail.get("current"), detail.get("total")
        if isinstance(done, int) and isinstance(total, int) and (layer in layers or len(layers) < MAX_LAYERS):
            layers[layer] = (done, total)
            done, total = (sum(column) for column in zip(*layers.values(), strict=True))
            text = f"pulling {reference}: {done / 1e9:.1f} of {total / 1e9:.1f} GB"
            if text != shown:
                progress(text)
            shown = text
    return ""


def built(messages: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """Read what a build prints: the error in it, empty where it succeeded, and the end of its log."""
    log = ""
    for message in messages:
        log = (log + str(message.get("stream", "")))[-MAX_TAIL:]
        if error := _error(message):
            return error, log.strip()
    return "", log.strip()


def _error(message: Mapping[str, Any]) -> str:
    return str(message["error"] or "without a reason")[:MAX_ERROR] if "error" in message else ""
