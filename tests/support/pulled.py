"""What a pull has brought to the sandbox's hosts, and how far it is."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

from tests.support.hosts import Sandbox
from tests.support.models.repositories import PullHub
from tests.support.pulls import model_files

MODEL = "lab/pulled"
ROOT = "/models/hub/models--lab--pulled"
FILES = model_files(12 << 20)
SIZE = sum(map(len, FILES.values()))
HOSTS = ("gpu1", "gpu2")
CONTAINER = "vcluster-sandbox-pull"


def contents(sandbox: Sandbox, host: str, commit: str) -> dict[str, str]:
    """The sha256 of what vLLM reads on a host, by name; a link that leads nowhere fails."""
    return folder_contents(sandbox, host, f"{ROOT}/snapshots/{commit}")


def folder_contents(sandbox: Sandbox, host: str, path: str) -> dict[str, str]:
    """The sha256 of the files of a folder, but for hidden ones."""
    printed = sandbox.on(host, "sh", "-c", f"cd {path} && sha256sum *", root=True)
    return {name: digest for digest, name in (line.split() for line in printed.splitlines())}


def expected(sandbox: Sandbox, hub: PullHub) -> bool:
    """Whether both hosts have what the hub has at main, and nothing of the pull is left."""
    commit = hub.repositories[MODEL].refs["main"]
    files = {name: hash_of(content) for name, content in hub.repositories[MODEL].files[commit].items()}
    for host in HOSTS:
        assert contents(sandbox, host, commit) == files
        assert sandbox.on(host, "cat", f"{ROOT}/refs/main", root=True) == commit
        assert sandbox.docker(host, "ps", "-aq", "--filter", f"name={CONTAINER}") == ""
        assert sandbox.on(host, "find", ROOT, "-name", "*vcluster-partial", root=True) == ""
    return True


def hash_of(content: bytes) -> str:
    """The sha256 of a file."""
    return hashlib.sha256(content).hexdigest()


def status(sandbox: Sandbox, host: str) -> dict[str, object]:
    """How far a host's part is."""
    try:
        printed = sandbox.docker(host, "exec", CONTAINER, "cat", "/tmp/vcluster-status.json")
    except AssertionError:
        return {}
    found: dict[str, object] = json.loads(printed)
    return found


def has(sandbox: Sandbox, host: str, size: int) -> bool:
    """Whether a host has so many bytes."""
    there = status(sandbox, host).get("bytes", 0)
    return isinstance(there, int) and there >= size


def tiny_model(sandbox: Sandbox) -> dict[str, bytes]:
    """The files of the model that the sandbox has."""
    tiny = "/models/hub/models--sandbox--tiny-llama/snapshots"
    archive = sandbox.on("gpu1", "sh", "-c", f"tar -C {tiny}/* -chf - . | base64 -w0", root=True)
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(archive))) as there:
        members = [(one.name.removeprefix("./"), there.extractfile(one)) for one in there if one.isfile()]
        return {name: stream.read() for name, stream in members if stream}


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """A folder with these files."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
