"""What a head replies about batches is one of our types, or an error that names the head: nothing else comes of it."""

from __future__ import annotations

import base64
import json
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_cluster.features.batch.jobs import BatchOnHead
from vllm_cluster.features.batch.replies import (
    PIECE,
    BatchCall,
    JobEntry,
    JobLook,
    JobState,
    read_entries,
    read_look,
    read_reply,
    read_size,
)
from vllm_cluster.kernel.errors import HostError

STATE = {"running": True, "sent": True}
WORDS = {"user": "ann@laptop", "time": 1.0, "source": "in.jsonl", "output": "out.jsonl"}
ENTRY = {"key": "0123456789abcdef", "state": STATE, "asked": WORDS}


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


def test_what_the_program_replies_is_read() -> None:
    state = JobState(running=True, sent=True, phase="", note="", error="", progress=None)
    assert read_look({"state": STATE, "data": packed(b"x" * PIECE)}) == JobLook(state, b"x" * PIECE)
    assert read_entries({"batches": [ENTRY, {**ENTRY, "asked": None}]}) == (
        JobEntry("0123456789abcdef", state, BatchCall("ann@laptop", 1.0, "in.jsonl", "out.jsonl")),
        JobEntry("0123456789abcdef", state, None),
    )
    assert read_size({"size": 7}) == 7


ODD_STATES: list[Any] = [None, [], {}, {"running": 1, "sent": True}]
MORE: list[dict[str, Any]] = [
    *({"phase": "x"}, {"phase": 7}, {"note": []}, {"error": None}, {"progress": 1}, {"progress": {}}),
    *({"progress": {"total": -1}}, {"progress": {"total": float("nan")}}),
    *({"id": None}, {"id": 7}, {"id": "../x"}, {"id": "0" * 33}),
]
ODD_STATES += [{**STATE, **more} for more in MORE]
ODD_DATA: list[Any] = [None, 7, "", "%", "AAAA", packed(b"xyz")[:8], packed(b"x" * (PIECE + 1))]
ODD_BATCHES: list[Any] = [None, {}, [7], [{}], [{**ENTRY, "key": "../../etc"}]]
ODD_BATCHES += [[{**ENTRY, "asked": {**WORDS, name: None}}] for name in WORDS]
ODD_BATCHES += [[{**ENTRY, "asked": {**WORDS, "time": float("inf")}}]]


@pytest.mark.parametrize(
    ("read", "reply"),
    [
        *((read_look, {"state": state, "data": packed(b"")}) for state in ODD_STATES),
        *((read_look, {"state": STATE, "data": data}) for data in ODD_DATA),
        *((read_entries, {"batches": rows}) for rows in ODD_BATCHES),
        *((read_size, {"size": size}) for size in (None, "7", 7.5, True)),
        *((read_size, {"error": error}) for error in ("the disk is full", {"odd": 1})),
    ],
)
def test_an_odd_reply_is_an_error_that_names_the_head(read: Callable[[Any], object], reply: dict[str, Any]) -> None:
    with pytest.raises(HostError, match=r"^gpu1: batch: "):
        read_reply("gpu1", reply, read)


# fault: features/batch/replies.py: unpacker.decompress(packed, PIECE) → unpacker.decompress(packed)
def test_a_reply_that_unpacks_to_a_gigabyte_takes_no_memory() -> None:
    bomb = zlib.compressobj(9)
    data = b"".join(bomb.compress(bytes(1 << 20)) for _ in range(256)) + bomb.flush()
    reply = {"state": STATE, "data": base64.b64encode(data).decode()}
    tracemalloc.start()
    with pytest.raises(HostError, match="data must unpack to at most 1 MiB"):
        read_reply("gpu1", reply, read_look)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 8 << 20


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(
    at=st.sampled_from(["state", "data", "batches", "size", "asked", "key", "phase", "progress", "total", "running"]),
    value=anything,
)
def test_no_reply_is_a_traceback(at: str, value: Any) -> None:
    progress = {"total": 1, at: value}
    state = {**STATE, "phase": "running", "progress": progress, at: value}
    reply = {
        "state": state,
        "data": packed(b""),
        "batches": [{**ENTRY, "state": state, at: value}],
        "size": 1,
        at: value,
    }
    reply = json.loads(json.dumps(reply))
    for read in (read_look, read_entries, read_size):
        try:
            read_reply("gpu1", reply, read)
        except HostError as error:
            assert error.host == "gpu1"


# fault: features/batch/jobs.py: command_line(quote_word(one)) for one → one for one
def test_a_name_in_a_question_cannot_end_it() -> None:
    """A colleague chooses the name of their file, and of their user."""
    batch = BatchOnHead("k", "done", "", 1, 2, None, "out.jsonl: done). Only idle nodes stop (x", "ann", 1.0)
    assert batch.text == "'out.jsonl: done). Only idle nodes stop (x' of ann: done, 1/2 answered"
    plain = BatchOnHead("k", "done", "", 1, 2, None, "/home/ann/out.jsonl", "ann@laptop", 1.0)
    assert plain.text == "/home/ann/out.jsonl of ann@laptop: done, 1/2 answered"
    assert len(BatchOnHead("k", "done", "", 1, 2, None, "a" * 5000, "b" * 5000, 1.0).text) < 200
