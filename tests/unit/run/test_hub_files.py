"""What this machine's huggingface_hub prints beside its answer."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from vllm_cluster.errors import PreflightFailed
from vllm_cluster.run.hub_files import ask_hub_here
from vllm_cluster.run.runtime import SYSTEM, Runtime

QUESTION = {"model": "lab/model", "revision": "", "token": "", "endpoint": ""}
FILE = {"path": "config.json", "size": 2, "blob": "a" * 40}
END = {"commit": "c" * 40, "name": "lab/model", "endpoint": "http://hub"}


def prints(*lines: str) -> Runtime:
    """A machine on which the program prints these lines."""

    def processes(argv: Any, **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(argv, 0, "".join(f"{line}\n" for line in lines), "")

    return replace(SYSTEM, processes=processes)


@pytest.mark.parametrize("line", ["{'a': 1}", "{", "{" * 100_000, '["{"]', "null"])
def test_a_line_without_a_message_is_skipped(line: str) -> None:
    runtime = prints(line, json.dumps(FILE), json.dumps(END))
    assert [file.path for file in ask_hub_here(runtime, QUESTION).files] == ["config.json"]
    with pytest.raises(PreflightFailed, match="gave no answer"):
        ask_hub_here(prints(line), QUESTION)


@pytest.mark.parametrize(
    ("row", "end"),
    [
        ({"size": -1}, {}),
        ({"size": 10**30}, {}),
        ({"size": None}, {}),
        ({"blob": ""}, {}),
        ({"blob": "../../x"}, {}),
        ({"path": "../x"}, {}),
        ({}, {"commit": "../../models--victim--model/snapshots/b"}),
        ({}, {"commit": "/etc"}),
        ({}, {"name": "lab/model; touch X #"}),
    ],
)
def test_what_no_hub_can_list_is_refused(row: dict[str, Any], end: dict[str, Any]) -> None:
    runtime = prints(json.dumps({**FILE, **row}), json.dumps({**END, **end}))
    with pytest.raises(PreflightFailed, match=r"lab/model (lists|is listed as)"):
        ask_hub_here(runtime, QUESTION)
