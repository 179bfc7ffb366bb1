"""Whether the files of a model are as they were pulled, by name, size and time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.models.repositories import pull_hub
from tests.support.pulls import MODEL, model_files, plan_of, repository, snapshot
from tests.support.spread import partial_of
from vllm_cluster.kernel.spread.store import Store
from vllm_cluster.serving.node import model_files as files_of
from vllm_cluster.wire.pull import HostPlan, digest_of

FILES = model_files(200_000)
SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostPlan]:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    with pull_hub("127.0.0.1", repositories={MODEL: repository(FILES)}) as hub:
        made = plan_of(hub, tmp_path)
        store = Store(made)
        for file in made.files:
            partial_of(store, file).write_bytes(FILES[file.path])
            store.finish(file)
        store.conclude()
        yield made


def look() -> dict[str, object]:
    """What the node answers of the model."""
    return files_of.find_model(MODEL, ask_hub=False)


def test_a_pulled_model_is_proved_by_the_digest_that_hosts_compare(plan: HostPlan) -> None:
    found = look()
    assert (found["where"], found["proved"]) == ("cache", digest_of(plan.files))


@pytest.mark.parametrize("change", ["written", "longer"])
def test_a_file_that_changed_is_reported(plan: HostPlan, change: str) -> None:
    path = snapshot(plan) / SHARD
    path.write_bytes(FILES[SHARD] + b"x" * (change == "longer"))
    found = look()
    assert (found.get("proved"), found["changed"]) == (None, SHARD)


def test_a_file_that_is_gone_proves_nothing(plan: HostPlan) -> None:
    (snapshot(plan) / "tokenizer.json").unlink()
    assert "proved" not in look()


def test_a_complete_cache_without_a_manifest_is_as_before(plan: HostPlan) -> None:
    (Store(plan).root / ".vcluster" / f"{plan.commit}.json").unlink()
    found = look()
    assert found["where"] == "cache" and "proved" not in found and "changed" not in found
