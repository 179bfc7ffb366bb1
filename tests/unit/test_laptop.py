"""Files of this machine that are replaced while others read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_cluster.kernel.laptop import write_whole


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "x" * 100_000 + "\ud800")
    assert {one.name: one.read_text() for one in tmp_path.iterdir()} == {"results.json": "old"}


def test_a_file_with_a_secret_is_its_owners_alone_despite_an_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "api-key"
    write_whole(path, "old")
    write_whole(path, "new", 0o600)
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o600)
