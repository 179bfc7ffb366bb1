"""What the head's program reads of the members, and of a run of `up` that makes their nodes again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_cluster.serving.node.kept_order import Inbox, Requests
from vllm_cluster.serving.node.members import RUN_SECONDS, HeadMembers
from vllm_cluster.wire.order import ACCEPTED, READY, TAKEN, WANTED
from vllm_cluster.wire.parts import REPLACING, Replacing


# fault: serving/node/members.py: if time.time() - path.stat().st_ctime > RUN_SECONDS: → if False:
@pytest.mark.parametrize(("age", "counts"), [(RUN_SECONDS - 60, False), (RUN_SECONDS + 60, True)])
def test_what_fails_long_after_a_run_broke_off_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: float, counts: bool
) -> None:
    """The note of the run stays: the first failure of the weeks that follow was shown as its work, without a cause."""
    (tmp_path / REPLACING).write_bytes(Replacing("a" * 16, "ann@laptop", ("10.0.0.2",)).document)
    began = time.time()
    monkeypatch.setattr(time, "time", lambda: began + age)
    known = HeadMembers(tmp_path)
    assert known.replaced_by(["10.0.0.3"]) == ""
    assert (known.replaced_by(["10.0.0.2"]) == "") == counts


def sparse(path: Path) -> None:
    """Make a file of 10 TB without content."""
    path.touch()
    os.truncate(path, 10**13)


def _row(**words: object) -> dict[str, object]:
    return {"name": "gpu1", "address": "10.0.0.1", "gpus": 2, "leaving": False, **words}


WRONG: dict[str, tuple[object, ...]] = {
    "gpus": (-1, "2", 2.5, True, None, [], 1025),
    "address": (5, None, "10.0.0.1/8", "gpu1", "x" * 1_000_000),
    "name": (5, "", "a\nb", "\x1b[2J", "\u202e", "x" * 5000),
    "leaving": ("no", 0, None),
}
HOSTILE = {
    "infinite": b'{"members": [{"name": "a", "address": "10.0.0.1", "gpus": 1e999, "leaving": false}]}',
    "not-a-number": b'{"members": [{"name": "a", "address": "10.0.0.1", "gpus": NaN, "leaving": false}]}',
    "huge": b'{"members": [{"name": "a", "address": "10.0.0.1", "gpus": 1%s, "leaving": false}]}' % (b"0" * 400),
    "digits": b'{"members": [{"name": "a", "address": "10.0.0.1", "gpus": %s, "leaving": false}]}' % (b"9" * 9000),
    "deep": b'{"members": ' + b"[" * 100_000,
    "deep-row": b'{"members": [%s%s]}' % (b"[" * 50_000, b"]" * 50_000),
    "wide": b'{"members": [' + b"[]," * 1_000_000 + b"[]]}",
    "list": b"[]",
    "text": b'"members"',
    "half": b'{"members": [{"addr',
    "twice": b'{"members": [], "members": 5}',
    "not-utf-8": b'{"members": "\xff"}',
    "many": json.dumps({"members": [_row(address=f"10.0.{n >> 8}.{n & 255}") for n in range(513)]}).encode(),
    **{
        f"{key}-{n}": json.dumps({"members": [_row(**{key: value})]}).encode()
        for key, values in WRONG.items()
        for n, value in enumerate(values)
    },
}


# fault: serving/node/members.py: rows = read(CountedMembers, raw, RECORD_FILE).members → rows = CountedMembers((CountedMember(**json.loads(raw)["members"][0]),)).members
@pytest.mark.parametrize("raw", HOSTILE.values(), ids=list(HOSTILE))
def test_a_record_of_another_shape_changes_nothing(tmp_path: Path, raw: bytes) -> None:
    """The program of the head ended with an infinite number of GPUs in it, and so did the model, at each start."""
    file, known = tmp_path / "cluster.json", HeadMembers(tmp_path)
    file.write_text(json.dumps({"v": 1, "members": [_row(), _row(name="gone", address="10.0.0.2", leaving=True)]}))
    known.look()
    file.write_bytes(raw)
    known.look()
    assert known.gpus == {"10.0.0.1": 2}
    assert known.names == {"10.0.0.1": "gpu1", "10.0.0.2": "gone"}


@pytest.mark.parametrize("put", [os.mkfifo, Path.mkdir, sparse])
def test_no_record_is_waited_for_or_read_without_end(tmp_path: Path, put: Callable[[Path], None]) -> None:
    put(tmp_path / "cluster.json")
    known = HeadMembers(tmp_path)
    known.look()
    assert known.names == {}


# fault: serving/node/kept_order.py: raw = beginning(self._wanted, MAX_BYTES + 1) if asked → raw = self._wanted.read_bytes() if asked
@pytest.mark.parametrize("name", [WANTED, ACCEPTED, TAKEN, READY])
def test_no_order_is_waited_for_or_read_without_end(tmp_path: Path, name: str) -> None:
    """A file of terabytes without content took all memory of the head's container."""
    sparse(tmp_path / name)
    inbox = Inbox(tmp_path)
    assert inbox.news() is None or name in (TAKEN, READY)
    assert Requests(tmp_path).served is None
