"""The Engine API of one host, as far as the product asks it, in Docker's own words."""

from __future__ import annotations

import base64
import io
import json
import re
import struct
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.sim import blobs
from tests.support.sim.world import Box, File, Machine, Picture, Volume, World, identity


@dataclass
class Answer:
    """An HTTP answer; `chunks` makes it a chunked stream, `raw` one that ends with the connection."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    chunks: list[bytes] | None = None
    raw: bool = False


class Refused(Exception):
    """Docker refuses, with a status and its words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Request:
    """One request: what is asked of which object."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes

    @property
    def changes(self) -> bool:
        """Whether it may change the host. Waiting is a POST too, but changes nothing."""
        return self.method not in ("GET", "HEAD") and not self.path.endswith("/wait")

    @property
    def what(self) -> str:
        """The request in a line."""
        shown = {key: value for key, value in self.query.items() if key in ("name", "path", "fromImage", "t", "tag")}
        return f"{self.method} {self.path}" + (f" {shown}" if shown else "")

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def reply(value: object, status: int = 200) -> Answer:
    """A JSON answer."""
    return Answer(status, json.dumps(value).encode(), {"Content-Type": "application/json"})


Handler = Callable[["FakeEngine", Request, str], Answer]
ROUTES: list[tuple[str, re.Pattern[str], Handler]] = []


def route(method: str, pattern: str) -> Callable[[Handler], Handler]:
    """Register what answers a path; `*` is the id or name that the handler gets."""

    def take(handler: Handler) -> Handler:
        expression = re.compile(re.escape(pattern).replace(r"\*", "(.+?)") + "$")
        ROUTES.append((method, expression, handler))
        return handler

    return take


class FakeEngine:
    """What one host's dockerd does."""

    def __init__(self, world: World, machine: Machine) -> None:
        self.world, self.machine = world, machine

    def answer(self, request: Request) -> Answer:
        """Do what is asked."""
        try:
            for method, pattern, handler in ROUTES:
                found = pattern.match(request.path) if method == request.method else None
                if found:
                    return handler(self, request, found[1] if found.groups() else "")
            raise Refused(404, "page not found")
        except Refused as error:
            return reply({"message": str(error)}, error.status)

    def box(self, reference: str) -> Box:
        """The container of that name or id."""
        box = self.machine.box(reference)
        if box is None:
            raise Refused(404, f"No such container: {reference}")
        return box

    def picture(self, reference: str) -> Picture:
        """The image of that name or id."""
        picture = self.machine.picture(reference)
        if picture is None:
            tagged = ":" in reference.rsplit("/", maxsplit=1)[-1]
            raise Refused(404, f"No such image: {reference if tagged else reference + ':latest'}")
        return picture


def _named(request: Request, name: str) -> bool:
    """Whether a name has one of the wanted parts in it."""
    parts = json.loads(request.query.get("filters", "{}")).get("name", [])
    return not parts or any(part in name for part in parts)


def _labelled(request: Request, labels: dict[str, str]) -> bool:
    wanted = json.loads(request.query.get("filters", "{}")).get("label", [])
    return all(
        labels.get(key) == value if equals else key in labels
        for key, equals, value in (entry.partition("=") for entry in wanted)
    )


@route("GET", "/containers/json")
def _list(engine: FakeEngine, request: Request, _: str) -> Answer:
    every = request.query.get("all") in ("1", "true")
    return reply(
        [
            {
                "Id": b.id,
                "Names": [f"/{b.name}"],
                "State": b.state,
                "Status": f"Restarting ({b.exit_code}) 1 second ago" if b.state == "restarting" else b.state,
                "Image": b.body["Image"],
                "ImageID": b.image,
                "Labels": b.labels,
            }
            for b in engine.machine.boxes.values()
            if _labelled(request, b.labels) and (every or b.state == "running")
        ]
    )


@route("POST", "/containers/create")
def _create(engine: FakeEngine, request: Request, _: str) -> Answer:
    machine, name, body = engine.machine, request.query["name"], request.json
    image = engine.picture(body["Image"])
    there = machine.box(name)
    if there:
        taken = f'The container name "/{name}" is already in use by container "{there.id}".'
        raise Refused(
            409, f"Conflict. {taken} You have to remove (or rename) that container to be able to reuse that name."
        )
    made = Box(engine.world.next_id(name), name, image.id, body)
    labels = {mount["Source"]: mount["VolumeOptions"]["Labels"] for mount in made.mounts}
    for source, _read_only in made.binds.values():
        if not source.startswith("/") and source not in machine.volumes:
            machine.volumes[source] = Volume(source, labels.get(source, {}))
    machine.boxes[made.id] = made
    return reply({"Id": made.id, "Warnings": []}, 201)


@route("GET", "/containers/*/json")
def _inspect(engine: FakeEngine, _: Request, reference: str) -> Answer:
    box = engine.box(reference)
    state = {"Status": box.state, "ExitCode": box.exit_code, "OOMKilled": False}
    state["StartedAt"] = engine.world.stamp(box.started)
    config = {**box.body, "Labels": box.body.get("Labels"), "Tty": False}
    return reply({"Id": box.id, "Name": f"/{box.name}", "Image": box.image, "State": state, "Config": config})


@route("POST", "/containers/*/start")
def _start(engine: FakeEngine, _: Request, reference: str) -> Answer:
    box = engine.box(reference)
    if box.state in ("running", "restarting"):
        return Answer(304)
    if box.state == "paused":
        raise Refused(409, "cannot start a paused container, try unpause instead")
    if box.state in ("dead", "removing"):
        raise Refused(409, "container is marked for removal and cannot be started")
    engine.world.start(engine.machine, box)
    return Answer(204)


@route("POST", "/containers/*/stop")
def _stop(engine: FakeEngine, _: Request, reference: str) -> Answer:
    box = engine.box(reference)
    if box.state not in ("running", "paused", "restarting"):
        return Answer(304)
    engine.world.stop(engine.machine, box)
    return Answer(204)


@route("POST", "/containers/*/restart")
def _restart(engine: FakeEngine, _: Request, reference: str) -> Answer:
    box = engine.box(reference)
    engine.world.stop(engine.machine, box)
    engine.world.start(engine.machine, box)
    return Answer(204)


@route("DELETE", "/containers/*")
def _remove(engine: FakeEngine, request: Request, reference: str) -> Answer:
    box = engine.box(reference)
    if box.state == "removing":
        raise Refused(409, f"removal of container {box.id} is already in progress")
    if box.state in ("running", "paused", "restarting") and request.query.get("force") not in ("1", "true", "True"):
        raise Refused(409, "cannot remove container: container is running: stop the container before removing")
    engine.world.remove(engine.machine, box)
    return Answer(204)


@route("POST", "/containers/*/wait")
def _wait(engine: FakeEngine, request: Request, reference: str) -> Answer:
    if request.query.get("condition") == "removed":
        engine.world.clock.sleep(1)
        engine.world.remove(engine.machine, engine.box(reference))
        return reply({"StatusCode": 0})
    return reply({"StatusCode": engine.box(reference).exit_code})


@route("GET", "/containers/*/logs")
def _logs(engine: FakeEngine, request: Request, reference: str) -> Answer:
    box = engine.box(reference)
    rows = [(stream, row) for stream, text in ((1, box.log), (2, box.errors)) for row in text.splitlines(keepends=True)]
    tail = request.query.get("tail", "all")
    shown = rows if tail == "all" else rows[len(rows) - min(len(rows), int(tail)) :]
    time = f"{engine.world.stamp(box.started)} " if request.query.get("timestamps") == "1" else ""
    data = b"".join(framed(f"{time}{row}".encode(), stream) for stream, row in shown)
    return Answer(200, data, {"Content-Type": "application/octet-stream"})


def framed(data: bytes, stream: int = 1) -> bytes:
    """Output as Docker frames it."""
    return struct.pack(">BxxxL", stream, len(data)) + data if data else b""


@route("GET", "/containers/*/archive")
def _get_archive(engine: FakeEngine, request: Request, reference: str) -> Answer:
    box, path = engine.box(reference), request.query["path"]
    content, below = engine.machine.read(box, path), engine.machine.below(box, path)
    if content is None and below is None:
        raise Refused(404, f"Could not find the file {path} in container {reference}")
    name, archive = path.rsplit("/", maxsplit=1)[-1], io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        if content is None:
            folder = tarfile.TarInfo(name)
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
        for file, data in (below or {}).items() if content is None else [("", content)]:
            entry = tarfile.TarInfo(f"{name}/{file}".rstrip("/"))
            entry.mode, entry.linkname = (data.mode, data.connection) if isinstance(data, File) else (0o644, "")
            entry.type = tarfile.SYMTYPE if entry.linkname else tarfile.REGTYPE
            entry.size = 0 if entry.linkname else len(data)
            tar.addfile(entry, io.BytesIO(data))
    link = content.connection if isinstance(content, File) else ""
    said = {"name": name, "size": len(content or b""), "mode": 0o600, "linkTarget": link}
    stat = base64.b64encode(json.dumps(said).encode()).decode()
    return Answer(200, archive.getvalue(), {"X-Docker-Container-Path-Stat": stat, "Content-Type": "application/x-tar"})


@route("PUT", "/containers/*/archive")
def _put_archive(engine: FakeEngine, request: Request, reference: str) -> Answer:
    box, folder = engine.box(reference), request.query["path"].rstrip("/")
    if box.state == "removing":
        raise Refused(409, "container is marked for removal")
    if engine.machine.below(box, folder or "/") is None:
        raise Refused(404, f"Could not find the file {folder} in container {reference}")
    if engine.machine.place(box, folder or "/")[2]:
        raise Refused(500, "mounted volume is marked read-only")
    with tarfile.open(fileobj=io.BytesIO(request.body)) as tar:
        for member in tar:
            if member.isdir():
                continue
            content = tar.extractfile(member) if member.isfile() else None
            file = File(content.read() if content else b"")
            file.mode, file.connection = member.mode, member.linkname
            files, inside, _ = engine.machine.place(box, f"{folder}/{member.name.lstrip('/')}")
            files[inside] = file
    return Answer(200)


# ---- images


@route("GET", "/info")
def _info(engine: FakeEngine, _: Request, __: str) -> Answer:
    return reply(
        {"DockerRootDir": "/var/lib/docker", "SystemTime": engine.world.stamp(engine.world.host_time(engine.machine))}
    )


# As Docker 20.10 and 26 describe an image of which nothing is set.
EMPTY_CONFIG: dict[str, object] = {
    **dict.fromkeys(("Hostname", "Domainname", "User", "WorkingDir"), ""),
    **dict.fromkeys(("AttachStdin", "AttachStdout", "AttachStderr", "Tty", "OpenStdin", "StdinOnce"), False),
    **dict.fromkeys(("Env", "Cmd", "Volumes", "Entrypoint", "OnBuild")),
}


@route("GET", "/images/json")
def _images(engine: FakeEngine, _: Request, __: str) -> Answer:
    return reply(
        [
            {
                "Id": p.id,
                "RepoTags": [name for name in p.tags if "@" not in name],
                "RepoDigests": [name for name in p.tags if "@" in name],
                "Labels": p.labels,
                "Created": p.created,
            }
            for p in engine.machine.images.values()
        ]
    )


@route("GET", "/images/*/json")
def _image(engine: FakeEngine, _: Request, reference: str) -> Answer:
    picture = engine.picture(reference)
    layers = {"Type": "layers", "Layers": [f"sha256:{digest}" for digest in [*blobs.of(picture)][1:]]}
    driver = {"Name": "overlayfs" if engine.machine.containerd else "overlay2"}
    # Docker's own builder notes what it began with, and containerd's store does not show it.
    config = {**EMPTY_CONFIG, "Image": "" if engine.machine.containerd else f"sha256:{0:064}"}
    return reply(
        {
            "Id": picture.id,
            "RepoTags": picture.tags,
            "RootFS": layers,
            "Config": {**config, "Labels": picture.labels, **picture.config},
            "GraphDriver": driver,
            "Architecture": "amd64",
            "Created": engine.world.stamp(picture.created),
        }
    )


def fetch(world: World, machine: Machine, name: str, *, logged_in: bool) -> None:
    """Bring an image from the registry to a host; a private one for those who are logged in."""
    registry, slash, _path = name.partition("/")
    if slash and (":" in registry or "." in registry):
        raise Refused(500, f'Get "https://{registry}/v2/": dial tcp: connect: connection refused')
    found = world.registry.get(name)
    if found is None or (world.private and not logged_in):
        text = f"pull access denied for {name}, repository does not exist or may require 'docker login'"
        raise Refused(404, text)
    for picture in machine.images.values():
        picture.tags = [tag for tag in picture.tags if tag != name]
    machine.take_image(found).tags.append(name)


@route("POST", "/images/*/tag")
def _tag(engine: FakeEngine, request: Request, reference: str) -> Answer:
    name_image(engine.machine, engine.picture(reference), f"{request.query['repo']}:{request.query['tag']}")
    return Answer(201)


@route("DELETE", "/images/*")
def _remove_image(engine: FakeEngine, _: Request, reference: str) -> Answer:
    picture = engine.picture(reference)
    picture.tags = [] if reference == picture.id else [tag for tag in picture.tags if tag != reference]
    if not picture.tags:
        del engine.machine.images[picture.id]
    return reply([{"Untagged": reference}])


def name_image(machine: Machine, picture: Picture, name: str) -> None:
    """Give an image a name, taking it from any other."""
    for other in machine.images.values():
        other.tags = [tag for tag in other.tags if tag != name]
    picture.tags.append(name)


@route("POST", "/build")
def _build(engine: FakeEngine, request: Request, _: str) -> Answer:
    arguments = json.loads(request.query["buildargs"])
    with tarfile.open(fileobj=io.BytesIO(request.body)) as tar:
        recipe = tar.extractfile("Dockerfile") if "Dockerfile" in tar.getnames() else None
        lines = recipe.read().decode().splitlines() if recipe else None
    if lines is None:
        raise Refused(500, "Cannot locate specified Dockerfile: Dockerfile")
    if lines == ["FROM scratch"]:
        made = Picture(f"sha256:{identity('empty')}", [], {}, labels=json.loads(request.query["labels"]))
        name_image(engine.machine, engine.machine.images.setdefault(made.id, made), request.query["t"])
        return Answer(200, chunks=[b'{"stream": "Step 1/2 : FROM scratch"}\r\n'])
    base = engine.machine.picture(arguments["BASE"])
    if base is None:
        return _broken(f"pull access denied for {arguments['BASE']}, repository does not exist")
    for code in (line.removeprefix("RUN exit ") for line in lines if line.startswith("RUN exit ")):
        return _broken(f"The command '/bin/sh -c exit {code}' returned a non-zero code: {code}", code=int(code))
    have = {**base.have, "ray": arguments["RAY"]}
    made = Picture(f"sha256:{identity('built', base.id, arguments['RAY'])}", [], have)
    made.labels = json.loads(request.query["labels"])
    name_image(engine.machine, engine.machine.images.setdefault(made.id, made), request.query["t"])
    rows = [{"stream": "Step 1/3\n"}, {"stream": f"Successfully tagged {request.query['t']}\n"}]
    return Answer(200, chunks=[json.dumps(row).encode() + b"\r\n" for row in rows])


def _broken(reason: str, **detail: int) -> Answer:
    """A build that fails after it has begun."""
    rows = [{"stream": "Step 1/3\n"}, {"errorDetail": {**detail, "message": reason}, "error": reason}]
    return Answer(200, chunks=[json.dumps(row).encode() + b"\r\n" for row in rows])


# ---- volumes


@route("GET", "/volumes")
def _volumes(engine: FakeEngine, request: Request, _: str) -> Answer:
    found = [v for v in engine.machine.volumes.values() if _labelled(request, v.labels) and _named(request, v.name)]
    return reply({"Volumes": [{"Name": v.name, "Labels": v.labels} for v in found], "Warnings": []})


@route("GET", "/system/df")
def _usage(engine: FakeEngine, request: Request, _: str) -> Answer:
    machine = engine.machine
    used = [source for box in machine.boxes.values() for source, _ in box.binds.values()]
    sizes = {
        v.name: {"Size": sum(map(len, v.files.values())), "RefCount": used.count(v.name)}
        for v in machine.volumes.values()
    }
    rows = [{"Name": v.name, "Labels": v.labels or None, "UsageData": sizes[v.name]} for v in machine.volumes.values()]
    return reply({"Volumes": rows})


@route("POST", "/volumes/create")
def _create_volume(engine: FakeEngine, request: Request, _: str) -> Answer:
    wanted = request.json
    # One of that name is answered as it is; an engine that was restarted since does not list its labels here.
    known = wanted["Name"] in engine.machine.volumes
    made = engine.machine.volumes.setdefault(wanted["Name"], Volume(wanted["Name"], wanted.get("Labels") or {}))
    return reply({"Name": made.name, "Driver": "local", "Labels": None if known else made.labels or None}, 201)


@route("GET", "/volumes/*")
def _inspect_volume(engine: FakeEngine, _: Request, name: str) -> Answer:
    if name not in engine.machine.volumes:
        raise Refused(404, f"get {name}: no such volume")
    return reply({"Name": name, "Driver": "local", "Labels": engine.machine.volumes[name].labels or None})


@route("DELETE", "/volumes/*")
def _remove_volume(engine: FakeEngine, _: Request, name: str) -> Answer:
    if name not in engine.machine.volumes:
        raise Refused(404, f"get {name}: no such volume")
    users = [b.id for b in engine.machine.boxes.values() if name in [source for source, _ in b.binds.values()]]
    if users:
        raise Refused(409, f"remove {name}: volume is in use - [{', '.join(users)}]")
    del engine.machine.volumes[name]
    return Answer(204)
