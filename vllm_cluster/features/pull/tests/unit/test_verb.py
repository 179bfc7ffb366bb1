"""What the words of `vcluster pull` ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sim import make
from vllm_cluster.cli.app import app
from vllm_cluster.features.pull import action
from vllm_cluster.features.pull.plan import WantedModel
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.terminal.session import Session

INVENTORY = make.inventory(2)


def wanted(monkeypatch: pytest.MonkeyPatch, *words: str, inventory: Inventory = INVENTORY) -> WantedModel:
    """What the action is given."""
    given: list[WantedModel] = []
    monkeypatch.setattr(Session, "load", lambda _: inventory)
    monkeypatch.setattr(action, "pull_model", lambda _inventory, _emit, one: given.append(one))
    app(["pull", *words], standalone_mode=False)
    return given[0]


def test_what_this_machine_downloaded_before_comes_by_a_folder_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        wanted(monkeypatch, "org/name", "--via", "local")
    assert "fix: hf download org/name --local-dir ./name\nfix: vcluster pull ./name\n" in capsys.readouterr().err
    hosts = {"gpu1": {"address": "10.0.0.1"}, "local": {"address": "10.0.0.2"}}
    other = make.inventory_of(hosts=hosts)
    assert wanted(monkeypatch, "org/name", "--via", "local", inventory=other) == WantedModel("org/name", via="local")


def test_a_name_for_a_folder_that_is_written_as_a_repository_comes_with_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my model").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        app(["pull", "my model", "--as", "mine"], standalone_mode=False)
    assert "fix: vcluster pull './my model' --as mine" in capsys.readouterr().err


def test_a_bucket_is_answered_with_the_copy_that_takes_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        app(["pull", "s3://lab/models/mine", "--as", "new"], standalone_mode=False)
    shown = capsys.readouterr().err
    assert "fix: aws s3 cp --recursive s3://lab/models/mine ./new\nfix: vcluster pull ./new\n" in shown


# fault: features/pull/verb.py: if name or not model.startswith("./") → if not model
@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (("gpu1:/data/mine", "--verify"), "vcluster pull ./mine --verify"),
        (("gpu1:/data/mine", "--as", "other", "--verify"), "vcluster pull ./other --verify"),
        (("./mine", "--as", "other", "--cancel"), "vcluster pull ./other --cancel"),
        (("/data/mine/", "--verify"), "vcluster pull ./mine --verify"),
    ],
)
def test_a_folder_that_was_pulled_is_named_as_the_hosts_have_it(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        wanted(monkeypatch, *words)
    assert f"fix: {fix}\n" in capsys.readouterr().err
