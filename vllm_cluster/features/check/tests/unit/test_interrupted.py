"""Ctrl-C, or a polite kill, while hosts are checked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import pytest

from vllm_cluster.features.check import action
from vllm_cluster.features.check.verb import check

INVENTORY = """\
version: 1
cluster: lab
model_cache: /data
image: vllm/vllm-openai:v0.32.0
hosts:
  gpu1: {address: 10.0.0.1, gpus: 1}
"""


# fault: features/check/verb.py: as_json=as_json, changes=True, after_plan=True → as_json=as_json
def test_it_is_named_with_the_command_that_checks_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended without a word, as if hosts had been left as they were found."""

    def interrupted(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    (file := tmp_path / "inventory.yaml").write_text(INVENTORY)
    monkeypatch.setattr(action, "check_hosts", interrupted)
    monkeypatch.setattr(sys, "argv", ["vcluster", "check", "-i", str(file)])
    with pytest.raises(SystemExit) as end:
        check(inventory=file)
    assert end.value.code == 130
    shown = capsys.readouterr().err
    assert shown.startswith("Interrupted. Nothing was changed.\n") and f"vcluster check -i {file}" in shown
