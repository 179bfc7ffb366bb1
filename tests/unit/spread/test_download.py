"""The download from a hub, with the real huggingface_hub."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.models.repositories import PullHub, pull_hub
from tests.support.pulls import MODEL, contents, model_files, plan_of, repository, snapshot
from tests.support.spread import partial_of
from vllm_cluster.kernel.spread import download
from vllm_cluster.kernel.spread.download import Download
from vllm_cluster.kernel.spread.plan import PullError
from vllm_cluster.kernel.spread.store import Store
from vllm_cluster.wire.pull import HostPlan

# Real connections, kills and pauses: seconds each.
pytestmark = pytest.mark.slow

FILES = model_files()


@pytest.fixture
def hub() -> Iterator[PullHub]:
    with pull_hub("127.0.0.1", repositories={MODEL: repository(FILES)}) as made:
        yield made


def fetch(plan: HostPlan, token: str | None = None) -> None:
    """Download all of a plan."""
    Download(plan, Store(plan), token).run()


def test_every_file_is_downloaded_once_and_laid_out_as_the_hub_does(hub: PullHub, tmp_path: Path) -> None:
    plan = plan_of(hub, tmp_path)
    fetch(plan)
    assert contents(plan) == FILES
    links = [path for path in snapshot(plan).iterdir() if path.is_symlink()]
    assert len(links) == len(FILES) and all(not path.readlink().is_absolute() for path in links)
    assert hub.sent == sum(map(len, FILES.values()))


def test_a_download_that_is_cut_in_the_middle_continues_there(hub: PullHub, tmp_path: Path) -> None:
    hub.cut = (2 << 20) + 1000
    plan = plan_of(hub, tmp_path)
    fetch(plan)
    assert contents(plan) == FILES
    assert hub.sent < sum(map(len, FILES.values())) + 2 * download.CHUNK


def test_what_a_killed_download_left_is_not_downloaded_again(hub: PullHub, tmp_path: Path) -> None:
    plan = plan_of(hub, tmp_path)
    large = max(plan.files, key=lambda file: file.size)
    partial_of(Store(plan), large).write_bytes(FILES[large.path][: 2 << 20])
    fetch(plan)
    assert contents(plan) == FILES
    assert hub.sent == sum(map(len, FILES.values())) - (2 << 20)


def test_a_busy_hub_is_waited_for(hub: PullHub, tmp_path: Path) -> None:
    hub.busy = 3
    plan = plan_of(hub, tmp_path)
    fetch(plan)
    assert contents(plan) == FILES


def test_a_hub_that_sends_another_content_than_it_lists_is_reported(hub: PullHub, tmp_path: Path) -> None:
    plan = plan_of(hub, tmp_path)
    large = max(plan.files, key=lambda file: file.size)
    wrong = bytes(len(FILES[large.path]))
    hub.repositories[MODEL].files[plan.commit] = {**FILES, large.path: wrong}
    with pytest.raises(PullError, match=f"{large.path}: .* sends another content"):
        fetch(plan)
    assert not (snapshot(plan) / large.path).exists()


def test_a_refusal_ends_it_at_once_and_nothing_is_linked(hub: PullHub, tmp_path: Path) -> None:
    hub.repositories[MODEL].gated = True
    plan = plan_of(hub, tmp_path)
    with pytest.raises(PullError, match="the hub answers 401"):
        fetch(plan)
    assert set(contents(plan)) <= {"empty.txt"}
    fetch(plan, "hf_right")
    assert contents(plan) == FILES


def test_the_token_is_sent_to_the_hub_alone(hub: PullHub, tmp_path: Path) -> None:
    """What holds the large files may be another host: it gets its own signed address, and no token."""
    with pull_hub("127.0.0.2", repositories=hub.repositories) as other:
        elsewhere, hub.url = hub.url, other.url
        plan = HostPlan(**{**vars(plan_of(hub, tmp_path)), "endpoint": elsewhere})
        fetch(plan, "hf_right")
    assert contents(plan) == FILES
    assert {token for _, path, token in hub.asked if "/resolve/" in path} == {"Bearer hf_right"}
    assert {token for _, _, token in other.asked} == {""}


def test_a_hub_that_is_gone_ends_it_after_its_patience(
    hub: PullHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    plan = HostPlan(**{**vars(plan_of(hub, tmp_path)), "endpoint": "http://127.0.0.1:1"})
    with pytest.raises(PullError, match="no byte for 0 s"):
        fetch(plan)


@pytest.mark.parametrize("more", [1000, -1000])
def test_a_hub_that_sends_another_size_than_it_lists_is_reported_at_once(
    hub: PullHub, tmp_path: Path, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "FIRST_PAUSE", 0.01)
    plan = plan_of(hub, tmp_path)
    files = tuple(
        replace(file, size=file.size + more) if file.path.endswith(".safetensors") else file for file in plan.files
    )
    with pytest.raises(PullError, match=r"safetensors: .* sends another (size|content) than it lists"):
        fetch(replace(plan, files=files))
    assert not any(name.endswith(".safetensors") for name in contents(plan))
