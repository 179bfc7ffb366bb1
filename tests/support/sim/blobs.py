"""An image as blobs: what the program on its host makes of it, and what `docker load` finds in an archive."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile

from tests.support.sim.world import Picture, World
from vllm_cluster.kernel.images.for_docker import Checks


def of(picture: Picture) -> dict[str, bytes]:
    """Its blobs by their digest: the config, and its one layer."""
    content = layer(picture)
    listed = {"rootfs": {"diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]}, "config": picture.config}
    config = json.dumps(listed, default=str).encode()
    return {hashlib.sha256(data).hexdigest(): data for data in (config, content)}


def layer(picture: Picture) -> bytes:
    """The archive of its one layer, which has an empty file that is called by its content."""
    entry = tarfile.TarInfo(picture.content or picture.id)
    return entry.tobuf() + bytes(2 * tarfile.BLOCKSIZE)


def refusal(picture: Picture) -> str:
    """What the program of a receiver finds in its blobs that is not for Docker."""
    made = of(picture)
    config, *layers = made
    checks = Checks(config, layers)
    for blob, data in made.items():
        looks = checks.of(blob)
        try:
            looks.feed(data)
            looks.end()
        except ValueError as error:
            return f"{blob}: {error}"
    return ""


def row(picture: Picture, have: int) -> dict[str, object]:
    """What the program prints, where so many layers are not needed."""
    made = of(picture)
    config, *layers = made
    return {"config": config, "layers": layers, "sizes": {blob: len(made[blob]) for blob in (config, *layers[have:])}}


def packed(archive: bytes, world: World) -> Picture:
    """The image of an archive: one that a host has, without a name, and with nothing but its blobs."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        files = {member.name: (tar.extractfile(member) or io.BytesIO()).read() for member in tar}
    (listed,) = json.loads(files.pop("manifest.json"))
    every = (picture for machine in world.machines.values() for picture in machine.images.values())
    found = next(picture for picture in every if next(iter(of(picture))) == next(iter(files)))
    config, *layers = made = of(found)
    assert listed == {"RepoTags": None, "Config": config, "Layers": layers}
    assert files.items() <= made.items()
    return found
