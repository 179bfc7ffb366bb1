"""What a node reports of its parts is kept by the head, in the one status that every command reads: it has bounds."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from vllm_cluster.serving.node import replicas as module
from vllm_cluster.serving.node.replicas import LINES_BYTES
from vllm_cluster.wire.parts import NodeBeat
from vllm_cluster.wire.reading import convert
from vllm_cluster.wire.roll import MAX_LINE


# fault: wire/parts.py: cause: Short = "" → cause: Line = ""
# fault: wire/parts.py: lines: Lines = () → lines: tuple[Line, ...] = ()
# fault: wire/parts.py: left: Annotated[tuple[Count, ...], first(64)] = () → left: tuple[Count, ...] = ()
# fault: wire/parts.py: verdict: Short = "" → verdict: Line = ""
def test_what_is_reported_of_a_part_is_cut() -> None:
    long = "\N{GRINNING FACE}" * 20_000
    part = {
        **{"id": "0" * 16, "code": 1, "over": True, "left": [1] * 1000, "cause": long, "lines": [long, *[""] * 10_000]},
        **{"detail": long, "verdict": long, "last_line": long, "phases": [[long, 1.0]] * 1000},
    }
    kept = asdict(convert(NodeBeat, {"parts": [part]}, "a node").parts[0])
    assert len(json.dumps(kept)) < MAX_LINE * 4
    assert (len(kept["cause"]), len(kept["verdict"]), len(kept["lines"]), len(kept["left"])) == (1000, 1000, 64, 64)


# fault: wire/reading.py: value[:most] if most is not None → value if most is not None
def test_no_time_is_taken_for_what_is_not_kept() -> None:
    """A node's beat with 115,000 numbers took 100 ms to read."""
    part = {"id": "0" * 16, "left": [1] * 64 + ["not read"] * 20_000}
    (kept,) = convert(NodeBeat, {"parts": [part]}, "a node").parts
    assert kept.left == (1,) * 64


def row(lines: list[str]) -> dict[str, Any]:
    """A replica that failed."""
    failure = {"time": 1.0, "summary": "it ended", "lines": tuple(lines)}
    return {"name": "m", "failure": failure, "first_failure": failure, "instead_of": None}


# fault: serving/node/replicas.py: if most < 0: → if False:
def test_the_lines_of_all_failures_share_their_room() -> None:
    lines = [f"{number} {'x' * 990}" for number in range(43)]
    assert module._shared([row(lines)])[0]["failure"] == {"time": 1.0, "summary": "it ended", "lines": lines}
    many = module._shared([row(lines) for _ in range(100)])
    assert LINES_BYTES / 4 < len(json.dumps(many)) < LINES_BYTES * 2
    kept: Any = many[7]["first_failure"]
    assert kept["summary"] == "it ended"
    # Where the cause is.
    assert kept["lines"] == lines[: len(kept["lines"])]
