"""`vcluster serve --from`: what is shown, and what this call gives by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.json_schemas import validate
from tests.support.sim import make
from vllm_cluster.actions import serve as action
from vllm_cluster.actions.ask_head import Endpoint
from vllm_cluster.cli.app import app
from vllm_cluster.cli.session import Session
from vllm_cluster.wire.order import Deployment

LINE = "vllm serve org/moe --tensor-parallel-size 2 --port 8000 --served-model-name moe -ep --max-model-len 4096"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Deployment]:
    """What the action was asked for."""
    found: list[Deployment] = []

    def serve(_inventory: object, _emit: object, deployment: Deployment, **_: object) -> Endpoint:
        found.append(deployment)
        return Endpoint("org/moe", "127.0.0.1", "gpu1", 8000)

    monkeypatch.setattr(action, "serve", serve)
    monkeypatch.setattr(Session, "load", lambda _: make.inventory(2, environment={"VLLM_X": "1"}))
    return found


# fault: cli/serve_from.py: own if degrees else replace(own, tp=found.tp, → replace(own, tp=found.tp,
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ("org/moe", "moe", 2, 1, 1, True, ("--max-model-len", "4096"))),
        (["--tp", "4"], ("org/moe", "moe", 4, None, 1, True, ("--max-model-len", "4096"))),
        (["--dp", "2"], ("org/moe", "moe", None, None, 2, True, ("--max-model-len", "4096"))),
        (["--name", "mine"], ("org/moe", "mine", 2, 1, 1, True, ("--max-model-len", "4096"))),
        (["./moe", "--", "--seed", "1"], ("./moe", "moe", 2, 1, 1, True, ("--max-model-len", "4096", "--seed", "1"))),
    ],
)
def test_options_of_the_call_count_more(asked: list[Deployment], words: list[str], expected: tuple[Any, ...]) -> None:
    done = CliRunner().invoke(app, ["serve", "--from", LINE, *words])
    assert done.exit_code == 0, done.output
    [one] = asked
    assert (one.model, one.name, one.tp, one.pp, one.dp, one.expert_parallel, one.flags) == expected


@pytest.mark.parametrize("way", ["text", "file", "standard input"])
def test_a_command_line_comes_as_text_file_or_input(asked: list[Deployment], way: str, tmp_path: Path) -> None:
    file = tmp_path / "serve.sh"
    file.write_text(LINE)
    source = {"text": LINE, "file": str(file), "standard input": "-"}[way]
    done = CliRunner().invoke(app, ["serve", "--from", source], input=LINE)
    assert (done.exit_code, [one.model for one in asked]) == (0, ["org/moe"])


def test_a_dry_run_shows_the_translation_and_asks_for_nothing(asked: list[Deployment]) -> None:
    done = CliRunner().invoke(app, ["serve", "--from", LINE, "--dry-run"])
    assert (done.exit_code, asked) == (0, [])
    assert "--port 8000               dropped     ports.api of the inventory" in done.stdout
    assert "for vLLM: --max-model-len 4096" in done.stdout
    assert "the same: vcluster serve org/moe --name moe --tp 2 --pp 1 --ep -- --max-model-len 4096" in done.stdout


def test_json_has_what_became_of_each_word(asked: list[Deployment]) -> None:
    done = CliRunner().invoke(app, ["serve", "--from", f"VLLM_X=1 VLLM_Y=2 {LINE}", "--json"])
    first = json.loads(done.stdout.splitlines()[0])
    assert (first["event"], first["code"], len(asked)) == ("note", "translated", 1)
    by_kind: dict[str, list[str]] = {}
    for word in first["words"]:
        by_kind.setdefault(word["kind"], []).append(word["given"])
    assert by_kind["dropped"] == ["--port 8000"]
    assert by_kind["passed"] == ["--max-model-len 4096"]
    assert [word["here"] for word in first["words"] if word["kind"] == "variable"] == ["the same", ""]
    validate(["serve", "--from", "--json"], done.stdout)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "missing MODEL"),
        (["org/moe", "--dry-run"], "--dry-run shows what becomes of --from"),
        (["--from", "no-such.sh"], "no-such.sh: no such file"),
        (["--from", "vllm serve"], "--from:1: names no model"),
        (["--from", "."], ".: no such file"),
        (["--from", "x" * 5000], "no such file"),
    ],
)
def test_what_cannot_be_read_is_refused(asked: list[Deployment], words: list[str], error: str) -> None:
    done = CliRunner().invoke(app, ["serve", *words])
    assert done.exit_code == 2
    assert error in done.output + str(done.exception)
    assert asked == []
