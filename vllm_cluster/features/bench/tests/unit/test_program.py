"""The program of a benchmark as it runs in the head's container, beside a vLLM that is made up."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.modules import MODULES
from vllm_cluster.features.bench.on_host import bench
from vllm_cluster.kernel.hosts.program import python

MAIN = """
import json, pathlib, sys, urllib.request
def main():
    try:
        urllib.request.urlopen("http://127.0.0.1:9", timeout=1)
    except OSError:
        pass
    words = sys.argv
    folder = pathlib.Path(words[words.index("--result-dir") + 1])
    result = {"completed": 1, "errors": []}
    (folder / words[words.index("--result-filename") + 1]).write_text(json.dumps(result))
"""


class Bench:
    """The program, started as it is on a head."""

    def __init__(self, folder: Path, **more: str) -> None:
        for name in ("vllm", "vllm/entrypoints", "vllm/entrypoints/cli"):
            (folder / name).mkdir(exist_ok=True)
            (folder / name / "__init__.py").write_text('__version__ = "0.32.0"')
        (folder / "vllm" / "entrypoints" / "cli" / "main.py").write_text(MAIN)
        self.tmp = folder / "tmp"
        self.tmp.mkdir(exist_ok=True)
        environment = {**os.environ, "PYTHONPATH": str(folder), "TMPDIR": str(self.tmp), **more}
        argv = [sys.executable, *python("features.bench.on_host", "bench", seconds=60).argv[1:]]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(argv, env=environment, stdin=pipe, stdout=pipe, stderr=pipe)

    def ask(self, message: dict[str, Any]) -> Any:
        """Its answer to a message."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline() or b"null")

    def begin(self) -> None:
        """Send the first message."""
        begun = self.ask({"key": "k", "api": "http://127.0.0.1:9"})
        assert begun == {"vllm": "0.32.0", "context": None}

    def kill(self) -> None:
        """End it, as its channel's end does."""
        self.process.kill()
        self.process.communicate(timeout=60)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Bench]]:
    made = [Bench(tmp_path)]
    yield made
    for one in made:
        one.kill()


def test_nothing_is_left_after_an_end_in_order(started: list[Bench]) -> None:
    (one,) = started
    one.begin()
    assert one.ask({"argv": []})["result"] == {"completed": 1}
    assert list(one.tmp.iterdir()) != []
    assert one.ask({}) == {"ended": True}
    assert list(one.tmp.iterdir()) == []


def test_what_a_killed_one_left_goes_with_the_next(started: list[Bench], tmp_path: Path) -> None:
    (one,) = started
    one.begin()
    another = Bench(tmp_path)
    started.append(another)
    another.begin()
    # That of one that runs stays.
    assert len(list(one.tmp.iterdir())) == 2
    one.kill()
    last = Bench(tmp_path)
    started.append(last)
    last.begin()
    assert {path.name.split("-")[2] for path in last.tmp.iterdir()} == {
        str(running.process.pid) for running in (another, last)
    }


# fault: features/bench/on_host/bench.py: os.environ |= {"NO_PROXY": "*", "no_proxy": "*"} → pass
def test_a_proxy_of_the_node_is_not_asked_and_gets_no_key(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as proxy:
        url = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        one = Bench(tmp_path, http_proxy=url, no_proxy="")
        proxy.settimeout(0.2)
        try:
            one.begin()
            one.ask({"argv": []})
            with pytest.raises(TimeoutError):
                proxy.accept()
        finally:
            one.kill()


# fault: features/bench/on_host/bench.py: server.getresponse().read(MAX_MODELS) → importlib.import_module("urllib.request").urlopen(f"{api}/v1/models", timeout=1).read()
def test_the_key_goes_to_no_address_that_an_answer_names() -> None:
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as there,
        closing(socket.create_server(("127.0.0.1", 0))) as api,
    ):
        to = f"http://127.0.0.1:{there.getsockname()[1]}/v1/models"

        def redirect() -> None:
            for _ in range(2):
                with suppress(OSError), api.accept()[0] as peer:
                    peer.recv(65536)
                    peer.sendall(f"HTTP/1.1 307 X\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode())

        api.settimeout(1)
        thread = threading.Thread(target=redirect)
        thread.start()
        assert bench.context(f"http://127.0.0.1:{api.getsockname()[1]}", "k") is None
        thread.join()
        there.settimeout(0.2)
        with pytest.raises(TimeoutError):
            there.accept()


def test_no_program_asks_by_what_follows_redirects_with_all_headers() -> None:
    """urllib.request does. The one place where it may not is tested with the model's files."""
    assert [path.name for path in MODULES if "urlopen(" in path.read_text()] == []
