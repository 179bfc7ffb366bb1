"""The download from a hub, with the real huggingface_hub."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.clock import Clock
from tests.support.models.repositories import PullHub, _Handler, pull_hub
from tests.support.pulls import MODEL, contents, model_files, plan_of, repository, snapshot
from tests.support.spread import partial_of
from vllm_cluster.kernel.spread import download
from vllm_cluster.kernel.spread.download import Download
from vllm_cluster.kernel.spread.plan import PullError
from vllm_cluster.kernel.spread.store import Partial, Store
from vllm_cluster.wire.pull import HostPlan

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# Real connections, kills and pauses: seconds each.
pytestmark = pytest.mark.slow

FILES = model_files()
SHARDS = [path for path in FILES if path.endswith("of-00002.safetensors")]


@pytest.fixture
def hub() -> Iterator[PullHub]:
    with pull_hub("127.0.0.1", repositories={MODEL: repository(FILES)}) as made:
        yield made


def fetch(plan: HostPlan, token: str | None = None) -> None:
    """Download all of a plan."""
    Download(plan, Store(plan), token).run()


def test_every_file_is_downloaded_once_and_laid_out_as_the_hub_does(hub: PullHub, tmp_path: Path) -> None:
    plan = plan_of(hub, tmp_path)
    fetch(plan)
    assert contents(plan) == FILES
    links = [path for path in snapshot(plan).iterdir() if path.is_symlink()]
    assert len(links) == len(FILES) and all(not path.readlink().is_absolute() for path in links)
    assert hub.sent == sum(map(len, FILES.values()))


def test_a_download_that_is_cut_in_the_middle_continues_there(hub: PullHub, tmp_path: Path) -> None:
    hub.cut = (2 << 20) + 1000
    plan = plan_of(hub, tmp_path)
    fetch(plan)
    assert contents(plan) == FILES
    assert hub.sent < sum(map(len, FILES.values())) + 2 * download.CHUNK


def test_what_a_killed_download_left_is_not_downloaded_again(hub: PullHub, tmp_path: Path) -> None:
    plan = plan_of(hub, tmp_path)
    large = max(plan.files, key=lambda file: file.size)
    partial_of(Store(plan), large).write_bytes(FILES[large.path][: 2 << 20])
    fetch(plan)
    assert contents(plan) == FILES
    assert hub.sent == sum(map(len, FILES.values())) - (2 << 20)


def test_a_busy_hub_is_waited_for(hub: PullHub, tmp_path: Path) -> None:
    hub.busy = 3
    plan = plan_of(hub, tmp_path)
    fetch(plan)
    assert contents(plan) == FILES


def test_a_hub_that_sends_another_content_than_it_lists_is_reported(hub: PullHub, tmp_path: Path) -> None:
    plan = plan_of(hub, tmp_path)
    large = max(plan.files, key=lambda file: file.size)
    wrong = bytes(len(FILES[large.path]))
    hub.repositories[MODEL].files[plan.commit] = {**FILES, large.path: wrong}
    with pytest.raises(PullError, match=f"{large.path}: .* sends another content"):
        fetch(plan)
    assert not (snapshot(plan) / large.path).exists()


def test_a_refusal_ends_it_at_once_and_nothing_is_linked(hub: PullHub, tmp_path: Path) -> None:
    hub.repositories[MODEL].gated = True
    plan = plan_of(hub, tmp_path)
    with pytest.raises(PullError, match="the hub answers 401"):
        fetch(plan)
    assert set(contents(plan)) <= {"empty.txt"}
    fetch(plan, "hf_right")
    assert contents(plan) == FILES


def test_the_token_is_sent_to_the_hub_alone(hub: PullHub, tmp_path: Path) -> None:
    """What holds the large files may be another host: it gets its own signed address, and no token."""
    with pull_hub("127.0.0.2", repositories=hub.repositories) as other:
        elsewhere, hub.url = hub.url, other.url
        plan = HostPlan(**{**vars(plan_of(hub, tmp_path)), "endpoint": elsewhere})
        fetch(plan, "hf_right")
    assert contents(plan) == FILES
    assert {token for _, path, token in hub.asked if "/resolve/" in path} == {"Bearer hf_right"}
    assert {token for _, _, token in other.asked} == {""}


def test_a_hub_that_is_gone_ends_it_after_its_patience(
    hub: PullHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    plan = HostPlan(**{**vars(plan_of(hub, tmp_path)), "endpoint": "http://127.0.0.1:1"})
    with pytest.raises(PullError, match=r"nothing came from http://127.0.0.1:1 for 0 s"):
        fetch(plan)


@pytest.mark.parametrize("more", [1000, -1000])
def test_a_hub_that_sends_another_size_than_it_lists_is_reported_at_once(
    hub: PullHub, tmp_path: Path, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "FIRST_PAUSE", 0.01)
    plan = plan_of(hub, tmp_path)
    files = tuple(
        replace(file, size=file.size + more) if file.path.endswith(".safetensors") else file for file in plan.files
    )
    with pytest.raises(PullError, match=r"safetensors: .* sends another (size|content) than it lists"):
        fetch(replace(plan, files=files))
    assert not any(name.endswith(".safetensors") for name in contents(plan))


Lie = Callable[[_Handler, bytes], None]


def lies(monkeypatch: pytest.MonkeyPatch, lie: Lie, path: str = SHARDS[0]) -> list[str]:
    """Have a hub answer for one file with a lie until it has none left; return the requests for it as they come."""
    asked: list[str] = []
    give = _Handler._give

    def lying(self: _Handler, content: bytes, name: str, headers: Mapping[str, str] | None = None) -> None:
        if name != path:
            return give(self, content, name, headers)
        asked.append(self.headers.get("Range", ""))
        self.close_connection = True
        with suppress(OSError):
            lie(self, content)
        return None

    monkeypatch.setattr(_Handler, "_give", lying)
    return asked


def answer(handler: _Handler, code: int, body: bytes = b"", **headers: str) -> None:
    """Answer with what is given, and the length of the body."""
    handler.send_response(code)
    for name, value in {**headers, "Content-Length": str(len(body))}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def drips_headers(handler: _Handler, content: bytes) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(60):
        handler.wfile.write(b"X-%d: y\r\n" % number)
        time.sleep(0.1)
    handler.wfile.write(b"Content-Length: %d\r\n\r\n" % len(content) + content)


def unpacks_to_nothing(handler: _Handler, content: bytes) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n")
    for piece in [gzip.compress(b"")] * 60 + [gzip.compress(content), b""]:
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        time.sleep(0.1)


# fault: kernel/spread/download.py: if now - self._moved > PATIENCE_SECONDS: → if False:
# fault: kernel/spread/download.py: {Url(self._plan.endpoint)} for {PATIENCE → the hub for {PATIENCE
@pytest.mark.parametrize("lie", [drips_headers, unpacks_to_nothing])
def test_an_answer_that_brings_no_byte_of_the_file_ends_it(
    hub: PullHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: Lie
) -> None:
    """Each part of it came in time: it was waited for without end, and without a word."""
    monkeypatch.setattr(download, "PATIENCE_SECONDS", 1.0)
    lies(monkeypatch, lie)
    with pytest.raises(PullError, match=f"nothing came from {hub.url} for 1 s: {SHARDS[0]}"):
        fetch(plan_of(hub, tmp_path))


# fault: kernel/spread/download.py: if self._stop.is_set(): → if False:
def test_a_file_that_fails_does_not_wait_for_the_answers_of_others(
    hub: PullHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lies(monkeypatch, drips_headers)
    plan = plan_of(hub, tmp_path)
    hub.repositories[MODEL].files[plan.commit] = {SHARDS[0]: FILES[SHARDS[0]]}
    began = time.monotonic()
    with pytest.raises(PullError, match="the hub answers 404"):
        fetch(plan)
    assert time.monotonic() - began < 5


# fault: kernel/spread/download.py: self._moved, self._marks[file.blob] = now, length → pass
def test_a_file_that_comes_slowly_gives_the_others_time(
    hub: PullHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock was that of whole answers: with one of hours, the first refusal of another file ended all."""
    clock = Clock()
    write = Partial.write

    def written(partial: Partial, data: ReadableBuffer) -> int:
        # A second for each MiB that has come, so that a busy machine does not look like a slow hub.
        clock.sleep(len(memoryview(data)) / (1 << 20))
        return write(partial, data)

    monkeypatch.setattr(Partial, "write", written)
    monkeypatch.setattr(download, "time", clock)
    monkeypatch.setattr(download, "PATIENCE_SECONDS", 2.0)
    monkeypatch.setattr(download, "PATIENCE_BYTES", 1 << 16)
    monkeypatch.setattr(download, "CHUNK", 1 << 16)
    hub.rate = 2 << 20

    def refused(handler: _Handler, content: bytes) -> None:
        if clock.now < 2.7:
            answer(handler, 503)
        else:
            answer(handler, 200, content)

    lies(monkeypatch, refused, "config.json")
    plan = plan_of(hub, tmp_path)
    fetch(plan)
    assert contents(plan) == FILES


# fault: kernel/spread/download.py: _FINAL = (400, 401, → _FINAL = (401,
# fault: kernel/spread/download.py: type(error).__name__ in _BAD_ADDRESS → not words
# fault: kernel/spread/download.py: or _BAD_REDIRECT in str(error) → or False
# fault: kernel/spread/download.py: if wrong >= ATTEMPTS: → if False:
# fault: kernel/spread/download.py: or _INCONSISTENT in str(error) → or False
@pytest.mark.parametrize(
    "lie",
    [
        lambda handler, content: answer(handler, 400),
        lambda handler, content: answer(handler, 302, Location="ftp://127.0.0.1/x"),
        lambda handler, content: answer(handler, 302, Location="file:///etc/hostname"),
        lambda handler, content: answer(handler, 302, Location="http://[::1"),
        lambda handler, content: answer(handler, 200, content[:-5]),
        lambda handler, content: answer(handler, 200, b"version https://git-lfs.github.com/spec/v1"),
        lambda handler, content: answer(handler, 206, content[:10], Content_Range="bytes 5-14/15"),
    ],
    ids=["400", "ftp", "file", "address", "short", "pointer", "part"],
)
def test_what_no_further_try_can_help_ends_it_at_once(
    hub: PullHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: Lie
) -> None:
    """It was asked again for ten minutes; what is short came whole each time."""
    monkeypatch.setattr(download, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(download, "PATIENCE_SECONDS", 8.0)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _seconds: None)
    asked = lies(monkeypatch, lie)
    with pytest.raises(PullError, match=r"answers 400|unsupported protocol|location header|another (size|content)"):
        fetch(plan_of(hub, tmp_path))
    assert len(asked) <= 6
