"""Which words name a folder as the source of a pull, and what it is called on the hosts."""

from __future__ import annotations

import hashlib
import os
import shlex
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import world
from vllm_cluster.features.pull import folder as pull_folder
from vllm_cluster.features.pull import local_folder
from vllm_cluster.features.pull.folder import find_folder, is_folder, wanted_folder
from vllm_cluster.features.pull.hosts import PullHosts
from vllm_cluster.features.pull.known_hashes import KnownHashes
from vllm_cluster.features.pull.local_folder import MAX_LINKS, hashed, listed
from vllm_cluster.kernel.errors import PreflightFailed, UsageError
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.hosts.runtime import SYSTEM
from vllm_cluster.kernel.models import cache as model_cache
from vllm_cluster.kernel.models.on_host import model_cache as on_host_cache
from vllm_cluster.kernel.plan.pull import HubModel, outside, place_of
from vllm_cluster.wire.values import Url


@pytest.mark.parametrize("source", ["./a", "../a", "/a", "~/a", ".", "gpu1:/data/a"])
def test_a_folder_is_known_by_its_form(source: str) -> None:
    assert is_folder(source)


@pytest.mark.parametrize("source", ["org/name", "name", "org/name@main", "gpu1:relative"])
def test_a_repository_is_not_a_folder(source: str) -> None:
    assert not is_folder(source)


def model_in(folder: Path) -> Path:
    """A folder with the config of a model."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


# fault: features/pull/local_folder.py: if path.is_symlink() and not any( → if path.is_symlink() and any(
@pytest.mark.parametrize("name", ["tokenizer.json", "sub/vocab.txt"])
def test_a_link_out_of_a_folder_goes_to_no_host(tmp_path: Path, name: str) -> None:
    """As one to a private key, which every user of every host could read then."""
    folder, key = model_in(tmp_path / "mine"), tmp_path / "id_ed25519"
    key.write_text("secret")
    place = folder / name
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(key)
    with pytest.raises(UsageError, match="every host would get what is there") as refused:
        wanted_folder(str(folder), "my-name", "", detach=False)
    assert f"{name} → {key}" in str(refused.value)
    place.unlink()
    place.symlink_to(folder / "config.json")
    assert wanted_folder(str(folder), "", "", detach=False).source == folder


# fault: features/pull/local_folder.py: links.append(path) → links[:] = [path]
# fault: features/pull/local_folder.py: links += [path for name in names → links += [path for name in names[:0]
# fault: features/pull/local_folder.py: command_line('find', folder, Option('-type'), 'l', Option('-ls'), on=on) → command_line('cp', Option('-rL'), folder, on=on)
def test_each_link_out_of_a_folder_is_named_and_no_command_copies_what_is_there(tmp_path: Path) -> None:
    """The first one was named, and the command that was advised sent what the second one led to as well."""
    folder = model_in(tmp_path / "mine")
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/id_ed25519").write_text("secret")
    for name in ("tokenizer.json", "vocab.txt"):
        (folder / name).symlink_to(tmp_path / "keys/id_ed25519")
    (folder / "more").symlink_to(tmp_path / "keys")
    with pytest.raises(UsageError) as refused:
        listed(folder, "")
    for name, target in (("tokenizer.json", "keys/id_ed25519"), ("vocab.txt", "keys/id_ed25519"), ("more", "keys")):
        assert f"{name} → {tmp_path / target}" in refused.value.message
    assert refused.value.hint == (
        "put a model's own file or folder in place of its link, and remove the other links; to see them all:\n"
        f"find {folder} -type l -ls"
    )


# fault: features/pull/local_folder.py: links[:MAX_LINKS]] → links]
def test_of_many_links_the_first_ones_are_named(tmp_path: Path) -> None:
    folder = model_in(tmp_path / "mine")
    for number in range(MAX_LINKS + 3):
        (folder / f"{number}.txt").symlink_to("/etc/hostname")
    with pytest.raises(UsageError, match=r"has 13 links that cannot be followed: .*, 3 more; every host") as refused:
        listed(folder, "")
    assert refused.value.message.count(" → ") == MAX_LINKS


# fault: features/pull/local_folder.py: if not any(map(real.is_relative_to, _below(folder))): → if not real:
@pytest.mark.parametrize("swapped", ["model/tokenizer.json", "model/sub", "model"])
def test_a_link_that_comes_after_the_list_goes_to_no_host(tmp_path: Path, swapped: str) -> None:
    """Whoever else may write in the folder has minutes, while large files are hashed and sent."""
    folder, secret = model_in(tmp_path / "model"), tmp_path / "secret"
    for place in (folder, secret):
        (place / "sub").mkdir(parents=True)
        for name in ("config.json", "tokenizer.json", "sub/vocab.txt"):
            (place / name).write_text("{}" if place == folder else "my key")
    files, known = listed(folder, ""), KnownHashes(tmp_path / "cache", folder)
    right = hashed(folder, files, lambda _: None, known, SYSTEM.clock)
    (tmp_path / swapped).rename(tmp_path / "before")
    (tmp_path / swapped).symlink_to(secret / Path(swapped).relative_to("model"))
    with pytest.raises(UsageError, match="has become a link to"):
        hashed(folder, files, lambda _: None, known, SYSTEM.clock)
    sent: list[bytes] = []
    for file in right:
        with suppress(UsageError):
            local_folder._send(folder, file.path, 0, 6, sent.append)
    assert b"my key" not in b"".join(sent)


# fault: features/pull/local_folder.py: _STEP | os.O_NOFOLLOW, → _STEP,
# fault: features/pull/local_folder.py: flags = os.O_RDONLY | os.O_NOFOLLOW | → flags = os.O_RDONLY |
@pytest.mark.parametrize("swapped", ["model/sub", "model/sub/vocab.txt"])
def test_a_link_that_comes_between_the_look_and_the_opening_is_not_followed(
    tmp_path: Path, swapped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model_in(tmp_path / "model")
    (folder / "sub").mkdir()
    (folder / "sub/vocab.txt").write_text("{}")
    look = os.path.realpath

    def swap(path: Path) -> str:
        found = look(path)
        (tmp_path / swapped).rename(tmp_path / "before")
        (tmp_path / swapped).symlink_to(tmp_path / "before")
        return found

    monkeypatch.setattr(os.path, "realpath", swap)
    with pytest.raises(OSError):
        local_folder._open(folder, "sub/vocab.txt")


def test_a_folder_here_gets_its_own_name_or_the_one_that_is_given(tmp_path: Path) -> None:
    folder = model_in(tmp_path / "mine")
    found = wanted_folder(str(folder), "", "gpu2", detach=False)
    assert (found.model, found.source, found.sent_from_here, found.via) == ("./mine", folder, True, "gpu2")
    assert wanted_folder(str(folder), "./other", "", detach=False).model == "./other"


def test_a_folder_of_a_host_is_read_there() -> None:
    found = wanted_folder("gpu2:/data/mine", "", "", detach=True)
    assert (found.model, found.source, found.via, found.sent_from_here) == ("./mine", Path("/data/mine"), "gpu2", False)


@pytest.mark.parametrize(
    ("source", "name", "via", "detach", "text"),
    [
        ("./nothing-there", "", "", False, "no such folder here"),
        (".", "..", "", False, "cannot be the name of a folder below model_cache"),
        (".", "hub/x", "", False, "cannot be the name of a folder below model_cache"),
        ("gpu1:/", "x", "", False, "must be the folder of one model"),
        (".", "x", "", True, "this machine sends the files"),
        ("gpu1:/data/x", "", "gpu2", False, "the files are on gpu1"),
    ],
)
def test_what_cannot_be_is_refused(source: str, name: str, via: str, detach: bool, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        wanted_folder(source, name, via, detach=detach)


@pytest.mark.parametrize(
    ("name", "fitting"),
    [("my model", "my-model"), ("hub", "hub-model"), ("..", "my-model"), ("größe 1", "gr-e-1"), ("a/b c", "a-b-c")],
)
def test_a_name_that_cannot_be_comes_with_one_that_can(tmp_path: Path, name: str, fitting: str) -> None:
    folder = model_in(tmp_path / "my model")
    with pytest.raises(UsageError) as refused:
        wanted_folder(str(folder), name, "", detach=False)
    *words, last = shlex.split(str(refused.value.hint))
    assert words == ["vcluster", "pull", str(folder), "--as"] and last == fitting
    assert wanted_folder(str(folder), last, "", detach=False).model == f"./{fitting}"


def test_a_folder_without_a_model_suggests_one_below_it(tmp_path: Path) -> None:
    inside = tmp_path / "snapshots" / "abc"
    inside.mkdir(parents=True)
    with pytest.raises(UsageError) as empty:
        listed(tmp_path, "mine")
    assert empty.value.hint == f"vcluster pull {tmp_path}/FOLDER --as mine"
    (inside / "config.json").write_text("{}")
    with pytest.raises(UsageError) as below:
        listed(tmp_path, "")
    assert below.value.hint == f"vcluster pull {inside}"


def test_of_a_folder_here_only_files_that_vllm_reads_are_hashed(tmp_path: Path) -> None:
    folder, blob = tmp_path / "models--me--mine" / "snapshots" / "abc", tmp_path / "models--me--mine" / "blobs" / "x"
    folder.mkdir(parents=True)
    blob.parent.mkdir()
    blob.write_text("{}")
    for name in ("model.safetensors", "pytorch_model.bin"):
        (folder / name).write_text("{}")
    (folder / "config.json").symlink_to(blob)
    files = hashed(folder, listed(folder, ""), lambda _: None, KnownHashes(tmp_path / "cache", folder), SYSTEM.clock)
    assert [(file.path, bool(file.blob)) for file in files] == [
        ("config.json", True),
        ("model.safetensors", True),
        ("pytorch_model.bin", False),
    ]
    (folder / "more").symlink_to(tmp_path)
    with pytest.raises(UsageError, match=f"has 1 link that cannot be followed: more → {tmp_path};"):
        listed(folder, "")


def be_a_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def be_a_socket(path: Path) -> None:
    path.unlink(missing_ok=True)
    # The name of a socket has 107 bytes at most, and a test's folder may have more.
    folder = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


def be_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def be_sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 11 * 10**12)


# fault: features/pull/local_folder.py: elif path.exists(): → elif False:
# fault: features/pull/local_folder.py: if file.size > MAX_SIZE), None): → if False), None):
@pytest.mark.parametrize(
    ("put", "text"),
    [
        (be_a_pipe, "is not a plain file"),
        (be_a_socket, "is not a plain file"),
        (be_sparse, "has 11000000000000 bytes: at most 10000000000000 are sent"),
        (lambda path: path.symlink_to("/dev/zero"), "cannot be followed"),
        (lambda path: path.symlink_to(path), "which is not there"),
    ],
    ids=["pipe", "socket", "sparse", "device", "loop"],
)
def test_a_file_that_cannot_be_sent_is_named(tmp_path: Path, put: Callable[[Path], None], text: str) -> None:
    """A pipe in the place of a shard was left out, and the pull was done without it."""
    folder = model_in(tmp_path / "mine")
    put(folder / "model-00002-of-00002.safetensors")
    with pytest.raises(UsageError, match=text) as refused:
        wanted_folder(str(folder), "", "", detach=False)
    assert "model-00002-of-00002.safetensors" in str(refused.value)


# fault: features/pull/local_folder.py: if not stat.S_ISREG(os.fstat(number).st_mode): → if False:
@pytest.mark.parametrize(
    "change",
    [be_a_pipe, be_a_socket, be_a_folder, Path.unlink, be_sparse, lambda path: path.write_text("{")],
    ids=["pipe", "socket", "folder", "gone", "grown", "shorter"],
)
def test_a_file_that_becomes_another_while_it_is_read_is_named(tmp_path: Path, change: Callable[[Path], None]) -> None:
    folder = model_in(tmp_path / "mine")
    (folder / "model.safetensors").write_text("{}")
    files, known = listed(folder, ""), KnownHashes(tmp_path / "cache", folder)
    change(folder / "model.safetensors")
    with pytest.raises(UsageError, match=r"model\.safetensors") as refused:
        hashed(folder, files, lambda _: None, known, SYSTEM.clock)
    assert "None" not in str(refused.value)
    sent = bytearray()
    with suppress(UsageError):
        local_folder._send(folder, "model.safetensors", 0, 2, sent.extend)
    assert len(sent) <= 2


def fake_hosts(events: list[Event], returncode: int, way: str = "gpu1:22") -> PullHosts:
    """One host whose folders are so and to which SSH leads so, in a cluster with its cache in /models."""
    transport = SimpleNamespace(run=lambda *_: SimpleNamespace(returncode=returncode))
    connection = SimpleNamespace(name="gpu1", ssh="ssh gpu1", machine=way, transport=transport, runtime=SYSTEM)
    fleet: Any = SimpleNamespace(connections={"gpu1": connection}, runtime=SYSTEM)
    return PullHosts(world.inventory(1, model_cache="/models"), fleet, world.hosts(1), events.append)


def on_host(
    monkeypatch: pytest.MonkeyPatch, path: str, rows: list[dict[str, Any]], returncode: int = 0
) -> tuple[HubModel, list[Event]]:
    """What is found in a folder of a host whose program prints these rows."""
    events: list[Event] = []

    @contextmanager
    def running(_connection: object, _inventory: object, _facts: object, asked: Any) -> Iterator[Any]:
        left = iter([*(rows if asked["do"] == "list" else []), {"end": True}])
        yield SimpleNamespace(next=lambda _: next(left))

    monkeypatch.setattr(model_cache, "running", running)
    hosts = fake_hosts(events, returncode)
    return find_folder(hosts, wanted_folder(f"gpu1:{path}", "x", "", detach=False), "gpu1"), events


# fault: features/pull/folder.py: connection.ssh, connection.machine, path] → path]
# fault: features/pull/folder.py: (blob := known.find(stamps[file.path])) → (blob := "")
# fault: kernel/models/on_host/model_cache.py: {seen.st_mtime_ns}:{seen.st_ctime_ns}" → {seen.st_mtime_ns}"
# fault: kernel/models/on_host/model_cache.py: stamp_of(before) if settled and → stamp_of(before) if
def test_a_folder_of_a_host_that_was_pulled_before_is_read_only_where_it_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The second time costs a list of the folder, however large its files are; a file with its old time is read too."""
    folder, asks = tmp_path / "mine", list[tuple[str, list[str]]]()
    folder.mkdir()
    for name in ("config.json", "model-1.safetensors", "model-2.safetensors"):
        (folder / name).write_text("{}")
    ahead = 0.0

    @contextmanager
    def running(_connection: object, _inventory: object, _facts: object, asked: Any) -> Iterator[Any]:
        rows: list[dict[str, Any]] = []
        asks.append((asked["do"], [row["path"] for row in asked["files"]]))
        monkeypatch.setattr(on_host_cache, "print_row", rows.append)
        end = on_host_cache.answer({"cache": str(tmp_path), **asked}, asked["files"])
        left = iter([*rows, {"end": True, **end}])
        yield SimpleNamespace(next=lambda _: next(left))

    def found(way: str = "gpu1:22") -> list[str]:
        asks.clear()
        hosts, wanted = fake_hosts([], 0, way), wanted_folder(f"gpu1:{folder}", "x", "", detach=False)
        model = find_folder(hosts, wanted, "gpu1")
        assert {file.path: file.blob for file in model.files} == {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()
        }
        assert asks[0] == ("list", [])
        return sorted(path for do, paths in asks[1:] for path in paths if do == "hash")

    monkeypatch.setattr(pull_folder, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(model_cache, "running", running)
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + int(ahead * 1e9))
    every = ["config.json", "model-1.safetensors", "model-2.safetensors"]
    # A file that was written a moment ago may be written again within one tick of the host's clock.
    assert (found(), found()) == (every, every)
    ahead = 10.0
    assert (found(), found()) == (every, [])
    weights = folder / "model-2.safetensors"
    before = weights.stat()
    weights.write_text("[]")
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (found(), found()) == (["model-2.safetensors"], [])
    # Another host reports the same id of its machine, and the same name in another inventory.
    assert found("gpu1.of-another-site:22") == every


def test_a_folder_of_a_host_that_cannot_be_comes_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PreflightFailed, match="no such folder") as nowhere:
        on_host(monkeypatch, "/data/nope", [], returncode=1)
    assert nowhere.value.hint == "on gpu1: stat /data/nope /data"
    with pytest.raises(PreflightFailed, match="/models is the model cache itself") as cache:
        on_host(monkeypatch, "/models", [])
    assert cache.value.hint == "vcluster pull gpu1:/models/FOLDER"
    row = {"file": {"path": "inner/config.json", "size": 2, "blob": ""}}
    with pytest.raises(PreflightFailed, match=r"/data/x has no config\.json") as above:
        on_host(monkeypatch, "/data/x", [row])
    assert above.value.hint == "vcluster pull gpu1:/data/x/inner"


def test_a_link_that_the_pull_cannot_read_there_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    file = {"file": {"path": "config.json", "size": 2, "blob": ""}}
    rows = [{"lost": "a.json", "to": "/etc/passwd"}, {"lost": "b.json", "to": "/etc/shadow"}]
    with pytest.raises(PreflightFailed, match=r"a\.json → /etc/passwd, b\.json → /etc/shadow") as refused:
        on_host(monkeypatch, "/data/x y", [file, *rows])
    assert str(refused.value.hint).endswith("\non gpu1: find '/data/x y' -type l -ls")


def test_a_name_of_the_cache_and_one_of_the_hub_have_places_of_their_own() -> None:
    assert place_of("./mine") == {"folder": "mine", "kind": "folder"}
    assert place_of("org/name") == {"folder": "hub/models--org--name", "kind": "hub"}
    assert HubModel("./mine", "", Url(""), ()).size == 0


@pytest.mark.parametrize(
    ("folder", "more"),
    [("/models", ""), ("/models/mine", ""), ("/data", "/data"), ("/models2", "/models2"), ("/", "/")],
)
def test_what_is_in_the_cache_is_mounted_once(folder: str, more: str) -> None:
    """Docker refuses two mounts on one path."""
    assert outside("/models", folder) == more
