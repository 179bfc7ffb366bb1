"""What a pull and a build print while they run: read to the end, and no more of it kept than fits a screen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

# An image has at most 127 layers.
MAX_LAYERS = 1000
MAX_ID = 64
MAX_TAIL = 2000
MAX_ERROR = 4000
_ANNOUNCED = ("Pulling fs layer", "Waiting")
_WHOLE = ("Already exists", "Download complete", "Pull complete")


def pulled(messages: Iterable[Mapping[str, Any]], reference: str, progress: Callable[[str], None]) -> str:
    """Read what a pull prints, and report how far it is; returns the error in it, empty where it succeeded."""
    layers, shown = _Layers(), ""
    for message in messages:
        if error := _error(message):
            return error
        if layers.take(message) and shown != (text := f"pulling {reference}: {layers.amount()}"):
            progress(text)
            shown = text
    return ""


class _Layers:
    """The layers of an image that is pulled: the bytes that are here, and all of them, where they are known.

    Of a layer that Docker has named and not begun the size is not known. A Docker may send without end: nothing is
    added up again for each message.
    """

    def __init__(self) -> None:
        self._sizes: dict[str, tuple[int, int] | None] = {}
        self._done = self._total = self._unknown = 0

    def take(self, message: Mapping[str, Any]) -> bool:
        """Note what a message has of a layer; whether bytes arrived."""
        layer, status, detail = str(message.get("id"))[:MAX_ID], message.get("status"), message.get("progressDetail")
        if status in _ANNOUNCED:
            self._set(layer, self._sizes.get(layer))
        elif status in _WHOLE:
            _, total = self._sizes.get(layer) or (0, 0)
            self._set(layer, (total, total))
        elif status == "Downloading" and isinstance(detail, dict):
            here, every = detail.get("current"), detail.get("total")
            if isinstance(here, int) and isinstance(every, int):
                self._set(layer, (here, every))
                return True
        return False

    def _set(self, layer: str, size: tuple[int, int] | None) -> None:
        if layer not in self._sizes:
            if len(self._sizes) == MAX_LAYERS:
                return
            self._sizes[layer], self._unknown = None, self._unknown + 1
        for known, sign in ((self._sizes[layer], -1), (size, 1)):
            done, total = known or (0, 0)
            self._done, self._total = self._done + sign * done, self._total + sign * total
            self._unknown -= sign if known else 0
        self._sizes[layer] = size

    def amount(self) -> str:
        """How much is here; of how much, once that is known and changes no more."""
        if self._unknown:
            return f"{self._done / 1e9:.1f} GB, {self._unknown} of {len(self._sizes)} layers not begun"
        return f"{self._done / 1e9:.1f} of {self._total / 1e9:.1f} GB"


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
