"""Serves the layers of an image, read where Docker keeps them, to the hosts that lack them; standard library alone.

`docker save` copies every layer to a file before it sends the first byte, also those that the other side has. Docker
keeps beside each layer how its archive was made (tar-split): from that and the unpacked files the archive comes out
again byte by byte, and the receiver's Docker refuses any other, since the digest of each is in the image's config.

The first line of standard input is {"address", "root", "image", "token"}; the answer is {"port", "layers": [bytes]}, or
{"error"}. A receiver sends {"token", "to", "have"} in a line, and gets an archive for `docker load`, without the first
`have` layers: of a layer that is there Docker opens no file. What is sent is reported by the name in "to".
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import hmac
import io
import json
import pathlib
import socket
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from typing import Any

# A receiver that takes nothing for so long is gone.
STALL_SECONDS = 120
TOKEN_SECONDS = 10
REPORT_SECONDS = 1
PIECE = 1 << 20
MAX_LINE = 4096
# Below a layer's folder in the driver's own.
FOLDERS = {"overlay2": "diff", "fuse-overlayfs": "diff", "vfs": "."}

output = threading.Lock()


def report(**row: object) -> None:
    """Print one message."""
    with output:
        print(json.dumps(row), flush=True)


class StoredLayer:
    """One layer below Docker's folder: the archive that it came as, piece by piece."""

    def __init__(self, root: pathlib.Path, driver: str, chain: str) -> None:
        known = root / "image" / driver / "layerdb" / "sha256" / chain
        cache = (known / "cache-id").read_text().strip()
        self.split = known / "tar-split.json.gz"
        self.files = root / driver / ("dir" if driver == "vfs" else "") / cache / FOLDERS[driver]
        # Of its files: what the archive has beside them is known once it is read.
        self.size = int((known / "size").read_text())

    def entries(self) -> Iterator[dict[str, Any]]:
        """What tar-split noted: bytes of the archive itself (type 2), and files by name and size (type 1)."""
        with gzip.open(self.split, "rt") as lines:
            for line in lines:
                yield json.loads(line)

    def archive_size(self) -> int:
        """The bytes of the archive."""
        noted = 0
        for entry in self.entries():
            payload = entry.get("payload") or ""
            noted += len(base64.b64decode(payload)) if entry["type"] == 2 else entry.get("size", 0)
        return noted

    def pieces(self) -> Iterator[bytes]:
        """The bytes of the archive."""
        for entry in self.entries():
            if entry["type"] == 2:
                yield base64.b64decode(entry.get("payload") or "")
            elif entry.get("size"):
                yield from self._file(entry)

    def _file(self, entry: dict[str, Any]) -> Iterator[bytes]:
        raw = base64.b64decode(entry["name_raw"]) if entry.get("name_raw") else entry["name"].encode()
        left = entry["size"]
        place = self.files / raw.decode("utf-8", "surrogateescape").lstrip("/")
        with place.open("rb") as file:
            while left:
                piece = file.read(min(left, PIECE))
                if not piece:
                    raise OSError("a file of the layer is shorter than Docker noted")
                left -= len(piece)
                yield piece


class StoredImage:
    """An image as Docker's classic store keeps it."""

    def __init__(self, root: pathlib.Path, identity: str) -> None:
        digest = identity.partition(":")[2]
        stores = [entry for entry in sorted((root / "image").glob("*")) if entry.name in FOLDERS]
        found = [entry for entry in stores if (entry / "imagedb/content/sha256" / digest).exists()]
        if not found:
            raise OSError("Docker keeps its images here in another way")
        driver = found[0].name
        self.config = (found[0] / "imagedb/content/sha256" / digest).read_bytes()
        self.diffs = json.loads(self.config)["rootfs"]["diff_ids"]
        self.digest, chain = digest, ""
        self.layers: list[StoredLayer] = []
        for diff in self.diffs:
            # The name of a layer upon others: each digest with the name of what is below it.
            chain = hashlib.sha256(f"{chain} {diff}".encode()).hexdigest() if chain else diff
            chain = chain if chain.startswith("sha256:") else f"sha256:{chain}"
            self.layers.append(StoredLayer(root, driver, chain.partition(":")[2]))

    def archive(self, have: int) -> Iterator[bytes]:
        """An archive for `docker load`: it opens no file of a layer that the host has."""
        names = [f"{number}.tar" for number in range(len(self.layers))]
        manifest = [{"Config": f"{self.digest}.json", "RepoTags": None, "Layers": names}]
        yield from member(f"{self.digest}.json", self.config)
        yield from member("manifest.json", json.dumps(manifest).encode())
        for name, layer in list(zip(names, self.layers, strict=True))[have:]:
            size = layer.archive_size()
            yield header(name, size)
            yield from layer.pieces()
            yield bytes(-size % tarfile.BLOCKSIZE)
        yield bytes(2 * tarfile.BLOCKSIZE)


def header(name: str, size: int) -> bytes:
    """The header of a member."""
    entry = tarfile.TarInfo(name)
    entry.size = size
    # A layer may have more than the 8 GB that the old form can hold.
    return entry.tobuf(tarfile.GNU_FORMAT)


def member(name: str, content: bytes) -> Iterator[bytes]:
    """A small member."""
    yield header(name, len(content))
    yield content
    yield bytes(-len(content) % tarfile.BLOCKSIZE)


class LayerServer:
    """Lets those in who have the token."""

    def __init__(self, image: StoredImage, address: str, token: str) -> None:
        self.image, self.token = image, token
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.listener = socket.create_server((address, 0), family=family)
        self.port = self.listener.getsockname()[1]

    def run(self) -> None:
        """Accept whoever comes."""
        while True:
            peer, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(peer,), daemon=True).start()

    def serve(self, peer: socket.socket) -> None:
        """Send the archive to one that has the token."""
        with peer:
            peer.settimeout(TOKEN_SECONDS)
            try:
                receiver = json.loads(peer.makefile("rb", buffering=0).readline(MAX_LINE))
                known = hmac.compare_digest(str(receiver["token"]).encode(), self.token.encode())
            except (OSError, ValueError, LookupError, TypeError):
                return
            if not known:
                return
            peer.settimeout(STALL_SECONDS)
            try:
                self.send(peer, receiver)
            except OSError as error:
                report(to=receiver["to"], error=str(error))

    def send(self, peer: socket.socket, receiver: dict[str, Any]) -> None:
        """Send it, and report how far it is."""
        sent, due = 0, time.monotonic() + REPORT_SECONDS
        buffered = io.BytesIO()
        for piece in self.image.archive(receiver["have"]):
            # Most pieces are headers of files, of half a kilobyte.
            buffered.write(piece)
            if buffered.tell() >= PIECE:
                peer.sendall(buffered.getbuffer())
                sent += buffered.tell()
                buffered = io.BytesIO()
            if time.monotonic() > due:
                report(to=receiver["to"], sent=sent)
                due = time.monotonic() + REPORT_SECONDS
        peer.sendall(buffered.getbuffer())
        peer.shutdown(socket.SHUT_WR)
        report(to=receiver["to"], sent=sent + buffered.tell(), done=True)


def main() -> None:
    """Serve until the input ends."""
    asked = json.loads(sys.stdin.readline())
    try:
        image = StoredImage(pathlib.Path(asked["root"]), asked["image"])
        server = LayerServer(image, asked["address"], asked["token"])
    except (OSError, ValueError, LookupError) as error:
        report(error=str(error))
        return
    threading.Thread(target=server.run, daemon=True).start()
    report(port=server.port, layers=[layer.size for layer in image.layers])
    sys.stdin.read()


if __name__ == "__main__":
    main()
