"""A person at a terminal, with hosts that serve: questions, answers and Ctrl-C."""

from __future__ import annotations

import os
import sys

import pytest

from tests.support.endpoint import serving
from tests.support.hosts import Sandbox
from tests.support.paths import ROOT
from tests.support.terminal import CTRL_C, CTRL_D, Terminal

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

MODEL = "sandbox/tiny-llama"


def at_terminal(sandbox: Sandbox, *argv: str) -> Terminal:
    """The program on a terminal of its own."""
    where = {"VCLUSTER_INVENTORY": str(sandbox.inventory), "PYTHONPATH": str(ROOT)}
    return Terminal([sys.executable, "-m", "vllm_cluster", *argv], env={**os.environ, **sandbox.environment, **where})


@pytest.mark.promise("P17", "P35")
@pytest.mark.cluster("up", leaves="plain")
def test_ctrl_c_ends_the_program_and_not_the_model(sandbox: Sandbox) -> None:
    with at_terminal(sandbox, "serve", MODEL) as terminal:
        terminal.until("importing", 120)
        terminal.press(CTRL_C)
        assert terminal.end() == 130, terminal.shown
        assert f"continues to start {MODEL}" in terminal.shown
        assert "Traceback" not in terminal.shown
    sandbox.vcluster("serve", MODEL).ok()
    for verb, key in (("stop", CTRL_C), ("down", CTRL_D)):
        with at_terminal(sandbox, verb) as terminal:
            question = terminal.until("[y/N] ", 120)
            assert f"Stop {MODEL} (ready for " in question
            assert "0 requests running) on sandbox" in question
            terminal.press(key)
            assert terminal.end() == 130, terminal.shown
    refused = sandbox.vcluster("stop")
    assert refused.code == 2
    assert f"fix: vcluster stop -i {sandbox.inventory} --yes" in refused.err
    assert serving(sandbox) == "ready"
