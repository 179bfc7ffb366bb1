"""Files of this machine that are replaced while others read them."""

from __future__ import annotations

import grp
import os
import pwd
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.acl import allow_writing
from tests.support.bounds import full_disk
from tests.support.modules import MODULES, room
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.laptop import (
    cache_folder,
    changed_by_others,
    make_private,
    read_own_file,
    write_given,
    write_whole,
)


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
# fault: kernel/laptop.py: , there, *there.parents): → , there):
# fault: kernel/laptop.py: , there, *there.parents): → , *there.parents):
# fault: kernel/laptop.py: _OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH → _OTHERS_WRITE = stat.S_IWOTH
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


# fault: kernel/laptop.py: if _shared(there): → if False:
@pytest.mark.parametrize("mode", [0o775, 0o777, 0o1777])
def test_a_cache_in_which_others_may_write_is_not_used(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made with umask 002 it was so: who is of the group may have put wheels into it, or the port of a tunnel."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "vcluster"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(UsageError, match=re.escape(f"others may write in {folder}")) as refused:
        cache_folder()
    assert refused.value.hint is not None
    assert shlex.join(("rm", "-r", str(folder))) in refused.value.hint
    folder.chmod(0o755)
    assert cache_folder() == folder


OTHERS = 0o757


# fault: kernel/laptop.py: if writable or not ( → if writable and not (
# fault: kernel/laptop.py: in _way_to(file.absolute()): → in [there]:
# fault: kernel/laptop.py: in _way_to(file.absolute()): → in _way_to(there):
# fault: kernel/laptop.py: added = path == there or not → added = not
# fault: kernel/laptop.py: or not about.st_mode & stat.S_ISVTX → or True
# fault: kernel/laptop.py: return bool(about.st_mode & stat.S_IWOTH) → return False
@pytest.mark.parametrize(
    ("changed", "mode", "mine", "new"),
    [
        ("", 0o755, False, False),
        ("above/mine", OTHERS, True, True),
        ("above/mine", 0o1777, True, False),
        ("above", OTHERS, True, True),
        ("above", 0o1777, False, False),
        ("above", None, True, True),
        ("links", OTHERS, True, True),
        ("links", 0o1777, False, False),
        ("links/link", None, True, True),
    ],
)
def test_a_folder_that_others_may_change_or_put_another_in_place_of(
    changed: str, mode: int | None, *, mine: bool, new: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the folder itself and of each above it; None is another owner."""
    (tmp_path / "above" / "mine").mkdir(parents=True)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "link").symlink_to(tmp_path / "above")
    path = tmp_path / changed
    if mode is not None:
        path.chmod(mode)
    else:
        be_of_another_user(path, monkeypatch)
    folder = tmp_path / "links" / "link" / "mine"
    assert [changed_by_others(one) is not None for one in (folder, folder / "new")] == [mine, new]


# fault: kernel/laptop.py: return group.gr_name != me or → return
# fault: kernel/laptop.py: if one.pw_gid == about.st_gid)} → if False)}
# fault: kernel/laptop.py: return group.gr_name != me or not {me}.issuperset(members) → return group.gr_name != me
# fault: kernel/laptop.py: if not about.st_mode & stat.S_IWGRP or → if True or
@pytest.mark.parametrize(
    ("name", "members", "first_of", "others"),
    [
        ("", [], [], False),
        ("", ["daemon"], [], True),
        ("", [], ["alice-ci"], True),
        ("users", [], [], True),
        (None, [], [], True),
    ],
)
def test_a_group_of_its_user_alone_is_not_others(
    name: str | None,
    members: list[str],
    first_of: list[str],
    *,
    others: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Debian and Fedora give each user such a group, and the umask 002."""

    def group(_: int) -> object:
        if name is None:
            raise KeyError
        return SimpleNamespace(gr_name=name or pwd.getpwuid(os.geteuid()).pw_name, gr_mem=members)

    monkeypatch.setattr(grp, "getgrgid", group)
    accounts = [SimpleNamespace(pw_name=one, pw_gid=tmp_path.stat().st_gid) for one in first_of]
    monkeypatch.setattr(pwd, "getpwall", lambda: accounts)
    tmp_path.chmod(0o775)
    assert changed_by_others(tmp_path) == (tmp_path if others else None)


# fault: kernel/laptop.py: if not os.path.islink(step): → if True:
# fault: kernel/laptop.py: at = Path(target.anchor or at) → at = at
# fault: kernel/laptop.py: at = at.parent if step.name == ".." else step → at = step
@pytest.mark.parametrize("absolute", [True, False])
def test_a_link_where_others_write_may_lead_elsewhere_later(absolute: bool, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    for folder in ("mine", "theirs", "links"):
        (tmp_path / folder).mkdir()
    (theirs / "back").symlink_to(tmp_path / "mine")
    (tmp_path / "links" / "link").symlink_to(theirs / "back" if absolute else Path("..", "theirs", "back"))
    way = tmp_path / "links" / "link"
    assert (changed_by_others(way), way.resolve()) == (None, tmp_path / "mine")
    theirs.chmod(0o777)
    assert changed_by_others(way) == theirs


# fault: kernel/laptop.py: if links > _MAX_LINKS: → if False:
@pytest.mark.timeout(20)
def test_a_link_to_itself_ends(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("link")
    assert changed_by_others(tmp_path / "link" / "new") is None


# fault: kernel/laptop.py: if _has_acl(file): → if False:
@pytest.mark.parametrize("mask", [0o7, 0o5])
def test_rights_that_an_acl_gives_are_those_of_others(mask: int, tmp_path: Path) -> None:
    """A group of this user alone may write, and another user whom the mode does not show."""
    allow_writing(tmp_path, mask)
    assert changed_by_others(tmp_path) == (tmp_path if mask & 2 else None)


# fault: kernel/laptop.py: or _of_unmapped_root(path, about.st_uid)): → ):
# fault: kernel/laptop.py: if Path("/proc/self/uid_map").read_text().split() == → if [] ==
# fault: kernel/laptop.py: if len(path.parts) > 2 and path not in → if False and path not in
@pytest.mark.parametrize(
    ("users", "house", "refused"),
    [("0 0 4294967295", "home", True), ("0 1000 1\n", "home", False), ("0 1000 1\n", "", True)],
)
def test_in_a_container_without_rights_the_folders_of_root_have_a_number_of_their_own(
    users: str, house: str, *, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So /tmp and /home have in a toolbox; folders of another user have that number, too."""
    monkeypatch.setenv("HOME", str(tmp_path / "above" / house))
    there = tmp_path / "above"
    there.mkdir()
    be_of_another_user(there, monkeypatch)
    texts = {"uid_map": users, "overflowuid": f"{there.stat().st_uid}\n"}
    monkeypatch.setattr(Path, "read_text", lambda path: texts[path.name])
    assert (changed_by_others(there) is not None) is refused


# fault: kernel/laptop.py: (base if base.is_absolute() else → (base if base.name else
def test_a_cache_named_by_a_relative_path_is_not_one_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert cache_folder() == tmp_path / "home" / ".cache" / "vcluster"


# fault: kernel/laptop.py: if not found.is_absolute(): → if not found:
def test_a_home_of_the_current_folder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept there goes into images, and a repository that was cloned may bring it along."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "somewhere")
    with pytest.raises(UsageError, match="HOME is 'somewhere', which depends on the current folder"):
        cache_folder()


# fault: kernel/laptop.py: make_private(folder.parent) → folder.parent.mkdir(parents=True)
# fault: kernel/laptop.py: folder.mkdir(mode=0o700, → folder.mkdir(mode=0o777,
def test_a_folder_of_the_cache_is_for_its_user_alone(tmp_path: Path) -> None:
    made = tmp_path / "cache" / "vcluster" / "hosts"
    before = os.umask(0)
    try:
        make_private(made)
        make_private(made)
    finally:
        os.umask(before)
    assert {one.stat().st_mode & 0o777 for one in (made, made.parent, made.parent.parent)} == {0o700}


# fault: kernel/laptop.py: os.O_RDONLY | os.O_NOFOLLOW | → os.O_RDONLY |
# fault: kernel/laptop.py: if not stat.S_ISREG(about.st_mode) or about.st_uid → if about.st_uid
# fault: kernel/laptop.py: about.st_uid not in (0, os.geteuid()): → False:
# fault: kernel/laptop.py: if len(found) > most: → if False:
@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "another user", "long"])
def test_only_a_plain_file_of_this_user_is_taken_for_a_kept_one(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = tmp_path / "kept", tmp_path / "target"
    target.write_text("{}")
    match kind:
        case "link":
            path.symlink_to(target)
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "long":
            path.touch()
            os.truncate(path, 2 << 30)
        case _:
            path.write_text("{}")
            be_of_another_user(path, monkeypatch)
    with pytest.raises(OSError, match="kept"):
        read_own_file(path)


def test_what_was_kept_is_read(tmp_path: Path) -> None:
    write_whole(tmp_path / "kept", "[1]")
    assert read_own_file(tmp_path / "kept", 3) == b"[1]"


def test_every_folder_of_the_cache_is_made_in_one_way() -> None:
    """What `mkdir` makes above the last folder has the modes of the umask."""
    # A folder that a person names; the one of known_hosts is below the home folder.
    others = {"kernel/transport/fabric/login.py", "features/dashboard/prometheus.py", "features/bench/folder.py"}
    others |= {"vcluster_sandbox/lifecycle.py"}
    # What runs on hosts and nodes is not of this machine.
    on_hosts = (f"features/{name}/on_h" for name in ("batch", "pull", "slurm"))
    elsewhere = ("serving/node/", "kernel/spread/", "kernel/models/", *on_hosts)
    makes = ("mkdir(parents=True", "mkdir(mode", "makedirs(")
    found = {room(path) for path in MODULES if any(word in path.read_text() for word in makes)}
    assert {one for one in found if not one.startswith(elsewhere)} == others | {"kernel/laptop.py"}


# fault: kernel/laptop.py: return Path(os.path.realpath(path)) → return path.resolve(strict=True)
@pytest.mark.parametrize("name", [".cache", "vcluster"])
def test_a_cache_that_is_a_link_to_itself_ends_no_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Every verb ended with a traceback; what writes there names the folder."""
    base = tmp_path / ".cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(base))
    link = base if name == ".cache" else base / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(link.name)
    assert cache_folder() == base / "vcluster"


# fault: kernel/laptop.py: if path.is_file() and os.access(path.parent, os.W_OK): → if False:
def test_a_full_disk_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    """Neither the old inventory nor the new one was left."""
    path = tmp_path / "inventory.yaml"
    path.write_text("old")
    path.chmod(0o640)
    with full_disk(1 << 20), pytest.raises(OSError, match=r"."):
        write_given(path, "x" * (2 << 20))
    assert (path.read_text(), list(tmp_path.iterdir())) == ("old", [path])
    write_given(path, "new")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o640)
