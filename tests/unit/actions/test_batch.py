"""The way to the model while it is away: what is waited for, and what ends a batch; with a head that is made up."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.sim import make
from vllm_cluster.actions import batch as action
from vllm_cluster.actions import head_api
from vllm_cluster.actions.head_api import HeadApi
from vllm_cluster.batch.client import Outcome, read
from vllm_cluster.batch.engine import Options
from vllm_cluster.batch.output import RowFile
from vllm_cluster.batch.progress import Progress
from vllm_cluster.batch.work import BatchFiles
from vllm_cluster.clock import Deadline
from vllm_cluster.core.node_status import ServeFailure, ServeStatus
from vllm_cluster.core.request import READY_FILE
from vllm_cluster.errors import (
    ConnectionLost,
    HostError,
    Locked,
    NodeMissing,
    PreflightFailed,
    TimedOut,
    Unreachable,
    UsageError,
    VclusterError,
)
from vllm_cluster.events import Event

INVENTORY = make.inventory(1)
READY = ServeStatus(
    *("g1", "org/model", "llama", "127.0.0.1", 8000, "ready", "", None, 0.0, 1, (2.0, 2.0), None, None, 1.0, 1.0)
)
LOADING = replace(READY, phase="loading", detail="shard 1/2")


@dataclass
class World:
    """A head whose states come one after the other, the last one again and again; an error is raised."""

    states: list[ServeStatus | VclusterError | None]
    probes: list[int | OSError] = field(default_factory=lambda: [200])
    name: str = "gpu1"
    clock: Clock = field(default_factory=Clock)
    fleets: int = 0
    open_fleets: int = 0
    events: list[Event] = field(default_factory=list)

    # A fleet, a connection, its transport, a forward, and its runtime.
    def __enter__(self) -> World:
        self.fleets += 1
        self.open_fleets += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.open_fleets -= 1

    def close(self) -> None: ...

    forwards = 0

    def forward(self, *_: object, **__: object) -> World:
        self.forwards += 1
        return self

    local_port = 1

    def require_alive(self) -> None: ...

    def after(self, seconds: float) -> Deadline:
        return Deadline.after(seconds, self.clock)

    @property
    def transport(self) -> World:
        return self

    def read(self, file: str) -> bytes:
        """The head has served `other`, once."""
        argv = ["vllm", "serve", "org/other", "--seed=7", "--served-model-name=other"]
        asked = {"generation": "g0", "name": "other", "model": "org/other", "argv": argv, "host": "127.0.0.1"}
        return json.dumps({"requests": [{**asked, "by_default": True}]} if file == READY_FILE else {}).encode()

    def state(self) -> Any:
        found = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(found, VclusterError):
            raise found

        class Found:
            serving = found
            status = object()

        return Found

    def models(self, *_: object) -> Outcome:
        found = self.probes.pop(0) if len(self.probes) > 1 else self.probes[0]
        if isinstance(found, OSError):
            raise found
        return read(found, b'{"data": [{"id": "llama"}, {"id": "lora"}]}')


@contextmanager
def opened(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[HeadApi]:
    monkeypatch.setattr(head_api, "at_head", lambda *_: world)
    monkeypatch.setattr(head_api, "read_key", lambda *_: "key")
    monkeypatch.setattr(head_api, "ready", lambda *_: READY)
    monkeypatch.setattr(head_api, "NodeHandle", lambda *_: world)
    monkeypatch.setattr(head_api, "models", world.models)
    monkeypatch.setattr(head_api, "answers", lambda _: True)
    with HeadApi(INVENTORY, world.events.append, 60.0, world) as api:  # type: ignore[arg-type]
        yield api


@pytest.mark.parametrize(
    ("states", "fleets", "words"),
    [
        ([READY], 1, []),
        ([LOADING, LOADING, READY], 1, ["waiting for llama: loading: shard 1/2", "llama answers again"]),
        # A lost connection is opened again, as often as needed.
        (
            [ConnectionLost("gpu1", "no keepalive"), Unreachable("gpu1", "no route"), READY],
            3,
            ["waiting for llama: gpu1: no keepalive", "waiting for llama: gpu1: no route", "llama answers again"],
        ),
        # The container starts again.
        ([HostError("gpu1", "container exited"), READY], 1, ["waiting for llama: gpu1: container exited"]),
    ],
)
def test_what_comes_back_is_waited_for(
    states: list[ServeStatus | VclusterError | None], fleets: int, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(states)
    with opened(world, monkeypatch) as api:
        api.recover("reset by peer")
    assert world.fleets == fleets
    assert [event.text for event in world.events][: len(words)] == words


@pytest.mark.parametrize(
    ("state", "kind", "message"),
    [
        (None, HostError, "gpu1: batch: llama was stopped; the answers so far are kept"),
        (replace(LOADING, generation="g2", name="other"), HostError, "llama was replaced by other (loading)"),
        (
            replace(READY, phase="failed", failure=ServeFailure(0.0, "out of memory", ())),
            HostError,
            "llama failed: out of memory",
        ),
        (LOADING, TimedOut, "llama has not answered for 60 s: loading: shard 1/2; the answers so far are kept"),
    ],
)
def test_what_does_not_come_back_ends_the_run(
    state: ServeStatus | None, kind: type[VclusterError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(World([state]), monkeypatch) as api, pytest.raises(kind) as caught:
        api.recover("reset by peer")
    assert message in caught.value.message


def test_a_model_that_is_ready_and_answers_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head has not noticed yet that it ended."""
    world = World([READY], probes=[200, ConnectionResetError("reset by peer"), 500, 200])
    with opened(world, monkeypatch) as api:
        api.recover("reset by peer")
    assert [event.text for event in world.events] == [
        "waiting for llama: gpu1: api: reset by peer",
        "waiting for llama: gpu1: api: 500",
        "llama answers again",
    ]


def test_a_recovery_in_which_nothing_moved_opens_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World([READY])
    with opened(world, monkeypatch) as api:
        for _ in range(100):
            api.recover("HTTP 500")
    assert world.forwards == 1


def test_a_rotated_key_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World([READY], probes=[200, 401, 200])
    keys = iter(("one", "two"))
    with opened(world, monkeypatch) as api:
        monkeypatch.setattr(head_api, "read_key", lambda *_: next(keys))
        api.recover("HTTP 401")
        assert api.endpoint.key == "one"


@pytest.mark.parametrize(
    "error",
    [TimedOut("gpu1", "no answer"), HostError("gpu1", "Docker is away"), NodeMissing("cluster lab is not running")],
)
def test_a_head_that_is_away_for_a_moment_is_connected_once(
    error: VclusterError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`up` recreates its node, or Docker starts again there."""
    world, errors = World([ConnectionLost("gpu1", "no keepalive"), READY]), [error] * 3

    def read_key(*_: object) -> str:
        if errors:
            raise errors.pop()
        return "key"

    with opened(world, monkeypatch) as api:
        monkeypatch.setattr(head_api, "read_key", read_key)
        api.recover("reset by peer")
        assert (errors, world.open_fleets) == ([], 1)
    assert world.open_fleets == 0
    assert [event.text for event in world.events][-1] == "llama answers again"


def test_answers_of_another_model_are_not_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(World([READY]), monkeypatch) as api:
        api.ensure_model({"llama", "lora"}, Path("out.jsonl"))
        with pytest.raises(PreflightFailed, match=r"out\.jsonl holds answers of other; lab serves llama") as end:
            api.ensure_model({"llama", "other"}, Path("out.jsonl"))
    again = "vcluster serve org/other --name other -- --seed=7"
    assert end.value.hint == f"name another output with -o\n{again}"


def run(folder: Path, **names: str) -> None:
    files = {"source": "in.jsonl", "output": "out.jsonl", "errors": "errors.jsonl", **names}
    paths = BatchFiles(**{name: folder / path for name, path in files.items()})
    action.batch(INVENTORY, paths, Options(), lambda _: None, wait=0)


def test_files_that_do_not_fit_are_refused_before_any_host_is_asked(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("{}\n")
    (tmp_path / "link.jsonl").hardlink_to(tmp_path / "in.jsonl")
    (tmp_path / "mine.txt").write_text("notes\n")
    for names, message in (
        ({"output": "link.jsonl"}, "link.jsonl is the input"),
        ({"errors": "in.jsonl"}, "in.jsonl is the input"),
        ({"errors": "out.jsonl"}, "out.jsonl is the output"),
        ({"output": "mine.txt"}, "mine.txt:1: not a row that vcluster batch writes"),
        ({"errors": "mine.txt"}, "mine.txt:1: not a row that vcluster batch writes"),
    ):
        with pytest.raises(UsageError, match=message):
            run(tmp_path, **names)
    with pytest.raises(FileNotFoundError):
        run(tmp_path, source="missing.jsonl")
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "link.jsonl", "mine.txt"}
    assert (tmp_path / "mine.txt").read_text() == "notes\n"


def test_an_output_that_cannot_be_a_file_is_a_wrong_call(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("{}\n")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for output, message in (
        ("folder", "cannot write .*/folder: Is a directory"),
        ("missing/out.jsonl", "cannot write .*/out.jsonl: No such file or directory"),
        ("in.jsonl/out.jsonl", "cannot write .*/out.jsonl: Not a directory"),
        ("fifo", "fifo is not a file that rows can be added to"),
    ):
        with pytest.raises(UsageError, match=message):
            run(tmp_path, output=output)


@pytest.mark.parametrize(("seconds", "left"), [(None, ""), (0.2, ""), (61.0, ", about 1 min left")])
def test_no_time_left_is_not_shown(seconds: float | None, left: str) -> None:
    assert action.progress_event(Progress(9, 8, 0, 1, 32, 5.0, seconds)).text == (
        f"answering 8/9, 5 tokens/s, 1 open{left}"
    )


def test_a_second_run_over_one_output_waits_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("{}\n")
    other = RowFile(tmp_path / "out.jsonl")
    with pytest.raises(Locked, match="another run of vcluster batch writes"):
        run(tmp_path)
    other.close()


def test_an_output_that_is_whole_asks_no_host(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("\n")
    run(tmp_path)
    assert not (tmp_path / "out.jsonl").exists()
