"""A spelling that was removed answers with the line to use instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.in_process import run
from vllm_cluster.kernel.terminal import removed


@pytest.mark.parametrize("argv", [("earlier", "gpu1"), ("batch", "in.jsonl", "-o", "out.jsonl", "--earlier", "x")])
def test_a_removed_spelling_names_what_to_use(
    argv: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instead = {"earlier": "vcluster check", "batch --earlier": "vcluster batch IN -o OUT"}
    monkeypatch.setattr(removed, "INSTEAD", instead)
    done = run(*argv, cwd=tmp_path)
    assert done.returncode == 2
    assert "earlier" in done.stderr
    assert "no longer has" in done.stderr
    assert "fix: vcluster " in done.stderr
