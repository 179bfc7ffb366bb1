"""A model of a hub that only a laptop reaches: downloaded there, kept by no disk of it, and sent to one host."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.models.repositories import PullHub, blob, pull_hub
from tests.support.pulls import MODEL, Part, Sending, contents, model_files, plan_of, repository
from tests.support.waiting import until
from vllm_cluster.errors import HostError, PreflightFailed, Unreachable, VclusterError
from vllm_cluster.hub import download
from vllm_cluster.hub.download import HubDownload
from vllm_cluster.remote.pull.plan import HERE
from vllm_cluster.run import hub_files, local_folder
from vllm_cluster.run.connection import HostConnection
from vllm_cluster.run.runtime import SYSTEM

# Real connections and processes: seconds each.
pytestmark = pytest.mark.slow

FILES = model_files()
SHARD = "model-00002-of-00002.safetensors"
SIZE = sum(map(len, FILES.values()))


@pytest.fixture
def hub() -> Iterator[PullHub]:
    with pull_hub("127.0.0.1", repositories={MODEL: repository(FILES)}) as made:
        yield made


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """This machine's cache of the hub is empty."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "here"))
    return tmp_path / "here" / f"models--{MODEL.replace('/', '--')}" / "blobs"


@contextmanager
def host(hub: PullHub, tmp_path: Path) -> Iterator[Part]:
    """The host that gets the files."""
    plan = replace(plan_of(hub, tmp_path / "cache"), endpoint="", origin=HERE)
    part = Part(tmp_path / "own", plan)
    try:
        yield part
    finally:
        part.end()


def send(monkeypatch: pytest.MonkeyPatch, part: Part, hub: PullHub, token: str | None = None, **more: Any) -> None:
    """Download and send, as the laptop does."""
    monkeypatch.setattr(local_folder, "start", lambda *_: Sending(part))
    connection = cast(HostConnection, SimpleNamespace(name="a", runtime=SYSTEM))
    there = HubDownload(MODEL, part.plan.commit, hub.url, token, **more)
    files = cast(Any, part.plan.files)
    local_folder.feed(
        connection, "lab", files, lambda file, begin, put: there.send(file.path, file.size, file.blob, begin, put)
    )


def whole(part: Part) -> bool:
    """Whether it ended with all files, laid out as the hub does."""
    assert part.process.wait(60) == 0 and part.status()["phase"] == "done", part.status()
    root = Path(part.plan.cache) / part.plan.folder
    manifest = json.loads((root / ".vcluster" / f"{part.plan.commit}.json").read_text())
    names = {path.name for path in (root / "blobs").iterdir()}
    return (
        contents(part.plan) == FILES
        and (root / "refs" / "main").read_text() == manifest["commit"] == part.plan.commit
        and names == {blob(content) for content in FILES.values()}
    )


def partial(part: Part, name: str) -> Path:
    """Where the host has a file before it is whole."""
    path = Path(part.plan.cache) / part.plan.folder / "blobs" / f".{blob(FILES[name])}.vcluster-partial"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_the_files_are_downloaded_here_once_and_laid_out_there_as_the_hub_does(
    hub: PullHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with host(hub, tmp_path) as part:
        send(monkeypatch, part, hub, "hf_right")
        assert whole(part) and hub.sent == SIZE
    assert {token for _, path, token in hub.asked if "/resolve/" in path} == {"Bearer hf_right"}
    assert not (tmp_path / "here").exists()


def test_a_host_that_has_all_waits_for_the_answer_to_the_last_file(hub: PullHub, tmp_path: Path) -> None:
    """The program that takes the files ends with it: the laptop would report a pull that went well as failed."""
    with host(hub, tmp_path) as part:
        with Sending(part) as taking:
            rows = iter(lambda: taking.next(None), None)
            have = next(row["have"] for row in rows if "have" in row)
            for index, (file, begin) in enumerate(zip(part.plan.files, have, strict=True)):
                taking.send({"file": index, "size": file.size - begin})
                taking.send_bytes(FILES[file.path][begin:])
            until(lambda: part.status()["phase"] == "serving", 60)
            assert [next(rows) for _ in part.plan.files] == [{"done": file.path} for file in part.plan.files]
        assert whole(part)


def test_what_the_host_has_is_not_downloaded_again(
    hub: PullHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with host(hub, tmp_path) as part:
        partial(part, SHARD).write_bytes(FILES[SHARD][: 2 << 20])
        send(monkeypatch, part, hub)
        assert whole(part) and hub.sent == SIZE - (2 << 20)


def test_an_answer_that_is_cut_and_a_busy_hub_are_waited_out(
    hub: PullHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.cut, hub.busy = (2 << 20) + 1000, 2
    with host(hub, tmp_path) as part:
        send(monkeypatch, part, hub)
        assert whole(part) and hub.sent < SIZE + 2 * download.PIECE


def test_what_an_earlier_run_left_wrong_comes_again(
    hub: PullHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with host(hub, tmp_path) as part:
        partial(part, SHARD).write_bytes(bytes(2 << 20))
        send(monkeypatch, part, hub)
        assert whole(part)


def test_the_cache_of_this_machine_is_used_where_it_is_right(
    hub: PullHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_cache: Path
) -> None:
    first, second = (FILES[name] for name in sorted(FILES) if name.endswith(".safetensors"))
    no_cache.mkdir(parents=True)
    (no_cache / blob(first)).write_bytes(first)
    (no_cache / blob(second)).write_bytes(bytes(len(second)))
    with host(hub, tmp_path) as part:
        send(monkeypatch, part, hub)
        assert whole(part) and hub.sent == SIZE - len(first)


def test_a_file_that_is_not_what_the_hub_lists_is_reported(
    hub: PullHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with host(hub, tmp_path) as part:
        hub.repositories[MODEL].files[part.plan.commit] = {**FILES, SHARD: bytes(len(FILES[SHARD]))}
        with pytest.raises(HostError, match=f"{SHARD} comes with another content than the hub lists"):
            send(monkeypatch, part, hub)
        hub.repositories[MODEL].files[part.plan.commit] = {**FILES, SHARD: FILES[SHARD][:-9]}
        with pytest.raises(VclusterError, match=f"{SHARD}: {hub.url} sends another size than it lists"):
            send(monkeypatch, part, hub)


@pytest.mark.parametrize(("token", "code"), [(None, 401), ("hf_wrong", 403)])
def test_a_refusal_ends_it_with_the_page_and_what_arrived_stays(
    hub: PullHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str | None, code: int
) -> None:
    hub.repositories[MODEL].gated = True
    with host(hub, tmp_path) as part:
        with pytest.raises(VclusterError, match=f"answers {code}") as refused:
            send(monkeypatch, part, hub, token)
        assert f"open {hub.url}/{MODEL}" in str(refused.value.hint)
        until(lambda: part.status()["unfed"], 60)
        send(monkeypatch, part, hub, "hf_right")
        assert whole(part)


def test_a_hub_that_is_gone_is_given_up_after_its_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    there = HubDownload(MODEL, "c" * 40, "http://127.0.0.1:1", None)
    with pytest.raises(VclusterError, match="has sent no byte for 0 s"):
        there.send("config.json", 10, "a" * 40, 0, lambda _data: None)


def test_a_server_without_ranges_gives_each_byte_once() -> None:
    got: list[bytes] = []
    onward = download._Onward(4, 10, got.append)
    # As http_get does where a range is answered with the whole file.
    onward.seek(max(onward.tell() - 4, 0))
    onward.truncate()
    for at in range(0, 10, 3):
        onward.write(b"0123456789"[at : at + 3])
    assert b"".join(got) == b"456789"


def ask(hub_url: str, model: str = MODEL, token: str = "") -> Any:
    """Ask from this machine, with a process of its own."""
    question = {"model": model, "revision": "", "endpoint": hub_url, "token": token}
    return hub_files.ask_hub_here(SYSTEM, question)


def test_this_machine_asks_for_the_commit_the_sizes_and_the_access(hub: PullHub) -> None:
    found = ask(hub.url)
    assert (found.commit, found.size) == (hub.repositories[MODEL].refs["main"], SIZE)
    hub.repositories[MODEL].gated = True
    with pytest.raises(PreflightFailed, match=f"this machine: pull: {MODEL} is gated: .* 401 without a token") as gated:
        ask(hub.url)
    assert f"open {hub.url}/{MODEL} and accept its terms" in str(gated.value.hint)
    with pytest.raises(PreflightFailed, match="403 with the token that is set"):
        ask(hub.url, token="hf_wrong")
    with pytest.raises(PreflightFailed, match="has no lab/other"):
        ask(hub.url, "lab/other")
    with pytest.raises(Unreachable, match="this machine: pull: cannot reach"):
        ask("http://127.0.0.1:1")


HTML = b"<html>\n <title>Log in</title>" + bytes(b"x" * 200)


@pytest.mark.parametrize(
    ("kind", "body", "shown"),
    [
        ("text/html; charset=utf-8", HTML, f"200 text/html: <html> <title>Log in</title>{'x' * 52}…"),
        ("application/json", b'{"status": "up"}', '200 application/json: {"status": "up"}'),
        ("application/json", b"[1]", "200 application/json: [1]"),
        ("application/json", b'{"id": "lab/model"}', '200 application/json: {"id": "lab/model"}'),
    ],
)
def test_a_server_that_is_not_a_hub_comes_with_what_it_answers(kind: str, body: bytes, shown: str) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(Unreachable) as refused:
            ask(endpoint)
        server.shutdown()
    assert refused.value.message == f"this machine: pull: {endpoint} does not answer as a hub: {shown}"
    assert "set HF_ENDPOINT to the address of a hub" in str(refused.value.hint)


def test_a_machine_without_the_library_gets_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(PreflightFailed, match="huggingface_hub is not installed beside vcluster") as refused:
        ask("http://127.0.0.1:1")
    assert refused.value.hint == f"{sys.executable} -m pip install 'huggingface_hub>=1.0'"
