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
        assert job.answer({"do": "begin", "asked": {}, "id": "", "new": "a"}) == {}
    assert [put(0, b"one\n"), put(0, b"one\n"), put(4, b"two\n"), put(4, b"two\n")] == [
        {"size": size} for size in (4, 4, 8, 8)
    ]
    sent = {"sha256": hashlib.sha256(b"one\ntwo\n").hexdigest()}
    assert job.sent({"sha256": "other"}) == {"error": "its lines did not arrive as they were sent"}
    for _ in range(2):
        assert job.sent(sent) == {}
    assert (tmp_path / "job" / "input").read_bytes() == b"one\ntwo\n"
    assert job.look({"from": 0})["state"] == {"running": False, "sent": True, "id": "a"}


# fault: features/batch/on_host/batch_job.py: if now in (None, → if True or now in (None,
@pytest.mark.parametrize("do", ["look", "put", "sent", "start", "stop", "remove", "begin"])
def test_a_call_about_what_another_one_has_begun_again_does_nothing(do: str, tmp_path: Path) -> None:
    """A laptop that had slept removed the answers of another, which had not fetched them."""
    job = batch_job.Folder(tmp_path / "state" / "batch" / "job")
    (tmp_path / "state").mkdir()
    job.begin({"asked": {}, "new": "b"})
    found = job.answer({"do": do, "id": "a", "new": "c" if do == "begin" else None})
    assert found == {"error": "another call has begun it again", "begun_again": True}
    assert (job.path / "id").read_text() == "b"
    # One of an earlier version is known by its folder alone.
    (job.path / "id").unlink()
    assert job.answer({"do": "look", "id": "", "from": 0})["state"]["id"] == ""
    assert job.answer({"do": "remove", "id": ""}) == {}
    assert not job.path.exists()


# fault: features/batch/on_host/batch_job.py: if now is None and wanted["do"] not in WITHOUT: → if False:
@pytest.mark.parametrize("do", ["put", "sent", "start"])
@pytest.mark.parametrize("named", [{}, {"id": "a"}])
def test_what_was_removed_is_not_made_again_by_a_call_about_it(do: str, named: dict[str, str], tmp_path: Path) -> None:
    """Its program was started without lines, in a folder that no later call could name."""
    (tmp_path / "state").mkdir()
    job = batch_job.Folder(tmp_path / "state" / "batch" / "job")
    assert job.answer({"do": do, **named}) == {"error": "another call has removed it", "begun_again": True}
    assert not job.path.exists()
    for harmless in ("stop", "remove"):
        assert job.answer({"do": harmless, **named}) == {}
    assert job.answer({"do": "look", **named, "from": 0})["state"]["sent"] is False
    assert not job.path.exists()


def test_a_full_disk_takes_no_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_job, "SPARE", 1 << 60)
    job = batch_job.Folder(tmp_path / "job")
    job.begin({"asked": {}, "new": "a"})
    found = job.put({"at": 0, "data": base64.b64encode(zlib.compress(b"one")).decode()})
    assert "MB are free on its disk" in found["error"]
    assert not (tmp_path / "job" / "input.part").exists()
