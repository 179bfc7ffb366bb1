"""Files in and out of containers, as the tar archives that Docker sends and takes."""

from __future__ import annotations

import io
import json
import posixpath
import tarfile
from collections.abc import Mapping

from vllm_cluster.docker.calls import Reply


def packed(files: Mapping[str, tuple[bytes, int]], owner: tuple[int, int] = (0, 0)) -> bytes:
    """An archive of files of one owner: name → content, mode."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            entry.uid, entry.gid = owner
            tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


def first(reply: Reply, limit: int) -> bytes | str | None:
    """The first entry: at most `limit` bytes of a file, where a link points to, or None for anything else.

    Raises:
        Unreadable: it is not an archive, or ends in the middle.
    """
    data = reply.read(limit + tarfile.RECORDSIZE)
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            entry = tar.next()
            if entry is not None and entry.issym():
                return entry.linkname
            content = tar.extractfile(entry) if entry else None
            return content.read(limit) if content else None
    except (tarfile.TarError, ValueError, OSError, LookupError) as error:
        raise reply.unreadable(repr(error)) from error


def has_content(reply: Reply) -> bool:
    """Whether a folder has anything in it: its archive begins with the folder itself.

    Raises:
        HostError: it is not an archive.
    """
    # Two headers are enough; what follows may be gigabytes.
    data = reply.read(tarfile.RECORDSIZE)
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            return tar.next() is not None and tar.next() is not None
    except (tarfile.TarError, ValueError, OSError, LookupError) as error:
        raise reply.unreadable(repr(error)) from error


def is_cut(place: str, content: bytes) -> bool:
    """Whether a document was cut: Docker sends no more of a file than what it had before it was replaced."""
    if not place.endswith(".json"):
        return False
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        return True
    return False


def target(place: str, link: str) -> str:
    """Where a link that lies at a place points to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(place), link))
