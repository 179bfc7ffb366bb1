"""Every picture of the repository is one that a browser shows."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.paths import ROOT

PICTURES = sorted(path for path in (ROOT / "docs").rglob("*") if path.suffix in (".svg", ".png"))


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: str(path.relative_to(ROOT)))
def test_it_is_whole(path: Path) -> None:
    if path.suffix == ".svg":
        assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
        return
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    at, kinds = 8, list[bytes]()
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        chunk = data[at + 4 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length]) == (zlib.crc32(chunk),)
        kinds.append(chunk[:4])
        at += 12 + length
    assert (kinds[0], kinds[-1]) == (b"IHDR", b"IEND")
