"""The image of the engine and the model are made at the same time, and an error of one is that of the whole."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from vcluster_sandbox import golden

# Notes what it is asked for; the model is made for as long as the commit has not begun.
DOCKER = """#!/bin/sh
echo "$1" >>log
case $1 in
  exec) until grep -q commit log; do sleep 0.01; done; exit "$MODEL" ;;
  commit) exit "$COMMIT" ;;
esac
"""


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A container, in which a program that notes its calls is in the place of Docker."""
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    (tmp_path / "Dockerfile").touch()
    monkeypatch.setattr(golden, "_BUILD", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def execute(_: object, argv: list[str], *, deadline: int, **__: object) -> None:
        subprocess.run(argv, cwd=tmp_path, check=True, timeout=min(deadline, 20))

    monkeypatch.setattr(golden, "execute", execute)
    return cast(Any, None)


# fault: vcluster_sandbox/golden.py: & model=$!; → ; true & model=$!;
def test_the_model_is_made_during_the_commit(builder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL", "0")
    monkeypatch.setenv("COMMIT", "0")
    golden._make_image(builder)
    calls = (tmp_path / "log").read_text().split()
    assert (sorted(calls[:2]), calls[2:]) == (["commit", "exec"], ["rm", "build", "image"])


# fault: vcluster_sandbox/golden.py: wait $model; → wait;
@pytest.mark.parametrize(("model", "commit"), [("1", "0"), ("0", "1")], ids=["the model", "the commit"])
def test_what_fails_ends_it(builder: Any, monkeypatch: pytest.MonkeyPatch, model: str, commit: str) -> None:
    monkeypatch.setenv("MODEL", model)
    monkeypatch.setenv("COMMIT", commit)
    with pytest.raises(subprocess.CalledProcessError):
        golden._make_image(builder)
