"""An image as blobs: split from what `docker save` writes, checked by the laptop, and packed for `docker load`."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import subprocess
import sys
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.layers import ENTRY, GNU, POSIX, before, entry, sized
from tests.support.ports import free_port
from vllm_cluster.kernel.hosts.program import python
from vllm_cluster.kernel.images import for_docker
from vllm_cluster.kernel.images.carrier import LOAD, ImageBlobs, blobs_in, load_with_room
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


def listed(row: dict[str, Any]) -> list[str]:
    return [f"sha256:{layer}" for layer in row["layers"]]


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


# None that begins as one that is packed.
LAYERS = st.binary(max_size=2000).map(lambda data: data and b"." + data)


# fault: kernel/images/on_host/pack_image.py: "RepoTags": None → "RepoTags": ["postgres:17"]
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(layers=st.lists(LAYERS, min_size=1, max_size=5), old=st.booleans(), data=st.data())
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
    assert dict(blobs_in(row, listed(row), have).sizes) == row["sizes"]
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


def tar_of(*files: tuple[str, bytes, dict[str, str]], form: int = tarfile.PAX_FORMAT) -> bytes:
    """A layer: files by name, with their content and what their extended headers have."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as tar:
        for name, content, extended in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.pax_headers = len(content), extended
            tar.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def config_of(*layers: bytes) -> bytes:
    return json.dumps({"rootfs": {"diff_ids": [f"sha256:{digest(layer)}" for layer in layers]}}).encode()


LAYER = tar_of(("a", b"x" * 3000, {}), ("b" * 300, b"y", {"mtime": "1.5", "SCHILY.xattr.user.a": "\n9 size=7\n"}))


# fault: kernel/images/on_host/split_image.py: return gzip.GzipFile(fileobj=content) if beginning.startswith(GZIP) else content → return content
@pytest.mark.parametrize("members", [1, 2])
def test_a_layer_that_is_packed_by_gzip_is_sent_as_the_tar_that_it_is(tmp_path: Path, members: int) -> None:
    """As containerd's store has it: what is announced, has room and is hashed is what Docker writes."""
    half = len(LAYER) // members
    packed_layer = b"".join(gzip.compress(LAYER[at : at + half]) for at in range(0, len(LAYER), half))
    row = split(oci_form([packed_layer]), tmp_path)
    assert (row["layers"], row["sizes"][digest(LAYER)]) == ([digest(LAYER)], len(LAYER))
    assert (tmp_path / digest(LAYER)).read_bytes() == LAYER


@pytest.mark.parametrize(
    ("layer", "kind"),
    [(bz2.compress(LAYER), "bzip2"), (lzma.compress(LAYER), "xz"), (b"\x28\xb5\x2f\xfd" + bytes(99), "zstd")],
)
def test_a_layer_that_is_packed_in_another_way_is_named_with_it(tmp_path: Path, layer: bytes, kind: str) -> None:
    archive_of_it = archive(oci_form([layer])).getvalue()
    argv = [sys.executable, split_image.__file__, "0"]
    done = subprocess.run(argv, input=archive_of_it, cwd=tmp_path, capture_output=True, check=False)
    assert (json.loads(done.stdout), done.stderr) == ({"packed": kind}, b"")


def test_a_layer_that_is_cut_off_within_its_packing_is_an_error(tmp_path: Path) -> None:
    argv = [sys.executable, split_image.__file__, "0"]
    for layer in (gzip.compress(LAYER)[:-20], b"\x1f\x8b\x08" + b"x" * 99):
        data = archive(oci_form([layer])).getvalue()
        done = subprocess.run(argv, input=data, cwd=tmp_path, capture_output=True, check=False)
        assert (*json.loads(done.stdout),) == ("error",), done.stderr


def refusal(config: bytes, layer: bytes, folder: Path, pieces: int) -> str:
    """What is found in the blobs of an image: as files, and in pieces of a size as they come."""
    for data in (config, layer):
        (folder / digest(data)).write_bytes(data)
    found = [""]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        try:
            for_docker.look_at(digest(config), [digest(layer)])
        except ValueError as error:
            found[0] = str(error).partition(": ")[2]
    checks = for_docker.Checks(digest(config), [digest(layer)])
    try:
        for data in (config, layer):
            one = checks.of(digest(data))
            for at in range(0, len(data), pieces):
                one.feed(data[at : at + pieces])
            one.end()
        found.append("")
    except ValueError as error:
        found.append(str(error))
    assert found[0] == found[1]
    return found[0]


HOLES = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "a", "GNU.sparse.realsize": f"{1 << 40}"}
HIDDEN = tar_of(("a", b"1\n0\n1\n".ljust(512), HOLES))
SIZE, PATH = b"14 size=99999\n", b"10 path=b\n"
TWICE = "it has two extended headers"
HOSTILE = [
    (gzip.compress(LAYER), "it is packed"),
    (bz2.compress(LAYER), "it is packed"),
    (lzma.compress(LAYER), "it is packed"),
    (b"\x28\xb5\x2f\xfd" + bytes(2000), "it is packed"),
    (b"\x5a\x2a\x4d\x18" + bytes(2000), "it is packed"),
    # A name may begin as such a file does, and Docker looks at the beginning alone.
    (tar_of(("BZh91AY", b"", {})), "it is packed"),
    (bz2.compress(bytes(10**6)), "it is packed"),
    (LAYER[:100], "it is cut off"),
    (HIDDEN, "it has a file with holes"),
    (tar_of(("a", b"x", {"GNU.sparse.map": "0,1", "GNU.sparse.size": "9"})), "it has a file with holes"),
    (tar_of(("first", bytes(900), {}), ("a", b"x", HOLES)), "it has a file with holes"),
    (sized(ENTRY, b"1000", b"S"), "it has an entry of the kind 'S'"),
    (sized(ENTRY, b"1000", b"V"), "it has an entry of the kind 'V'"),
    (sized(ENTRY, b"1000", b"\0"), "it has an entry of no kind"),
    (sized(ENTRY, b"+5"), "it has an entry of no size"),
    (sized(ENTRY, b"\xff" * 12), "it has an entry of no size"),
    (sized(ENTRY, b"\xff".ljust(11, b"\0") + b"\x07"), "it has an entry of no size"),
    (sized(ENTRY, b"\x80" + b"\x7f" * 11), "it has an entry of no size"),
    (sized(ENTRY, b"99999999", b"x"), "it has an entry of no size"),
    (sized(ENTRY, b"77777777", b"x"), "it has an entry of the kind 'x'"),
    (before(b"x", b"12 size=-99\n"), "it has an entry of no size"),
    (before(b"x", b"99 size=999\n"), "it has an entry that cannot be read"),
    (before(b"x", b"1 size=9999\n"), "it has an entry that cannot be read"),
    (before(b"g", PATH), "it has a header of all its entries"),
    # What two files have in one place is the second one's.
    (sized(ENTRY, b"0", b"1") + tar_of(("a", b"x", HOLES)), "it has a file with holes"),
    (sized(ENTRY, b"1000", b"5") + tar_of(("a", b"x", HOLES)), "it has a file with holes"),
    # Docker takes the second alone: so a size in the first one hid 1.5 GB in a layer of 6 kB.
    (before(b"x", SIZE) + before(b"x", PATH) + ENTRY + HIDDEN, TWICE),
    (before(b"x", SIZE) + before(b"g", b"13 comment=c\n") + ENTRY, TWICE),
    (before(b"x", SIZE) + before(b"L", b"b") + ENTRY, TWICE),
    (before(b"K", b"b") + before(b"x", SIZE) + ENTRY, TWICE),
    (before(b"L", b"b") + before(b"L", b"c") + ENTRY, TWICE),
    (before(b"x", PATH), "it is cut off"),
    (before(b"x", PATH) + bytes(1024), "it is cut off"),
    (before(b"L", b"b")[:600], "it is cut off"),
    (before(b"g", b"13 comment=c\n")[:512], "it is cut off"),
    (sized(ENTRY, b"0")[:500] + b"1" + bytes(11), "it has a header whose sum is wrong"),
    (entry(b"a", form=b"ustar 00"), "it has a header of a form"),
    (entry(b"a", end=b"tar\0"), "it has a header of a form"),
    (entry(b"a", form=bytes(8), begin=b"b"), "it has a header of a form"),
    # A name of which Docker makes another, and so folders that were counted under that one, or copies of a file.
    (entry(b"a/../b/f"), "it has a name that Docker takes"),
    (entry(b"./.wh..wh.plnk/1"), "it has a name that Docker takes"),
    (before(b"L", b"a/.wh..wh.plnk/1") + ENTRY, "it has a name that Docker takes"),
    (entry(b"a", b"2") + entry(b"a/b/c"), "it has a name that leads through a link"),
    (entry(b"l", b"1") + before(b"L", b"./l//a") + entry(b"a", b"2"), "it has a name that leads through a link"),
    (entry(b"l", b"2", form=GNU, begin=b"b") + entry(b"b/l/f"), "it has a name that leads through a link"),
    (entry(b"a/b/c") + entry(b"a/b", b"2"), "it has another entry in place of a folder"),
]


# fault: kernel/images/for_docker.py: if not self._begun and PACKED.match(block): → if False:
# fault: kernel/images/for_docker.py: if key.startswith(SPARSE): → if False:
# fault: kernel/images/for_docker.py: if self._rest or self._before or → if self._before or
# fault: kernel/images/for_docker.py: if self._rest or self._before or → if self._rest or
# fault: kernel/images/for_docker.py: or self._extended is not None: → or None:
# fault: kernel/images/for_docker.py: if field[0] == 0x80: → if field[0] & 0x80:
# fault: kernel/images/for_docker.py: if not 0 <= size < MAX_SIZE: → if not 0 <= size:
# fault: kernel/images/for_docker.py: if self._before and (kind in self._before or → if self._before and (False or
# fault: kernel/images/for_docker.py: or {*b"xg"} & {*kind, *self._before}): → or kind == b"-"):
# fault: kernel/images/for_docker.py: elif kind == OF_ALL and not → elif kind == OF_ALL and None is
# fault: kernel/images/for_docker.py: if (_number(block[148:156]) + 1) % ADLER != wanted: → if False:
# fault: kernel/images/for_docker.py: if not (form == GNU or → if not (form[:5] == GNU[:5] or
# fault: kernel/images/for_docker.py: and end != b"tar\0") or → and end) or
# fault: kernel/images/for_docker.py: or not any(block[257:])): → or not any(form)):
# fault: kernel/images/for_docker.py: if b".." in parts or → if
# fault: kernel/images/for_docker.py: or COPIED in name: → or False:
# fault: kernel/images/for_docker.py: LINKS, WITHOUT_CONTENT = b"5", b"12", → LINKS, WITHOUT_CONTENT = b"5", b"2",
# fault: kernel/images/for_docker.py: if path in self._links: → if False:
# fault: kernel/images/for_docker.py: if not is_folder and whole in self._folders: → if False:
# fault: kernel/images/for_docker.py: return [begin + b"/" + name, → return [begin + name,
@pytest.mark.promise("P47")
@pytest.mark.parametrize(("layer", "why"), HOSTILE)
@pytest.mark.parametrize("pieces", [7, 512, 1000, 1 << 20])
def test_a_layer_that_would_become_more_than_its_bytes_is_not_for_docker(
    tmp_path: Path, layer: bytes, why: str, pieces: int
) -> None:
    """Docker unpacked 1,036 bytes to 1.1 GB, and a header of 1 KB to a file of 1 GB, before it compared a digest."""
    assert refusal(config_of(layer), layer, tmp_path, pieces).startswith(why)


HARMLESS = [
    b"",
    bytes(1024),
    LAYER,
    tar_of(("d/" * 90 + "a", b"x" * 513, {}), ("l" * 200, b"", {}), form=tarfile.GNU_FORMAT),
    # A size is in the extended header where the file has more than 8 GB, and may be so for any.
    tar_of(("a", HOSTILE[0][0], {"size": str(len(HOSTILE[0][0]))}), ("b", b"GNU.sparse.major=1", {})),
    sized(ENTRY, b"\x80".ljust(11, b"\0") + b"\x07") + b"content".ljust(512, b"\0") + bytes(1024),
    entry(b"a", b"\0") + sized(entry(b"b"), b"", b"5") + sized(entry(b"c"), b"17", b"1") + entry(b"d", b"2"),
    LAYER + gzip.compress(LAYER),
    # As `git archive` begins, and as the oldest form is.
    before(b"g", b"13 comment=c\n") + LAYER,
    entry(b"a", form=bytes(8)),
    # Of two long names of one entry one is that of its target.
    before(b"K", b"t" * 200) + before(b"L", b"n" * 200) + entry(b"n", b"2", form=GNU),
    before(b"x", b"12 path=b/f\n") + entry(b"a/b", b"2") + entry(b"a/b/c"),
]


@pytest.mark.parametrize("layer", HARMLESS)
@pytest.mark.parametrize("pieces", [7, 512, 1000, 1 << 20])
def test_a_layer_as_docker_writes_it_is_for_docker(tmp_path: Path, layer: bytes, pieces: int) -> None:
    assert refusal(config_of(layer), layer, tmp_path, pieces) == ""


# fault: kernel/images/for_docker.py: if there != self._listed: → if False:
@pytest.mark.parametrize(
    "config", [b"", b"{}", b"[" * 10**5, b'{"rootfs": 1}', config_of(), config_of(LAYER, LAYER), config_of(b"other")]
)
def test_a_configuration_that_lists_other_layers_is_not_for_docker(tmp_path: Path, config: bytes) -> None:
    assert refusal(config, LAYER, tmp_path, 100) == "it lists other layers"


# fault: kernel/images/for_docker.py: if max(map(names.count, LISTED)) > 1: → if False:
# fault: kernel/images/for_docker.py: [key.casefold() for key, _ in pairs] → [key for key, _ in pairs]
# fault: kernel/images/for_docker.py: json.loads(self._text.decode(), → json.loads(self._text,
@pytest.mark.parametrize(
    "config",
    [
        config_of(LAYER)[:-1] + b',"RootFS": {"diff_ids": []}}',
        config_of(LAYER)[:-1] + ',"rootf\N{LATIN SMALL LETTER LONG S}": {}}'.encode(),
        config_of(LAYER).replace(b'"diff_ids"', b'"DIFF_IDS": [], "diff_ids"'),
        config_of(LAYER).decode().encode("utf-16"),
        config_of(LAYER).decode().encode("utf-8-sig"),
    ],
    ids=["another case", "a letter that folds", "another case below", "UTF-16", "a mark of order"],
)
def test_a_configuration_that_docker_may_read_otherwise_is_not_for_docker(tmp_path: Path, config: bytes) -> None:
    assert refusal(config, LAYER, tmp_path, 100) == "it lists other layers"


# fault: kernel/images/for_docker.py: (b",", b"[", b"{"))) > MAX_VALUES: → (b",",))) < 0:
@pytest.mark.parametrize("value", [b"[]", b"0", b'{"a":{}}'])
def test_a_configuration_of_many_values_is_not_parsed(tmp_path: Path, value: bytes) -> None:
    """8 MiB of them took 340 MB of the machine from which an image is pushed."""
    config = config_of(LAYER)[:-1] + b',"x":[' + b",".join([value] * (for_docker.MAX_VALUES + 1)) + b"]}"
    assert refusal(config, LAYER, tmp_path, 1 << 20) == "it has more than 200000 values"


def folders_of(number: int, depth: int, *, named: bool = False, form: int = tarfile.PAX_FORMAT) -> bytes:
    """A layer of empty files, each below folders of its own, which may be `named` by entries before."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as tar:
        for at in range(number):
            folders = [f"{at}/{'a/' * step}" for step in range(depth)]
            for name in folders if named else ():
                entry = tarfile.TarInfo(name)
                entry.type = tarfile.DIRTYPE
                tar.addfile(entry)
            tar.addfile(tarfile.TarInfo(f"{folders[-1]}f"))
    return made.getvalue()


# fault: kernel/images/for_docker.py: if self._unnamed > MAX_UNNAMED: → if False:
# fault: kernel/images/for_docker.py: for name in [long_name] if long_name else → for name in
# fault: kernel/images/for_docker.py: if not begin: → if True:
# fault: kernel/images/for_docker.py: if len(name) > MAX_NAME: → if False:
@pytest.mark.promise("P47")
@pytest.mark.parametrize(
    ("number", "depth", "form"),
    [
        (6, 1950, tarfile.GNU_FORMAT),
        (6, 1950, tarfile.PAX_FORMAT),
        (300, 40, tarfile.GNU_FORMAT),
        (100, 110, tarfile.USTAR_FORMAT),
        (1, 4000, tarfile.GNU_FORMAT),
        (1, 4000, tarfile.PAX_FORMAT),
    ],
)
def test_names_that_become_more_folders_than_a_layer_has_are_not_for_docker(number: int, depth: int, form: int) -> None:
    """Docker made 117,193 folders of 468 MB of a layer of 317 kB."""
    look = for_docker.LayerTar(for_docker.Made())
    with pytest.raises(ValueError, match=r"folders that have no entry of their own|longer than a path"):
        look.feed(folders_of(number, depth, form=form))


# fault: kernel/images/for_docker.py: *([name] if block[257:265] == GNU else ())] → name]
# fault: kernel/images/for_docker.py: *([name] if block[257:265] == GNU else ())] → ]
@pytest.mark.promise("P47")
def test_a_begin_of_a_name_where_gnu_has_times_leads_through_folders_as_docker_takes_it() -> None:
    """Where the times cannot be read, they are the begin of the name for Docker."""
    for form, folders in ((GNU, 49 + 28 + 49), (POSIX, 28 + 49)):
        counted = for_docker.Made()
        for_docker.LayerTar(counted).feed(entry(b"b/" * 49 + b"f", form=form, begin=b"a/" * 28))
        assert counted._unnamed == folders


# fault: kernel/images/for_docker.py: return LayerTar(self._made, self._layers.count(blob)) → return LayerTar(Made(), self._layers.count(blob))
# fault: kernel/images/for_docker.py: return LayerTar(self._made, self._layers.count(blob)) → return LayerTar(self._made)
# fault: kernel/images/for_docker.py: if self._entries > MAX_ENTRIES + → if False and self._entries > MAX_ENTRIES +
@pytest.mark.promise("P47")
def test_what_an_image_has_counts_together_and_as_often_as_its_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [folders_of(100, 8, named=named) for named in (False, True)]
    one, other = map(digest, layers)

    def looks_at(listed: list[str]) -> None:
        checks = for_docker.Checks("config", listed)
        for name, data in zip((one, other), layers, strict=True):
            checks.of(name).feed(data)

    with pytest.raises(ValueError, match="that have no entry of their own"):
        looks_at([one] * 13 + [other])
    # 100 files; 100 files and 800 folders, of 512 bytes each.
    monkeypatch.setattr(for_docker, "MAX_ENTRIES", 1000)
    looks_at([one, other])
    with pytest.raises(ValueError, match="more than 1000 files, links and folders of next to nothing"):
        looks_at([one, other, other])
    monkeypatch.setattr(for_docker, "MAX_ENTRIES", 900)
    with pytest.raises(ValueError, match="more than 900 files"):
        looks_at([one, other])


# fault: kernel/images/for_docker.py: + self._bytes // BYTES_OF_ENTRY → + 0
# fault: kernel/images/for_docker.py: + self._bytes // BYTES_OF_ENTRY → + self._bytes // BLOCK
def test_a_large_image_may_have_more_files_than_one_of_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """240,000 links of 61 bytes took 950 MB of Docker's disk, and 400,000 empty files as many of its inodes."""
    monkeypatch.setattr(for_docker, "MAX_ENTRIES", 10)
    full = sized(entry(b"f"), b"40000 \0") + bytes(16 << 10)
    for_docker.LayerTar(for_docker.Made()).feed(full * 200)
    with pytest.raises(ValueError, match="next to nothing"):
        for_docker.LayerTar(for_docker.Made()).feed(entry(b"f") * 11)


# fault: kernel/images/for_docker.py: if value[-1:] != → if False and value[-1:] !=
# fault: kernel/images/for_docker.py: or len(found) == MAX_RECORDS → or False
# fault: kernel/images/for_docker.py: or key in found → or False
@pytest.mark.parametrize(
    "records", [b"2 " * 500, b"4 =\n" * 500, b"5 a=b", b"5 ab\n", b"".join(b"7 %03d=\n" % n for n in range(500))]
)
def test_records_that_are_none_or_many_are_not_read(records: bytes) -> None:
    """A gigabyte of the shortest ones took half an hour of processor time."""
    with pytest.raises(ValueError, match="cannot be read"):
        for_docker.LayerTar(for_docker.Made()).feed(before(b"x", records))


# fault: kernel/images/for_docker.py: if end < len(parts): → if True:
@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_layer_with_many_folders_that_it_names_is_for_docker(form: int) -> None:
    """Also where a few have no entry, as a folder that was sent with `docker import` may have them."""
    for layer in (folders_of(3000, 7, named=True, form=form), folders_of(300, 30, form=form)):
        look = for_docker.LayerTar(for_docker.Made())
        look.feed(layer)
        look.end()


# fault: kernel/images/carrier.py: "$@" "$look" "$blobs" && → true &&
@pytest.mark.parametrize("layer", [LAYER, gzip.compress(LAYER)])
def test_docker_sees_no_byte_of_what_is_not_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layer: bytes
) -> None:
    config, docker = config_of(layer), tmp_path / "docker"
    for data in (config, layer):
        (tmp_path / digest(data)).write_bytes(data)
    docker.write_text(f"#!/bin/sh\ncat >{tmp_path}/loaded\n")
    docker.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    blobs = json.dumps({"config": digest(config), "layers": [digest(layer)]})
    programs = (Path(str(module.__file__)).read_text() for module in (for_docker, pack_image))
    argv = ["sh", "-c", LOAD, "sh", *programs, blobs, sys.executable, "-c"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    if layer == LAYER:
        assert (done.returncode, done.stderr) == (0, "")
        assert (tmp_path / "loaded").stat().st_size > len(LAYER)
    else:
        assert (done.returncode, done.stderr) == (for_docker.REFUSED, f"{digest(layer)}: it is packed\n")
        assert not (tmp_path / "loaded").exists()


ROW: dict[str, Any] = {"config": "a" * 64, "layers": ["b" * 64], "sizes": {"a" * 64: 1, "b" * 64: 2}}


# fault: kernel/images/carrier.py: if [f"sha256:{layer}" for layer in found.layers] != [*layers]: → if not found.layers:
# fault: kernel/images/carrier.py: != {found.config, *found.layers[have:]} or → > {found.config, *found.layers[have:]} or
# fault: kernel/images/carrier.py: or found.sizes[found.config] > MAX_CONFIG: → or not found.config:
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
        {"layers": ["c" * 64], "sizes": {"a" * 64: 1, "c" * 64: 2}},
        {"sizes": {"a" * 64: 1}},
        {"sizes": {"a" * 64: 10**8, "b" * 64: 2}},
    ],
)
def test_blobs_that_are_not_of_the_image_are_refused_by_the_laptop(changed: dict[str, Any]) -> None:
    assert blobs_in(ROW, listed(ROW), 0).size == 3
    with pytest.raises(ValueError, match=r"docker save|other blobs|other layers"):
        blobs_in({**ROW, **changed}, listed(ROW), 0)


# fault: kernel/images/carrier.py: sum(self.sizes.get(layer, 0) for layer in self.layers) → sum(self.sizes.get(layer, 0) for layer in {*self.layers})
# fault: kernel/images/carrier.py: if times > MAX_TIMES and → if False and
# fault: kernel/images/carrier.py: > NEXT_TO_NOTHING: → > 0:
@pytest.mark.promise("P47")
def test_a_layer_counts_as_often_as_docker_unpacks_it() -> None:
    """One of 8 MB that was listed 80 times was sent once, and took 634 MB of the receiver's disk."""
    size = 8 << 20

    def found(times: int, size: int) -> ImageBlobs:
        row = {"config": "a" * 64, "layers": ["b" * 64] * times, "sizes": {"a" * 64: 1, "b" * 64: size}}
        return blobs_in(row, listed(row), times // 2)

    assert (found(1, size).size, found(4, size).size, found(100, 1024).size) == (1 + size, 1 + 4 * size, 1 + 102400)
    with pytest.raises(ValueError, match=r"a layer of 8\.4 MB 80 times, and one is taken 4 times at most"):
        found(80, size)


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
