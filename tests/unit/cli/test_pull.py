"""What the words of `vcluster pull` ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import world
from vllm_cluster.actions import pull as action
from vllm_cluster.actions.pull_plan import WantedModel
from vllm_cluster.cli.app import app
from vllm_cluster.cli.session import Session


def wanted(monkeypatch: pytest.MonkeyPatch, *words: str) -> WantedModel:
    """What the action is given."""
    given: list[WantedModel] = []
    monkeypatch.setattr(Session, "load", lambda _: world.inventory(2))
    monkeypatch.setattr(action, "pull", lambda _inventory, _emit, one: given.append(one))
    app(["pull", *words], standalone_mode=False)
    return given[0]


def test_this_machine_may_be_the_one_that_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wanted(monkeypatch, "org/name@v2", "--via", "local") == WantedModel("org/name", "v2", sent_from_here=True)
    assert wanted(monkeypatch, "org/name", "--via", "gpu2") == WantedModel("org/name", via="gpu2")


@pytest.mark.parametrize(("model", "quoted"), [("org/name", "org/name"), ("org/my name", "'org/my name'")])
def test_what_this_machine_sends_is_not_left_alone(
    model: str, quoted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        app(["pull", model, "--via", "local", "--detach"], standalone_mode=False)
    assert f"fix: vcluster pull {quoted} --via local" in capsys.readouterr().err


def test_a_name_for_a_folder_that_is_written_as_a_repository_comes_with_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my model").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        app(["pull", "my model", "--as", "mine"], standalone_mode=False)
    assert "fix: vcluster pull './my model' --as NAME" in capsys.readouterr().err
