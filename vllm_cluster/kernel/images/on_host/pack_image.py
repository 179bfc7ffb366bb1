"""Writes an archive for `docker load` of the blobs in the working folder; standard library alone.

It has no name for the image, and nothing but these blobs, which were hashed as they came. Docker opens no file of a
layer that it has, so those may be missing. Argument: {"config", "layers"}.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tarfile
from pathlib import Path
from typing import IO

PIECE = 1 << 20
BLOB = re.compile("[0-9a-f]{64}")


def pack(config: str, layers: list[str], target: IO[bytes]) -> None:
    """Write it.

    Raises:
        ValueError: it would hold another file than a blob.
    """
    names = dict.fromkeys((config, *layers))
    if not all(map(BLOB.fullmatch, names)):
        raise ValueError("an image of other files than blobs")
    with tarfile.open(fileobj=target, mode="w|", bufsize=PIECE, format=tarfile.GNU_FORMAT) as archive:
        archive.copybufsize = PIECE  # type: ignore[attr-defined]
        for name in names:
            if Path(name).exists():
                archive.add(name, recursive=False)
        content = json.dumps([{"Config": config, "RepoTags": None, "Layers": layers}]).encode()
        manifest = tarfile.TarInfo("manifest.json")
        manifest.size = len(content)
        archive.addfile(manifest, io.BytesIO(content))


if __name__ == "__main__":
    pack(**json.loads(sys.argv[1]), target=sys.stdout.buffer)
