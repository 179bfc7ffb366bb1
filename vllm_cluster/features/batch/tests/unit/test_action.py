"""A batch on the head, with this machine as the head: its real programs, and kills of all that takes part."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.batch_api import KEY, Api, Reply, answer, serving
from tests.support.json_schemas import validate
from tests.support.sim import make
from tests.support.waiting import until
from vllm_cluster.features.batch import action, head_job
from vllm_cluster.features.batch import jobs as batches_module
from vllm_cluster.features.batch.action import Batch
from vllm_cluster.features.batch.head_job import HeadJob
from vllm_cluster.features.batch.jobs import BatchOnHead, batches
from vllm_cluster.features.batch.on_head.files import BatchFiles, BatchResult, Work
from vllm_cluster.features.batch.on_host.batch_job import PIECE, Folder
from vllm_cluster.features.batch.render import batches_document, show_batches
from vllm_cluster.features.batch.replies import LINE
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import ConnectionLost, HostError, Interrupted, NodeMissing, UsageError, VclusterError
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.hosts.program import RemoteProgram, RunningProgram, python
from vllm_cluster.kernel.hosts.runtime import SYSTEM
from vllm_cluster.kernel.laptop import whoami
from vllm_cluster.kernel.transport.base import Target
from vllm_cluster.kernel.transport.local import LocalTransport

# Each starts two programs, as on a head.
pytestmark = pytest.mark.slow
PROMPTS = [f"p{number}" for number in range(30)]


def open_here(job: HeadJob) -> RunningProgram:
    """Open the program that looks after a batch, on this machine."""
    transport = LocalTransport(Target("gpu1", "local"))
    program = replace(
        python("features.batch.on_host", "batch_job", job.folder, seconds=600), max_line=LINE, max_bytes=1e9
    )
    stream = transport.open_stream(program.argv, Deadline.after(10))
    job._running = job._stack.enter_context(RunningProgram("gpu1", program, stream, Deadline.after(600)))
    return job._running


@dataclass
class Head:
    """A head on this machine: its state, and the batches that it answers."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    events: list[Event] = field(default_factory=list)
    checked: int = 0

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def serve(self, api: Api, generation: str = "g1", phase: str = "ready") -> None:
        row = {"name": "m", "generation": generation, "phase": phase, "host": "127.0.0.1", "port": api.port}
        self.state.mkdir(exist_ok=True)
        (self.state / "status.json").write_text(json.dumps({"serve": row}))

    @contextmanager
    def serving(self, reply: Callable[[str, int], Reply | None]) -> Iterator[tuple[Api, Batch]]:
        """A model that answers so, and a batch for it."""
        with serving(Api(reply)) as api:
            self.serve(api)
            yield api, self.wanted()

    @contextmanager
    def model_is_ready(self, *_: object, **__: object) -> Iterator[Head]:
        self.checked += 1
        yield self

    def ensure_serves(self, *_: object) -> None: ...

    def ensure_fields(self, *_: object) -> None: ...

    def wanted(self) -> Batch:
        rows = [
            {"custom_id": f"r{number}", "url": "/v1/completions", "body": {"prompt": prompt}}
            for number, prompt in enumerate(PROMPTS)
        ]
        source = self.folder / "in.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return Batch(make.inventory(1), BatchFiles(source, self.folder / "out.jsonl"), {}, 2, 60.0, 60.0, 0.0)

    def pid(self) -> int:
        """The program that answers."""
        (file,) = (self.state / "batch").glob("*/pid")
        return int(file.read_text())

    def answered(self) -> int:
        """How many answers are there."""
        return sum(path.read_bytes().count(b"\n") for path in self.state.glob("batch/*/output.jsonl"))


def texts(wanted: Batch) -> dict[str, str]:
    """Each answer by its name, each of which is there once."""
    rows = [json.loads(line) for line in wanted.files.output.read_text().splitlines()]
    found = {row["custom_id"]: row["response"]["body"]["choices"][0]["text"] for row in rows}
    assert len(found) == len(rows)
    return found


ALL = {f"r{number}": prompt.upper() for number, prompt in enumerate(PROMPTS)}


def reply_of(prompt: str) -> dict[str, Any]:
    """The answer to a prompt."""
    _, found = answer(prompt)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    made = Head(tmp_path, monkeypatch)
    (tmp_path / "key").write_text(KEY)
    monkeypatch.setenv("VCLUSTER_API_KEY_FILE", str(tmp_path / "key"))
    monkeypatch.setattr(head_job, "STATE_FOLDER", str(made.state))
    monkeypatch.setattr(head_job, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(action, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(HeadJob, "_open", open_here)
    monkeypatch.setattr(action, "open_api", made.model_is_ready)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # As in an image, the HTTP client is that of `python3`.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    yield made
    for file in made.state.glob("batch/*/pid"):  # of a test that failed
        with suppress(ProcessLookupError):
            os.kill(int(file.read_text()), signal.SIGKILL)


# fault: features/batch/head_job.py: for path, content in files.items()} → for path, content in files.items() if "listeners" not in path}
def test_the_head_answers_without_a_client_and_gives_all_on_request(head: Head) -> None:
    with head.serving(answer) as (api, wanted):
        _, runs = action.answer_batch(wanted, head.events.append, detach=True)
        assert runs
        until(lambda: head.answered() == 30, 60)
        found, runs = action.answer_batch(wanted, head.events.append)
    assert (found.total, found.answered, found.failed, runs) == (30, 30, 0, False)
    assert (texts(wanted), set(api.asked.values()), head.checked) == (ALL, {1}, 1)
    assert not (head.state / "batch").exists()


# fault: features/batch/on_host/batch_job.py: whole = _whole_rows(file) → whole = 1 << 40
@pytest.mark.parametrize(
    ("content", "piece"),
    [
        (b"", b""),
        (b'{"torn', b""),
        (b"{}\n", b"{}\n"),
        (b'{}\n{"torn', b"{}\n"),
        (b"{}\n" + b"x" * (3 * PIECE), b"{}\n"),
        (b"x" * (2 * PIECE) + b'\n{"torn', b"x" * PIECE),
    ],
)
def test_no_part_of_a_torn_row_is_handed_out(tmp_path: Path, content: bytes, piece: bytes) -> None:
    """The next program takes it away, and writes other rows at its place."""
    (tmp_path / "output.jsonl").write_bytes(content)
    reply = Folder(tmp_path).look({"from": 0})
    assert zlib.decompress(base64.b64decode(reply["data"])) == piece


def test_kills_of_its_program_lose_and_repeat_nothing(head: Head) -> None:
    def reply(prompt: str, times: int) -> Reply | None:
        if prompt not in ("p10", "p20") or times > 1:
            return answer(prompt)
        os.kill(head.pid(), signal.SIGKILL)
        for path in head.state.glob("batch/*/output.jsonl"):  # and a row that the kill has torn
            with path.open("ab") as file:
                file.write(b'{"id": "batch_req_9')
        return None

    with head.serving(reply) as (api, wanted):
        found, _ = action.answer_batch(wanted, head.events.append)
    assert (texts(wanted), found.answered, api.asked["p10"], api.asked["p20"]) == (ALL, 30, 2, 2)
    assert "the batch was killed on gpu1; starting it again" in [event.text for event in head.events]


def test_one_that_was_killed_with_the_model_waits_for_it(head: Head) -> None:
    def reply(prompt: str, times: int) -> Reply | None:
        if prompt != "p12" or times > 1:
            return answer(prompt)
        head.serve(api, phase="loading")
        os.kill(head.pid(), signal.SIGKILL)
        return None

    def serve_again(event: Event) -> None:
        if event.text == "waiting for the model: loading":
            head.serve(api)

    with head.serving(reply) as (api, wanted):
        action.answer_batch(wanted, head.events.append, detach=True)
        until(lambda: api.asked["p12"] == 1, 60)
        action.answer_batch(wanted, serve_again)
    assert (texts(wanted), head.checked) == (ALL, 1)


def test_what_was_fetched_stays_where_it_is_ended(head: Head) -> None:
    hold = threading.Event()

    def reply(prompt: str, times: int) -> Reply | None:
        if prompt != "p12" or times > 1:
            return answer(prompt)
        assert hold.wait(60)
        return None

    with head.serving(reply) as (_, wanted):
        action.answer_batch(wanted, head.events.append, detach=True)
        until(lambda: head.answered() >= 12, 60)
        ended = action.cancel_batch(wanted, head.events.append)
        hold.set()
        assert ended.answered == len(texts(wanted)) >= 12
        assert not (head.state / "batch").exists()
        action.answer_batch(wanted, head.events.append)
    assert texts(wanted) == ALL


def test_what_is_in_the_output_is_not_asked_again(head: Head) -> None:
    with head.serving(answer) as (api, wanted):
        first, _ = action.answer_batch(wanted, head.events.append)
        lines = wanted.files.output.read_bytes().splitlines(keepends=True)
        wanted.files.output.write_bytes(b"".join(lines[:20]))
        api.asked.clear()
        action.answer_batch(wanted, head.events.append)
    assert (len(api.asked), first.answered, texts(wanted)) == (10, 30, ALL)


def test_a_model_that_was_replaced_ends_it_with_a_word_and_keeps_the_answers(head: Head) -> None:
    def reply(prompt: str, _times: int) -> Reply | None:
        if prompt != "p20":
            return answer(prompt)
        head.serve(api, "g2", "loading")
        return None

    replaced = r"m was replaced by m \(loading\); the answers so far are kept"
    with head.serving(reply) as (api, wanted), pytest.raises(HostError, match=replaced):
        action.answer_batch(wanted, head.events.append)
    assert 10 < len(texts(wanted)) < 30


# fault: features/batch/on_head/files.py: self.models |= {model_of(row)} - {""} → pass
@pytest.mark.parametrize("longer", [False, True])
def test_answers_that_were_fetched_bind_what_is_started_next_to_their_model(longer: bool, head: Head) -> None:
    """The model was replaced while no laptop was there: the rest came from the other one, with no word of it."""
    hold, aim = threading.Event(), Api(lambda prompt, _: (200, {**reply_of(prompt), "model": "other"}), model="other")

    def reply(prompt: str, _times: int) -> Reply | None:
        if int(prompt[1:]) < 12:
            return answer(prompt)
        hold.wait(30)
        return None

    with head.serving(reply) as (_, wanted), serving(aim) as other:
        action.answer_batch(wanted, head.events.append, detach=True)
        until(lambda: head.answered() >= 12, 60)
        head.serve(other, "g2")
        hold.set()
        (there,) = head.state.glob("batch/*")
        until(lambda: not Folder(there)._pid(), 60)
        if longer:
            more = json.dumps({"custom_id": "new", "url": "/v1/completions", "body": {"prompt": "new"}})
            wanted.files.source.write_text(f"{wanted.files.source.read_text()}{more}\n")
        with pytest.raises(HostError, match="batch: the answers so far are of m, and m is served now"):
            action.answer_batch(wanted, head.events.append)
    assert texts(wanted) == {name: text for name, text in ALL.items() if int(text[1:]) < 12}
    assert not other.asked


def test_a_line_without_an_answer_comes_back_with_its_reason(head: Head) -> None:
    refusal = 400, {"error": {"message": "too long"}}
    with head.serving(lambda prompt, times: refusal if prompt == "p7" else answer(prompt)) as (_, wanted):
        found, _ = action.answer_batch(wanted, head.events.append)
    assert (found.answered, found.failed) == (29, 1)
    (bad,) = map(json.loads, wanted.files.errors.read_text().splitlines())
    assert (bad["line"], bad["custom_id"], bad["error"]) == (8, "r7", {"code": "refused", "message": "too long"})


def test_the_batches_of_the_head_are_listed_until_they_are_fetched(
    head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    hold = threading.Event()

    def reply(prompt: str, _times: int) -> Reply | None:
        assert prompt != "p12" or hold.wait(60)
        return answer(prompt)

    def listed() -> list[BatchOnHead]:
        return batches(make.inventory(1), head.events.append)

    with head.serving(reply) as (_, wanted):
        assert listed() == []
        show_batches("gpu1", [])
        action.answer_batch(wanted, head.events.append, detach=True)
        until(lambda: (listed()[0].answered or 0) >= 12, 60)
        (running,) = listed()
        hold.set()
        until(lambda: listed()[0].state == "done", 60)
        (done,) = listed()
        show_batches("gpu1", [done])
        validate(["batch", "--list"], json.dumps(batches_document("gpu1", [running, done])))
        action.answer_batch(wanted, head.events.append)
        assert listed() == []
    assert (running.state, running.total, running.output) == ("running", 30, str(wanted.files.output))
    assert (done.answered, done.total, done.user) == (30, 30, whoami())
    empty, _, row = capsys.readouterr().out.splitlines()
    assert empty == "No batches on gpu1: what was answered there is fetched."
    assert "30/30     done" in row


def test_what_another_output_had_is_asked_once_the_batch_of_the_same_input_is_done(head: Head) -> None:
    """The one that began it had some answers already, and a colleague with the same file has none."""
    with head.serving(answer) as (api, wanted):
        action.answer_batch(wanted, head.events.append)
        rows = wanted.files.output.read_bytes().splitlines(keepends=True)
        wanted.files.output.write_bytes(b"".join(rows[:20]))
        action.answer_batch(wanted, head.events.append, detach=True)
        until(lambda: head.answered() == 10, 60)
        colleague = replace(wanted, files=BatchFiles(wanted.files.source, head.folder / "other.jsonl"))
        found, _ = action.answer_batch(colleague, head.events.append)
    assert (found.answered, texts(colleague)) == (30, ALL)
    assert set(api.asked.values()) == {2}


def test_the_output_has_the_order_of_the_input(head: Head) -> None:
    late = threading.Event()

    def reply(prompt: str, _times: int) -> Reply:
        assert prompt != "p0" or late.wait(60)
        if prompt == "p29":
            late.set()
        return answer(prompt)

    with head.serving(reply) as (_, wanted):
        action.answer_batch(wanted, head.events.append)
    rows = [json.loads(line)["custom_id"] for line in wanted.files.output.read_text().splitlines()]
    assert rows == [*ALL]


def replace_file(path: Path, content: bytes) -> None:
    new = path.with_name("new")
    new.write_bytes(content)
    new.replace(path)


# fault: features/batch/on_head/row_file.py: if self._there and not self._in_place(): → if False:
# fault: features/batch/on_head/row_file.py: own.st_size == self._there and os.path.samestat → os.path.samestat
# fault: features/batch/on_head/row_file.py: and os.path.samestat(own, self.path.stat()) → and bool(self.path.stat())
# fault: features/batch/action.py: except Displaced as error: → except ZeroDivisionError as error:
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        Path.unlink,
        lambda path: path.rename(path.with_name("moved")),
        lambda path: replace_file(path, path.read_bytes()[:-1]),
        lambda path: replace_file(path, b""),
        lambda path: os.truncate(path, 0),
        lambda path: path.write_bytes(path.read_bytes().partition(b"\n")[0] + b"\n"),
    ],
    ids=["removed", "moved", "torn", "emptied", "truncated", "cut"],
)
def test_answers_whose_file_is_taken_away_stay_on_the_head_for_the_same_command(
    change: Callable[[Path], None], late: bool, head: Head
) -> None:
    """They went with the old file, the head's were removed, and all were reported as answered."""

    def reply(prompt: str, _times: int) -> Reply:
        # Of the late one the rows are sorted.
        if late and prompt == "p0":
            until(lambda: head.answered() >= 29, 60)
        return answer(prompt)

    def take_away(event: Event) -> None:
        if event.text == "answering on gpu1":
            change(wanted.files.output)

    with head.serving(reply) as (api, wanted):
        action.answer_batch(wanted, head.events.append, detach=True)
        until(lambda: head.answered() == 30, 60)
        with pytest.raises(VclusterError, match=r"out\.jsonl was removed, .*; the same command fetches") as caught:
            action.answer_batch(wanted, take_away)
        assert (caught.value.again, head.answered()) == ((), 30)
        action.answer_batch(wanted, head.events.append)
    assert (texts(wanted), set(api.asked.values())) == (ALL, {1})


def test_a_file_that_took_the_place_of_answers_stays_and_another_output_gets_them(head: Head) -> None:
    def take_away(event: Event) -> None:
        if event.text == "answering on gpu1":
            replace_file(wanted.files.output, b"mine\n")

    with head.serving(answer) as (api, wanted):
        action.answer_batch(wanted, head.events.append, detach=True)
        until(lambda: head.answered() == 30, 60)
        with pytest.raises(VclusterError, match="the same command fetches"):
            action.answer_batch(wanted, take_away)
        with pytest.raises(UsageError, match=r"out\.jsonl:1: not a row") as caught:
            action.answer_batch(wanted, head.events.append)
        assert (caught.value.hint, wanted.files.output.read_bytes()) == ("name another output with -o", b"mine\n")
        other = replace(wanted, files=BatchFiles(wanted.files.source, head.folder / "other.jsonl"))
        action.answer_batch(other, head.events.append)
    assert (texts(other), set(api.asked.values())) == (ALL, {1})


# fault: features/batch/action.py: self._work.ensure_in_place() → self._work.total
def test_one_that_is_left_to_the_head_counts_no_answers_that_are_not_here(head: Head) -> None:
    hold = threading.Event()

    def reply(prompt: str, _times: int) -> Reply:
        assert prompt != "p12" or hold.wait(60)
        return answer(prompt)

    with head.serving(reply) as (_, wanted):
        action.answer_batch(wanted, head.events.append, detach=True)
        until(lambda: head.answered() >= 12, 60)
        take, taken = Work.take, []

        def take_and_remove(work: Work, row: bytes) -> None:
            take(work, row)
            taken.append(row)
            if len(taken) == 12:
                wanted.files.output.unlink()

        with head.monkeypatch.context() as patch, pytest.raises(VclusterError, match=r"out\.jsonl was removed"):
            patch.setattr(Work, "take", take_and_remove)
            action.answer_batch(wanted, head.events.append, detach=True)
        hold.set()
        action.answer_batch(wanted, head.events.append)
    assert texts(wanted) == ALL


def answered_there(head: Head, wanted: Batch) -> Path:
    """Have all requests answered on the head, and none fetched; its output there."""
    action.answer_batch(wanted, head.events.append, detach=True)
    until(lambda: head.answered() == 30, 60)
    (file,) = head.state.glob("batch/*/output.jsonl")
    until(lambda: not Folder(file.parent)._pid(), 60)
    return file


@pytest.mark.parametrize(
    "row",
    [
        b'{"id": "batch_req_31_00000001", "custom_id": "r31"}\n',
        b'{"id": "batch_req_1_00000001", "custom_id": "r0"}\n',
        b"hello\n",
        b"x" * (2 << 20) + b"\n",
    ],
    ids=["no such line", "another checksum", "no row", "a long one"],
)
def test_a_row_of_no_line_here_is_refused_and_the_output_stays_usable(
    row: bytes, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(action, "MAX_ROW", 1 << 20)
    with head.serving(answer) as (_, wanted):
        file = answered_there(head, wanted)
        whole = file.read_bytes()
        file.write_bytes(whole.partition(b"\n")[0] + b"\n" + row)
        with pytest.raises(HostError, match="gpu1: batch: a row of its answers is refused: "):
            action.answer_batch(wanted, head.events.append)
        assert len(texts(wanted)) == 1
        file.write_bytes(whole)
        action.answer_batch(wanted, head.events.append)
    assert texts(wanted) == ALL


def with_more(prompt: str, more: bytes) -> Reply:
    """The answer to one of the prompts has more than others."""
    status, body = answer(prompt)
    assert isinstance(body, dict)
    return status, b"{%b, " % more + json.dumps(body).encode()[1:] if prompt == "p3" else body


# fault: features/batch/on_head/lines.py: known = 0 < len(request_id) <= MAX_ID and → known = request_id and
# fault: features/batch/on_head/lines.py: <= MAX_ID and request_id.isprintable() → <= MAX_ID
@pytest.mark.parametrize("name", ["x" * (9 << 20), "x" * 257, "a\x1b[2J", "\ud800"], ids=len)
def test_an_answer_of_which_the_name_is_odd_has_that_of_its_line(name: str, head: Head) -> None:
    """One of nine megabytes was written twice, and no row behind it could be fetched any more."""

    def reply(prompt: str, _times: int) -> Reply:
        status, body = answer(prompt)
        return status, {**body, "id": name} if prompt == "p3" and isinstance(body, dict) else body

    with head.serving(reply) as (_, wanted):
        action.answer_batch(wanted, head.events.append)
    assert texts(wanted) == ALL
    rows = [json.loads(row) for row in wanted.files.output.read_text().splitlines()]
    assert {row["response"]["request_id"][:12] for row in rows} == {"cmpl", "batch_req_4_"}


# fault: features/batch/on_head/lines.py: named_in(row, line.place) → pass
# fault: features/batch/on_head/runner.py: {error}", final=True) → {error}")
@pytest.mark.parametrize(("depth", "length"), [(250, 2 << 20), (900, 2 << 20), (250, 0), (960, 0), (970, 0)])
def test_an_answer_that_could_not_be_taken_is_a_failure_of_its_line_alone(depth: int, length: int, head: Head) -> None:
    """The head wrote it, and no row behind it could be fetched any more."""
    more = b'"x": %b, "y": "%b"' % (b"[" * depth + b"]" * depth, b"y" * length)
    with head.serving(lambda prompt, _: with_more(prompt, more)) as (api, wanted):
        found, _ = action.answer_batch(wanted, head.events.append)
    assert (found.answered, found.failed, api.asked["p3"]) == (29, 1, 1)
    (bad,) = map(json.loads, wanted.files.errors.read_text().splitlines())
    assert (bad["line"], bad["custom_id"], bad["error"]["code"]) == (4, "r3", "refused")
    assert bad["error"]["message"].startswith("the answer cannot be kept: n")


# fault: features/batch/action.py: except RefusedRow as error: → except ZeroDivisionError as error:
# fault: features/batch/on_head/files.py: raise ValueError("does not have → raise ZeroDivisionError("does not have
@pytest.mark.parametrize("row", [b"hello\n", b"x" * (2 << 20) + b"\n"], ids=["no row", "a long one"])
def test_one_with_rows_that_cannot_be_taken_can_be_stopped(
    row: bytes, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was on the head for good: also its end needed all of its rows."""
    monkeypatch.setattr(action, "MAX_ROW", 1 << 20)
    with head.serving(answer) as (_, wanted):
        file = answered_there(head, wanted)
        first, second, *more = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join((first, second.replace(b'"custom_id"', b'"custom"'), row, *more)))
        with pytest.raises(HostError, match="gpu1: batch: a row of its answers is refused: ") as caught:
            action.answer_batch(wanted, head.events.append)
        assert caught.value.again == ("--cancel",)
        found = action.cancel_batch(wanted, head.events.append)
        assert (found.answered, found.failed, len(texts(wanted))) == (1, 1, 1)
        assert "the rest is removed" in head.events[-1].text
        assert not (head.state / "batch").exists()
        action.answer_batch(wanted, head.events.append)
    assert texts(wanted) == ALL


@dataclass
class Asleep:
    """A laptop that is asleep from a moment on, while others work."""

    wanted: Batch
    sleeps: threading.Event = field(default_factory=threading.Event)
    wakes: threading.Event = field(default_factory=threading.Event)
    found: list[BatchResult] = field(default_factory=list)

    def sleep(self, files: BatchFiles) -> None:
        """Be asleep, where this is the laptop with these files, once."""
        if files == self.wanted.files and not self.sleeps.is_set():
            self.sleeps.set()
            assert self.wakes.wait(60)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Its call, in a thread; within it, it is asleep."""
        thread = threading.Thread(target=lambda: self.found.append(action.answer_batch(self.wanted, print)[0]))
        thread.start()
        assert self.sleeps.wait(60)
        try:
            yield
        finally:
            self.wakes.set()
            thread.join(60)


def with_output(head: Head, wanted: Batch, name: str) -> Batch:
    return replace(wanted, files=BatchFiles(wanted.files.source, head.folder / name))


# fault: features/batch/head_job.py: self._id = found.state.id if self._id is None else self._id → pass
# fault: features/batch/action.py: except BegunAgain as error: → except ZeroDivisionError as error:
def test_a_laptop_that_was_asleep_removes_no_answers_of_another(head: Head) -> None:
    """It had all rows, and its removal came late: that of a batch which another laptop had begun since."""
    with head.serving(answer) as (api, wanted):
        other, third = (with_output(head, wanted, name) for name in ("other.jsonl", "third.jsonl"))
        laptop, finish = Asleep(wanted), Work.finish

        def finish_and_sleep(work: Work) -> None:
            finish(work)
            laptop.sleep(work._files)

        answered_there(head, wanted)
        head.monkeypatch.setattr(Work, "finish", finish_and_sleep)
        with laptop.running():
            action.answer_batch(other, head.events.append)
            answered_there(head, third)
        assert (laptop.found[0].answered, head.answered()) == (30, 30)
        asked = sum(api.asked.values())
        action.answer_batch(third, head.events.append)
    assert (texts(third), sum(api.asked.values())) == (ALL, asked)


# fault: features/batch/on_host/batch_job.py: if now is None and wanted["do"] not in WITHOUT: → if False:
def test_one_that_is_removed_before_it_starts_is_sent_again(head: Head) -> None:
    """It ended with "No such file or directory: input", and left a folder on the head."""
    start, removed = HeadJob.start, list[Path]()

    def remove_and_start(job: HeadJob, options: Mapping[str, object]) -> None:
        if not removed:
            removed.append(Path(job.folder))
            shutil.rmtree(job.folder)
        start(job, options)

    head.monkeypatch.setattr(HeadJob, "start", remove_and_start)
    with head.serving(answer) as (api, wanted):
        action.answer_batch(wanted, head.events.append)
    assert (texts(wanted), {*api.asked.values()}) == (ALL, {1})
    assert any("another call has removed it; this one continues" in event.text for event in head.events)
    assert not (head.state / "batch").exists()


# fault: features/batch/action.py: self._at, self._rows, self.running = 0, 0, False → self.running = False
def test_a_laptop_that_was_asleep_reads_the_new_batch_from_its_first_row(head: Head) -> None:
    """It went on in the middle of a row, and called that the head's fault, or took a shorter one for done."""
    hold = threading.Event()

    def reply(prompt: str, times: int) -> Reply:
        assert times > 1 or int(prompt[1:]) < 15 or hold.wait(60)
        status, body = answer(prompt)
        assert isinstance(body, dict)
        return status, {**body, "id": "-" * (times * (int(prompt[1:]) % 7))}

    with head.serving(reply) as (_, wanted):
        other, third = (with_output(head, wanted, name) for name in ("other.jsonl", "third.jsonl"))
        laptop, take = Asleep(wanted), Work.take

        def take_and_sleep(work: Work, row: bytes) -> None:
            take(work, row)
            if work.answered == 12:
                laptop.sleep(work._files)

        head.monkeypatch.setattr(Work, "take", take_and_sleep)
        with laptop.running():
            hold.set()
            action.answer_batch(other, head.events.append)
            answered_there(head, third)
    assert (laptop.found[0].answered, texts(wanted)) == (30, ALL)


# fault: features/batch/action.py: for key in earlier(found, wanted.files, wanted.fields, self._work.key): → for key in list[str]():
@pytest.mark.parametrize("cancel", [False, True], ids=["continued", "stopped"])
def test_what_a_shorter_input_has_answered_is_not_asked_again(cancel: bool, head: Head) -> None:
    """The batch of the shorter one ran on beside that of the longer one, and no command reached it."""
    hold = threading.Event()

    def reply(prompt: str, times: int) -> Reply:
        assert times > 1 or prompt not in PROMPTS[12:] or hold.wait(60)
        return answer(prompt)

    with head.serving(reply) as (api, wanted):
        action.answer_batch(wanted, head.events.append, detach=True)
        until(lambda: head.answered() >= 12, 60)
        more = json.dumps({"custom_id": "new", "url": "/v1/completions", "body": {"prompt": "new"}})
        wanted.files.source.write_text(f"{wanted.files.source.read_text()}{more}\n")
        if cancel:
            assert action.cancel_batch(wanted, head.events.append).answered == 12
            assert not (head.state / "batch").exists()
        action.answer_batch(wanted, head.events.append, detach=True)
        hold.set()
        action.answer_batch(wanted, head.events.append)
    assert texts(wanted) == {**ALL, "new": "NEW"}
    # Those that were open had no answer.
    assert {prompt for prompt, times in api.asked.items() if times > 1} <= {"p12", "p13"}
    assert not (head.state / "batch").exists()


def test_a_node_that_is_missing_for_a_moment_is_waited_for(head: Head) -> None:
    def reopen(job: HeadJob) -> RunningProgram:
        if missing:
            raise missing.pop()
        return open_here(job)

    def break_it(event: Event) -> None:
        head.events.append(event)
        if event.text.startswith("answering on") and not broken:
            broken.append(event)
            head.monkeypatch.setattr(HeadJob, "_open", reopen)
            head.monkeypatch.setattr(RunningProgram, "next", lose)

    def lose(self: RunningProgram, _deadline: Deadline) -> dict[str, Any]:
        head.monkeypatch.setattr(RunningProgram, "next", read)
        raise ConnectionLost(self.host, "no keepalive")

    read, broken = RunningProgram.next, list[Event]()
    missing = [NodeMissing("gpu1: the node is missing")] * 3
    with head.serving(answer) as (_, wanted):
        action.answer_batch(wanted, break_it)
    assert (texts(wanted), missing) == (ALL, [])
    assert "waiting for gpu1: the node is missing; the batch runs on there" in [event.text for event in head.events]


def test_ctrl_c_leaves_it_running(head: Head) -> None:
    def interrupt(event: Event) -> None:
        if event.text.startswith("answering on"):
            raise KeyboardInterrupt

    with head.serving(answer) as (_, wanted):
        with pytest.raises(Interrupted, match="gpu1 answers the rest, and the same command fetches it"):
            action.answer_batch(wanted, interrupt)
        until(lambda: head.answered() == 30, 60)
        action.answer_batch(wanted, head.events.append)
    assert (texts(wanted), head.checked) == (ALL, 1)


def test_a_look_at_the_batches_ends_with_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program waits for more questions: `down` would wait for its end."""

    def here(_connection: object, program: RemoteProgram, _place: object, deadline: Deadline) -> RunningProgram:
        stream = LocalTransport(Target("gpu1", "local")).open_stream(program.argv, deadline)
        return RunningProgram("gpu1", program, stream, Deadline.after(600))

    monkeypatch.setattr(head_job, "start", here)
    monkeypatch.setattr(batches_module, "LOOK_SECONDS", 60.0)
    node: Any = SimpleNamespace(connection=SimpleNamespace(runtime=SYSTEM), name="vcluster-lab", host="gpu1")
    began = time.monotonic()
    assert batches_module.batches_on(node) == []
    assert time.monotonic() - began < 30
