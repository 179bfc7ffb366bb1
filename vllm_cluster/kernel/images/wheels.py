"""Gives an image without Ray a layer with it, from wheels that this machine downloads by pinned hashes."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from vllm_cluster.kernel.docker.tar_stream import TarStream
from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.images.contents import ImageContents
from vllm_cluster.kernel.images.recipes import recipe
from vllm_cluster.kernel.laptop import make_private, meaning, naming, own_python
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.transport.ssh_config import Run

DOWNLOAD_SECONDS = 1800
# The newest glibc that a pinned wheel may need; every image with a vLLM of today has a newer one.
PINNED_GLIBC = 28
# Of all of them: those of Ray and what it needs are 100 MB.
MAX_WHEELS = 1 << 30
# Each release of it needs the SDK of its day (0.66b2 needs 1.45), which images have: the pins have one for each.
COUPLED, SDK, APART = "opentelemetry-exporter-prometheus", "opentelemetry-sdk", 21
_INDEX = """export PIP_INDEX_URL=URL, an index that has them: the hashes stay as pinned
export PIP_CONFIG_FILE=FILE, where this machine's pip needs its configuration: none is read unless named
name an image that has Ray (docker/Dockerfile makes one)"""


def wheels(inside: ImageContents, requirement: str, cache: Path, run: Run = subprocess.run) -> Path:
    """A folder with the wheels of what is required, Ray with its extras, and what it needs beyond the image.

    Raises:
        VclusterError: none are pinned for this image, pip could not get them, or the cache folder cannot be used.
    """
    pins = _pins(inside, _version(requirement))
    try:
        with naming(cache):
            return _wheels(inside, pins, cache.absolute(), run)
    except OSError as error:
        found = meaning(error) or VclusterError(f"cannot use {cache}: {error}")
        raise VclusterError(found.message, hint="export XDG_CACHE_HOME=FOLDER, a folder with 500 MB to write") from None


def pins_file(python: str, machine: str) -> Path:
    """Where the versions and hashes for such an image are: `make pins` writes it."""
    major, minor = python.split(".")[:2]
    return Path(__file__).parent / "pins" / f"cp{major}{minor}-{machine}.txt"


def for_image(python: str, machine: str, glibc: int) -> list[str]:
    """Pip's options for another Python and platform than this machine's."""
    platforms = [f"manylinux_2_{version}_{machine}" for version in range(glibc, 4, -1)]
    platforms += [f"manylinux2014_{machine}", f"linux_{machine}"]
    argv = ["--only-binary=:all:", "--implementation", "cp", "--python-version", ".".join(python.split(".")[:2])]
    return [*argv, *(word for platform in platforms for word in ("--platform", platform))]


def _pins(inside: ImageContents, ray: str) -> str:
    """The lines of what this image lacks: what it has in the same version need not travel."""
    place = f"Python {inside.python} on {inside.machine}"
    path = pins_file(inside.python, inside.machine)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    pinned = next((line.split()[0] for line in lines if line.startswith("ray==")), "")
    hint = "name an image that has Ray (docker/Dockerfile makes one)"
    if not lines:
        raise VclusterError(f"no wheels of Ray are pinned for {place}", hint=hint)
    if ray not in (_version(pinned), inside.version("ray")):
        hint = f"ray: {_version(pinned)} in the inventory, or {hint}"
        raise VclusterError(f"ray=={ray} is not pinned for {place}: {pinned} is", hint=hint)
    have = {name.lower().replace("_", "-").replace(".", "-"): version for name, version in inside.have}
    named = [(*line.split()[0].split("=="), line) for line in lines if not line.startswith("ray==") or ray in line]
    fitting = [line for name, version, line in named if name == COUPLED and _fits(version, have.get(SDK, ""))]
    newest = max((line for name, _, line in named if name == COUPLED), default="")
    coupled = fitting[0] if fitting else newest
    kept = (line for name, version, line in named if have.get(name) != version and (name != COUPLED or line == coupled))
    return "".join(f"{line}\n" for line in kept)


def _fits(exporter: str, sdk: str) -> bool:
    """Whether a release of Prometheus' exporter is for this SDK, by their minor numbers."""
    release, of_sdk = (re.match(r"\d{1,9}\.(\d{1,9})", text) for text in (exporter, sdk))
    return release is not None and of_sdk is not None and int(release[1]) == int(of_sdk[1]) + APART


def _wheels(inside: ImageContents, pins: str, cache: Path, run: Run) -> Path:
    constraints = "".join(f"{name}=={version}\n" for name, version in inside.have)
    key = hashlib.sha256(f"{inside.glibc}|{pins}|{constraints}".encode()).hexdigest()[:12]
    folder = cache / "wheels" / f"cp{inside.python}-{inside.machine}-{key}"
    if (folder / "complete").exists():
        return folder
    work = folder.with_name(f"{folder.name}.{os.getpid()}")
    _remove(work)
    make_private(work)
    # Docker's build holds the image's versions by it, so that nothing there changes.
    (work / "constraints.txt").write_text(constraints, encoding="utf-8")
    (work / "pins.txt").write_text(pins, encoding="utf-8")
    if problem := _download(inside, work, run):
        text = f"cannot download the wheels of Ray for Python {inside.python} on {inside.machine}: {problem}"
        raise VclusterError(text, hint=_INDEX)
    (work / "complete").touch()
    _remove(folder)
    work.rename(folder)
    return folder


def _remove(path: Path) -> None:
    """Remove a folder, or what is in its place: rmtree would wait for a named pipe."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _download(inside: ImageContents, folder: Path, run: Run) -> str:
    """Run pip; returns its output when it failed."""
    minor = int(inside.glibc.split(".")[1]) if inside.glibc.startswith("2.") else 17
    argv = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", "--require-hashes"]
    argv += ["--no-deps", *for_image(inside.python, inside.machine, minor), "--dest", str(folder)]
    argv += ["--requirement", str(folder / "pins.txt")]
    # What pip would read of this machine by itself; its variables are named by a person.
    settings = {"PIP_CONFIG_FILE": os.environ.get("PIP_CONFIG_FILE", os.devnull)}
    try:
        done = own_python(run, argv, settings, capture_output=True, check=False, timeout=DOWNLOAD_SECONDS)
    except subprocess.TimeoutExpired:
        return f"pip did not end within {DOWNLOAD_SECONDS} s"
    errors = [line for line in done.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    return "" if done.returncode == 0 else "; ".join(errors[-3:]) or f"pip ended with {done.returncode}"


def arguments(base: str, requirement: str) -> dict[str, str]:
    """The build's arguments."""
    return {"BASE": base, "RAY": _version(requirement)}


def _version(requirement: str) -> str:
    return requirement.partition("==")[2]


def context(folder: Path) -> TarStream:
    """The build context: the recipe and the wheels with the image's versions, as a tar archive.

    Raises:
        VclusterError: what is in the folder is not what pip writes there.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.name.endswith((".whl", "constraints.txt")))
        made = TarStream.of({"Dockerfile": recipe("Dockerfile"), **{f"wheels/{path.name}": path for path in paths}})
    except OSError as error:
        raise VclusterError(f"cannot use the wheels in {folder}: {error}", hint=_remove_by_hand(folder)) from None
    if made.size > MAX_WHEELS:
        text = f"the wheels in {folder} have {made.size} bytes: at most {MAX_WHEELS} are sent"
        raise VclusterError(text, hint=_remove_by_hand(folder))
    return made


def _remove_by_hand(folder: Path) -> str:
    return command_line("rm", Option("-r"), str(folder))
