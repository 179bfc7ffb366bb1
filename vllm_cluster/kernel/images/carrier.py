"""The program on a host that holds the blobs of an image, in a folder that goes with it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from vllm_cluster.kernel.clock import MovingDeadline
from vllm_cluster.kernel.docker.temporary import TemporaryContainer
from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.hosts.program import Message, OnHost, RemoteProgram, python, read_message, source, start
from vllm_cluster.kernel.images.for_docker import REFUSED
from vllm_cluster.kernel.node.program import importable
from vllm_cluster.kernel.plan.identity import Owner
from vllm_cluster.kernel.plan.images import Content
from vllm_cluster.kernel.text import end_of, size
from vllm_cluster.wire.pull import HostPlan
from vllm_cluster.wire.reading import MAX_BYTES, convert
from vllm_cluster.wire.values import Count, Sha256, Size, words

# 20 GB at 25 Mbit/s.
PUSH_SECONDS = 7200.0
START_SECONDS = 120.0
END_SECONDS = 10.0
# Without a byte more: Docker before 25 writes all of an image to its disk before it gives the first one, 20 GB at
# 20 MB/s; the program of a receiver ends itself after 120 s.
SAVE_SECONDS, STILL_SECONDS = 1000.0, 300.0
# For what Docker makes of an archive before its first word, beside a second for so many bytes: a slow disk's.
LOAD_SECONDS, LOADED_BYTES = 600.0, 5e6
# Of a container: a volume without a name, which goes with it.
FOLDER = "/vcluster"
# Of a host without a node image. The shell outlives the program, which ends with its input.
IN_FOLDER = """d=$(mktemp -d "${TMPDIR:-/var/tmp}/vcluster-image-XXXXXXXX") && cd "$d" || exit
trap 'rm -rf "$d"' EXIT
trap : HUP TERM
"$@\""""
SAVE = 'image=$1; shift; docker save "$image" | "$@"'
# The first call looks at all that the second one writes.
LOAD = """look=$1 pack=$2 blobs=$3; shift 3
"$@" "$look" "$blobs" && "$@" "$pack" "$blobs" | docker load"""
# Of an archive on its standard input, which has what the source announced. Where Docker's folder cannot be seen, Docker
# itself finds out.
LOAD_WITH_ROOM = r"""root=$(docker info --format '{{.DockerRootDir}}')
free=$(df -Pk "$root" 2>/dev/null | sed -n '2s/.* \([0-9][0-9]*\)  *[0-9][0-9]*% .*/\1/p')
[ "${free:-$1}" -ge "$1" ] && exec docker load
echo "Docker has $free KB free, and $1 KB are needed" >&2
exit 1"""
# Docker unpacks an archive before it makes layers of it.
COPIES = 2
# As much as is read of what Docker describes it by. Of 8 MiB, as containerd takes, parsing took 76 MB.
MAX_CONFIG = MAX_BYTES
# Docker unpacks a layer as often as an image lists it, and it is sent once. What images list again has next to nothing
# in it, as what WORKDIR makes; a larger one is there twice where two builds brought it.
MAX_TIMES, NEXT_TO_NOTHING = 4, 64 << 10
# Where a source is at fault: it is not asked again.
WITHOUT_SOURCE = "pull the image on each host"


@dataclass(frozen=True)
class CarrierRow:
    """A line of the program: in which folder it is, how far it is, and whether it serves, has all, or failed."""

    folder: str = ""
    read: Count = 0
    bytes: Count = 0
    serving: bool = False
    whole: bool = False
    error: str = ""


@dataclass(frozen=True)
class ImageBlobs:
    """What an image is made of, each blob by its sha256; `sizes` are of those that are sent."""

    config: Sha256
    layers: tuple[Sha256, ...]
    sizes: Mapping[Sha256, Size]

    @property
    def size(self) -> int:
        """What Docker makes layers of: the bytes that are sent, each layer as often as it is listed."""
        return self.sizes.get(self.config, 0) + sum(self.sizes.get(layer, 0) for layer in self.layers)

    def manifest(self, config: str, layers: str) -> dict[str, object]:
        """What lists the blobs, under these keys."""
        return {config: self.config, layers: list(self.layers)}


def blobs_in(row: Message, layers: Sequence[str], have: int) -> ImageBlobs:
    """What a host found in its image of these layers, of which the first ones are not sent.

    Raises:
        ValueError: it is none of that.
    """
    found = convert(ImageBlobs, row, "docker save")
    if [f"sha256:{layer}" for layer in found.layers] != [*layers]:
        raise ValueError("other layers than those that its Docker lists")
    if {*found.sizes} != {found.config, *found.layers[have:]} or found.sizes[found.config] > MAX_CONFIG:
        raise ValueError("other blobs than those of the image")
    for layer, times in Counter(found.layers).items():
        if times > MAX_TIMES and (count := found.sizes.get(layer, 0)) > NEXT_TO_NOTHING:
            raise ValueError(f"a layer of {size(count)} {times} times, and one is taken {MAX_TIMES} times at most")
    return found


def load_with_room(count: int) -> tuple[str, ...]:
    """The command that loads an archive of so many bytes where Docker has room for it."""
    return ("sh", "-c", LOAD_WITH_ROOM, "sh", str(COPIES * count >> 10))


def load_seconds(count: int) -> float:
    """How long Docker may take for an archive of so many bytes."""
    return min(LOAD_SECONDS + count / LOADED_BYTES, PUSH_SECONDS)


class ImageCarrier:
    """The program on one host: in a container that has nothing but its volume and the network, else on the host."""

    def __init__(self, connection: HostConnection, owner: Owner, image_id: str) -> None:
        """`image_id` is of an image with Python, empty where there is none."""
        self._connection, self._runtime = connection, connection.runtime
        program = replace(python("kernel.spread", "carry_image", seconds=PUSH_SECONDS), max_bytes=math.inf)
        place: OnHost | TemporaryContainer = OnHost()
        if image_id:
            # As root, to whom the volume belongs, and without what else root may do.
            place = TemporaryContainer(
                owner, "image", image_id, network="host", user="0:0", drop=("ALL",), scratch=FOLDER
            )
        else:
            program = replace(program, argv=("sh", "-c", IN_FOLDER, "sh", *program.argv), changes=True)
        self._program = start(connection, program, place, self._runtime.after(START_SECONDS))
        self._container = self._program.container if image_id else ""

    def __enter__(self) -> ImageCarrier:
        """Send the program.

        Raises:
            HostError: it does not run there.
        """
        try:
            files = {path: content.decode() for path, content in importable("vllm_cluster.kernel.spread").items()}
            self._program.send(files)
            self._folder = self._row(self._program.next(self._runtime.after(START_SECONDS))).folder
            if not self._folder:
                raise HostError(self._connection.name, "its program does not answer", again=())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._program.end(self._runtime.after(END_SECONDS))

    def _beside(self, argv: Sequence[str]) -> tuple[str, ...]:
        """A command in the folder of the blobs."""
        if self._container:
            return ("docker", "exec", "-i", "-w", self._folder, self._container, *argv)
        return ("sh", "-c", 'cd "$1" && shift && "$@"', "sh", self._folder, *argv)

    def split(self, image: Content, have: int, read: Callable[[int], None]) -> ImageBlobs:
        """Save an image of this host as blobs, but for its first layers.

        Raises:
            HostError: Docker does not save it, or there is no room.
        """
        # One that is there again above these is needed: Docker looks for a layer with all that is below it.
        unneeded = {*image.layers[:have]} - {*image.layers[have:]}
        digests = sorted(layer.removeprefix("sha256:") for layer in unneeded)
        argv = self._beside(("python3", "-c", source("kernel.images.on_host", "split_image"), str(have), *digests))
        program = RemoteProgram(
            "docker save", ("sh", "-c", SAVE, "sh", image.id, *argv), PUSH_SECONDS, max_bytes=math.inf
        )
        row: Message = {}
        with start(self._connection, program, OnHost(), self._runtime.after(START_SECONDS)) as running:
            due = MovingDeadline(SAVE_SECONDS, self._runtime.after(PUSH_SECONDS))
            for row in running.messages(due):
                if "read" in row:
                    due.move(count := self._row(row).read)
                    read(count)
            printed = end_of(running.finish(self._runtime.after(END_SECONDS)).text, 300)
        host = self._connection.name
        if packed := row.get("packed"):
            text = f"has a layer that is packed by {words(str(packed))}, and sends those alone that are packed by gzip"
            raise HostError(host, text, hint=WITHOUT_SOURCE)
        try:
            return blobs_in(row, image.layers, have)
        except ValueError as error:
            # What Docker printed is the cause where the program finds what Docker wrote unreadable.
            if why := ": ".join(filter(None, (words(str(row.get("error") or "")), printed))):
                raise HostError(host, f"docker save failed: {why}", hint="vcluster image prune") from None
            raise HostError(host, f"docker save failed: it gave {error}", hint=WITHOUT_SOURCE) from None

    def _row(self, row: Message) -> CarrierRow:
        return read_message(CarrierRow, self._connection.name, "image", row)

    def ask(self, plan: HostPlan) -> CarrierRow:
        """Send the plan; whether it is serving, or the error.

        Raises:
            HostError: it does not answer.
        """
        self._program.send(asdict(plan))
        return self._row(self._program.next(self._runtime.after(START_SECONDS)))

    def follow(self, arrived: Callable[[int], None]) -> CarrierRow:
        """How it ends: whole, or an error with the bytes that had come.

        Raises:
            HostError: it does not answer.
        """
        row, due = CarrierRow(), MovingDeadline(STILL_SECONDS, self._runtime.after(PUSH_SECONDS))
        for message in self._program.messages(due):
            row = self._row(message)
            if row.whole or row.error:
                return row
            due.move(row.bytes)
            if row.bytes:
                arrived(row.bytes)
        return replace(row, error=f"its program ended: {end_of(self._program.stderr_tail(), 300)}")

    def load(self, blobs: ImageBlobs, sender: str) -> str:
        """Give the blobs that a host sent to this host's Docker; what that printed.

        Raises:
            ValueError: one is not for Docker, which has not seen any.
            HostError: it does not take them.
        """
        programs = source("kernel.images", "for_docker"), source("kernel.images.on_host", "pack_image")
        argv = (*programs, json.dumps(blobs.manifest("config", "layers")), *self._beside(("python3", "-c")))
        program = RemoteProgram("docker load", ("sh", "-c", LOAD, "sh", *argv), PUSH_SECONDS, changes=True)
        with start(self._connection, program, OnHost(), self._runtime.after(START_SECONDS)) as running:
            ended = running.finish(self._runtime.after(load_seconds(blobs.size)))
        if ended.code == REFUSED:
            raise ValueError(words(end_of(ended.text, 300)))
        if ended.code:
            text = f"docker load failed: {end_of(ended.text, 300)} (sent by {sender})"
            raise HostError(self._connection.name, text, again=())
        return ended.printed

    def reading(self, blobs: ImageBlobs) -> tuple[str, ...]:
        """The command that writes the blobs, one after the other."""
        return self._beside(("cat", *blobs.sizes))
