"""What a host refuses although its plan, its hub or its laptop has it: it writes there, so it looks itself."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.spread import folder_plan, planned
from vllm_cluster.remote.pull import download
from vllm_cluster.remote.pull.download import Download
from vllm_cluster.remote.pull.plan import PullError, read_plan
from vllm_cluster.remote.pull.store import Store
from vllm_cluster.wire.pull import HostPlan

FILE = planned("model.safetensors", b"x" * 10)


@pytest.fixture
def plan(tmp_path: Path) -> HostPlan:
    """The plan for a repository of the hub with one file."""
    plan = folder_plan(tmp_path, [FILE])
    return replace(plan, model="lab/model", commit="c" * 40, kind="hub", folder="hub/models--lab--model")


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


@pytest.mark.parametrize("link", ["snapshots", "blobs", "snapshots/" + "c" * 40, ""])
def test_a_link_to_another_model_is_not_followed(plan: HostPlan, tmp_path: Path, link: str) -> None:
    victim = tmp_path / "hub" / "models--victim--model"
    victim.mkdir(parents=True)
    (victim / FILE.path).write_text("victim")
    (victim / FILE.blob).write_text("victim")
    store = Store(plan)
    place = store.root / link
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(victim)
    with pytest.raises(PullError):
        store.claim()
        store.prove()
    assert (victim / FILE.path).read_text() == (victim / FILE.blob).read_text() == "victim"


def test_no_link_is_written_into(plan: HostPlan, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("")
    store = Store(plan)
    partial = store.partial(FILE)
    partial.parent.mkdir(parents=True)
    partial.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        store.append(FILE)
    assert victim.read_text() == ""


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


# fault: remote/pull/store.py: if self.length + count > self._size: → if self._size < 0:
def test_a_hub_that_sends_without_end_fills_no_disk(plan: HostPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "FIRST_PAUSE", 0.01)
    with endless() as (url, _):
        store = Store(replace(plan, endpoint=url))
        with pytest.raises(PullError, match="sends another content than it lists"):
            Download(replace(plan, endpoint=url), store, None).run()
        there = [path.stat().st_size for path in store.root.rglob("*") if path.is_file()]
    assert sum(there) <= FILE.size
