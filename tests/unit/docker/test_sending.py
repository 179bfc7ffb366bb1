"""What is sent for long is counted while it is sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.canned_docker import CHUNKED, answer, canned
from vllm_cluster.clock import Deadline
from vllm_cluster.events import Event
from vllm_cluster.run.pull import sending


def test_a_large_archive_is_counted_to_its_end() -> None:
    docker, host = canned(lambda line: iter([answer(b"{}" if "/build" in line else b'{"Id": "sha256:1"}')]))
    counts: list[int] = []
    context = bytes(100_000)
    assert docker.build(context, "some:1", {}, {}, Deadline.after(10), sent=counts.append) == "sha256:1"
    assert counts == [32768, 65536, 98304, 100_000]
    assert context in bytes(host.streams[0].sent)


def test_the_amount_is_shown_every_few_seconds_and_at_the_end() -> None:
    now = [0.0]
    clock = cast(Any, SimpleNamespace(monotonic=lambda: now[0]))
    told: list[Event] = []
    runtime = SimpleNamespace(after=lambda seconds: Deadline.after(seconds, clock))
    show = sending(cast(Any, SimpleNamespace(name="gpu1", runtime=runtime)), 85 * 10**6, "node:1", told.append)
    for now[0], sent in ((0.0, 10**6), (1.0, 2 * 10**6), (3.5, 40 * 10**6), (5.0, 85 * 10**6)):
        show(sent)
    assert [(event.host, event.text) for event in told] == [
        ("gpu1", "sending wheels: 1 of 85 MB"),
        ("gpu1", "sending wheels: 40 of 85 MB"),
        ("gpu1", "sent 85 MB of wheels, building node:1"),
    ]


# fault: core/images.py: return before + slash + name, tag or "latest" → return before + slash + name, tag
@pytest.mark.parametrize(
    ("reference", "asked"),
    [
        ("vllm/vllm-openai", "fromImage=vllm%2Fvllm-openai&tag=latest"),
        ("registry:5000/vllm", "fromImage=registry%3A5000%2Fvllm&tag=latest"),
        ("vllm:v1", "fromImage=vllm&tag=v1"),
        ("vllm@sha256:12", "fromImage=vllm&tag=sha256%3A12"),
    ],
)
def test_one_tag_of_an_image_is_pulled(reference: str, asked: str) -> None:
    docker, host = canned(lambda _: iter([CHUNKED, b"0\r\n\r\n"]))
    docker.pull(reference, Deadline.after(10), lambda _: None)
    assert asked in bytes(host.streams[0].sent).split(b"\r\n")[0].decode()
