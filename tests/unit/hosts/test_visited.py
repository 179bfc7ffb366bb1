"""What this machine remembers of the hosts that its inventories have named."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_cluster.kernel.hosts.visited import Visited
from vllm_cluster.kernel.plan.members import Way

GPU1: Way = ("gpu1", None, None, None)
GPU2: Way = ("10.0.0.2", "root", 2222, "bastion")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where it is kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "vcluster" / "hosts" / "lab.json"


def test_what_was_named_is_known_for_its_cluster_alone(file: Path) -> None:
    Visited().add("lab", [GPU1])
    Visited().add("lab", [GPU2])
    assert Visited().of("lab") == {GPU1, GPU2}
    assert Visited().of("other") == frozenset()
    assert file.stat().st_mode & 0o777 == 0o600


WRONG = ["", "{", "[[1]]", "[5]", '{"gpu11": 1}', '[["gpu1", null, null, []]]', "[" * 100_000, "[[1e999, NaN, 1, 2]]"]
WRONG += ['[["gpu1", "root", "22", null]]', '[["gpu1\\u001b[2J", null, null, null]]']


# fault: kernel/hosts/visited.py: with suppress(OSError, RefusedDocument, UsageError): → with suppress(OSError, UsageError):
@pytest.mark.parametrize("content", WRONG)
def test_a_file_that_cannot_be_read_names_no_host_and_is_written_again(file: Path, content: str) -> None:
    file.parent.mkdir(parents=True)
    file.write_text(content)
    assert Visited().of("lab") == frozenset()
    Visited().add("lab", [GPU1])
    assert Visited().of("lab") == {GPU1}


def test_a_folder_that_cannot_be_written_ends_no_verb(file: Path) -> None:
    file.parent.parent.mkdir()
    file.parent.touch()
    Visited().add("lab", [GPU1])
    assert Visited().of("lab") == frozenset()
