"""The program that serves an image's layers: what Docker keeps of them becomes the archive that they came as."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import socket
import tarfile
import threading
from pathlib import Path

import pytest

from vllm_cluster.remote.image import send_image as program

LINK = b"\xff\xfe-not-utf-8"


def layer_archive() -> bytes:
    """The archive of a layer: a folder, files of several sizes, a link, and a name that is not UTF-8."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        folder = tarfile.TarInfo("opt")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, data in ((b"opt/large", bytes(range(256)) * 9000), (b"opt/" + LINK, b"x"), (b"opt/empty", b"")):
            entry = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        link = tarfile.TarInfo("opt/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return made.getvalue()


def keep(root: Path, driver: str, below: str, archive: bytes) -> str:
    """Keep a layer as Docker does: its files unpacked, and beside them what of the archive is not a file."""
    diff = f"sha256:{hashlib.sha256(archive).hexdigest()}"
    chain = hashlib.sha256(f"{below} {diff}".encode()).hexdigest() if below else diff[7:]
    known = root / "image" / driver / "layerdb" / "sha256" / chain
    files = root / driver / ("dir" if driver == "vfs" else "") / chain[:8] / program.FOLDERS[driver]
    known.mkdir(parents=True)
    files.mkdir(parents=True)
    (known / "cache-id").write_text(chain[:8])
    (known / "size").write_text("2304001")
    rows, at = [], 0
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            if member.isfile() and member.size:
                rows.append({"type": 2, "payload": base64.b64encode(archive[at : member.offset_data]).decode()})
                raw = member.name.encode("utf-8", "surrogateescape")
                name = {"name_raw": base64.b64encode(raw).decode()} if LINK in raw else {"name": member.name}
                rows.append({"type": 1, "size": member.size, "payload": "Y3JjNjQ=", **name})
                at = member.offset_data + member.size
                place = files / member.name
                place.parent.mkdir(exist_ok=True)
                place.write_bytes(archive[member.offset_data : at])
    rows.append({"type": 2, "payload": base64.b64encode(archive[at:]).decode()})
    (known / "tar-split.json.gz").write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return f"sha256:{chain}"


LAYERS = (layer_archive(), layer_archive()[:-512] + bytes(512 * 3))


@pytest.fixture(params=["overlay2", "vfs", "fuse-overlayfs"])
def image(request: pytest.FixtureRequest, tmp_path: Path) -> program.StoredImage:
    below = ""
    for archive in LAYERS:
        below = keep(tmp_path, request.param, below, archive)
    diffs = [f"sha256:{hashlib.sha256(archive).hexdigest()}" for archive in LAYERS]
    config = json.dumps({"rootfs": {"type": "layers", "diff_ids": diffs}}).encode()
    digest = hashlib.sha256(config).hexdigest()
    place = tmp_path / "image" / request.param / "imagedb" / "content" / "sha256"
    place.mkdir(parents=True)
    (place / digest).write_bytes(config)
    return program.StoredImage(tmp_path, f"sha256:{digest}")


@pytest.mark.parametrize("have", [0, 1, 2])
def test_each_layer_is_byte_by_byte_what_docker_was_given(image: program.StoredImage, have: int) -> None:
    with tarfile.open(fileobj=io.BytesIO(b"".join(image.archive(have)))) as tar:
        files = {member.name: (tar.extractfile(member) or io.BytesIO()).read() for member in tar}
    (manifest,) = json.loads(files.pop("manifest.json"))
    assert manifest == {"Config": f"{image.digest}.json", "RepoTags": None, "Layers": ["0.tar", "1.tar"]}
    assert hashlib.sha256(files.pop(manifest["Config"])).hexdigest() == image.digest
    assert files == {f"{number}.tar": LAYERS[number] for number in range(have, 2)}


def test_a_store_of_another_kind_is_reported(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="keeps its images here in another way"):
        program.StoredImage(tmp_path, "sha256:12")


@pytest.mark.parametrize(
    "line",
    [b'{"token": "wrong", "to": "gpu2", "have": 0}\n', b"\n", b"GET / HTTP/1.1\n", b'{"to": "gpu2"}\n', b"[1]\n"],
)
def test_who_has_no_token_gets_no_byte(image: program.StoredImage, line: bytes) -> None:
    server = program.LayerServer(image, "127.0.0.1", "right")
    threading.Thread(target=server.run, daemon=True).start()
    with socket.create_connection(("127.0.0.1", server.port), 10) as peer:
        peer.sendall(line)
        assert peer.recv(1) == b""
    with socket.create_connection(("127.0.0.1", server.port), 10) as peer:
        peer.sendall(b'{"token": "right", "to": "gpu2", "have": 2}\n')
        assert peer.recv(1) != b""
