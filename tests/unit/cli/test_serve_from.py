"""`vcluster serve --from`: what is shown, and what this call gives by itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.json_schemas import validate
from tests.support.paths import FIXTURES, ROOT
from tests.support.sim import make
from vllm_cluster.cli.app import app
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.serving.ask_head import Endpoint
from vllm_cluster.serving.fit.layouts import GpuPool
from vllm_cluster.serving.serve import serve as action
from vllm_cluster.serving.translate import hosts as recipe_hosts
from vllm_cluster.wire.order import Deployment

LINE = "vllm serve org/moe --tensor-parallel-size 2 --port 8000 --served-model-name moe -ep --max-model-len 4096"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Deployment]:
    """What the action was asked for."""
    found: list[Deployment] = []

    def serve(_inventory: object, _emit: object, deployment: Deployment, **_: object) -> Endpoint:
        found.append(deployment)
        return Endpoint("org/moe", "127.0.0.1", "gpu1", 8000)

    monkeypatch.setattr(action, "serve_model", serve)
    monkeypatch.setattr(Session, "load", lambda _: make.inventory(2, environment={"VLLM_X": "1"}))
    return found


# fault: serving/serve/translated.py: own if degrees else replace(own, tp=found.tp, → replace(own, tp=found.tp,
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


# fault: serving/translate/render.py: shell_line(redact_words(found.flags)) → shell_line(found.flags)
def test_what_is_handed_on_is_shown_without_secrets(asked: list[Deployment]) -> None:
    """Word by word: of a line a quote could go with the secret, and the rest of a word become a command."""
    line = 'vllm serve org/m --ssl-token "Qk7 z\'Wp" --max-model-len 5'
    done = CliRunner().invoke(app, ["serve", "--from", line, "--dry-run"])
    shown = [text for text in done.stdout.splitlines() if text.startswith(("for vLLM", "the same"))]
    assert (done.exit_code, len(shown), asked) == (0, 2, [])
    assert all("--max-model-len 5" in text and not re.search("Qk7|Wp", text) for text in shown), shown


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
        (["org/moe", "--variant", "fp8"], "--variant is of a recipe"),
        (["--from", LINE, "--strategy", "multi_node_tp"], "--strategy is of a recipe"),
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


RECIPE = str(FIXTURES / "recipe.yaml")


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hosts of eight H200, without RDMA."""
    pool = GpuPool((8, 8), 141 * 10**9, rdma=False)
    monkeypatch.setattr(recipe_hosts, "recipe_hosts", lambda *_: (pool, "NVIDIA H200"))


@pytest.mark.usefixtures("hosts")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ("org/large-moe", "org/large-moe", 8, 2, 1, False)),
        (
            ["--strategy", "multi_node_dep", "--variant", "fp8"],
            ("org/large-moe-FP8", "org/large-moe-FP8", 1, 1, 16, True),
        ),
        (["--tp", "4", "--name", "mine"], ("org/large-moe", "mine", 4, None, 1, False)),
    ],
)
def test_a_recipe_is_asked_for_as_a_command_line_is(
    asked: list[Deployment], words: list[str], expected: tuple[Any, ...]
) -> None:
    done = CliRunner().invoke(app, ["serve", "--from", RECIPE, *words])
    assert done.exit_code == 0, done.output
    [one] = asked
    assert (one.model, one.name, one.tp, one.pp, one.dp, one.expert_parallel) == expected
    assert one.flags[:3] == ("--trust-remote-code", "--max-model-len", "32768")


@pytest.mark.usefixtures("hosts")
def test_a_dry_run_of_a_recipe_shows_the_choice_and_serves_nothing(asked: list[Deployment]) -> None:
    done = CliRunner().invoke(app, ["serve", "--from", RECIPE, "--dry-run"])
    assert (done.exit_code, asked) == (0, [])
    assert "variant default" in done.stdout
    assert "2 hosts without RDMA; --strategy has also: single_node_tp" in done.stdout
    assert "the same: vcluster serve org/large-moe --tp 8 --pp 2 -- --trust-remote-code" in done.stdout
    as_json = CliRunner().invoke(app, ["serve", "--from", RECIPE, "--dry-run", "--json"])
    first = json.loads(as_json.stdout.splitlines()[0])
    assert [word["given"] for word in first["words"] if word["kind"] == "chosen"] == [
        "variant default",
        "strategy multi_node_tp_pp",
    ]
    validate(["serve", "--from", "--json"], as_json.stdout)


@pytest.mark.usefixtures("asked")
def test_the_page_shows_what_the_command_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = GpuPool((8, 8), 80 * 10**9, rdma=False)
    monkeypatch.setattr(recipe_hosts, "recipe_hosts", lambda *_: (pool, "NVIDIA H100 80GB HBM3"))
    page = (ROOT / "docs/from-vllm.md").read_text()
    recipe, shown = (
        page.split(f"```{begin}", 1)[1].split("\n```", 1)[0]
        for begin in ("yaml\n", "\n$ vcluster serve --dry-run --from large-moe")
    )
    ending, _, output = shown.partition("\n")
    name = f"large-moe{ending}"
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(recipe)
    done = CliRunner().invoke(app, ["serve", "--dry-run", "--from", name])
    assert (done.exit_code, done.stdout.rstrip("\n")) == (0, output)
