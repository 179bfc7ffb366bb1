"""What `vcluster models` prints, for people and for programs."""

from __future__ import annotations

import json
import time

import pytest

from tests.support.json_schemas import validate
from vllm_cluster.cli.app import app
from vllm_cluster.features.pull import models_verb as models_cli
from vllm_cluster.features.pull.models import CachedModels, RunningPull
from vllm_cluster.features.pull.render import models_document, show_models
from vllm_cluster.kernel.errors import Unreachable
from vllm_cluster.kernel.models.listed import CachedModel
from vllm_cluster.kernel.terminal.options import InventoryPath, Json

COMMIT = "0e9e39f249a16976918f6564b8830bc894c89659"


def model(name: str, size: int = 16_100_000_000, problem: str = "") -> CachedModel:
    return CachedModel(name, COMMIT, size, time.time() - 7300, problem)


WHOLE, BROKEN = model("org/whole"), model("org/big", 98_700_000_000, "missing: model-2.safetensors")
FOUND = CachedModels(
    {"gpu1": (WHOLE, model("org/big", 141_100_000_000)), "gpu2": (WHOLE, BROKEN)},
    {"gpu3": Unreachable("gpu3", "no answer")},
)


def shown(capsys: pytest.CaptureFixture[str], found: CachedModels) -> list[str]:
    show_models(found, "/models", color="never")
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_hosts_that_have_the_same_share_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, FOUND) == [
        "MODEL REVISION SIZE HOSTS LAST READ STATE",
        "org/big 0e9e39f249a1 141.1 GB gpu1 2 h ago complete",
        "org/big 0e9e39f249a1 98.7 GB gpu2 2 h ago incomplete: missing: model-2.safetensors",
        "org/whole 0e9e39f249a1 16.1 GB all 2 2 h ago complete",
        "org/big is not complete on gpu2",
    ]


def test_a_host_whose_clock_is_ahead_has_read_a_model_just_now(capsys: pytest.CaptureFixture[str]) -> None:
    ahead = CachedModel("org/whole", COMMIT, 16_100_000_000, time.time() + 40, "")
    assert "org/whole 0e9e39f249a1 16.1 GB gpu1 0 s ago complete" in shown(capsys, CachedModels({"gpu1": (ahead,)}, {}))


PULLS = {
    "gpu1": RunningPull("org/new", COMMIT, "downloading", 3_100_000_000, 16_100_000_000),
    "gpu2": RunningPull("org/new", COMMIT, "receiving", 2_000_000_000, 16_100_000_000),
    "gpu3": RunningPull("org/new", COMMIT, "serving", 16_100_000_000, 16_100_000_000),
}


def test_what_is_being_pulled_is_a_row_with_how_much_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    begun = model("org/new", 2_000_000_000, "no files of this revision")
    found = CachedModels({"gpu1": (WHOLE,), "gpu2": (begun,), "gpu3": (model("org/new"),)}, {}, PULLS)
    lines = shown(capsys, found)
    assert "org/new 0e9e39f249a1 3.1 GB gpu1 being pulled: 3.1 GB of 16.1 GB" in lines
    assert "org/new 0e9e39f249a1 2.0 GB gpu2 being pulled: 2.0 GB of 16.1 GB" in lines
    assert "org/new 0e9e39f249a1 16.1 GB gpu3 2 h ago complete" in lines
    assert "org/whole is not on gpu2, gpu3" in lines and len(lines) == 6
    document = json.dumps(models_document(found))
    validate(["models"], document)
    assert json.loads(document)["pulls"]["gpu2"]["pulled_bytes"] == 2_000_000_000


def test_no_model_prints_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    none = "No models in /models of gpu1, gpu2. Where it is full, give model_cache a larger disk."
    assert shown(capsys, CachedModels({"gpu1": (), "gpu2": ()}, {})) == [none]
    # Of hosts that did not answer nothing is known.
    assert shown(capsys, CachedModels({}, {})) == []


def test_a_name_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\x1b" not in "".join(shown(capsys, CachedModels({"gpu1": (model("./\x1b[2J"),)}, {})))


def test_without_a_verb_it_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with options before and behind it."""
    called: list[tuple[object, bool]] = []

    def ls(inventory: InventoryPath = None, as_json: Json = False) -> None:
        called.append((inventory, as_json))

    monkeypatch.setattr(models_cli, "models_ls", ls)
    monkeypatch.delenv("VCLUSTER_INVENTORY", raising=False)
    for argv in (["models"], ["models", "--json"], ["models", "ls"], ["--json", "models"]):
        app(argv, standalone_mode=False)
    assert called == [(None, False), (None, True), (None, False), (None, True)]


def test_the_document_is_that_of_its_schema() -> None:
    document = json.dumps(models_document(FOUND))
    validate(["models"], document)
    assert json.loads(document)["unreachable"] == {"gpu3": "gpu3: no answer"}
