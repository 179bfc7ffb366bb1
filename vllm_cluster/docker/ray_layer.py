"""Gives an image without Ray a layer with a pinned one, from wheels that this machine downloads."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vllm_cluster.core.errors import VclusterError
from vllm_cluster.docker.recipes import recipe
from vllm_cluster.laptop import meaning, naming

# The first Ray that authenticates nodes by token was 2.52; below 2.55 it has known holes (CVE-2026-41486).
OLDEST_RAY = (2, 55)
DOWNLOAD_SECONDS = 1800
# What an image says ends in pip's command line and in a file in which a line may be an option.
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")
_VERSION = re.compile(r"([0-9]+(\.[0-9]+)+)?")

# Run in the image. Reads metadata only: importing vllm would take many seconds.
PROBE = """
import importlib.metadata as m, json, platform, sys
have = {d.metadata["Name"]: d.version for d in m.distributions() if d.metadata["Name"]}
print(json.dumps({"python": platform.python_version(), "machine": platform.machine(),
                  "glibc": platform.libc_ver()[1], "have": have}))
"""


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True)
class Inside:
    """What an image holds: Python's version, the processor, glibc's version, and distributions by name."""

    python: str
    machine: str
    glibc: str
    have: tuple[tuple[str, str], ...]

    def version(self, name: str) -> str | None:
        """The version of a distribution, None where the image has it not."""
        return next((version for known, version in self.have if known.lower().replace("_", "-") == name), None)

    @property
    def ray_will_do(self) -> bool:
        """Whether the image brings a Ray that is new enough to be closed by a token."""
        ray = self.version("ray")
        return ray is not None and tuple(int(part) for part in re.findall(r"\d+", ray)[:2]) >= OLDEST_RAY


def parse_probe(output: str) -> Inside:
    """What the probe printed; lines that an image's own start-up adds before it are passed over.

    Raises:
        ValueError: nothing of the probe is in it.
    """
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            said = json.loads(line)
            python, machine, glibc = (str(said.get(key)) for key in ("python", "machine", "glibc"))
            if _WORD.fullmatch(python) and _WORD.fullmatch(machine) and _VERSION.fullmatch(glibc):
                have = said.get("have")
                pairs = (
                    (str(name), str(version)) for name, version in (have if isinstance(have, dict) else {}).items()
                )
                sound = (pair for pair in pairs if all(map(_WORD.fullmatch, pair)))
                return Inside(python, machine, glibc, tuple(sorted(sound)))
    raise ValueError("the probe printed nothing")


def wheels(inside: Inside, ray: str, cache: Path, run: Run = subprocess.run) -> Path:
    """A folder with the wheels of ray[default] and what it needs beyond the image; downloaded once.

    Raises:
        VclusterError: pip could not get them, or the cache folder cannot be used.
    """
    try:
        with naming(cache):
            return _wheels(inside, ray, cache, run)
    except OSError as error:
        found = meaning(error) or VclusterError(f"cannot use {cache}: {error}")
        raise VclusterError(found.message, hint="export XDG_CACHE_HOME=FOLDER, a folder with 500 MB to write") from None


def _wheels(inside: Inside, ray: str, cache: Path, run: Run = subprocess.run) -> Path:
    constraints = "".join(f"{name}=={version}\n" for name, version in inside.have)
    key = hashlib.sha256(f"{inside.python}|{inside.machine}|{inside.glibc}|{constraints}".encode()).hexdigest()[:12]
    folder = cache / "wheels" / f"ray-{ray}-{key}"
    if (folder / "complete").exists():
        return folder
    work = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    (work / "constraints.txt").write_text(constraints, encoding="utf-8")
    # With the image's versions held, so that nothing there changes; without, where Ray needs a newer one.
    problem = _download(inside, ray, work, ["--constraint", str(work / "constraints.txt")], run)
    if problem:
        problem = _download(inside, ray, work, [], run)
    if problem:
        raise VclusterError(
            f"cannot download ray[default]=={ray} for Python {inside.python} on {inside.machine}: {problem}",
            hint="let pip on this machine reach an index, or name an image that has Ray (docker/Dockerfile makes one)",
        )
    _drop_present(inside, work)
    (work / "complete").touch()
    shutil.rmtree(folder, ignore_errors=True)
    work.rename(folder)
    return folder


def _download(inside: Inside, ray: str, folder: Path, extra: list[str], run: Run) -> str:
    """Ask pip; returns what it said when it failed."""
    minor = int(inside.glibc.split(".")[1]) if inside.glibc.startswith("2.") else 17
    platforms = [f"manylinux_2_{version}_{inside.machine}" for version in range(minor, 4, -1)]
    platforms += [f"manylinux2014_{inside.machine}", f"linux_{inside.machine}"]
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
    argv += [
        "--dest",
        str(folder),
        "--implementation",
        "cp",
        "--python-version",
        ".".join(inside.python.split(".")[:2]),
    ]
    argv += [word for platform in platforms for word in ("--platform", platform)]
    argv += [*extra, f"ray[default]=={ray}"]
    try:
        done = run(argv, capture_output=True, text=True, check=False, timeout=DOWNLOAD_SECONDS)
    except subprocess.TimeoutExpired:
        return f"pip did not end within {DOWNLOAD_SECONDS} s"
    errors = [line for line in done.stderr.splitlines() if line.strip()]
    return "" if done.returncode == 0 else "; ".join(errors[-3:]) or f"pip ended with {done.returncode}"


def _drop_present(inside: Inside, folder: Path) -> None:
    """What the image has in the same version need not travel."""
    present = {(name.lower().replace("-", "_").replace(".", "_"), version) for name, version in inside.have}
    for wheel in folder.glob("*.whl"):
        name, version = wheel.name.split("-")[:2]
        if (name.lower().replace(".", "_"), version) in present:
            wheel.unlink()


def context(folder: Path) -> bytes:
    """The build context: the recipe and the wheels, as a tar archive."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(recipe("Dockerfile"), "Dockerfile")
        tar.add(folder, "wheels", filter=lambda entry: entry if entry.isdir() or entry.name.endswith(".whl") else None)
    return archive.getvalue()
