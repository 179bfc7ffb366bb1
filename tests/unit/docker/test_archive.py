"""What is read of the archives that Docker sends."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.canned_docker import answer, canned
from vllm_cluster.docker.calls import Unreadable
from vllm_cluster.docker.client import MAX_READS, has_content


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


def one_file(content: bytes, size: int | None = None) -> bytes:
    """The archive of a file of which Docker sends no more than `size` bytes, the size that it had."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("file")
        entry.size = len(content) if size is None else size
        tar.addfile(entry, io.BytesIO(content[: entry.size]))
    return archive.getvalue()


DOCUMENT = b'{"phase": "download", "bytes": 17}'
# The file became shorter: Docker announces what it was, sends what it is, and ends.
SHORTER = one_file(DOCUMENT + bytes(400))[: tarfile.BLOCKSIZE + len(DOCUMENT)]
# It became longer: Docker sends as many bytes as it announced, and a whole archive.
LONGER = one_file(DOCUMENT, 20)


def reads(place: str, *archives: bytes) -> tuple[Callable[[], bytes | None], list[str]]:
    """What reads a file of a Docker that sends these archives in turn, then the last again; and the requests."""
    asked: list[str] = []

    def send(line: str) -> Iterator[bytes]:
        asked.append(line)
        return iter([answer(archives[min(len(asked), len(archives)) - 1])])

    docker, _ = canned(send)
    return lambda: docker.read_file("some", place), asked


# fault: docker/client.py: if not (content and _is_cut(place, content)): → if True:
@pytest.mark.parametrize("cut", [SHORTER, LONGER], ids=["shorter", "longer"])
def test_a_document_that_was_replaced_while_docker_read_it_is_read_again(cut: bytes) -> None:
    read, asked = reads("/status.json", cut, cut, one_file(DOCUMENT))
    assert read() == DOCUMENT
    assert len(asked) == 3


def test_an_archive_that_always_ends_early_is_an_error_of_the_host() -> None:
    read, asked = reads("/status.json", SHORTER)
    with pytest.raises(Unreadable, match=r"^gpu1: read /status.json: Docker's answer cannot be read: .*unexpected end"):
        read()
    assert len(asked) == MAX_READS


def test_a_damaged_document_and_a_cut_text_are_returned_as_they_are() -> None:
    read, asked = reads("/status.json", LONGER)
    assert (read(), len(asked)) == (DOCUMENT[:20], MAX_READS)
    read, asked = reads("/audit.jsonl", LONGER)
    assert (read(), len(asked)) == (DOCUMENT[:20], 1)
