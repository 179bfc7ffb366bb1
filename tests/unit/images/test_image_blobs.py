"""An image as blobs: split from what `docker save` writes, checked by the laptop, and packed for `docker load`."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.ports import free_port
from vllm_cluster.kernel.hosts.program import python
from vllm_cluster.kernel.images.carrier import blobs_in, load_with_room
from vllm_cluster.kernel.images.on_host import pack_image, split_image
from vllm_cluster.kernel.node.program import importable

Members = list[tuple[str, bytes | str]]
CONFIG = b'{"rootfs": {"diff_ids": []}}'


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def archive(members: Members) -> io.BytesIO:
    """An archive of files, and of links where the content is text."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
            else:
                entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content) if isinstance(content, bytes) else None)
    made.seek(0)
    return made


def manifest(config: str, layers: list[str]) -> bytes:
    return json.dumps([{"Config": config, "RepoTags": ["postgres:17"], "Layers": layers}]).encode()


def old_form(layers: list[bytes]) -> Members:
    """As Docker 20.10 writes: a folder a layer, and a link where one is there again."""
    members: Members = []
    names: dict[bytes, str] = {}
    for number, layer in enumerate(layers):
        place = f"{number:064x}/layer.tar"
        members += [(f"{number:064x}/VERSION", b"1.0"), (place, f"../{names[layer]}" if layer in names else layer)]
        names.setdefault(layer, place)
    listed = manifest(f"{digest(CONFIG)}.json", [f"{number:064x}/layer.tar" for number in range(len(layers))])
    return [*members, (f"{digest(CONFIG)}.json", CONFIG), ("manifest.json", listed), ("repositories", b"{}")]


def oci_form(layers: list[bytes]) -> Members:
    """As Docker 25 and later write."""
    names = [f"blobs/sha256/{digest(data)}" for data in (CONFIG, *layers)]
    blobs: Members = [(name, data) for name, data in dict(zip(names, (CONFIG, *layers), strict=True)).items()]
    return [*blobs, ("index.json", b"{}"), ("manifest.json", manifest(names[0], names[1:])), ("oci-layout", b"{}")]


def split(members: Members, folder: Path, have: int = 0, unneeded: tuple[str, ...] = ()) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return split_image.Splitter(have, frozenset(unneeded)).read(archive(members))


def packed(row: dict[str, Any], folder: Path) -> dict[str, bytes]:
    made = io.BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        pack_image.pack(row["config"], row["layers"], made)
    with tarfile.open(fileobj=io.BytesIO(made.getvalue())) as tar:
        return {member.name: (tar.extractfile(member) or io.BytesIO()).read() for member in tar}


# fault: kernel/images/on_host/pack_image.py: "RepoTags": None → "RepoTags": ["postgres:17"]
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(layers=st.lists(st.binary(max_size=2000), min_size=1, max_size=5), old=st.booleans(), data=st.data())
def test_what_docker_saved_comes_out_as_its_blobs_and_no_name(
    tmp_path_factory: pytest.TempPathFactory, layers: list[bytes], old: bool, data: st.DataObject
) -> None:
    folder, have = tmp_path_factory.mktemp("blobs"), data.draw(st.integers(0, len(layers)))
    unneeded = {*layers[:have]} - {*layers[have:]}
    row = split((old_form if old else oci_form)(layers), folder, have, tuple(map(digest, unneeded)))
    assert (row["config"], row["layers"]) == (digest(CONFIG), [digest(layer) for layer in layers])
    sent = {digest(one): one for one in (CONFIG, *layers[have:])}
    assert row["sizes"] == {name: len(one) for name, one in sent.items()}
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == sent
    assert dict(blobs_in(row, len(layers)).sizes) == row["sizes"]
    files = packed(row, folder)
    assert json.loads(files.pop("manifest.json")) == [
        {"Config": row["config"], "RepoTags": None, "Layers": row["layers"]}
    ]
    assert files == sent


# fault: kernel/images/on_host/pack_image.py: if not all(map(BLOB.fullmatch, names)): → if False:
@pytest.mark.parametrize("name", ["../state/api-key", "/etc/passwd", digest(CONFIG)[:63], digest(CONFIG) + "\n"])
def test_no_other_file_than_a_blob_gets_into_an_image(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="other files than blobs"):
        packed({"config": digest(CONFIG), "layers": [name]}, tmp_path)


@pytest.mark.parametrize(
    "members",
    [
        [],
        [("manifest.json", b"no json")],
        [("manifest.json", b"[]")],
        [("manifest.json", b"[{}, {}]")],
        [("manifest.json", manifest("../../etc/passwd", []))],
        [("etc", "/etc"), ("manifest.json", manifest("etc/passwd", []))],
        [("a", "b"), ("b", "a"), ("manifest.json", manifest("a", []))],
        [("manifest.json", manifest("manifest.json", []))],
    ],
)
def test_an_archive_that_docker_would_not_write_is_an_error(tmp_path: Path, members: Members) -> None:
    with pytest.raises((ValueError, LookupError, TypeError)):
        split(members, tmp_path)


def test_no_name_in_an_archive_decides_where_anything_is_written(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "blobs"
    outside.mkdir()
    folder.mkdir()
    hostile: Members = [
        ("../outside/up", b"1"),
        (str(outside / "absolute"), b"2"),
        ("link", str(outside)),
        ("link/below", b"3"),
        *oci_form([b"layer"]),
    ]
    row = split(hostile, folder)
    assert not list(outside.iterdir())
    assert {path.name for path in folder.iterdir()} == {digest(CONFIG), digest(b"layer")}
    assert row["layers"] == [digest(b"layer")]


ROW: dict[str, Any] = {"config": "a" * 64, "layers": ["b" * 64], "sizes": {"a" * 64: 1, "b" * 64: 2}}


# fault: kernel/images/carrier.py: if len(found.layers) != layers or → if
@pytest.mark.parametrize(
    "changed",
    [
        {"config": "../../etc/passwd"},
        {"config": None},
        {"layers": []},
        {"layers": ["b" * 64, "c" * 64]},
        {"layers": ["-rf"]},
        {"sizes": {}},
        {"sizes": {"a" * 64: 1, "c" * 64: 2}},
        {"sizes": {"a" * 64: -1}},
        {"sizes": {"a" * 64: 10**400}},
        {"sizes": {"a" * 64: True}},
        {"sizes": 7},
    ],
)
def test_blobs_that_are_not_of_the_image_are_refused_by_the_laptop(changed: dict[str, Any]) -> None:
    assert blobs_in(ROW, 1).size == 3
    with pytest.raises(ValueError, match=r"docker save|other blobs"):
        blobs_in({**ROW, **changed}, 1)


class Carrying:
    """The program that moves blobs, as it runs on a host."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        argv = python("kernel.spread", "carry_image", seconds=60).argv
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(argv, cwd=folder, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
        files = importable("vllm_cluster.kernel.spread")
        self.send({path: content.decode() for path, content in files.items()})
        self.blobs = Path(self.next()["folder"])

    def send(self, row: dict[str, Any]) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(row) + "\n")
        self.process.stdin.flush()

    def next(self) -> dict[str, Any]:
        assert self.process.stdout
        row: dict[str, Any] = json.loads(self.process.stdout.readline())
        return row if "bytes" not in row or "error" in row else self.next()

    def end(self) -> None:
        self.process.communicate(timeout=30)


def plan_of(contents: dict[str, bytes], port: int, first: str = "127.0.0.1") -> dict[str, Any]:
    """The plan of a push to two hosts; where the first one serves."""
    hosts = [{"name": f"gpu{number}", "address": f"127.0.0.{number}", "port": port} for number in (1, 2, 3)]
    return {
        "id": "image",
        "key": "a" * 64,
        "model": "lab/vllm",
        **dict.fromkeys(("commit", "reference", "endpoint"), ""),
        "cache": ".",
        "folder": "blobs",
        "kind": "folder",
        "hosts": [{**hosts[0], "address": first}, *hosts[1:]],
        "files": [{"path": name, "size": len(data), "blob": name} for name, data in contents.items()],
    }


@pytest.mark.slow
def test_blobs_go_from_host_to_host_hashed_and_behind_a_key(tmp_path: Path) -> None:
    contents = {digest(data): data for data in (CONFIG, b"one" * 70_000, b"")}
    source, other, impostor = (Carrying(tmp_path / name) for name in ("gpu1", "gpu2", "impostor"))
    for name, data in contents.items():
        (source.blobs / name).write_bytes(data)
    plan = plan_of(contents, free_port())
    source.send({**plan, "me": "gpu1"})
    assert source.next() == {"serving": True}
    other.send({**plan, "me": "gpu2"})
    assert [other.next(), other.next()] == [{"serving": True}, {"whole": True}]
    assert {path.name: path.read_bytes() for path in other.blobs.iterdir()} == contents
    impostor.send({**plan, "me": "gpu3", "key": "b" * 64})
    assert impostor.next() == {"serving": True}
    row = impostor.next()
    assert "error" in row and row["bytes"] == 0
    assert not [path for path in impostor.blobs.iterdir() if path.stat().st_size]
    for one in (source, other, impostor):
        one.end()


# fault: kernel/spread/carry_image.py: sys.stdin.read() → sys.stdout.flush()
@pytest.mark.slow
def test_a_host_that_cannot_serve_its_blobs_keeps_them_until_its_input_ends(tmp_path: Path) -> None:
    """They go through the laptop then, out of the folder that goes with the program."""
    source, contents = Carrying(tmp_path / "gpu1"), {digest(CONFIG): CONFIG}
    source.send({**plan_of(contents, free_port(), first="192.0.2.1"), "me": "gpu1"})
    error = source.next()["error"]
    with suppress(subprocess.TimeoutExpired):
        source.process.wait(1)
    there = source.process.returncode is None
    source.end()
    assert ("Cannot assign requested address" in error, there) == (True, True)


# fault: kernel/images/carrier.py: -ge "$1" ] && exec → -ge "$1" ] || exec
# fault: kernel/images/carrier.py: "${free:-$1}" → "${free:-0}"
@pytest.mark.parametrize(
    ("free", "printed", "error"),
    [
        ("2000", "loaded", ""),
        ("1999", "", "Docker has 1999 KB free, and 2000 KB are needed\n"),
        ("", "loaded", ""),
    ],
)
def test_an_archive_is_loaded_where_there_is_room_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: str, printed: str, error: str
) -> None:
    """A source that announced a large image filled the disk: of all that load one so, `image push` alone looked."""
    disk = f"echo header; echo //nas/a share 9000 9 {free} 2% /there" if free else "exit 1"
    for name, script in (
        ("docker", '[ "$1" = info ] && echo /there && exit; cat'),
        ("df", f'[ "$2" = /there ]; {disk}'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    ran = subprocess.run(load_with_room(1000 << 10), input="loaded", capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr, ran.returncode) == (printed, error, 0 if printed else 1)
