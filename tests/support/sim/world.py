"""Hosts in memory: what is on them, and what happens there by itself as time passes."""

from __future__ import annotations

import hashlib
import io
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from zlib import crc32

from tests.support.sim.clock import EPOCH, Clock
from tests.support.sim.faults import Script
from vllm_cluster.kernel.facts.heads import Led
from vllm_cluster.kernel.hosts.runtime import Runtime
from vllm_cluster.kernel.plan.members import Way
from vllm_cluster.kernel.plan.spec import CLUSTER

Files = dict[str, bytes]


class File(bytes):
    """A file that came in an archive: its mode, and where it points to if it is a link."""

    mode = 0o644
    connection = ""


def identity(*words: object) -> str:
    """A 64-digit id, the same for the same words."""
    return hashlib.sha256("|".join(map(str, words)).encode()).hexdigest()


@dataclass
class Volume:
    """A named volume with its files by relative path."""

    name: str
    labels: dict[str, str] = field(default_factory=dict)
    files: Files = field(default_factory=dict)


@dataclass
class Picture:
    """An image: its names, the distributions that its Python has, and what of its config is not empty.

    One of a content, which are its layers, may have several ids.
    """

    id: str
    tags: list[str]
    have: dict[str, str]
    labels: dict[str, str] = field(default_factory=dict)
    content: str = ""
    config: dict[str, object] = field(default_factory=dict)

    @property
    def created(self) -> int:
        """When it was made (Unix), the same on each host."""
        return 1_700_000_000 + crc32((self.content or self.id).encode()) % 10**8


@dataclass
class Box:
    """A container. `born` distinguishes one start from the next; `life` is what its program remembers of this start."""

    id: str
    name: str
    image: str
    body: dict[str, Any]
    state: str = "created"
    exit_code: int = 0
    files: Files = field(default_factory=dict)
    log: str = ""
    errors: str = ""
    started: float = 0.0
    born: int = 0
    life: dict[str, Any] = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        """Its labels, none where it was made without."""
        return self.body.get("Labels") or {}

    @property
    def argv(self) -> list[str]:
        """What it runs."""
        return [*(self.body.get("Entrypoint") or []), *(self.body.get("Cmd") or [])]

    def runs(self, word: str) -> bool:
        """Whether this is a word of what it runs; asked at every step of every world, so that no list is made."""
        return word in (self.body.get("Cmd") or ()) or word in (self.body.get("Entrypoint") or ())

    @property
    def environment(self) -> dict[str, str]:
        """Its environment by name."""
        return dict(entry.split("=", 1) for entry in self.body.get("Env") or [])

    @property
    def binds(self) -> dict[str, tuple[str, bool]]:
        """Source and read-only by path in the container."""
        config = self.body.get("HostConfig") or {}
        rows = (bind.split(":") for bind in config.get("Binds") or [])
        volumes = {mount["Target"]: (mount["Source"], mount["ReadOnly"]) for mount in self.mounts}
        return {row[1]: (row[0], row[2:] == ["ro"]) for row in rows} | volumes

    @property
    def mounts(self) -> list[dict[str, Any]]:
        """The volumes with a name that it was made with; the others go with it."""
        return [one for one in (self.body.get("HostConfig") or {}).get("Mounts") or [] if "Source" in one]


@dataclass
class Lock:
    """Who holds the lease of a host: the stream that does, its word for it, and the ways to Docker opened under it."""

    who: str
    stream: Any
    token: str
    beaten: float
    seconds: float
    ways: list[Any] = field(default_factory=list)


@dataclass
class Beat:
    """Work that a controller repeats: what it does, how often, and when next."""

    work: Callable[[], bool]
    seconds: float
    due: float
    script: Script


@dataclass
class Machine:
    """A host."""

    name: str
    address: str
    gpus: int
    machine_id: str
    skew: float = 0.0
    docker: str = ""
    version: str = "28.0.0"
    api: str = "1.47"
    nic: str = "eth1"
    reachable: bool = True
    logged_in: bool = False
    engine: str = ""  # what its Docker calls itself, where not after the machine's id
    boxes: dict[str, Box] = field(default_factory=dict)
    volumes: dict[str, Volume] = field(default_factory=dict)
    images: dict[str, Picture] = field(default_factory=dict)
    lock: Lock | None = None
    listening: set[int] = field(default_factory=set)
    off_roll: bool = False  # a firewall closes the head's port of the roll, and no other
    ray_ends: str = ""  # with these last words, again and again
    late: list[tuple[int, Callable[[], object]]] = field(default_factory=list)
    models: dict[str, int] = field(default_factory=dict)  # bytes by folder below the cache
    # Of these, the one that another cluster pulls on a shared cache.
    pulled_elsewhere: str = ""
    gpu_users: dict[int, tuple[int, str]] = field(default_factory=dict)  # what others hold: MiB and cgroup, by GPU
    containerd: bool = False  # keeps its images there

    def take_image(self, found: Picture) -> Picture:
        """Keep an image that comes from elsewhere, under no name; its id is of this kind of store."""
        content = found.content or found.id
        known = f"sha256:{identity('config', content, str(found.config))}" if found.config else content
        if self.containerd:
            known = f"sha256:{identity('manifest', self.name, known)}"
        kept = Picture(known, [], dict(found.have), dict(found.labels), content, dict(found.config))
        return self.images.setdefault(known, kept)

    def free(self, *, kill: bool = True) -> None:
        """Give the lease up; what was opened under it is ended first, unless its holder reported that it is done."""
        lock, self.lock = self.lock, None
        for way in lock.ways if lock and kill else ():
            way.ended = way.killed = True

    def box(self, reference: str) -> Box | None:
        """The container of that name, id or beginning of an id."""
        if reference in self.boxes:
            return self.boxes[reference]
        named = (box for box in self.boxes.values() if box.name == reference)
        begun = (box for box in self.boxes.values() if len(reference) >= 12 and box.id.startswith(reference))
        return next(named, None) or next(begun, None)

    def picture(self, reference: str) -> Picture | None:
        """The image of that name or id."""
        name = reference if ":" in reference.rsplit("/", maxsplit=1)[-1] else f"{reference}:latest"
        by_name = next((image for image in self.images.values() if name in image.tags), None)
        short = re.fullmatch("(sha256:)?([0-9a-f]{12,64})", reference)
        by_id = (image for image in self.images.values() if short and image.id.startswith(f"sha256:{short[2]}"))
        return by_name or next(by_id, None)

    def place(self, box: Box, path: str) -> tuple[Files, str, bool]:
        """Where a path of a container lies: the files that hold it, the path in them, and whether it is read-only."""
        for target, (source, read_only) in box.binds.items():
            if path == target or path.startswith(target + "/"):
                files = self.volumes[source].files if source in self.volumes else {}
                return files, path[len(target) :].strip("/"), read_only
        return box.files, path.strip("/"), False

    def read(self, box: Box, path: str) -> bytes | None:
        """A file as the container sees it."""
        files, inside, _ = self.place(box, path)
        return files.get(inside)

    def below(self, box: Box, path: str) -> dict[str, bytes] | None:
        """The files below a folder as the container sees it, by their path in it; None where there is no folder."""
        files, inside, _ = self.place(box, path)
        start = f"{inside}/" if inside else ""
        found = {name.removeprefix(start): content for name, content in files.items() if name.startswith(start)}
        return found if found or not inside else None

    def foreign(self) -> str:
        """Everything that is not the cluster's own, nor an image with vLLM, as text."""
        boxes = {
            i: (b.name, b.image, b.body, b.state, b.files, b.born)
            for i, b in self.boxes.items()
            if not belongs_to_lab(b)
        }
        volumes = {name: volume for name, volume in self.volumes.items() if not belongs_to_lab(volume)}
        images = {i: sorted(p.tags) for i, p in self.images.items() if "vllm" not in p.have}
        return repr((boxes, volumes, images))


def belongs_to_lab(item: Box | Volume) -> bool:
    """Whether it carries the label of any cluster."""
    return item.labels.get(CLUSTER) == "lab"


# Contents of files that snapshots share: a world is made from one some hundred thousand times.
_CONTENTS: list[bytes | str] = []
_PLACES: dict[bytes | str, int] = {}
MIN_SHARED = 500


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> int | None:
        """The place of a content that is shared; nothing else has one."""
        if type(value) not in (bytes, str) or len(value) < MIN_SHARED:
            return None
        if value not in _PLACES:
            _PLACES[value] = len(_CONTENTS)
            _CONTENTS.append(value)
        return _PLACES[value]


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, place: Any) -> bytes | str:
        """The content at a place."""
        content: bytes | str = _CONTENTS[place]
        return content


class World:
    """All hosts, the registry, and the clock."""

    def __init__(self, machines: list[Machine], registry: dict[str, Picture]) -> None:
        self.clock = Clock()
        self.clock.passed = self.pass_time
        self.machines = {machine.name: machine for machine in machines}
        self.registry = registry
        self.private = False
        self.script = Script()
        self.beats: list[Beat] = []
        self.beating = False
        # Controllers whose laptop is closed, and calls that changed a host under no lease of their own.
        self.asleep: list[Script] = []
        self.unfenced: list[str] = []
        self.count = 0
        # Requests that vLLM works on, or of each replica; None where it does not report them.
        self.requests: int | dict[str, int] | None = 0
        # What the nodes answer about a request to serve, by host; nothing where they cannot be asked.
        self.answers: dict[str, dict[str, Any]] = {}
        # The image that hosts hold as blobs, to be sent or loaded, by host.
        self.blobs: dict[str, Picture] = {}
        # A host that gives other bytes than it announced.
        self.forges = ""
        # What a host gives in place of any image.
        self.swaps: dict[str, Picture] = {}
        # What the head's program lists of the batches there.
        self.batches: list[dict[str, Any]] = []
        # The ways to hosts that inventories on the laptop have named, by cluster.
        self.visited: dict[str, set[Way]] = {}
        # The heads that the laptop has made, by cluster and by the way to each.
        self.heads: dict[str, dict[Way, Led]] = {}
        self.runtime: Runtime | None = None
        self.order: Callable[[list[Any]], list[Any]] = list
        # What clients know, and how often they learned since that there is another.
        self.api_key: bytes | None = None
        self.new_keys = 0

    def next_id(self, *words: object) -> str:
        """A fresh id."""
        self.count += 1
        return identity("id", self.count, *words)

    def host_time(self, machine: Machine) -> float:
        """What the host's clock shows."""
        return EPOCH + self.clock.now + machine.skew

    def stamp(self, moment: float) -> str:
        """A moment as Docker writes it, with nanoseconds."""
        if not moment:
            return "0001-01-01T00:00:00Z"
        return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "123Z"

    def nodes(self) -> Iterator[tuple[Machine, Box]]:
        """Every running node container of any cluster."""
        for machine in self.machines.values():
            for box in machine.boxes.values():
                if box.state == "running" and box.runs("/opt/vcluster/node.py"):
                    yield machine, box

    # ---- containers

    def start(self, machine: Machine, box: Box) -> None:
        """Start a container; what it runs begins, or ends at once where it cannot."""
        from tests.support.sim import life

        self.count += 1
        box.state, box.born, box.life = "running", self.count, {}
        box.started = self.host_time(machine)
        life.begin(self, machine, box)

    def stop(self, machine: Machine, box: Box, *, gently: bool = True, code: int = 0) -> None:
        """End a container; a program that is asked to end writes that into its status."""
        from tests.support.sim import life

        if box.state in ("running", "paused", "restarting"):
            if gently and box.state == "running":
                life.goodbye(self, machine, box)
            box.state, box.exit_code = "exited", code

    def remove(self, machine: Machine, box: Box) -> None:
        """Remove a container."""
        machine.boxes.pop(box.id, None)

    # ---- time

    def pass_time(self) -> None:
        """What happens by itself: heartbeats, leases without a heartbeat, Ray and vLLM."""
        from tests.support.sim import life

        for beat in list(self.beats):
            if self.clock.now >= beat.due and not self.beating and beat.script not in self.asleep:
                beat.due = self.clock.now + beat.seconds
                self.beating = True
                try:
                    if not beat.work():
                        self.beats = [entry for entry in self.beats if entry is not beat]
                finally:
                    self.beating = False
        for machine in self.machines.values():
            if machine.lock and self.clock.now - machine.lock.beaten > machine.lock.seconds:
                machine.free()
        life.advance(self)

    def nap(self, seconds: float) -> None:
        """Close the lid of the laptop whose turn it is."""
        self.asleep.append(self.script)
        self.clock.suspend(seconds)
        self.asleep.remove(self.script)

    def settle(self, seconds: float = 60.0) -> None:
        """Let the hosts alone for a while, and what was under way come to its end."""
        for machine in self.machines.values():
            self.arrive(machine, everything=True)
        self.clock.sleep(seconds)

    def arrive(self, machine: Machine, *, everything: bool = False) -> None:
        """Do on a host what was asked earlier by a client that has gone meanwhile, when its time has come."""
        waiting, machine.late = machine.late, []
        for left, action in waiting:
            if left <= 0 or everything:
                action()
            else:
                machine.late.append((left - 1, action))

    # ---- comparison

    def foreign(self) -> str:
        """Everything on all hosts that is not the cluster's, as text that compares byte by byte."""
        return "\n".join(f"{name} {machine.foreign()}" for name, machine in self.machines.items())

    def snapshot(self) -> bytes:
        """The hosts as they are, to begin from again and again."""
        out = io.BytesIO()
        _Pickler(out).dump((self.machines, self.registry, self.clock.now, self.count, self.visited, self.heads))
        return out.getvalue()

    @classmethod
    def again(cls, snapshot: bytes) -> World:
        """A world of its own that is as one was."""
        made = cls([], {})
        kept = _Unpickler(io.BytesIO(snapshot)).load()
        made.machines, made.registry, made.clock.now, made.count, made.visited, made.heads = kept
        return made
