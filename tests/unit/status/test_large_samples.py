"""Hostile samples of a host take little of this machine's memory."""

from __future__ import annotations

import json
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.hosts.program import RunningProgram, message_in
from vllm_cluster.kernel.hosts.runtime import SYSTEM
from vllm_cluster.serving.status import samples as module
from vllm_cluster.serving.status.counters import parse_counters, split_replicas
from vllm_cluster.wire.reading import convert
from vllm_cluster.wire.status import ServeFailure

NODE = SimpleNamespace(connection=SimpleNamespace(name="gpu2", runtime=SYSTEM), host="gpu2", name="vcluster-lab")


class Stream:
    """What a host sends."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def settimeout(self, seconds: float) -> None:
        """It never waits."""

    def recv(self, most: int) -> bytes:
        data, self._content = self._content[:most], self._content[most:]
        return data

    def exit_code(self) -> int:
        return 0

    def stderr_tail(self) -> str:
        return ""

    def close(self) -> None:
        """Nothing is left."""


# fault: serving/status/samples.py: max_line=MAX_OF_HEAD if head else MAX_SAMPLE → max_line=MAX_OF_HEAD
@pytest.mark.parametrize(("head", "size"), [(False, 256 << 10), (True, 5 << 20)])
def test_a_sample_is_as_large_as_its_host_needs(monkeypatch: pytest.MonkeyPatch, *, head: bool, size: int) -> None:
    def start(connection: Any, program: Any, _place: object, deadline: Any) -> RunningProgram:
        return RunningProgram(connection.name, program, Stream(b"{" + b"x" * size), deadline)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "start", start)
    with pytest.raises(HostError, match="printed too much"):
        list(module.samples(NODE, 1.0, head=head))  # type: ignore[arg-type]


# fault: kernel/hosts/program.py: if not line.isascii() or not line → if not line
def test_only_lines_of_ascii_are_messages() -> None:
    """Python takes four bytes for each of its characters; our programs write such a one in six of ASCII."""
    assert message_in('{"a": "é"}'.encode()) is None
    assert message_in(json.dumps({"a": "é"}).encode()) == {"a": "é"}


# fault: serving/status/counters.py: return (found[0] for found in _TEXT.finditer(text)) → return iter(text.split("\n"))
def test_a_million_lines_of_counters_are_read_one_after_the_other() -> None:
    text = "ab\n" * 300_000
    tracemalloc.start()
    try:
        assert not parse_counters(text, 1.0).values
        assert split_replicas(text) == {}
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


# fault: wire/status.py: lines: Lines → lines: tuple[str, ...]
def test_a_failure_has_few_lines() -> None:
    kept = convert(ServeFailure, {"time": 1.0, "summary": "s" * 60_000, "lines": ["x" * 60_000] * 500}, "a node")
    assert (len(kept.summary), len(kept.lines), len(kept.lines[0])) == (8000, 64, 1000)
