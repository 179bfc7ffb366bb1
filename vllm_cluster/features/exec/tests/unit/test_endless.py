"""A host that ends no line of what it prints."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.bounds import within
from vllm_cluster.features.exec import verb
from vllm_cluster.features.exec.node_exec import NodeCommand
from vllm_cluster.kernel.errors import HostError

PIECE = b"a" * 10_000


def frame(content: bytes) -> bytes:
    """What Docker makes of standard output."""
    return b"\1\0\0\0" + len(content).to_bytes(4, "big") + content


# fault: features/exec/node_exec.py: if len(number) > MAX_NUMBER: → if False:
def test_a_command_that_begins_without_its_number_is_refused() -> None:
    def output() -> Iterator[bytes]:
        for _ in range(100):
            given.append(len(PIECE))
            yield frame(PIECE)

    given: list[int] = []
    command = NodeCommand(cast(Any, SimpleNamespace(host="gpu1")), ["true"], None, {})
    with pytest.raises(HostError, match=r"gpu1: exec: .* it does not begin with the number of the command"):
        command._print(cast(Any, SimpleNamespace(output=output)), lambda *_: None)
    assert given == [len(PIECE)]


# fault: features/exec/verb.py: if len(rest) > MAX_LINE: → if False:
def test_a_line_without_an_end_is_shown_in_pieces(capsys: pytest.CaptureFixture[str]) -> None:
    lines = verb._Lines(4)
    for _ in range(20):
        lines.write("gpu1", False, PIECE)
        assert sum(map(len, lines._rest.values())) <= verb.MAX_LINE
    lines.write("gpu1", False, b"end\nnext")
    lines.end()
    shown = capsys.readouterr().out.splitlines()
    assert [line[:8] for line in shown] == ["gpu1 | a"] * 3 + ["gpu1 | n"]
    assert sum(line.count("a") for line in shown) == 20 * len(PIECE)


# fault: features/exec/verb.py: data[begin : begin + MAX_LINE]) → data)
def test_a_frame_of_empty_lines_is_shown_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, shown = verb._Lines(4), list[int]()
    monkeypatch.setattr(
        "vllm_cluster.kernel.terminal.output.out", lambda *parts, **_: shown.append(parts.count("gpu1 | "))
    )
    with within(60, megabytes=20):
        lines.write("gpu1", False, b"\n" * (verb.MAX_LINE * 3 + 1))
    assert shown == [verb.MAX_LINE] * 3 + [1]
