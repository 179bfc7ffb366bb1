"""A Docker that floods us, trickles, falls silent or talks nonsense: a bounded error that names the host, in time."""

from __future__ import annotations

import itertools
import json
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.attack import attack
from tests.support.canned_docker import CHUNKED, always, answer, canned, chunk
from tests.support.depth import FULL
from tests.support.figures import tallied
from tests.support.paths import ROOT
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.docker import calls, client, parse
from vllm_cluster.kernel.docker.calls import MAX_ANSWER, MAX_LINE
from vllm_cluster.kernel.docker.client import DockerApi
from vllm_cluster.kernel.errors import ConnectionLost, HostError, TimedOut

MB = 1 << 20
SECONDS = 1.0
MAX_GROWTH = 50 * MB
# The deadline is looked at between two reads.
MAX_LATE = 1.0

Use = Callable[[DockerApi], object]


def deadline() -> Deadline:
    return Deadline.after(SECONDS)


def build(docker: DockerApi) -> object:
    return docker.build(b"", "some:1", {}, {}, deadline())


USES: dict[str, Use] = {
    "containers": lambda docker: docker.containers("some"),
    "container_named": lambda docker: docker.container_info("some"),
    "images": lambda docker: docker.images(),
    "image_config": lambda docker: docker.image_info("some"),
    "build": build,
    "create": lambda docker: docker.create("some", {}),
    "logs": lambda docker: docker.logs("some"),
    "read_file": lambda docker: docker.read_file("some", "/file"),
    "labelled": lambda docker: docker.volumes.labelled("some"),
    "create volume": lambda docker: docker.volumes.create("some", {"some": "label"}),
    "remove_blank": lambda docker: docker.volumes.remove_unlabelled("some", "some".__eq__),
}


def lines(text: Callable[[int], object]) -> Iterator[bytes]:
    """Endless progress, 64 KiB of lines at a time."""
    numbers = itertools.count()
    yield CHUNKED
    while True:
        piece = bytearray()
        while len(piece) < 64 << 10:
            piece += json.dumps(text(next(numbers))).encode() + b"\r\n"
        yield chunk(bytes(piece))


def endless(first: bytes, piece: bytes) -> Iterator[bytes]:
    return itertools.chain([first], itertools.repeat(piece))


BIG = b"x" * (64 << 10)
FRAME = struct.pack(">BxxxL", 1, len(BIG)) + BIG
RAW = b"HTTP/1.1 200 OK\r\n\r\n"
FLOODS: dict[str, tuple[Use, Callable[[], Iterator[bytes]], type[HostError]]] = {
    "build, endless lines": (build, lambda: lines(lambda n: {"stream": f"{n} " * 20}), TimedOut),
    "build, one endless line": (build, lambda: endless(CHUNKED, chunk(BIG)), HostError),
    "build, one endless line in tiny pieces": (build, lambda: endless(CHUNKED, chunk(b"x")), TimedOut),
    "build, lines of many values": (
        build,
        lambda: endless(CHUNKED, chunk(b'{"stream":[' + b"[]," * 60_000 + b"0]}\n")),
        HostError,
    ),
    "build, endless empty lines": (build, lambda: endless(CHUNKED, chunk(b"\n" * len(BIG))), TimedOut),
    "containers, endless spaces": (USES["containers"], lambda: endless(CHUNKED, chunk(b" ")), HostError),
    "containers, endless list": (USES["containers"], lambda: endless(RAW, BIG), HostError),
    "build, endless 100": (
        build,
        lambda: itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
        TimedOut,
    ),
    "build, endless headers": (
        build,
        lambda: endless(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
        ConnectionLost,
    ),
    "build, one endless header": (
        build,
        lambda: endless(b"HTTP/1.1 200 OK\r\n", BIG),
        ConnectionLost,
    ),
    "build, endless trailers": (build, lambda: endless(CHUNKED + b"0\r\n", b"a: b\r\n" * 1000), HostError),
}


# fault: kernel/docker/calls.py: if len(rest) > MAX_LINE: → if len(rest) > 1 << 40:
@pytest.mark.alone
@pytest.mark.quiet
@pytest.mark.promise("P18", "P23")
def test_a_flood_ends_by_its_deadline_in_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "CALL_SECONDS", SECONDS)  # of calls that are not given a deadline
    with tallied("P18", "a Docker that floods: 10 kinds of endless answers", "ended in time, in < 50 MB") as cases:
        for name, (use, flood, error) in FLOODS.items():
            docker, _ = canned(lambda _line: flood())  # noqa: B023 - used before the next turn
            tracemalloc.start()
            began = time.monotonic()
            with pytest.raises(error, match=r"^gpu1: "):
                use(docker)
            took, (_, most) = time.monotonic() - began, tracemalloc.get_traced_memory()
            tracemalloc.stop()
            cases[name] = took < SECONDS + MAX_LATE and most < MAX_GROWTH
            assert cases[name], f"{name}: {took:.1f} s, {most / MB:.0f} MB"


# As a verb begins; then it reads one answer that Python makes as much of as it can, and prints its peak in MB.
PEAK = """
import sys
import vllm_cluster.serving.cluster.up, vllm_cluster.cli.app, vllm_cluster.kernel.terminal.plan
import vllm_cluster.serving.status.render
from tests.support.canned_docker import answer, archive_of, canned
from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.hosts.program import MAX_LINE, message_in
from vllm_cluster.wire.reading import RefusedDocument, document
way, count, raw = sys.argv[1], int(float(sys.argv[2]) * (1 << 20)), {
    "lists": lambda n: b"[" + b"[]," * (n // 3 - 2) + b"0]",
    "objects": lambda n: b"[" + b"{}," * (n // 3 - 2) + b"0]",
    "keys": lambda n: b"{" + b",".join(b'"%x":0' % i for i in range(n // 10)) + b"}",
    "wide": lambda n: b'["' + b"x" * (n - 12) + "\U0001f600".encode() + b'"]',
}[sys.argv[3]]
def docker(body):
    return canned(lambda _: iter([answer(body)]))[0]
read = {
    "document": lambda raw: document(raw, "gpu1"),
    "containers": lambda raw: docker(raw).containers("a"),
    "file": lambda raw: document(docker(archive_of(raw)).read_file("c", "/a.json"), "gpu1"),
    "message": lambda raw: message_in(b'{"a":' + raw + b"}"),
}[way]
try:
    read(raw(count))
except (HostError, RefusedDocument):
    pass
print(next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) >> 10)
"""
MOST_MB = 100


# fault: wire/reading.py: > values: → > 1 << 40:
@pytest.mark.slow
@pytest.mark.promise("P46")
def test_no_answer_takes_much_memory() -> None:
    most, lines = 0, [("document", 3), ("containers", 3), ("file", 3), ("message", 2)]
    with attack("P46", "the largest answers of a host, made to take memory") as measured:
        for way, size in lines:
            for kind in ("lists", "objects", "keys", "wide") if FULL or way == "file" else ("lists",):
                argv = [sys.executable, "-c", PEAK, way, str(size), kind]
                peak = int(subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
                assert peak <= MOST_MB, f"{way}, {kind}: {peak} MB"
                most = max(most, peak)
        measured.figure = f"{most} MB at most, of which the program itself takes two thirds"


# fault: kernel/docker/connection.py: self.stream.settimeout(left) → self.stream.settimeout(30)
def test_a_byte_at_a_time_gains_no_time() -> None:
    def trickle(_line: str) -> Iterator[bytes]:
        for byte in itertools.chain(CHUNKED, itertools.cycle(chunk(b"\n"))):
            time.sleep(0.02)  # the attack itself: always sooner than any time-out of one read
            yield bytes([byte])

    docker, host = canned(trickle)
    began = time.monotonic()
    with pytest.raises(TimedOut, match="Docker did not answer within 1 s"):
        build(docker)
    assert time.monotonic() - began < SECONDS + MAX_LATE
    assert 0 < max(stream.longest for stream in host.streams) <= SECONDS


# fault: kernel/docker/connection.py: deadline.sooner(answer_seconds) → deadline
def test_files_that_were_sent_are_not_waited_for_as_long_as_a_slow_line_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Docker that was stopped then held `up` for two minutes, where other calls take 30 s."""

    def drip(_line: str) -> Iterator[bytes]:
        for _ in range(400):
            time.sleep(0.02)  # the attack itself: always sooner than any time-out of one read
            yield b"x"

    monkeypatch.setattr(client, "CALL_SECONDS", SECONDS)
    docker, _ = canned(drip)
    with pytest.raises(TimedOut, match="Docker did not answer within 1 s"):
        docker.put_files("some", "/", {"file": (b"x" * MB, 0o600)})


# fault: kernel/docker/client.py: del kept[:-most] → del kept[:-(1 << 40)]
def test_of_a_log_and_a_file_no_more_than_the_limit_is_kept() -> None:
    frames = canned(lambda _line: endless(RAW, FRAME))[0]
    assert len(frames.logs("some")) <= client.MAX_LOG


# fault: kernel/docker/client.py: del kept[:-most] → del kept[most:]
# fault: kernel/docker/client.py: _whole_lines(kept, cut) → kept
def test_of_a_log_the_end_is_kept_where_a_failure_is() -> None:
    """Docker sends the oldest line first, and 2000 lines of requests are more than is kept."""
    lines = [b"INFO: 127.0.0.1:%d POST /v1/completions 200 %s\n" % (number, b"x" * 200) for number in range(2000)]
    framed = b"".join(b"\1\0\0\0" + len(line).to_bytes(4, "big") + line for line in [*lines, b"Killed\n"])
    text = canned(always(answer(framed)))[0].logs("some", tail=2001)
    assert len(framed) > client.MAX_LOG and 0 <= client.MAX_LOG - len(text) < len(lines[-1])
    assert text.startswith("INFO: "), "of a line that is cut the rest is a part of what it was"
    assert text.endswith(lines[-1].decode() + "Killed\n")


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"{}", b"[1]", b"[{}]", b'"text"', b"1e999", b"NaN", b"{", b"\xff", b"[" * 100_000,
     b'{"Volumes": 1}', b'{"Volumes": [1]}', b'{"Volumes": [{"Name": 1}]}', b'{"Id": null}', b'{"Labels": 5}',
     b'{"StatusCode": "x"}', b'{"StatusCode": 1e999}', b'{"error": {"message": 1}}', b'[{"Names": 5}]',
     b'[{"Id": 1, "Names": [2], "State": [], "ImageID": {}, "Labels": 7}]'],
    ids=lambda body: repr(body[:40]),
)  # fmt: skip
@pytest.mark.parametrize("name", USES)
def test_nonsense_is_an_error_that_names_the_host_or_nothing(name: str, body: bytes) -> None:
    docker, _ = canned(always(answer(body)))
    try:
        USES[name](docker)
    except HostError as error:
        assert error.host == "gpu1"
        assert str(error).startswith("gpu1: ")


@pytest.mark.parametrize(
    "said",
    [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 999999 x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}",
     CHUNKED + b"zz\r\n", b"\0" * 1000],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("name", USES)
def test_an_answer_without_http_is_an_error_that_names_the_host(name: str, said: bytes) -> None:
    docker, host = canned(always(said))
    with pytest.raises(HostError, match=r"^gpu1: "):
        USES[name](docker)
    assert all(stream.closed for stream in host.streams)


def test_an_answer_beyond_the_limit_is_refused() -> None:
    long = json.dumps(["x" * MAX_ANSWER]).encode()
    with pytest.raises(HostError, match=r"^gpu1: inspect some: .* it is longer than 3\.1 MB"):
        canned(always(answer(long)))[0].container_info("some")
    with pytest.raises(HostError, match="a line is longer than 1 MB"):
        build(canned(always(answer(b"x" * (MAX_LINE + 100))))[0])


def test_one_stream_serves_many_requests_and_a_broken_one_none() -> None:
    docker, host = canned(always(answer(b"[]")))
    for _ in range(5):
        assert docker.images() == ()
    assert len(host.streams) == 1
    docker, host = canned(always(RAW, b"[]"))
    for _ in range(3):
        assert docker.images() == ()
    assert len(host.streams) == 3
    assert all(stream.closed for stream in host.streams)


# fault: kernel/docker/connection.py: return read and self.sock is not None and not self.broken → return self.sock is not None
def test_a_stream_with_an_answer_left_in_it_serves_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_LOG_READ", 1 << 16)
    docker, host = canned(lambda line: iter([answer(bytes(4 << 16) if "/logs" in line else b"[]")]))
    docker.logs("some")
    assert docker.images() == ()
    assert [stream.closed for stream in host.streams] == [True, False]


# fault: kernel/docker/client.py: {**body, **UNCHECKED} → body
def test_a_request_holds_nothing_but_what_was_asked() -> None:
    """Where a container is made, no check that its image brings along runs in it."""
    docker, host = canned(always(answer(b'{"Id": "made"}', 201)))
    body: dict[str, Any] = {"Image": "some"}
    docker.create("name with spaces/?", body)
    (stream,) = host.streams
    head, _, sent = bytes(stream.sent).partition(b"\r\n\r\n")
    assert head.decode().split("\r\n") == [
        "POST /v1.41/containers/create?name=name+with+spaces%2F%3F HTTP/1.1",
        "Host: localhost",
        "Accept-Encoding: identity",
        f"Content-Length: {len(sent)}",
        "Content-Type: application/json",
    ]
    assert json.loads(sent) == {**body, "Healthcheck": {"Test": ["NONE"]}}


# fault: kernel/docker/connection.py: response.read(min(SLICE, limit - len(data))) → response.read(limit - len(data))
def test_chunks_of_a_byte_take_little_more_than_their_bytes() -> None:
    """Python's client keeps an object for each until the answer is whole: 298 MB in 4 s, of at most 3 MB."""
    docker, _ = canned(always(CHUNKED, *[chunk(b"[") * 1000] * 150))
    tracemalloc.start()
    try:
        with pytest.raises(HostError):
            docker.images()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MB


# fault: kernel/docker/parse.py: if level: → if not level:
@pytest.mark.parametrize("depth", [parse.MAX_DEPTH, 300])
def test_what_is_shown_of_docker_is_not_nested_deeply(depth: int) -> None:
    """With an indentation 400 KB of it became 58 MB, and were searched for secrets for half a minute."""
    raw = b'{"a":' * (depth - 1) + b"[]" + b"}" * (depth - 1)
    docker, _ = canned(always(answer(raw)))
    if depth > parse.MAX_DEPTH:
        with pytest.raises(HostError, match="nested too deeply"):
            docker.container_document("some")
    else:
        assert docker.container_document("some")
