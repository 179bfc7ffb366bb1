"""What heads a safetensors file, and the index of several: of a hub or a folder, which may hold anything there.

Both are read entry by entry: json.loads makes twenty times the bytes of `[[],[],[]…`, and needs them all at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from vllm_cluster.wire.values import MAX_NAME, MAX_SIZE

# DeepSeek-V3 has 91,000 tensors: 9 MB of index, and less than 1 MB of header in each of 163 files.
MAX_HEADER = MAX_INDEX = 16 << 20
MAX_FILES = 4096
# A row is a dtype, a shape and two numbers; what else may be there is a few words of metadata.
_MAX_ROW, _MAX_METADATA = 4096, 1 << 20
_GAP = re.compile(r"[ \t\r\n]*")
_DTYPE = re.compile(r"BOOL|BF16|[UIFC](4|8|16|32|64)|F[468]_E\dM\d")

Tensor = tuple[str, str, int]


class _Scan:
    """JSON from its beginning, a value at a time, none longer than it may be."""

    def __init__(self, data: bytes) -> None:
        # One byte a character in any script: JSON's own signs are the same, and the names are ASCII.
        self._text, self._at = data.decode("latin-1"), 0
        self._decode = json.JSONDecoder().raw_decode

    def members(self) -> Iterator[str]:
        """The keys of an object; whoever gets one reads its value before the next."""
        self._take("{")
        while not self._is("}"):
            name = self.value(MAX_NAME)
            if not isinstance(name, str):
                raise ValueError("its header is not JSON")
            self._take(":")
            yield name
            if not self._is("}"):
                self._take(",")
        self._at += 1

    def value(self, most: int) -> object:
        """The next value."""
        self._skip()
        # Most are short: of 1 MB of `"":1,` a copy of so much for each would take half a minute.
        for size in sorted({min(_MAX_ROW, most), most}):
            try:
                found, used = self._decode(self._text[self._at : self._at + size])
            except (ValueError, RecursionError):
                continue
            self._at += used
            return found
        raise ValueError("its header is not JSON")

    def _skip(self) -> None:
        self._at = _GAP.match(self._text, self._at).end()  # type: ignore[union-attr]  # it matches nothing, too

    def _is(self, sign: str) -> bool:
        self._skip()
        return self._text.startswith(sign, self._at)

    def _take(self, sign: str) -> None:
        if not self._is(sign):
            raise ValueError("its header is not JSON")
        self._at += 1


def tensors(header: bytes) -> Iterator[Tensor]:
    """Name, dtype and bytes of every tensor of a header.

    Raises:
        ValueError: not a safetensors header.
    """
    scan = _Scan(header)
    for name in scan.members():
        if name == "__metadata__":
            scan.value(_MAX_METADATA)
            continue
        found = scan.value(_MAX_ROW)
        row = found if isinstance(found, dict) else {}
        ends = row.get("data_offsets")
        if not isinstance(ends, list) or [type(end) for end in ends] != [int, int]:
            raise ValueError("its header is not of the safetensors format")
        if not 0 <= ends[0] <= ends[1] <= MAX_SIZE:
            raise ValueError(f"its header gives {name[:80]!a} a size that cannot be")
        dtype = row.get("dtype")
        yield name, dtype if isinstance(dtype, str) and _DTYPE.fullmatch(dtype) else "unknown", ends[1] - ends[0]


def files_of(index: bytes) -> tuple[list[str], int]:
    """The files that an index names, and the bytes of their tensors, 0 where it has none.

    Raises:
        ValueError: not an index, or it names too many.
    """
    scan, names, total = _Scan(index), set[str](), 0
    for key in scan.members():
        if key != "weight_map":
            found = scan.value(_MAX_METADATA)
            size = found.get("total_size") if key == "metadata" and isinstance(found, dict) else None
            total = size if type(size) is int and 0 < size <= MAX_SIZE else total
            continue
        for _ in scan.members():
            names.add(str(scan.value(MAX_NAME)))
            if len(names) > MAX_FILES:
                raise ValueError(f"its index names more than {MAX_FILES} files")
    # As they were written, and not a character for each byte.
    return sorted(name.encode("latin-1", "replace").decode("utf-8", "replace") for name in names), total
