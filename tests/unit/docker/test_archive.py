"""What is read of the archives that Docker sends."""

from __future__ import annotations

import bz2
import io
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.bounds import within
from tests.support.canned_docker import answer, canned
from tests.support.clock import Clock
from tests.support.depth import cases
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.docker.calls import Unreadable
from vllm_cluster.kernel.docker.client import MAX_READS
from vllm_cluster.kernel.errors import TimedOut


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
    sent = answer(folder(*files))
    docker, _ = canned(lambda _line: (sent[at : at + 4096] for at in range(0, len(sent), 4096)))
    assert docker.has_files("some", "/batch", 5) is bool(files)


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


# fault: kernel/docker/client.py: del end[:-kept] → pass
# fault: kernel/docker/client.py: end = bytearray(data[entry.begin :][: entry.size]) → end = bytearray(data[entry.begin :])
# fault: kernel/docker/client.py: end[end.find(b"\n") + 1 :] if cut else end → end
@pytest.mark.parametrize("size", [0, 5, 3000, 9728, 9729, 20_000_000])
@pytest.mark.parametrize("limit", [40_000, 30_000_000])
def test_of_the_end_of_a_file_no_more_than_that_is_held(size: int, limit: int) -> None:
    content = (b"%09d\n" * 7 % tuple(range(7))) * (size // 70 + 1)
    content = content[:size]
    sent = answer(one_file(content))
    docker, _ = canned(lambda _line: (sent[at : at + 16_384] for at in range(0, len(sent), 16_384)))
    with within(60, megabytes=2):
        end = content[:limit][-1000:]
        whole = end.partition(b"\n")[2] if len(content[:limit]) > 1000 else end
        assert docker.read_end("some", "/file", limit, 1000) == whole


@pytest.mark.parametrize("status", [200, 404])
def test_a_folder_or_a_gap_in_the_place_of_a_file_has_no_end(status: int) -> None:
    docker, _ = canned(lambda _line: iter([answer(folder(), status)]))
    assert docker.read_end("some", "/file", 1000, 100) is None


def reads(place: str, *archives: bytes) -> tuple[Callable[[], bytes | None], list[str]]:
    """What reads a file of a Docker that sends these archives in turn, then the last again; and the requests."""
    asked: list[str] = []

    def send(line: str) -> Iterator[bytes]:
        asked.append(line)
        return iter([answer(archives[min(len(asked), len(archives)) - 1])])

    docker, _ = canned(send)
    return lambda: docker.read_file("some", place), asked


# fault: kernel/docker/client.py: if not (content and _is_cut(place, content)): → if True:
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


# fault: kernel/docker/client.py: until = until.sooner(FILE_SECONDS) if until else → until =
# fault: kernel/docker/client.py: self._calls.stream(call, until) as → self._calls.stream(call, self._calls.after(FILE_SECONDS)) as
@pytest.mark.parametrize(("seconds", "most"), [(None, 150.0), (30.0, 50.0)])
def test_a_file_has_one_time_for_all_tries(seconds: float | None, most: float) -> None:
    """A document that came cut each time took four times as long as a file may."""
    clock = Clock()

    def send(_line: str) -> Iterator[bytes]:
        clock.sleep(50)
        return iter([answer(LONGER)])

    docker, _ = canned(send, clock)
    with pytest.raises(TimedOut):
        docker.read_file("some", "/status.json", until=Deadline.after(seconds, clock) if seconds else None)
    assert clock.now == most


def entry(kind: bytes = tarfile.REGTYPE, form: int = tarfile.PAX_FORMAT, **fields: Any) -> bytes:
    """The archive of one entry with these fields."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=form) as tar:
        made = tarfile.TarInfo("file")
        made.type = kind
        for name, value in fields.items():
            setattr(made, name, value)
        tar.addfile(made)
    return archive.getvalue() + bytes(tarfile.RECORDSIZE)


ODD = (
    one_file(DOCUMENT),
    folder("a"),
    entry(name="x" * 5000, form=tarfile.GNU_FORMAT),
    entry(tarfile.LNKTYPE, linkname="file"),
    entry(tarfile.SYMTYPE, linkname="/etc/\udcff"),
    entry(pax_headers={"size": "9" * 400}),
    entry(pax_headers={"size": "-5", "mtime": "1e999"}),
    entry(pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(10**15)}),
    entry(pax_headers={"GNU.sparse.map": f"0,{10**14}", "GNU.sparse.size": str(10**14)}),
)


@settings(max_examples=cases(100, 400, 20_000))
@given(st.sampled_from(ODD), st.lists(st.tuples(st.integers(0, 2047), st.integers(0, 255)), max_size=9))
def test_an_archive_of_any_content_is_read_or_refused(archive: bytes, changes: list[tuple[int, int]]) -> None:
    data = bytearray(archive)
    for at, byte in changes:
        data[at % len(data)] = byte
    docker, _ = canned(lambda _line: iter([answer(bytes(data))]))
    looks: tuple[Callable[[], object], ...] = (
        lambda: docker.has_files("some", "/file", 5),
        lambda: len(docker.read_file("some", "/file", 1 << 16) or b"") <= 1 << 16,
        lambda: len(docker.read_end("some", "/file", 1 << 16, 9) or b"") <= 9,
    )
    for look in looks:
        with suppress(Unreadable):
            assert look() in (True, False)


def header(kind: bytes, size: int) -> bytes:
    """The header of an entry."""
    made = tarfile.TarInfo("file")
    made.type, made.size = kind, size
    return made.tobuf(tarfile.GNU_FORMAT)


def packed(size: int) -> bytes:
    """A header that announces so many bytes, and these: all of it compressed, to 400 bytes."""
    made = bz2.BZ2Compressor()
    pieces = [made.compress(header(tarfile.XHDTYPE, size)), *(made.compress(bytes(1 << 20)) for _ in range(size >> 20))]
    return b"".join(pieces) + made.flush()


HOSTILE = {
    "compressed": lambda: packed(50 << 20),
    # Of Python 3.11.7 the search for a key in it goes over all digits, from each of them on.
    "digits": lambda: header(tarfile.XHDTYPE, 2 << 20) + b"1" * (2 << 20) + bytes(tarfile.RECORDSIZE),
    "headers": lambda: header(tarfile.GNUTYPE_LONGNAME, 0) * 3000,
    "records": lambda: header(tarfile.XHDTYPE, 2 << 20) + b"".join(b"12 %07x=\n" % n for n in range(180_000)),
}


# fault: kernel/docker/archive.py: if head.size > MAX_EXTENDED: → if head.size > 1 << 40:
@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.promise("P23", "P46")
def test_an_archive_takes_no_more_than_was_sent(kind: str) -> None:
    body = HOSTILE[kind]()
    docker, _ = canned(lambda _line: iter([answer(body)]))
    looks: tuple[Callable[[], object], ...] = (
        lambda: docker.has_files("some", "/file", 5),
        lambda: docker.read_file("some", "/file"),
        lambda: docker.read_end("some", "/file", 3 << 20, 1000),
    )
    with within(5, megabytes=20):
        for look in looks:
            with suppress(Unreadable):
                assert not look()


LONG = "/" + "x" * 300


# fault: kernel/docker/archive.py: link = records.get(b"linkpath", link) → link = link
# fault: kernel/docker/archive.py: link = more.rstrip(b"\0") → pass
@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_link_with_a_long_target_is_followed(form: int) -> None:
    read, asked = reads("/link", entry(tarfile.SYMTYPE, form, linkname=LONG), one_file(DOCUMENT))
    assert read() == DOCUMENT
    assert LONG in unquote(asked[1])


# fault: kernel/docker/archive.py: size = _number(records[b"size"]) if b"size" in records else size → pass
def test_a_file_has_the_size_and_attributes_of_its_header() -> None:
    attributes = {"SCHILY.xattr.security.capability": "\n9 a=b\n" * 3, "size": str(len(DOCUMENT))}
    sent = bytearray(entry(pax_headers=attributes, name="\u00e9" * 200))
    at = sent.rindex(b"ustar") - 257
    sent[at + 512 : at + 512 + len(DOCUMENT)] = DOCUMENT
    read, _ = reads("/file", bytes(sent))
    assert read() == DOCUMENT


@pytest.mark.parametrize("link", ["/etc/\udcff", "/loop"])
def test_a_link_that_leads_nowhere_is_followed_to_no_end(link: str) -> None:
    read, asked = reads("/loop", entry(tarfile.SYMTYPE, linkname=link))
    with suppress(Unreadable):
        assert read() is None
    assert len(asked) <= 20
