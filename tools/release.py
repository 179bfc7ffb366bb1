"""Build what is released, check it, and install it as its users do: `make release`.

Writes to dist/ the wheel, the sdist, the list of what the wheel needs (SBOM, CycloneDX) and SHA256SUMS; uploads
nothing. With --demo the main job runs from the wheel too, which needs Docker and takes minutes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from packaging.metadata import Metadata

from vllm_cluster import __version__

ROOT = Path(__file__).parents[1]
PACKAGES = ("vllm_cluster", "vcluster_sandbox")
# No module imports what runs elsewhere: it is missed only on a host.
IN_THE_WHEEL = ("py.typed", "_docker/Dockerfile", "_docker/cpu/Dockerfile", "_docker/host/Dockerfile")
IN_THE_SDIST = ("CHANGELOG.md", "LICENSE", "Makefile", "README.md", "docker/Dockerfile", "conftest.py")
NAMES = ("vcluster", "vllm-cluster")
BUILD_SECONDS, INSTALL_SECONDS, CALL_SECONDS, DEMO_SECONDS = 300, 600, 120, 1500


def build(folder: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it."""
    argv = ["build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run([sys.executable, "-m", *argv], check=True, timeout=BUILD_SECONDS, stdout=subprocess.DEVNULL)
    return folder / f"vllm_cluster-{__version__}.tar.gz", folder / f"vllm_cluster-{__version__}-py3-none-any.whl"


def problems(sdist: Path, wheel: Path) -> list[str]:
    """What is missing in them, what should not be there, and metadata that an index would refuse."""
    found = []
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = f"vllm_cluster-{__version__}.dist-info"
        metadata = Metadata.from_email(archive.read(f"{info}/METADATA"), validate=True)
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*"))
    files = {path.relative_to(ROOT).as_posix() for path in paths if path.is_file() and path.suffix != ".pyc"}
    files = {name for name in files if "/tests/" not in name}
    wanted = files | {f"vllm_cluster/{name}" for name in IN_THE_WHEEL}
    found += [f"the wheel lacks {name}" for name in sorted(wanted - names)]
    own = (*(f"{package}/" for package in PACKAGES), info)
    others = {name for name in names if not name.startswith(own) or "/tests/" in name}
    found += [f"the wheel holds {name}" for name in sorted(others)]
    if str(metadata.version) != __version__ or not metadata.description or metadata.license_expression != "Apache-2.0":
        found.append(f"the wheel's metadata: {metadata.version}, {metadata.license_expression}")
    with tarfile.open(sdist) as source:
        inside = {name.partition("/")[2] for name in source.getnames()}
    return found + [f"the sdist lacks {name}" for name in IN_THE_SDIST if name not in inside]


def judge(files: Iterable[Path]) -> None:
    """Check the metadata and the long description by twine, as an index does; a warning fails too."""
    argv = [sys.executable, "-m", "twine", "check", "--strict", *map(str, files)]
    subprocess.run(argv, check=True, timeout=CALL_SECONDS, stdout=subprocess.DEVNULL)


def use(wheel: Path, folder: Path, *, demo: bool) -> Path:
    """Install the wheel in an empty environment, and run what needs no host; with `demo` also the main job.

    Returns the environment's Python.
    """
    # Without a pip of its own: what is there afterwards is what the wheel needs.
    venv.create(folder / "venv", with_pip=False)
    binaries = folder / "venv" / "bin"
    # Elsewhere than in the checkout, whose package would be imported.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pip = [sys.executable, "-m", "pip", "--python", str(binaries / "python"), "install", "--quiet"]
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, *constraints, str(wheel)], check=True, timeout=INSTALL_SECONDS)

    def call(*words: str) -> str:
        return _run(str(binaries / "vcluster"), *words, cwd=folder, env=environment)

    if call("--version") != f"vcluster {__version__}\n":
        raise SystemExit(f"the installed program is not {__version__}")
    call("--help")
    json.loads(call("init", "--schema"))
    call("init", "--host", "gpu1=10.0.0.11", "--host", "gpu2=10.0.0.12")
    call("--version", "-i", "inventory.yaml")
    if demo:
        _demo(folder, {**environment, "PATH": f"{binaries}:{environment['PATH']}"})
    return binaries / "python"


def install_each_way(wheel: Path, folder: Path, tools: Path) -> None:
    """Install the wheel by `uv tool`, `uvx` and `pipx`, which are in `tools`, into a home that has nothing else.

    Raises:
        SystemExit: a program is not there then, or does not call itself by the name that it was called by.
    """
    programs = folder / "bin"
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    given = {
        "HOME": folder,
        "UV_TOOL_DIR": folder / "uv",
        "UV_TOOL_BIN_DIR": programs,
        "UV_CACHE_DIR": folder / "cache",
    }
    given |= {"PIPX_HOME": folder / "pipx", "PIPX_BIN_DIR": programs}
    environment = {**inherited, **{name: str(path) for name, path in given.items()}}

    def call(*words: str | Path) -> str:
        return _run(*map(str, words), cwd=folder, env=environment)

    def ensure_usage(printed: str, name: str) -> None:
        if not printed.startswith(f"Usage: {name} VERB"):
            raise SystemExit(f"{name} --help begins with {printed.partition(chr(10))[0]!r}")

    ensure_usage(call(tools / "uvx", "--from", wheel, "vllm-cluster", "--help"), "vllm-cluster")
    ways: tuple[tuple[list[str | Path], list[str | Path]], ...] = (
        ([tools / "uv", "tool", "install", wheel], [tools / "uv", "tool", "uninstall", "vllm-cluster"]),
        ([tools / "pipx", "install", wheel], [tools / "pipx", "uninstall", "vllm-cluster"]),
    )
    for install, remove in ways:
        call(*install)
        for name in NAMES:
            ensure_usage(call(programs / name, "--help"), name)
        call(*remove)
        if left := [name for name in NAMES if (programs / name).exists()]:
            raise SystemExit(f"{remove[0]} left {', '.join(left)}")


def describe(python: Path, wheel: Path) -> Path:
    """Write the list of what the wheel needs, with the versions that were tried, beside it; returns the file."""
    sbom = wheel.with_name(f"vllm_cluster-{__version__}.cdx.json")
    argv = ["cyclonedx_py", "environment", "--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible"]
    _run(sys.executable, "-m", *argv, "--of", "JSON", "-o", str(sbom), str(python), cwd=ROOT, env=os.environ)
    found: dict[str, Any] = json.loads(sbom.read_text())
    # pyproject.toml has no version: it is in the package.
    root = found["metadata"]["component"]
    digest = {"alg": "SHA-256", "content": _digest(wheel)}
    root |= {"version": __version__, "purl": f"pkg:pypi/vllm-cluster@{__version__}", "hashes": [digest]}
    sbom.write_text(json.dumps(found, indent=1) + "\n")
    return sbom


def write_sums(files: Iterable[Path], folder: Path) -> Path:
    """Write what `sha256sum --check SHA256SUMS` reads; returns the file."""
    sums = folder / "SHA256SUMS"
    sums.write_text("".join(f"{_digest(file)}  {file.name}\n" for file in sorted(files)))
    return sums


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _run(*argv: str, cwd: Path, env: Mapping[str, str]) -> str:
    done = subprocess.run(
        argv, cwd=cwd, env=env, check=True, text=True, stdout=subprocess.PIPE, timeout=INSTALL_SECONDS
    )
    return done.stdout


def _demo(folder: Path, environment: Mapping[str, str]) -> None:
    try:
        argv = [str(ROOT / "scripts" / "demo.sh"), str(folder)]
        subprocess.run(argv, env=environment, check=True, timeout=DEMO_SECONDS)
    finally:
        down = ["vcluster", "sandbox", "down"]
        subprocess.run(down, cwd=folder, env=environment, check=True, timeout=CALL_SECONDS)


def main() -> None:
    """Build into dist/, check, use, describe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", action="store_true", help="also run the main job from the wheel; needs Docker")
    demo = parser.parse_args().demo
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    sdist, wheel = build(dist)
    if found := problems(sdist, wheel):
        raise SystemExit("\n".join(found))
    judge((sdist, wheel))
    with tempfile.TemporaryDirectory() as folder:
        sbom = describe(use(wheel, Path(folder), demo=demo), wheel)
    with tempfile.TemporaryDirectory() as folder:
        install_each_way(wheel, Path(folder), Path(sys.executable).parent)
    sums = write_sums((sdist, wheel, sbom), dist)
    print(f"built and tried: {', '.join(str(file.relative_to(ROOT)) for file in (wheel, sdist, sbom, sums))}")


if __name__ == "__main__":
    main()
