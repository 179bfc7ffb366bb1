"""A folder in place of a hub: of the host itself, or of a laptop that sends it, as both run in the containers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.ports import free_port
from tests.support.pulls import Part, Sending, model_files
from tests.support.spread import folder_plan, partial_of
from tests.support.waiting import until
from vllm_cluster.features.pull import local_folder
from vllm_cluster.features.pull.known_hashes import KnownHashes
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import HostError, TimedOut, UsageError
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.hosts.runtime import SYSTEM
from vllm_cluster.kernel.spread import origin
from vllm_cluster.kernel.spread.store import Store
from vllm_cluster.wire.programs import FedRow
from vllm_cluster.wire.pull import HERE, ChainHost, HostPlan, ModelFile

FILES = model_files(2 << 20)
SHARD = "model-00002-of-00002.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model."""
    made = tmp_path / "mine"
    made.mkdir()
    for name, content in FILES.items():
        (made / name).write_bytes(content)
    return made


def listed(folder: Path) -> tuple[ModelFile, ...]:
    """Its files that vLLM reads."""
    known = KnownHashes(folder.parent / "known", folder)
    found = local_folder.hashed(folder, local_folder.listed(folder, ""), lambda _: None, known, SYSTEM.clock)
    return tuple(file for file in found if file.blob)


def plan_at(folder: Path, cache: Path, source: str = "") -> HostPlan:
    """The plan of the one host that has the files from the folder, or from there."""
    return folder_plan(cache, listed(folder), origin=source or str(folder))


@contextmanager
def parts(folder: Path, tmp_path: Path, source: str) -> Iterator[dict[str, Part]]:
    """Two hosts; the first one has the files from there."""
    port = free_port()
    hosts = tuple(ChainHost(name, f"127.0.0.{number}", port) for number, name in enumerate("ab", 11))
    with ExitStack() as ends:
        made = {}
        for name in "ab":
            plan = replace(plan_at(folder, tmp_path / name / "cache", source), me=name, hosts=hosts)
            made[name] = Part(tmp_path / name / "own", plan)
            ends.callback(made[name].end)
        yield made


def there(part: Part) -> dict[str, bytes]:
    """What vLLM would read."""
    root = Path(part.plan.cache) / "mine"
    return {path.name: path.read_bytes() for path in root.iterdir() if path.is_file()}


def finished(made: dict[str, Part]) -> bool:
    """Whether all have all."""
    return all(part.status().get("phase") in ("serving", "done") for part in made.values())


def send(monkeypatch: pytest.MonkeyPatch, part: Part, folder: Path) -> None:
    """Send the folder as the laptop does."""
    monkeypatch.setattr(local_folder, "start", lambda *_: Sending(part))
    connection = cast(HostConnection, SimpleNamespace(name="a", runtime=SYSTEM))
    files = cast(Any, part.plan.files)
    local_folder.feed(connection, "lab", files, folder)


# fault: features/pull/local_folder.py: ready.sooner(PLACE_SECONDS) → ready
def test_a_host_that_falls_silent_before_it_takes_files_is_not_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = list[float]()

    def read(_kind: object, deadline: Deadline) -> FedRow:
        waited.append(deadline.left())
        if len(waited) == 3:
            raise TimedOut("a", "its program did not answer in time")
        return FedRow()

    monkeypatch.setattr(local_folder, "start", lambda *_: nullcontext(SimpleNamespace(host="a", read=read)))
    with pytest.raises(TimedOut):
        local_folder.feed(cast(HostConnection, SimpleNamespace(name="a", runtime=SYSTEM)), "lab", (), folder)
    assert max(waited) <= local_folder.PLACE_SECONDS


def test_a_folder_of_the_host_is_copied_and_spread(folder: Path, tmp_path: Path) -> None:
    with parts(folder, tmp_path, str(folder)) as made:
        until(lambda: finished(made), 60)
        assert there(made["a"]) == there(made["b"]) == FILES
        assert len({part.status()["digest"] for part in made.values()}) == 1


def test_a_file_that_changes_while_it_is_copied_is_reported(folder: Path, tmp_path: Path) -> None:
    files = listed(folder)
    (folder / SHARD).write_bytes(b"x" * len(FILES[SHARD]))
    with parts(folder, tmp_path, str(folder)) as made:
        pass
    plan = replace(made["a"].plan, hosts=made["a"].plan.hosts[:1], files=files)
    one = Part(tmp_path / "one", plan)
    assert one.process.wait(60) == 0
    assert one.status()["error"] == f"{SHARD} changes while it is copied"


def test_what_was_copied_before_a_file_failed_is_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So small that no copy ends before the one that fails.
    monkeypatch.setattr(origin, "PIECE", 1)
    for number in range(5):
        (folder / f"{number}.safetensors").write_bytes(FILES[SHARD])
    files = tuple(file for file in listed(folder) if file.path not in FILES)
    (folder / files[1].path).unlink()
    plan = replace(plan_at(folder, tmp_path / "cache"), files=files)
    store = Store(plan)
    copied = {file: partial_of(store, file) for file in files[:1] + files[2:]}
    for partial in copied.values():
        partial.write_bytes(FILES[SHARD][:1000])
    with pytest.raises(FileNotFoundError):
        origin.Copy(plan, store).run()
    for file, partial in copied.items():
        assert 1000 <= store.have(file) < file.size
        assert FILES[SHARD].startswith(partial.read_bytes())


@pytest.mark.slow
def test_a_folder_that_is_sent_arrives_everywhere(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with parts(folder, tmp_path, HERE) as made:
        until(lambda: made["a"].status().get("unfed") is True, 60)
        assert made["a"].status()["phase"] == "copying"
        send(monkeypatch, made["a"], folder)
        until(lambda: finished(made), 60)
        assert there(made["a"]) == there(made["b"]) == FILES
        assert made["a"].status()["unfed"] is False


@pytest.mark.slow
def test_what_was_sent_before_the_laptop_was_killed_is_not_sent_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with parts(folder, tmp_path, HERE) as made:
        part = made["a"]
        index, file = next((at, one) for at, one in enumerate(part.plan.files) if one.path == SHARD)
        with Sending(part) as first:
            while "have" not in first.next(None):
                pass
            first.send({"file": index, "size": file.size})
            first.send_bytes(FILES[SHARD][: 1 << 20])
            until(lambda: part.status().get("bytes", 0) >= 1 << 20, 60)
        until(lambda: part.status()["unfed"], 60)
        sent: list[dict[str, Any]] = []
        before = Sending.send

        def noted(self: Sending, row: dict[str, Any]) -> None:
            sent.append(row)
            before(self, row)

        monkeypatch.setattr(Sending, "send", noted)
        send(monkeypatch, part, folder)
        assert {"file": index, "size": file.size - (1 << 20)} in sent
        until(lambda: finished(made), 60)
        assert there(made["b"]) == FILES


@pytest.mark.slow
def test_a_host_that_has_all_waits_for_the_answer_to_the_last_file(folder: Path, tmp_path: Path) -> None:
    """The program that takes the files ends with it: the laptop would report a pull that went well as failed."""
    part = Part(tmp_path / "own", plan_at(folder, tmp_path / "cache", HERE))
    with Sending(part) as taking:
        rows = iter(lambda: taking.next(None), None)
        have = next(row["have"] for row in rows if "have" in row)
        for index, (file, begin) in enumerate(zip(part.plan.files, have, strict=True)):
            taking.send({"file": index, "size": file.size - begin})
            taking.send_bytes(FILES[file.path][begin:])
        until(lambda: part.status()["phase"] == "serving", 60)
        answers = [next(rows) for _ in part.plan.files]
        assert sorted(row["done"] for row in answers) == list(range(len(answers)))
    assert part.process.wait(60) == 0 and part.status()["phase"] == "done"


# fault: features/pull/local_folder.py: AHEAD = 256 → AHEAD = 1
def test_many_small_files_are_sent_in_few_round_trips(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer for each before the next is sent took 23 s for 1,000 files at 20 ms to the host."""
    for number in range(300):
        (folder / f"{number:03}.safetensors").write_bytes(b"%d" % number)
    waits = 0
    before = Sending.next
    sent: list[int] = []

    def sends(self: Sending, row: dict[str, Any], do: Any = Sending.send) -> None:
        sent.append(row["file"])
        do(self, row)

    def waited(self: Sending, deadline: object) -> dict[str, Any]:
        nonlocal waits
        waits += bool(sent)
        sent.clear()
        return before(self, deadline)

    monkeypatch.setattr(Sending, "send", sends)
    monkeypatch.setattr(Sending, "next", waited)
    part = Part(tmp_path / "own", plan_at(folder, tmp_path / "cache", HERE))
    send(monkeypatch, part, folder)
    # Two shards of 2 MB, and two groups of small files before, between or after them.
    assert waits <= 5
    assert part.process.wait(60) == 0
    assert len(there(part)) == 300 + len(FILES)


def test_only_one_machine_sends(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with parts(folder, tmp_path, HERE) as made, Sending(made["a"]) as first:
        first.next(None)
        with pytest.raises(HostError, match="a: pull: another machine sends the files"):
            send(monkeypatch, made["a"], folder)


def test_a_file_that_changed_since_it_was_hashed_is_reported(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with parts(folder, tmp_path, HERE) as made:
        (folder / SHARD).write_bytes(b"x" * len(FILES[SHARD]))
        with pytest.raises(HostError, match=f"{SHARD} has changed since it was hashed"):
            send(monkeypatch, made["a"], folder)
        (folder / SHARD).write_bytes(b"x")
        with pytest.raises(UsageError, match="has become shorter since it was hashed"):
            send(monkeypatch, made["a"], folder)


def test_hidden_files_and_copies_in_other_formats_stay_here(folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / ".git" / "config.json").write_text("{}")
    (folder / "README.md").write_text("x")
    (folder / ".hidden").write_text("x")
    assert {file.path for file in listed(folder)} == set(FILES)
    (folder / "config.json").unlink()
    with pytest.raises(UsageError, match="has no config"):
        listed(folder)


def test_a_link_to_nothing_and_a_name_that_is_not_utf_8_are_refused(folder: Path) -> None:
    (folder / "b.safetensors").symlink_to("/nothing/there")
    with pytest.raises(UsageError, match=r"b\.safetensors is a link to /nothing/there, which is not there"):
        listed(folder)
    (folder / "b.safetensors").unlink()
    Path(os.fsdecode(bytes(folder) + b"/\xff.json")).write_text("{}")
    with pytest.raises(UsageError, match=r"name cannot be on every host: '\\udcff\.json'"):
        listed(folder)


# fault: kernel/spread/origin.py: with open_inside(origin, file.path, cache) as → with (origin / file.path).open("rb") as
def test_a_link_that_took_the_place_of_a_file_is_not_copied(folder: Path, tmp_path: Path) -> None:
    """Its owner can put one to the token in the cache there once the file was hashed, and a token of that content."""
    plan = plan_at(folder, tmp_path / "cache")
    (tmp_path / "cache").mkdir(exist_ok=True)
    (folder / SHARD).rename(tmp_path / "cache" / "token")
    (folder / SHARD).symlink_to(tmp_path / "cache" / "token")
    with pytest.raises(OSError, match="is not a file of the folder any more"):
        origin.Copy(plan, Store(plan)).run()
    assert not [path for path in (tmp_path / "cache" / "mine").rglob("*.safetensors") if path.name == SHARD]
