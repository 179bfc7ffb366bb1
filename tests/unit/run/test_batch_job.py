"""The program that looks after a batch on the head takes in its files, also where a reply to it was lost."""

from __future__ import annotations

import base64
import hashlib
import zlib
from pathlib import Path
from typing import Any

import pytest

from vllm_cluster.remote.image import batch_job


# fault: remote/image/batch_job.py: and not part.exists() and _digest(whole) → and part.exists() and _digest(whole)
def test_the_last_piece_of_a_file_may_come_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_job, "SPARE", 0)
    job, pieces = batch_job.Job(tmp_path / "job"), (b"one\n", b"two\n")

    def put(at: int, data: bytes, **more: Any) -> dict[str, Any]:
        packed = base64.b64encode(zlib.compress(data)).decode()
        return job.put({"file": "input.jsonl", "at": at, "data": packed, **more})

    last = {"sha256": hashlib.sha256(b"".join(pieces)).hexdigest()}
    assert put(0, pieces[0]) == {"size": 4}
    assert put(4, pieces[1], **last) == {"size": 8}
    assert put(4, pieces[1], **last) == {"size": 8}
    assert (tmp_path / "job" / "input.jsonl").read_bytes() == b"one\ntwo\n"
    assert not (tmp_path / "job" / "input.jsonl.part").exists()
    # Another file of that name is not taken for it.
    other = {"sha256": hashlib.sha256(b"other").hexdigest()}
    assert put(0, b"other", **other) == {"size": 5}
    assert (tmp_path / "job" / "input.jsonl").read_bytes() == b"other"
