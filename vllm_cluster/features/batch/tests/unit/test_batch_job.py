"""The program that looks after a batch on the head takes in its lines, also where a reply to it was lost."""

from __future__ import annotations

import base64
import hashlib
import zlib
from pathlib import Path
from typing import Any

import pytest

from vllm_cluster.features.batch.on_host import batch_job


# fault: features/batch/on_host/batch_job.py: if size == wanted["at"]: → if True:
def test_each_message_may_come_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_job, "SPARE", 0)
    job = batch_job.Folder(tmp_path / "job")

    def put(at: int, data: bytes) -> dict[str, Any]:
        return job.put({"at": at, "data": base64.b64encode(zlib.compress(data)).decode()})

    for _ in range(2):
        assert job.begin({"asked": {}}) == {}
    assert [put(0, b"one\n"), put(0, b"one\n"), put(4, b"two\n"), put(4, b"two\n")] == [
        {"size": size} for size in (4, 4, 8, 8)
    ]
    sent = {"sha256": hashlib.sha256(b"one\ntwo\n").hexdigest()}
    assert job.sent({"sha256": "other"}) == {"error": "its lines did not arrive as they were sent"}
    for _ in range(2):
        assert job.sent(sent) == {}
    assert (tmp_path / "job" / "input").read_bytes() == b"one\ntwo\n"
    assert job.look({"from": 0})["state"] == {"running": False, "sent": True}


def test_a_full_disk_takes_no_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_job, "SPARE", 1 << 60)
    job = batch_job.Folder(tmp_path / "job")
    job.begin({"asked": {}})
    found = job.put({"at": 0, "data": base64.b64encode(zlib.compress(b"one")).decode()})
    assert "MB are free on its disk" in found["error"]
    assert not (tmp_path / "job" / "input.part").exists()
