"""Gives an image without Ray a layer with a pinned one, from wheels that this machine downloads."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

from vllm_cluster.errors import VclusterError
from vllm_cluster.images.contents import ImageContents
from vllm_cluster.images.recipes import recipe
from vllm_cluster.laptop import meaning, naming, own_python

DOWNLOAD_SECONDS = 1800
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def wheels(inside: ImageContents, requirement: str, cache: Path, run: Run = subprocess.run) -> Path:
    """A folder with the wheels of what is required, Ray with its extras, and what it needs beyond the image.

    Raises:
        VclusterError: pip could not get them, or the cache folder cannot be used.
    """
    try:
        with naming(cache):
            return _wheels(inside, _version(requirement), cache.absolute(), run)
    except OSError as error:
        found = meaning(error) or VclusterError(f"cannot use {cache}: {error}")
        raise VclusterError(found.message, hint="export XDG_CACHE_HOME=FOLDER, a folder with 500 MB to write") from None


def _wheels(inside: ImageContents, ray: str, cache: Path, run: Run = subprocess.run) -> Path:
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


def _download(inside: ImageContents, ray: str, folder: Path, extra: list[str], run: Run) -> str:
    """Run pip; returns its output when it failed."""
    minor = int(inside.glibc.split(".")[1]) if inside.glibc.startswith("2.") else 17
    platforms = [f"manylinux_2_{version}_{inside.machine}" for version in range(minor, 4, -1)]
    platforms += [f"manylinux2014_{inside.machine}", f"linux_{inside.machine}"]
    argv = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
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
        done = own_python(run, argv, capture_output=True, text=True, check=False, timeout=DOWNLOAD_SECONDS)
    except subprocess.TimeoutExpired:
        return f"pip did not end within {DOWNLOAD_SECONDS} s"
    errors = [line for line in done.stderr.splitlines() if line.strip()]
    return "" if done.returncode == 0 else "; ".join(errors[-3:]) or f"pip ended with {done.returncode}"


def _drop_present(inside: ImageContents, folder: Path) -> None:
    """What the image has in the same version need not travel."""
    present = {(name.lower().replace("-", "_").replace(".", "_"), version) for name, version in inside.have}
    for wheel in folder.glob("*.whl"):
        name, version = wheel.name.split("-")[:2]
        if (name.lower().replace(".", "_"), version) in present:
            wheel.unlink()


def arguments(base: str, requirement: str) -> dict[str, str]:
    """The build's arguments."""
    return {"BASE": base, "RAY": _version(requirement)}


def _version(requirement: str) -> str:
    return requirement.partition("==")[2]


def context(folder: Path) -> bytes:
    """The build context: the recipe and the wheels, as a tar archive."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(recipe("Dockerfile"), "Dockerfile")
        tar.add(folder, "wheels", filter=lambda entry: entry if entry.isdir() or entry.name.endswith(".whl") else None)
    return archive.getvalue()
