"""A head that gives out its rows without end, or is done without any."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.sim import make
from vllm_cluster.features.batch import action
from vllm_cluster.features.batch.action import Batch, _Run, answer_batch
from vllm_cluster.features.batch.head_job import HeadJob
from vllm_cluster.features.batch.on_head.files import BatchFiles, Work
from vllm_cluster.features.batch.on_head.lines import Place, answer_row, checksum, parse
from vllm_cluster.features.batch.replies import BegunAgain, JobEntry, JobLook, JobState
from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.hosts.runtime import SYSTEM

REQUEST = json.dumps({"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "p"}}).encode()


class Head:
    """A head whose output has a row again and again."""

    host = "gpu1"

    def __init__(self, row: bytes) -> None:
        self.row, self.asked = row, 0

    def look(self, _: int) -> JobLook:
        self.asked += 1
        if self.asked > 5:
            pytest.fail("it is asked on")
        return JobLook(JobState(True, True), self.row)


# fault: features/batch/action.py: if self._rows > self._work.total: → if False:
def test_a_row_that_comes_again_without_end_ends_the_call(tmp_path: Path) -> None:
    files = BatchFiles(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    files.source.write_bytes(REQUEST + b"\n")
    line = parse(REQUEST, Place(1, checksum(REQUEST)), "m", {})
    head = Head(answer_row(line, "cmpl", b'{"model": "m"}'))
    wanted = Batch(make.inventory(1), files, {}, 2, 60.0, 60.0, 0.0)
    with ExitStack() as stack:
        work = Work(files, {}, stack)
        job = cast(HeadJob, cast(Any, head))
        run = _Run(wanted, work, job=job, stack=stack, emit=lambda _: None, runtime=SYSTEM)
        with pytest.raises(HostError, match="a row of its answers is refused: there are more than the 1 request"):
            run.fetch()
        assert (work.answered, head.asked) == (1, 2)


class DoneHead:
    """A head on which a batch is done, without a row: always, or until it is removed."""

    host = "gpu1"

    def __init__(self, lasts: bool) -> None:
        self.lasts, self.done, self.calls = lasts, True, list[str]()

    def __enter__(self) -> DoneHead:
        return self

    def __exit__(self, *_: object) -> None: ...

    def look(self, _: int) -> JobLook:
        if len(self.calls) > 5:
            pytest.fail("it goes round")
        return JobLook(JobState(False, False, "done" if self.done else ""), b"")

    def forget(self) -> None: ...

    def ask(self, *_: object) -> tuple[JobEntry, ...]:
        return ()

    def act(self, do: str) -> None:
        self.calls.append(do)
        self.done = self.lasts

    def send(self, *_: object) -> None:
        self.calls.append("send")
        self.done = True

    def start(self, _: object) -> None:
        self.calls.append("start")


# fault: features/batch/action.py: own, self._own = self._own, True → own = self._own
# fault: features/batch/action.py: if own and self._work.left: → if self._work.left:
@pytest.mark.parametrize(
    ("lasts", "calls"), [(True, ["remove", "remove"]), (False, ["remove", "send", "start", "remove"])]
)
def test_a_batch_that_is_done_without_a_row_ends_the_call(
    lasts: bool, calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was there before may be of another input: after that, none comes back without a row."""
    files = BatchFiles(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    files.source.write_bytes(REQUEST + b"\n")
    head = DoneHead(lasts)
    monkeypatch.setattr(action, "HeadJob", lambda *_: head)
    monkeypatch.setattr(_Run, "_send", lambda run: run._job.send())
    with pytest.raises(HostError, match="it is done there, and 1 request came back without a row"):
        answer_batch(Batch(make.inventory(1), files, {}, 2, 60.0, 60.0, 0.0), lambda _: None)
    assert head.calls == calls


class Begun(DoneHead):
    """A head on which another call begins the batch again before each look."""

    def look(self, _: int) -> JobLook:
        self.calls.append("look")
        raise BegunAgain(self.host, "batch: another call has begun it again")


# fault: features/batch/action.py: if not left: → if False:
def test_a_batch_that_is_begun_again_without_end_ends_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = BatchFiles(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    files.source.write_bytes(REQUEST + b"\n")
    head = Begun(lasts=True)
    monkeypatch.setattr(action, "HeadJob", lambda *_: head)
    with pytest.raises(HostError, match="another call has begun it again"):
        answer_batch(Batch(make.inventory(1), files, {}, 2, 60.0, 60.0, 0.0), lambda _: None)
    assert head.calls == ["look"] * action.RESTARTS
