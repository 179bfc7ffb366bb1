"""What a host refuses although its plan, its hub or its laptop has it: it writes there, so it looks itself."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.attack import attack
from tests.support.spread import folder_plan, planned
from vllm_cluster.kernel.spread import download
from vllm_cluster.kernel.spread.download import Download
from vllm_cluster.kernel.spread.plan import PullError, read_plan
from vllm_cluster.kernel.spread.store import Store
from vllm_cluster.wire.pull import HostPlan

FILE = planned("model.safetensors", b"x" * 10)


@pytest.fixture
def plan(tmp_path: Path) -> HostPlan:
    """The plan for a repository of the hub with one file."""
    plan = folder_plan(tmp_path, [FILE])
    return replace(plan, model="lab/model", commit="c" * 40, kind="hub", folder="hub/models--lab--model")


# fault: wire/pull.py: Commit = Annotated[str, shaped("([0-9a-f]{40})?", "a commit")] → Commit = str
@pytest.mark.parametrize(
    "wrong",
    [
        {"commit": "../../models--victim--model/snapshots/b"},
        {"commit": "/tmp"},
        {"commit": ""},
        {"folder": "hub/../../etc"},
        {"folder": "/etc"},
        {"folder": "hub/models--a/../models--b"},
        {"kind": "folder", "commit": "", "folder": "hub/models--victim--model"},
        {"reference": "../../../x"},
        {"key": ""},
        {"path": "../../../models--victim--m/x"},
        {"path": "/etc/x"},
        {"path": "a//b"},
        {"blob": "../x"},
        {"blob": ""},
        {"size": -1},
        {"size": 10**30},
        {"size": 1.5},
    ],
)
def test_a_plan_that_leads_elsewhere_is_refused(plan: HostPlan, tmp_path: Path, wrong: dict[str, Any]) -> None:
    row = json.loads(json.dumps(asdict(plan)))
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(row))
    assert read_plan(path) == plan
    of_file = {key: value for key, value in wrong.items() if key in ("path", "blob", "size")}
    row["files"] = [{**row["files"][0], **of_file}]
    path.write_text(json.dumps({**row, **{key: value for key, value in wrong.items() if key not in of_file}}))
    with pytest.raises(PullError):
        read_plan(path)


LINKS = ["snapshots", "blobs", "snapshots/" + "c" * 40, "", ".vcluster", "refs"]


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """The folder of another model, which is as it was afterwards."""
    victim = tmp_path / "hub" / "models--victim--model"
    victim.mkdir(parents=True)
    content = dict.fromkeys((FILE.path, FILE.blob, f".{FILE.blob}.vcluster-partial", "main", "lock"), "victim" * 9)
    content[f"{'c' * 40}.json"] = "victim"
    for name, text in content.items():
        (victim / name).write_text(text)
    yield victim
    assert {path.name: path.read_text() for path in victim.iterdir()} == content


def planted(store: Store, link: str, victim: Path) -> None:
    place = store.root / link
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir():
        place.rename(place.with_name("away"))
    place.symlink_to(victim)


@pytest.mark.parametrize("link", ["snapshots", "blobs", "snapshots/" + "c" * 40, "", ".vcluster"])
def test_a_link_to_another_model_is_not_followed(plan: HostPlan, victim: Path, link: str) -> None:
    store = Store(plan)
    planted(store, link, victim)
    with pytest.raises(PullError, match="is a link or a file"):
        store.claim()
    with suppress(PullError):
        store.prove()


# fault: kernel/spread/no_links.py: below = os.open(name, FOLDER | os.O_NOFOLLOW → below = os.open(name, FOLDER
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("step", range(3))
def test_a_link_that_is_put_in_the_way_later_is_not_followed(
    plan: HostPlan, victim: Path, link: str, step: int
) -> None:
    """Between any two writes of a pull."""
    store = Store(replace(plan, reference="main", damaged=(FILE.path,)))

    def append() -> None:
        with store.append(FILE) as partial:
            partial.write(b"x" * 10)

    steps: list[Callable[[], None]] = [store.claim, append, lambda: store.finish(FILE)]
    for done in steps[:step]:
        done()
    planted(store, link, victim)
    for after in (*steps[step:], store.prove, lambda: store.drop_partial(FILE), store.conclude):
        with suppress(PullError, OSError):
            after()


@pytest.mark.parametrize("name", [f".{FILE.blob}.vcluster-partial", ".lock", f".{FILE.path}.vcluster-link"])
def test_no_link_is_written_into(plan: HostPlan, victim: Path, name: str) -> None:
    store = Store(replace(plan, reference="main"))
    target = victim / FILE.path
    for folder in ("blobs", f"snapshots/{plan.commit}", ".vcluster", "refs"):
        for one in (name, f".{plan.commit}.json.vcluster-new", ".main.vcluster-new"):
            (store.root / folder).mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                (store.root / folder / one).symlink_to(target)
    store.claim()
    with suppress(OSError):
        store.append(FILE).close()
    store.drop_partial(FILE)
    with store.append(FILE) as partial:
        partial.write(b"x" * FILE.size)
    store.finish(FILE)
    store.conclude()
    assert (store.root / "refs" / "main").read_text() == plan.commit
    assert (store.root / "snapshots" / plan.commit / FILE.path).read_text() == "x" * 10


# fault: kernel/spread/store.py: or seen.st_nlink > 1: → or False:
def test_a_second_name_of_another_models_file_is_not_written(plan: HostPlan, victim: Path) -> None:
    store = Store(plan)
    partial = store.partial(FILE)
    partial.parent.mkdir(parents=True)
    partial.hardlink_to(victim / FILE.path)
    with pytest.raises(PullError, match="not a file of its own"):
        store.append(FILE).close()
    partial.unlink()
    os.mkfifo(partial)
    with pytest.raises(PullError, match="not a file of its own"):
        store.append(FILE)


# fault: kernel/spread/store.py: return _size(path) == file.size and self.content_hash(path, file) == file.blob → return _size(path) == file.size
@pytest.mark.parametrize("rows", ["x", [1], [["../../x", 10, FILE.blob, 1]], [[{}, [], "", 1]], {"a": 1}])
def test_a_manifest_that_others_wrote_vouches_for_nothing(plan: HostPlan, rows: object) -> None:
    store = Store(plan)
    with store.append(FILE) as partial:
        partial.write(b"y" * FILE.size)
    store.finish(FILE)
    manifest = store.root / ".vcluster" / f"{plan.commit}.json"
    manifest.parent.mkdir()
    manifest.write_text(json.dumps({"v": 1, "model": "m", "commit": plan.commit, "digest": "a" * 64, "files": rows}))
    store.prove()
    assert not store.complete(FILE)


def test_a_lock_that_was_removed_with_its_model_guards_nothing(plan: HostPlan, tmp_path: Path) -> None:
    first, second = Store(plan), Store(plan)
    first.claim()
    with pytest.raises(PullError, match="another program writes"):
        second.claim()
    first.root.rename(tmp_path / "removed")
    second.claim()
    with pytest.raises(PullError, match="another program writes"):
        Store(plan).claim()


SENT = 64 << 20


@contextmanager
def endless() -> Iterator[tuple[str, list[int]]]:
    """A hub that sends much more of every file than it lists."""
    sent: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            while sum(sent) < SENT:
                self.wfile.write(b"x" * (1 << 16))
                sent.append(1 << 16)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", sent
    finally:
        server.shutdown()
        server.server_close()


# fault: kernel/spread/store.py: if self.length + count > self._size: → if self._size < 0:
@pytest.mark.promise("P46")
def test_a_hub_that_sends_without_end_fills_no_disk(plan: HostPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(download, "PATIENCE_SECONDS", 2.0)
    with attack("P46", "a hub sends a file without end") as measured, endless() as (url, _):
        store = Store(replace(plan, endpoint=url))
        with pytest.raises(PullError, match="sends another content than it lists"):
            Download(replace(plan, endpoint=url), store, None).run()
        there = sum(path.stat().st_size for path in store.root.rglob("*") if path.is_file())
        assert there <= FILE.size
        measured.figure = f"{there} bytes on the host's disk, of {FILE.size} that were listed"
