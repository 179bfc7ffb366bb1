"""What `vcluster serve` makes of its command line."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.sim import make
from vllm_cluster.cli.app import app
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.serving.ask_head import Endpoint
from vllm_cluster.serving.serve import serve as action
from vllm_cluster.wire.order import Deployment


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        ([], []),
        (["--hosts", "gpu1,gpu2"], ["gpu1", "gpu2"]),
        (["--hosts", "gpu1", "--hosts", "gpu2"], ["gpu1", "gpu2"]),
        (["--hosts=gpu1,gpu2", "--hosts=gpu1"], ["gpu1", "gpu2", "gpu1"]),
        (["--hosts", ""], [""]),
    ],
)
def test_every_host_that_is_named_counts(monkeypatch: pytest.MonkeyPatch, words: list[str], hosts: list[str]) -> None:
    asked: list[Any] = []

    def serve(_inventory: object, _emit: object, deployment: Deployment, **_: object) -> Endpoint:
        asked.append([*deployment.hosts])
        return Endpoint("org/model", "127.0.0.1", "gpu1", 8000)

    monkeypatch.setattr(action, "serve_model", serve)
    monkeypatch.setattr(Session, "load", lambda _: make.inventory(2))
    done = CliRunner().invoke(app, ["serve", "org/model", *words])
    assert (done.exit_code, asked) == (0, [hosts])
