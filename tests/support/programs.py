"""Programs that run in the three places, for tests: an image with Python, a laptop that can be killed, what is left."""

from __future__ import annotations

import io
import subprocess
import sys
import sysconfig
import tarfile
from dataclasses import replace
from pathlib import Path

from tests.support.docker_api import tree
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.docker.temporary import TemporaryContainer
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.hosts.program import InNode, OnHost, Place, RemoteProgram, python_source, start
from vllm_cluster.kernel.plan.identity import Owner
from vllm_cluster.kernel.transport import make_transport
from vllm_cluster.kernel.transport.base import Target
from vllm_cluster.kernel.transport.jumps import Jumps

LEFT_OUT = ("test", "idlelib", "ensurepip", "lib2to3", "tkinter", "site-packages", "__pycache__", "turtledemo")


def soon() -> Deadline:
    """Long for anything here, on a busy machine too."""
    return Deadline.after(90)


def python_image() -> bytes:
    """This Python and its standard library, as an image's files."""
    programs = [sys.executable, *map(str, Path(sysconfig.get_path("stdlib"), "lib-dynload").glob("*.so"))]
    archive = io.BytesIO(tree(["/bin/sh", *programs]))
    library = Path(sysconfig.get_path("stdlib"))
    with tarfile.open(fileobj=archive, mode="a", dereference=True) as tar:
        # The Python of a distribution has its library where the image has it too; Docker takes no file twice.
        there = {*tar.getnames()}
        tar.add(Path(sys.executable).resolve(), "usr/bin/python3")
        for path in sorted(library.iterdir()):
            if path.name not in LEFT_OUT and not path.name.startswith("config-"):
                tar.add(
                    path,
                    f"usr/lib/{library.name}/{path.name}",
                    filter=lambda entry: None if "__pycache__" in entry.name or entry.name in there else entry,
                )
    return archive.getvalue()


def made(
    where: str, image: str, node: str, source: str, *words: str, seconds: float = 300
) -> tuple[RemoteProgram, Place]:
    """A program and its place."""
    program = python_source("contract", source, *words, seconds=seconds)
    places: dict[str, Place] = {
        "node": InNode(node),
        "container": TemporaryContainer(Owner(node, None), "probe", image),
        "host": OnHost(),
    }
    # A host may have no Python but the one that runs the tests.
    own = replace(program, argv=(sys.executable, *program.argv[1:]))
    return own if where == "host" else program, places[where]


def processes(token: str) -> list[str]:
    """The processes of this machine, in containers too, that have the token as an argument, but for docker's own."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if token.encode() in words and b"python" in words[0]:
            found.append(path.parent.name)
    return found


def containers(cluster: str) -> list[str]:
    """The temporary containers of a cluster."""
    argv = ["docker", "ps", "-aq", "--filter", f"name=vcluster-{cluster}-"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()


def laptop(kind: str, config: str, *program: str) -> None:
    """A laptop that starts a program and then does nothing more."""
    target = Target("gpu1", "local" if kind == "local" else "shared", config=Path(config))
    transport = make_transport(target, kind, Jumps())  # type: ignore[arg-type]  # one of the three
    transport.connect(soon())
    connection = HostConnection("gpu1", transport)
    connection.may_change = True
    connection.open_docker("1.41")
    start(connection, *made(*program), soon()).next(soon())
    sys.stdout.write("started\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    laptop(*sys.argv[1:])
