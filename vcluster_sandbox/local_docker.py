"""The Docker engine of this machine: reaching it, running in its containers, putting files there."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.client import DockerClient
from docker.errors import APIError, DockerException
from docker.models.containers import Container

from vllm_cluster.kernel.errors import PreflightFailed, VclusterError

Report = Callable[[str], None]
_LAST_LINES = 12
_ANSWER_S = 600


@dataclass(frozen=True)
class File:
    """One file to be put into a container."""

    name: str
    content: bytes | Path
    mode: int = 0o644
    owner: int = 0


def connect() -> DockerClient:
    """The Docker that DOCKER_HOST names, or that of this machine; where there is none, an error with the remedy."""
    try:
        engine = DockerClient.from_env(timeout=_ANSWER_S)
        info = engine.info()
    except (DockerException, OSError) as error:
        raise _no_engine(error) from error
    if info.get("OSType") != "linux" or info.get("Architecture") not in ("x86_64", "amd64"):
        raise PreflightFailed(
            f"the sandbox needs a Linux engine on x86_64; this one is {info.get('OSType')} {info.get('Architecture')}",
            hint="The CPU engine is built for x86_64 only. Point DOCKER_HOST to such a machine.",
        )
    return engine


def _no_engine(error: Exception) -> PreflightFailed:
    """Why no engine answers, and what the user does about it."""
    place = os.environ.get("DOCKER_HOST", "the default socket")
    causes = " ".join(str(part) for part in (error, error.__cause__, error.__context__))
    if "Permission" in causes:
        return PreflightFailed(
            f"Docker refuses this user at {place}",
            hint='Add yourself to the group docker (sudo usermod -aG docker "$USER") and log in again.',
        )
    if shutil.which("docker") is None and shutil.which("dockerd") is None:
        return PreflightFailed(
            "Docker is not installed on this machine",
            hint="Install Docker; on Debian and Ubuntu scripts/setup-docker.sh of the repository does it.",
        )
    return PreflightFailed(
        f"no Docker engine answers at {place}: {error}",
        hint="Start it: sudo systemctl start docker, or Docker Desktop, or scripts/setup-docker.sh of the repository.",
    )


def execute(container: Container, argv: list[str], *, deadline: int, env: dict[str, str] | None = None) -> str:
    """Run a command in a container and return its output; fail with its last lines."""
    api: Any = container.client.api if container.client else None
    call = api.exec_create(container.id, ["timeout", "-k", "5", str(deadline), *argv], environment=env)
    output = b"".join(api.exec_start(call["Id"], stream=True)).decode(errors="replace").removesuffix("\n")
    code = api.exec_inspect(call["Id"])["ExitCode"]
    if code != 0:
        why = f"took longer than {deadline} s" if code in (124, 137) else f"ended with {code}"
        last = "\n".join(output.split("\n")[-_LAST_LINES:])
        raise VclusterError(f"{container.name}: `{' '.join(argv)}` {why}\n{last}".rstrip())
    return output


def put(container: Container, folder: str, files: Iterable[File]) -> None:
    """Put files into an existing folder of a container, folders between made as needed."""
    # On disk: the wheels of an engine are half a gigabyte.
    with tempfile.TemporaryFile() as spool:
        with tarfile.open(fileobj=spool, mode="w") as archive:
            for file in files:
                _add(archive, file)
        spool.seek(0)
        try:
            container.put_archive(folder, spool)
        except APIError as error:
            raise VclusterError(f"{container.name}: cannot write to {folder}: {error.explanation}") from error


def _add(archive: tarfile.TarFile, file: File) -> None:
    entry = tarfile.TarInfo(file.name)
    entry.mode, entry.uid, entry.gid = file.mode, file.owner, file.owner
    if isinstance(file.content, bytes):
        entry.size = len(file.content)
        archive.addfile(entry, io.BytesIO(file.content))
        return
    entry.size = file.content.stat().st_size
    with file.content.open("rb") as source:
        archive.addfile(entry, source)
