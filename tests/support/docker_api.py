"""Docker's API as bytes have it, on the fake Docker of the simulation and on the real one of this machine."""

from __future__ import annotations

import io
import json
import re
import secrets
import subprocess
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.support.sim import make
from tests.support.sim.carrier import DIAL, FakeTransport
from tests.support.sim.world import Picture, identity
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.docker.client import DockerApi
from vllm_cluster.kernel.docker.connection import Connection
from vllm_cluster.kernel.transport.base import Target, Transport
from vllm_cluster.kernel.transport.local import LocalTransport

LABEL = "io.vcluster.contract"
PROGRAMS = ("/bin/sh", "/bin/cat", "/bin/sleep")
SECONDS = 30
REPOSITORY = "vcluster-contract"


@dataclass(frozen=True)
class Answer:
    """What came back: status, headers in lower case, body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The body as a stream of progress."""
        return [json.loads(line) for line in self.body.splitlines() if line.strip()]

    @property
    def frames(self) -> list[tuple[int, bytes]]:
        """The body as framed output: stream and content."""
        found, rest = [], self.body
        while rest:
            assert rest[1:4] == b"\0\0\0"
            length = int.from_bytes(rest[4:8], "big")
            found.append((rest[0], rest[8 : 8 + length]))
            assert len(found[-1][1]) == length
            rest = rest[8 + length :]
        return found

    @property
    def text(self) -> str:
        """What was printed, of all frames."""
        return b"".join(content for _, content in self.frames).decode()


@dataclass
class Docker:
    """One Docker, an image on it whose programs are a shell, cat and sleep, and a label for all that is made."""

    kind: str
    transport: Transport
    image: str
    label: str = field(default_factory=lambda: secrets.token_hex(4))

    @cached_property
    def client(self) -> DockerApi:
        """The product's client."""
        return DockerApi(self.transport, "1.41")

    def close(self) -> None:
        """End the client's streams; another client comes with the next use."""
        self.client.close()
        del self.client

    @property
    def labels(self) -> dict[str, str]:
        """What marks something as this test's."""
        return {LABEL: self.label}

    def name(self, word: str) -> str:
        """A name that no other test uses."""
        return f"contract-{self.label}-{word}"

    def ask(
        self, method: str, where: str, body: bytes | None = None, /, *, json_body: Any = None, **query: Any
    ) -> Answer:
        """One request on a stream of its own."""
        deadline = Deadline.after(SECONDS)
        content = json.dumps(json_body).encode() if json_body is not None else body or b""
        kind = "application/json" if json_body is not None else "application/x-tar"
        connection = Connection(lambda: self.transport.open_stream(DIAL, deadline))
        try:
            target = f"/v1.41{where}" + (f"?{urlencode(query)}" if query else "")
            response = connection.send_request(method, target, deadline, content, {"Content-Type": kind})
            headers = {key.lower(): value for key, value in response.getheaders()}
            return Answer(response.status, headers, response.read())
        finally:
            connection.discard()

    def create(self, word: str, script: str, **changes: Any) -> str:
        """A container that runs a script; its id."""
        body = {"Image": self.image, "Entrypoint": ["/bin/sh", "-c"], "Cmd": [script], "Labels": self.labels, **changes}
        body["HostConfig"] = {"NetworkMode": "none", **changes.get("HostConfig", {})}
        made = self.ask("POST", "/containers/create", json_body=body, name=self.name(word))
        assert made.status == 201, made.body
        return str(made.json["Id"])

    def run(self, word: str, script: str, **changes: Any) -> str:
        """A container that was started."""
        made = self.create(word, script, **changes)
        assert self.ask("POST", f"/containers/{made}/start").status == 204
        return made

    def ended(self, word: str, script: str) -> str:
        """A container that has come to its end."""
        made = self.run(word, script)
        assert self.ask("POST", f"/containers/{made}/wait").status == 200
        return made

    def clean(self) -> None:
        """Remove all that bears the label."""
        mine = json.dumps({"label": [f"{LABEL}={self.label}"]})
        for row in self.ask("GET", "/containers/json", all=1, filters=mine).json:
            self.ask("DELETE", f"/containers/{row['Id']}", force=1, v=1)
        for row in self.ask("GET", "/volumes", filters=mine).json["Volumes"] or ():
            self.ask("DELETE", f"/volumes/{row['Name']}")
        self.ask("DELETE", f"/images/{REPOSITORY}:{self.label}")

    def remove_image(self) -> None:
        """Remove the image, after what failed builds have left of it."""
        base = self.ask("GET", f"/images/{self.image}/json").json["Id"]
        for row in self.ask("GET", "/images/json", all=1).json:
            if row.get("ParentId") == base:
                self.ask("DELETE", f"/images/{row['Id']}")
        self.ask("DELETE", f"/images/{self.image}")


def _fresh() -> str:
    return f"{REPOSITORY}:{secrets.token_hex(4)}"


def tree(programs: Iterable[str]) -> bytes:
    """Programs of this machine and the libraries that they load, as a tar archive."""
    wanted: set[Path] = set()
    for program in map(Path, programs):
        linked = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
        wanted |= {program, *map(Path, re.findall(r"(/\S+) \(0x", linked))}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", dereference=True) as tar:
        for path in sorted(wanted):
            tar.add(path, str(path).lstrip("/"))
    return archive.getvalue()


def real() -> Docker:
    """This machine's Docker, with an image imported."""
    image = _fresh()
    argv = ["docker", "import", "-", image]
    subprocess.run(argv, input=tree(PROGRAMS), check=True, stdout=subprocess.DEVNULL)
    return Docker("real", here(), image)


def here() -> Transport:
    """This machine as a host."""
    return LocalTransport(Target("gpu1", "local"))


def fake() -> Docker:
    """A fake Docker with an image of such a name."""
    image = _fresh()
    world = make.world((2,))
    machine = world.machines["gpu1"]
    there = Picture(f"sha256:{identity('contract')}", [image], {})
    machine.images[there.id] = there
    return Docker("fake", FakeTransport(world, Target("gpu1", "gpu1")), image)


def packed(*entries: tuple[str, bytes | str]) -> bytes:
    """A tar archive of files (bytes) and links (text)."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in entries:
            entry = tarfile.TarInfo(name)
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                tar.addfile(entry)
            else:
                entry.size, entry.mode = len(content), 0o640
                tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


def unpacked(data: bytes) -> list[tarfile.TarInfo]:
    """The entries of a tar archive."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return tar.getmembers()
