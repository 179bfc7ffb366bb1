"""What Docker owes us: it makes of a layer what LayerTar found in its headers."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from secrets import token_hex

import pytest

from tests.support.layers import GNU, before, entry, sized
from vllm_cluster.kernel.images.for_docker import OF_ALL, LayerTar, Made

SECONDS = 60
CONTENT = b"content".ljust(512, b"\0")


def record(key: bytes, value: bytes) -> bytes:
    """A line of an extended header, of fewer than 100 bytes."""
    return b"%02d %s=%s\n" % (len(key) + len(value) + 5, key, value)


SEVEN = before(b"x", record(b"size", b"7"))
# Each in a folder of its own.
LAYERS = [
    entry(b"t/old/f", form=bytes(8)),
    entry(b"t/posix/", b"5") + entry(b"f", begin=b"t/posix/begin"),
    # A header of GNU with times that are numbers, that are none, and that Docker takes for the begin of the name.
    entry(b"t/times/f", form=GNU, begin=b"00000000001\x0000000000001\0") + entry(b"t/times/g", form=GNU, begin=b"\0x"),
    entry(b"f", form=GNU, begin=b"t/no/times"),
    entry(b"t/kinds/a", b"\0") + sized(entry(b"t/kinds/b"), b"17", b"5") + entry(b"t/kinds/c", b"6"),
    before(b"x", record(b"path", b"t/long/f")) + entry(b"t/short/f") + entry(b"t/long/next"),
    before(b"x", record(b"path", b"")) + entry(b"t/empty/f") + entry(b"t/empty/next"),
    SEVEN + entry(b"t/size/f") + CONTENT + entry(b"t/size/next"),
    SEVEN + entry(b"t/folder/d", b"5") + entry(b"t/folder/next"),
    before(b"x", b"") + entry(b"t/nothing/f"),
    before(b"L", b"t/cut/f\0/off/f") + entry(b"t/short/f", form=GNU) + entry(b"t/cut/next", form=GNU),
    before(b"K", b"b") + before(b"L", b"t/both/" + b"n" * 200) + entry(b"t/short/f", b"2", form=GNU),
    before(b"L", b"t/turned/" + b"n" * 200) + before(b"K", b"b") + entry(b"t/short/f", b"2", form=GNU),
    before(b"g", b"13 comment=c\n") + entry(b"t/comment/f"),
    sized(entry(b"t/binary/f"), b"\x80".ljust(11, b"\0") + b"\x07") + CONTENT + entry(b"t/binary/next"),
    sized(entry(b"t/spaces/f"), b" 7 \0") + CONTENT + entry(b"t/spaces/next") + bytes(1024) + entry(b"t/spaces/over"),
]


class Recorded(LayerTar):
    """Writes down each name that it counts, with the folders before it."""

    def __init__(self) -> None:
        super().__init__(Made())
        self.names = set[str]()

    def _count(self, parts: list[bytes], kind: bytes) -> None:
        super()._count(parts, kind)
        ends = range(1, len(parts) + (kind != OF_ALL))
        self.names |= {b"/".join(parts[:end]).decode() for end in ends}


@pytest.fixture
def name() -> Iterator[str]:
    """The name of an image and of its container, which are removed."""
    given = f"contract-layers-{token_hex(4)}"
    yield given
    for words in (("rm", "-f"), ("rmi", "-f")):
        subprocess.run(["docker", *words, given], capture_output=True, timeout=SECONDS, check=False)


def docker(*words: str, given: bytes = b"") -> bytes:
    done = subprocess.run(["docker", *words], input=given, capture_output=True, timeout=SECONDS, check=False)
    assert not done.returncode, done.stderr
    return done.stdout


def image_of(layers: list[bytes], tag: str) -> bytes:
    """An archive for `docker load`."""
    names = [hashlib.sha256(layer).hexdigest() for layer in layers]
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{one}" for one in names]}
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs}).encode()
    listed = [{"Config": "config.json", "RepoTags": [f"{tag}:latest"], "Layers": names}]
    files = {
        "config.json": config,
        **dict(zip(names, layers, strict=True)),
        "manifest.json": json.dumps(listed).encode(),
    }
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for path, data in files.items():
            header = tarfile.TarInfo(path)
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
    return made.getvalue()


# fault: kernel/images/for_docker.py: return [begin + b"/" + name, → return [begin + name,
# fault: kernel/images/for_docker.py: {b"path": body.partition(b"\0")[0]} → {b"path": body.rstrip(b"\0")}
# fault: kernel/images/for_docker.py: self._before, self._given = b"", {} → self._before = b""
@pytest.mark.promise("P47")
def test_docker_makes_of_a_layer_what_is_found_in_its_headers(name: str) -> None:
    found = set[str]()
    for layer in LAYERS:
        look = Recorded()
        look.feed(layer)
        look.end()
        found |= {one for one in look.names if one.startswith("t/")}
    docker("load", given=image_of(LAYERS, name))
    docker("create", "--name", name, name, "none")
    with tarfile.open(fileobj=io.BytesIO(docker("export", name))) as tar:
        there = {
            member.name.rstrip("/"): member.size
            for member in tar
            if member.name.startswith("t/") and member.name != "t/"
        }
    assert found == {*there}
    assert sum(there.values()) == 3 * 7
