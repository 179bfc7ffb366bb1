"""Splits what `docker save` writes into blobs, each a file that is called by its sha256; standard library alone.

Every Docker's form is read: a folder a layer, where one that is there twice is a link (until Docker 24), or an OCI
layout, whose layers are packed by gzip where containerd has them: they are unpacked here, so that a layer has the
digest that the image's configuration lists, and no more bytes than are announced. Nothing in the archive decides where
anything is written, and its names are dropped.

Arguments: how many layers from the lowest are not needed, and their digests. Prints how much it has read, and at the
end {"config", "layers", "sizes"}, {"packed"} where a layer is packed in another way, or {"error"}.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import posixpath
import re
import sys
import tarfile
import time
import zlib
from pathlib import Path
from typing import IO

PIECE = 1 << 20
REPORT_SECONDS = 1
# A layer's archive has the bytes of its files; what lists the layers is small.
MAX_MANIFEST = 4 << 20
INCOMING = "incoming"
BLOB = re.compile(r"blobs/sha256/([0-9a-f]{64})")
GZIP = b"\x1f\x8b"
OTHERS = {b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}


class Packed(ValueError):
    """A layer that is not unpacked here; its text is how it is packed."""


class Splitter:
    """One archive, in the working folder."""

    def __init__(self, have: int, unneeded: frozenset[str]) -> None:
        self._have, self._unneeded = have, unneeded
        self._blobs: dict[str, str] = {}
        self._links: dict[str, str] = {}
        self._manifest = b""
        self._read, self._due = 0, time.monotonic() + REPORT_SECONDS

    def read(self, stream: IO[bytes]) -> dict[str, object]:
        """Keep what the image is made of.

        Raises:
            Packed: a layer is packed by another program than gzip.
            ValueError, LookupError, TypeError, EOFError, tarfile.TarError, zlib.error: it is not what `docker save`
                writes of one image.
        """
        with tarfile.open(fileobj=stream, mode="r|", bufsize=PIECE) as tar:
            for member in tar:
                self._take(tar, member)
        (image,) = json.loads(self._manifest)
        config, *layers = (self._blob(str(name)) for name in (image["Config"], *image["Layers"]))
        needed = dict.fromkeys((config, *layers[self._have :]))
        for blob in {*self._blobs.values()} - {*needed}:
            Path(blob).unlink(missing_ok=True)
        return {"config": config, "layers": layers, "sizes": {blob: Path(blob).stat().st_size for blob in needed}}

    def _take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name = posixpath.normpath(member.name)
        known = BLOB.fullmatch(name)
        if member.issym():
            self._links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
        elif member.islnk():
            self._links[name] = posixpath.normpath(member.linkname)
        elif known and known[1] in self._unneeded:
            self._blobs[name] = known[1]
        elif member.isfile() and (content := tar.extractfile(member)):
            if name == "manifest.json":
                self._manifest = content.read(MAX_MANIFEST)
            else:
                self._blobs[name] = self._keep(content)

    def _keep(self, packed: IO[bytes]) -> str:
        digest, content = hashlib.sha256(), _unpacked(packed)
        with Path(INCOMING).open("wb") as target:
            while piece := content.read(PIECE):
                digest.update(piece)
                target.write(piece)
                self._read += len(piece)
                if time.monotonic() > self._due:
                    _report(read=self._read)
                    self._due = time.monotonic() + REPORT_SECONDS
        Path(INCOMING).replace(digest.hexdigest())
        return digest.hexdigest()

    def _blob(self, name: str) -> str:
        place = posixpath.normpath(name)
        # A link leads to a file: Docker makes none to another link.
        return self._blobs[self._links.get(place, place)]


def _unpacked(content: IO[bytes]) -> IO[bytes]:
    # A file in an archive is read with a buffer, which can be looked into.
    beginning = content.peek(PIECE)  # type: ignore[attr-defined]
    if kind := next((name for magic, name in OTHERS.items() if beginning.startswith(magic)), ""):
        raise Packed(kind)
    return gzip.GzipFile(fileobj=content) if beginning.startswith(GZIP) else content  # type: ignore[return-value]


def _report(**row: object) -> None:
    """Print one message."""
    print(json.dumps(row), flush=True)


def main() -> None:
    """Split standard input."""
    try:
        _report(**Splitter(int(sys.argv[1]), frozenset(sys.argv[2:])).read(sys.stdin.buffer))
    except Packed as error:
        _report(packed=str(error))
    except OSError as error:
        _report(error=error.strerror or str(error))
    except (ValueError, LookupError, TypeError, EOFError, tarfile.TarError, zlib.error) as error:
        _report(error=f"what docker save wrote cannot be read: {error}")


if __name__ == "__main__":
    main()
