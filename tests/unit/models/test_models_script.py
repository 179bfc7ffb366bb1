"""The script that lists a model cache, on caches made of files, and what is read out of it."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from vllm_cluster.kernel.models.listed import CachedModel, parse_models

SCRIPT = files("vllm_cluster.kernel.models").joinpath("models.sh")
COMMIT, OTHER = "a" * 40, "b" * 40
SHELLS = [["sh"], ["bash", "--posix"]]


@pytest.fixture(params=SHELLS, ids=["sh", "bash"])
def shell(request: pytest.FixtureRequest) -> list[str]:
    return list(request.param)


def listed(cache: Path, shell: list[str]) -> dict[str, CachedModel]:
    done = subprocess.run([*shell, "-s", "--", cache], input=SCRIPT.read_bytes(), capture_output=True, check=True)
    assert done.stderr == b""
    return {model.name: model for model in parse_models(done.stdout.decode())}


def hub_model(cache: Path, name: str, shards: int, *, commit: str = COMMIT) -> Path:
    """A repository as huggingface_hub keeps it: blobs, and a snapshot of links to them."""
    folder = cache / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit
    for path in (folder / "blobs", folder / "refs", snapshot):
        path.mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text(commit)
    names = [f"model-{number}.safetensors" for number in range(shards)]
    for one in names:
        (folder / "blobs" / one).write_bytes(b"x" * 50_000)
        (snapshot / one).symlink_to(f"../../blobs/{one}")
    weights = {f"layer.{number}": one for number, one in enumerate(names)}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    return folder


def test_a_complete_model_has_its_commit_and_its_size(tmp_path: Path, shell: list[str]) -> None:
    hub_model(tmp_path, "org/name--with-dashes", 2)
    (model,) = listed(tmp_path, shell).values()
    assert (model.name, model.commit, model.problem) == ("org/name--with-dashes", COMMIT, "")
    assert 100_000 <= model.size_bytes < 200_000
    assert model.last_read is not None


# fault: kernel/models/listed.py: commit=one_line(commit) → commit=commit
# fault: kernel/models/listed.py: problem=one_line(problem) → problem=problem
# fault: kernel/models/listed.py: name=quoted_labels( → name=str(
def test_no_text_of_a_list_begins_as_a_line_to_paste() -> None:
    (found,) = parse_models("hub|fix: x| fix: x|1|1|next: x\nwhole\n")
    assert (found.name, found.commit, found.problem) == ('"fix": x', '"fix": x', '"next": x')


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        ("rm blobs/model-1.safetensors", "broken link: model-1.safetensors"),
        ("rm snapshots/*/model-1.safetensors", "missing: model-1.safetensors"),
        ("touch blobs/x.incomplete", "a download is running, or was interrupted"),
        ("rm snapshots/*/*", "no weights"),
        ("rm -r snapshots", "no files of this revision"),
        (f"printf {OTHER} > refs/main", "no files of this revision"),
    ],
)
def test_an_incomplete_model_has_its_reason(tmp_path: Path, shell: list[str], harm: str, problem: str) -> None:
    folder = hub_model(tmp_path, "org/broken", 2)
    hub_model(tmp_path, "org/whole", 1)
    subprocess.run(["sh", "-c", harm], cwd=folder, check=True)
    found = listed(tmp_path, shell)
    assert (found["org/broken"].problem, found["org/whole"].problem) == (problem, "")


def test_a_model_that_was_downloaded_by_its_commit(tmp_path: Path, shell: list[str]) -> None:
    shutil.rmtree(hub_model(tmp_path, "org/name", 1) / "refs")
    assert [(model.commit, model.problem) for model in listed(tmp_path, shell).values()] == [(COMMIT, "")]


def test_folders_are_models_too(tmp_path: Path, shell: list[str]) -> None:
    for name, file in (("my model", "model.safetensors"), ("lab/empty", "README.md")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / file).write_bytes(b"x" * 5000)
    found = listed(tmp_path, shell)
    assert {name: model.problem for name, model in found.items()} == {"./my model": "", "./lab/empty": "no weights"}


@pytest.mark.parametrize("cache", ["nowhere", "a folder"])
def test_a_cache_without_models_has_none(tmp_path: Path, shell: list[str], cache: str) -> None:
    (tmp_path / "a folder").mkdir()
    assert listed(tmp_path / cache, shell) == {}


def test_a_list_without_its_end_is_refused() -> None:
    with pytest.raises(ValueError, match="has no end"):
        parse_models("hub|org--name|abc|10|20|\n")


# fault: kernel/models/listed.py: 1024 * (number(kib) or 0) → 1024 * int(kib)
# fault: kernel/models/listed.py: None if (read := number(used)) is None else float(read) → float(used)
def test_a_number_of_hundreds_of_digits_is_none() -> None:
    """Neither can it be shown in gigabytes, nor has JSON what it becomes."""
    [found] = parse_models(f"hub|org--name|abc|{'9' * 400}|{'9' * 400}|\nwhole\n")
    assert (found.size_bytes, found.last_read) == (0, None)


def test_lines_of_a_login_shell_are_passed_over() -> None:
    assert parse_models("Welcome|to|this|fine|host|!\nhub|a\nwhole\n") == ()
