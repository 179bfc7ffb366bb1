"""An image as blobs: what the program on its host makes of it, and what `docker load` finds in an archive."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile

from tests.support.sim.world import Picture, World


def of(picture: Picture) -> dict[str, bytes]:
    """Its blobs by their digest: the config, and its one layer."""
    content = (picture.content or picture.id).encode()
    config = b"config " + content + str(picture.config or "").encode()
    return {hashlib.sha256(data).hexdigest(): data for data in (config, b"layer " + content)}


def row(picture: Picture) -> dict[str, object]:
    """What the program prints."""
    made = of(picture)
    config, layer = made
    return {"config": config, "layers": [layer], "sizes": {blob: len(data) for blob, data in made.items()}}


def packed(archive: bytes, world: World) -> Picture:
    """The image of an archive: one that a host has, without a name, and with nothing but its blobs."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        files = {member.name: (tar.extractfile(member) or io.BytesIO()).read() for member in tar}
    (listed,) = json.loads(files.pop("manifest.json"))
    every = (picture for machine in world.machines.values() for picture in machine.images.values())
    found = next(picture for picture in every if of(picture) == files)
    assert listed == {"RepoTags": None, "Config": next(iter(files)), "Layers": [*files][1:]}
    return found
