"""Files of this machine that are replaced while others read them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.laptop import cache_folder, write_whole


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


def be_of_another_user(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a path to another user; where this one may not, be another one."""
    me = os.geteuid()
    if me == 0:
        os.chown(path, 65534, -1, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: me + 1)


# fault: kernel/laptop.py: if _planted(path): → if False:
# fault: kernel/laptop.py: (folder, *folder.parents, → (folder,
# fault: kernel/laptop.py: , real, *real.parents): → , real):
# fault: kernel/laptop.py: , real, *real.parents): → , *real.parents):
# fault: kernel/laptop.py: others = stat.S_IWGRP | stat.S_IWOTH → others = stat.S_IWOTH
# fault: kernel/laptop.py: not in (0, os.geteuid()) and bool( → not in (0, os.geteuid()) or bool(
@pytest.mark.parametrize("mode", [0o1777, 0o775])
@pytest.mark.parametrize(
    "planted", ["shared/cache/vcluster", "shared/cache", "shared/link", "links/behind/cache", "links/itself"]
)
def test_a_cache_that_another_user_has_made_is_not_used(
    planted: str, mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wheels in it were built into the image that runs as root on every host."""
    path = tmp_path / planted
    path.parent.mkdir(parents=True)
    base = path.parent if path.name == "vcluster" else path
    if path.name == "link":
        (tmp_path / "theirs").mkdir()
        path.symlink_to(tmp_path / "theirs")
    else:
        path.mkdir()
    if planted == "links/itself":
        (base := tmp_path / "mine").mkdir()
        (base / "vcluster").symlink_to(path)
    elif planted.startswith("links"):
        (base := tmp_path / "mine").symlink_to(path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(base))
    path.parent.chmod(mode)
    assert cache_folder() == base / "vcluster"
    be_of_another_user(path, monkeypatch)
    with pytest.raises(UsageError, match=f"{path} belongs to another user, in a folder where others may write"):
        cache_folder()
    path.parent.chmod(0o755)
    # A home folder may be so in a container.
    assert cache_folder() == base / "vcluster"
