"""The rows that the program in a container prints of Ray's files: read, or an error of the host."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.depth import cases
from vllm_cluster.features.logs import row_limit
from vllm_cluster.features.logs.host import FileFeed
from vllm_cluster.features.logs.lines import Line, LogRequest, split_source
from vllm_cluster.kernel.docker.calls import TooLong
from vllm_cluster.kernel.errors import HostError

FILE = {"file": 0, "name": "session_1/logs/worker-a-01000000-7.out", "rank": 1}
TEXT = "a \x1b[2J line\ud800"
ROW = [0, 1_000, 20, TEXT]


def frame(data: bytes) -> bytes:
    """Output as Docker frames it."""
    return b"\1\0\0\0" + len(data).to_bytes(4, "big") + data


def lines(*rows: Any, follow: bool = False, grep: str = "", seen: list[int | None] | None = None) -> list[Line]:
    """The lines that come of these rows; `seen` gets the times up to which they were read."""

    @contextmanager
    def run(*_: object, **__: object) -> Iterator[Any]:
        text = b"".join(row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows)
        frames = [frame(text[at : at + (32 << 10)]) for at in range(0, len(text), 32 << 10)]
        yield SimpleNamespace(output=lambda: iter(frames), code=lambda: 0)

    found: list[Line] = []
    docker = SimpleNamespace(streams=SimpleNamespace(exec=run))
    node = SimpleNamespace(host="gpu1", name="vcluster-lab", connection=SimpleNamespace(docker=docker))
    times = [] if seen is None else seen

    def put(_feed: object, more: list[Line], *at: int | None) -> None:
        found.extend(more)
        times.extend(at)

    merge, asked = SimpleNamespace(put=put), LogRequest(("gpu1",), vllm=True, follow=follow, grep=grep)
    FileFeed(cast(Any, node), asked, cast(Any, merge), group=False).read(0, None, lambda: None)
    return found


# fault: features/logs/host.py: self._merge.put(self, lines, self._seen) → self._merge.put(self, lines)
def test_how_far_files_were_read_is_known_where_no_line_of_them_is_asked_for() -> None:
    seen = list[int | None]()
    assert lines(FILE, ROW, grep="needle", seen=seen) == []
    assert seen == [1_000]


def test_a_line_is_shown_with_its_rank_and_every_byte() -> None:
    assert lines({"skip": ["session_0"]}, FILE, ROW) == [Line(1_000, "gpu1", "vllm", TEXT, 1)]


@pytest.mark.parametrize(
    "row",
    [
        {}, [], 5, None, "x", [1, 2, 3, "of no file"], [0, 1, 2], [0, "then", 2, "x"], [0, 1, 2, 3],
        [0, 10**400, 2, "x"],
        [0, 1, -2, "x"], {"file": 1}, {"file": "x", "name": "n", "rank": 1}, {"file": 1, "name": [], "rank": 1},
        {"file": 1, "name": "n", "rank": "r"}, {"skip": 5}, {"skip": [1]}, {"file": 1e400, "name": "n", "rank": None},
        b"no JSON\n", b"[" * 100_000 + b"\n", b'{"file": 1, ' * 50_000 + b"\n", b"[0, NaN, 1, 2]\n",
    ],
    ids=lambda row: repr(row)[:40],
)  # fmt: skip
def test_an_odd_row_is_an_error_of_the_host(row: Any) -> None:
    with pytest.raises(
        HostError, match=r"^gpu1: logs: what the program in its container printed cannot be read: "
    ) as odd:
        lines(FILE, row)
    assert len(str(odd.value)) < 300


# fault: features/logs/host.py: MAX_FILES = 10_000 → MAX_FILES = 100_000
def test_a_host_names_no_number_of_files_that_fills_the_memory() -> None:
    files = [{"file": number, "name": f"session_1/{number}", "rank": None} for number in range(10_001)]
    with pytest.raises(HostError, match="more than 10000 files"):
        lines(*files)


# fault: features/logs/row_limit.py: if self._count > MAX_LINES and not self._follow: → if False:
# fault: features/logs/row_limit.py: if self._count > MAX_LINES and not self._follow: → if self._count > MAX_LINES:
@pytest.mark.parametrize("follow", [False, True])
def test_lines_without_end_are_read_while_they_are_followed_alone(
    follow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of lines of one character the limit of bytes let 48 million pass, which took a quarter of an hour."""
    monkeypatch.setattr(row_limit, "MAX_LINES", 9_000)
    rows = [[0, 1, 2, "x"]] * 10_000
    if follow:
        assert len(lines({"skip": []}, FILE, *rows, follow=True)) == 10_000
        return
    with pytest.raises(TooLong, match=r"^gpu1: logs: not shown to its end: more than 9,000 lines of the files"):
        lines({"skip": []}, FILE, *rows)


# fault: features/logs/lines.py: and int(number) < MAX_REPLICAS → and True
def test_a_number_that_no_replica_has_is_a_part_of_the_line() -> None:
    assert split_source(b"[vllm_4095] x") == ("vllm", 4095, b"x")
    assert split_source(b"[vllm_4096] x") == ("node", None, b"[vllm_4096] x")


PART = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["skip", "file", "name", "rank"]), inner)
    ),
    max_leaves=6,
)


@settings(max_examples=cases(50, 200, 20_000))
@given(st.lists(PART, max_size=3))
def test_any_rows_are_read_or_an_error_of_the_host(rows: list[Any]) -> None:
    try:
        lines(FILE, *rows, ROW)
    except HostError as error:
        assert error.host == "gpu1"
