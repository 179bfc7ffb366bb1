"""A hub or an API whose address has no scheme, or where another protocol answers: that is its reason."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from vllm_cluster.features.bench.on_host import bench
from vllm_cluster.serving.node import model_files


@pytest.fixture
def ssh() -> Iterator[str]:
    """A server that greets as sshd does."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            with suppress(OSError):
                while True:
                    with server.accept()[0] as peer:
                        peer.recv(65536)
                        peer.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture(params=["no scheme", "other protocol"])
def address(request: pytest.FixtureRequest, ssh: str) -> str:
    return "hub.example.com" if request.param == "no scheme" else ssh


# fault: serving/node/model_files.py: (OSError, ValueError, http.client.HTTPException) → OSError
def test_a_hub(address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    found = model_files.find_model("org/open")
    assert found["where"] == "nowhere"
    assert f"{address} cannot be asked: " in str(found["problem"])


def test_an_api(address: str) -> None:
    assert bench.context(address, "k") is None
