"""The sandbox's names: on the Docker engine, in the volume, in the build files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vllm_cluster.kernel.versions import VLLM

# On everything that a sandbox makes; `down` removes by this label and by nothing else.
LABEL = "io.vcluster.sandbox"
LABEL_HOST = f"{LABEL}.host"
LABEL_RECIPE = f"{LABEL}.recipe"
# One volume for all sandboxes, mounted whole: hard links do not cross mounts.
VOLUME = "vcluster-sandbox"
ROOT = "/sandbox"
CPU_IMAGE = f"vcluster-sandbox/vllm-cpu:{VLLM}"
MODEL = "sandbox/tiny-llama"
USER = "vcluster"


@dataclass(frozen=True)
class Sandbox:
    """The sandbox of one folder; folders do not meet."""

    folder: Path

    @property
    def id(self) -> str:
        """Short name of the folder, the value of our label."""
        return hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:8]

    @property
    def network(self) -> str:
        """The private network of the hosts."""
        return f"vcluster-sandbox-{self.id}"

    @property
    def home(self) -> str:
        """The hosts' folder in the volume."""
        return f"{ROOT}/hosts/{self.id}"

    def container(self, host: str) -> str:
        """The container that is this host."""
        return f"vcluster-sandbox-{self.id}-{host}"

    def data(self, host: str) -> str:
        """The host's own folder in the volume."""
        return f"{self.home}/{host}"


def host_names(count: int) -> list[str]:
    """gpu1, gpu2, …"""
    return [f"gpu{number}" for number in range(1, count + 1)]


def files_below(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every build file with its path inside the folder, in a fixed order; what Python caches is none of them."""
    for file in sorted(folder.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".pyc":
            yield file.relative_to(folder).as_posix(), file


def recipe_key(*parts: Path | str) -> str:
    """A short hash over build files (folders) and words: what was built from the same is the same."""
    content = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            for name, file in files_below(part):
                content.update(f"{name}\0{file.stat().st_mode & 0o111:o}\0".encode() + file.read_bytes() + b"\0")
        else:
            content.update(part.encode() + b"\0")
    return content.hexdigest()[:12]
