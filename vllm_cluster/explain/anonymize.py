"""Replace what identifies hosts and users: one value gets the same new name wherever it occurs."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterable

_ADDRESS = re.compile(
    r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)|(?<![\w.:])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![\w:]|\.\d)"
)
_MAC = re.compile(r"\b[0-9a-f]{2}(?::[0-9a-f]{2}){5}\b", re.IGNORECASE)
_MIN_LENGTH = 2


def anonymizer(names: Iterable[str]) -> Callable[[str], str]:
    """Replaces these names and every address that is not loopback or a wildcard."""
    distinct = dict.fromkeys(name.lower() for name in names if len(name) >= _MIN_LENGTH)
    given = {form: f"name-{number}" for number, name in enumerate(distinct, 1) for form in _forms(name)}
    # The longest first: gpu10 is not gpu1 with a nought.
    words = "|".join(re.escape(name) for name in sorted(given, key=len, reverse=True))
    known = re.compile(rf"(?<![A-Za-z0-9]){'(?:' + words + ')'}(?![A-Za-z0-9])", re.IGNORECASE) if given else None
    addresses: dict[str, str] = {}

    def address(found: re.Match[str]) -> str:
        try:
            at = ipaddress.ip_address(found[0])
        except ValueError:
            return found[0]
        if at.is_loopback or at.is_unspecified:
            return found[0]
        return addresses.setdefault(str(at), f"address-{len(addresses) + 1}")

    def replace(text: str) -> str:
        text = _MAC.sub("mac", text)
        text = _ADDRESS.sub(address, text)
        return known.sub(lambda found: given[found[0].lower()], text) if known else text

    return replace


def _forms(name: str) -> Iterable[str]:
    """A name as it is, in JSON, and in JSON that is a text of JSON: a label that holds a document."""
    once = json.dumps(name)[1:-1]
    return dict.fromkeys((name, once.lower(), json.dumps(once)[1:-1].lower()))
