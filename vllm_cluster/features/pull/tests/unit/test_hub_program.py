"""The program that asks the hub for a model, as it runs in a container: of a hub that is in order, and of others."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.models.repositories import PullHub, pull_hub
from tests.support.pulls import MODEL, ask_program, model_files, plan_of, repository
from vllm_cluster.features.pull.hub_listing import HUB_BYTES, HUB_SECONDS

LIMITS = {"seconds": HUB_SECONDS, "most": HUB_BYTES}


@pytest.fixture
def hub() -> Iterator[PullHub]:
    with pull_hub("127.0.0.1", repositories={MODEL: repository(model_files(200_000))}) as made:
        yield made


def asked(hub: PullHub, **more: object) -> list[dict[str, Any]]:
    """What the hub has of a model."""
    question = {"model": MODEL, "revision": "", "token": None, "endpoint": hub.url, **LIMITS}
    return ask_program("features.pull.on_host.hub_listing", {**question, **more})


def test_the_hub_names_the_commit_and_the_content_of_each_file(hub: PullHub) -> None:
    *files, last = asked(hub)
    plan = plan_of(hub, Path("/nowhere"))
    assert [(row["path"], row["size"], row["blob"]) for row in files] == [(f.path, f.size, f.blob) for f in plan.files]
    assert last["commit"] == plan.commit


@pytest.mark.parametrize(
    ("question", "problem"),
    [
        ({"model": "lab/none"}, "missing"),
        ({"revision": "nobranch"}, "revision"),
        ({"endpoint": "http://127.0.0.1:1"}, "unreachable"),
        ({"token": "hf_wrong"}, "gated"),
        ({}, "gated"),
        ({"token": "hf_right"}, ""),
    ],
)
@pytest.mark.slow
def test_what_is_wrong_is_known_before_anything_is_moved(hub: PullHub, question: dict[str, str], problem: str) -> None:
    hub.repositories[MODEL].gated = True
    assert asked(hub, **question)[-1].get("problem", "") == problem


@pytest.mark.slow
def test_a_hub_that_is_busy_is_asked_again(hub: PullHub) -> None:
    hub.busy = 1
    assert "commit" in asked(hub)[-1]


@contextmanager
def answering(body: bytes, pause: float | None = None) -> Iterator[str]:
    """The address of a hub that answers so, each byte after a pause."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"a"')
            self.end_headers()
            with suppress(OSError):
                for piece in (body,) if pause is None else (bytes([one]) for one in body):
                    self.wfile.write(piece)
                    time.sleep(pause or 0.0)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads, server.block_on_close = True, False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def last_of(endpoint: str, seconds: float = HUB_SECONDS) -> dict[str, Any]:
    """The last line of what is printed of such a hub."""
    limits = {**LIMITS, "seconds": seconds}
    question = {"model": MODEL, "revision": "", "token": None, "endpoint": endpoint, **limits}
    return ask_program("features.pull.on_host.hub_listing", question)[-1]


def listing(*paths: object, **more: object) -> bytes:
    """What a hub answers of a model with these files."""
    rows = [{"rfilename": path, "size": 1, "blobId": "a" * 40} for path in paths]
    return json.dumps({"id": MODEL, "sha": "c" * 40, "siblings": rows, **more}).encode()


# fault: features/pull/on_host/hub_listing.py: hooks["response"].append( → id(
# fault: features/pull/on_host/hub_listing.py: "" if kind == "wrong" else words → words
# fault: features/pull/on_host/hub_listing.py: except (TypeError, ValueError): → except ZeroDivisionError:
@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"<html>", b"null", b"[]", b"{}", b"[" * 1_000_000),
        *(listing({"x": 1}), listing("a\ud800"), listing("a", sha=5), listing("a", sha=""), listing(siblings="abc")),
        *(listing("a", id=5), listing("a", id="../../x")),
    ],
    ids=lambda body: str(body[:60]),
)
@pytest.mark.slow
def test_a_hub_that_answers_with_anything_was_reached(body: bytes) -> None:
    """It was called away, in Python's words, with another host to ask it from as the remedy."""
    with answering(body) as url:
        assert last_of(url) == {"problem": "wrong", "code": None, "words": "", "endpoint": url}


# fault: features/pull/on_host/hub_listing.py: answered and not names & LOST → answered
@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"])
@pytest.mark.slow
def test_a_hub_that_ends_the_connection_is_away(begun: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            with listener.accept()[0] as one:
                one.recv(1 << 16)
                one.sendall(begun)

        threading.Thread(target=hang_up, daemon=True).start()
        found = last_of(f"http://127.0.0.1:{listener.getsockname()[1]}")
    assert found["problem"] == "unreachable"


# fault: features/pull/on_host/hub_listing.py: "wrong" if answered and → "wrong" if
@pytest.mark.parametrize(("variable", "proxy"), [("ALL_PROXY", "socks5h://127.0.0.1:1"), ("HTTPS_PROXY", "ftp://x:1")])
@pytest.mark.slow
def test_a_proxy_that_the_library_cannot_use_is_named(
    variable: str, proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub, which nothing had asked, was called wrong, and the library's words were kept back."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, proxy)
    with answering(b"{}") as url:
        found = last_of(url)
    assert (found["problem"], "proxy" in found["words"].lower()) == ("unreachable", True)


# As huggingface_hub was before 1.0, with the client of that time.
OF_REQUESTS = """import requests
SESSION = requests.Session()
class HfApi:
    def __init__(self, endpoint, token):
        self.endpoint = endpoint
    def model_info(self, *_, **__):
        return SESSION.get(self.endpoint).json()
get_hf_file_metadata = hf_hub_url = None
get_session = lambda: SESSION
"""


# fault: features/pull/on_host/hub_listing.py: if hasattr(session, "event_hooks") else session.hooks → if True else []
@pytest.mark.slow
def test_an_answer_is_noted_by_a_library_on_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "huggingface_hub.py").write_text(OF_REQUESTS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with answering(b"<html>") as url:
        assert (last_of(url)["problem"], last_of("none://127.0.0.1")["problem"]) == ("wrong", "unreachable")


# fault: features/pull/on_host/hub_listing.py: if len(listed) > asked["most"]: → if False:
@pytest.mark.slow
def test_a_list_that_is_longer_than_a_person_takes_is_the_hubs() -> None:
    """The host had printed too much."""
    with answering(listing(*(f"f{number}" for number in range(60_000)))) as url:
        found = last_of(url)
    assert (found["problem"], found["words"], found["endpoint"]) == ("many", "60000 files", url)


# fault: features/pull/on_host/hub_listing.py: watch.start() → pass
@pytest.mark.slow
def test_a_hub_that_drips_is_too_slow() -> None:
    """The host had not answered in time."""
    with answering(b" " * 30, 0.5) as url:
        assert last_of(url, 1.0) == {"problem": "slow", "endpoint": url}
