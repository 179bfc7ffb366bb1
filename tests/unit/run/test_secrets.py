"""Ids change with the value and give nothing away; what the cluster has is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import world
from vllm_cluster.run.runtime import SYSTEM
from vllm_cluster.run.secrets import Secrets, gather, identify


def test_an_id_is_stable_and_belongs_to_one_cluster_and_name() -> None:
    same = identify("lab", "api-key", "secret")
    assert same == identify("lab", "api-key", "secret")
    others = {
        identify("lab", "api-key", "Secret"),
        identify("prod", "api-key", "secret"),
        identify("lab", "x", "secret"),
    }
    assert same not in others
    assert len(others) == 3


def test_what_nobody_gives_is_made_and_then_kept() -> None:
    words = world.inventory()
    first = gather(words, {}, SYSTEM)
    assert first.ids.keys() == first.values.keys() == {"ray-token", "api-key"}
    again = gather(words, first.ids, SYSTEM)
    assert again.ids == first.ids
    assert again.values == {}


def test_what_is_given_wins_over_what_was_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KEY", "given")
    token = tmp_path / "token"
    token.write_text("hf_x\n")
    words = world.inventory(api_key="env:KEY", hf_token=f"file:{token}")
    found = gather(words, {"ray-token": "11", "api-key": "22"}, SYSTEM)
    assert found.values == {"api-key": "given", "hf-token": "hf_x"}
    assert found.ids["ray-token"] == "11"
    assert found.ids["api-key"] == identify("lab", "api-key", "given")


def test_values_do_not_show() -> None:
    assert "hunter2" not in repr(Secrets({"api-key": "11"}, {"api-key": "hunter2"}))
