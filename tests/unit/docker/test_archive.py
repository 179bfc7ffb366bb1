"""What is read of the archives that Docker sends."""

from __future__ import annotations

import io
import tarfile
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_cluster.docker.archive import has_content


def folder(*files: str) -> bytes:
    """The archive of a folder with these files, each of a megabyte."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("batch")
        entry.type = tarfile.DIRTYPE
        tar.addfile(entry)
        for name in files:
            entry = tarfile.TarInfo(f"batch/{name}")
            entry.size = 1 << 20
            tar.addfile(entry, io.BytesIO(bytes(entry.size)))
    return archive.getvalue()


@pytest.mark.parametrize("files", [(), ("a1/input.jsonl",), ("a1/input.jsonl", "a2/output.jsonl")])
def test_a_folder_has_content_by_the_beginning_of_its_archive(files: tuple[str, ...]) -> None:
    data = io.BytesIO(folder(*files))
    reply: Any = SimpleNamespace(read=data.read)
    assert has_content(reply) is bool(files)
    assert data.tell() <= tarfile.RECORDSIZE
