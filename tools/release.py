"""Build what is released, check it, and use it from an empty environment: `make release`.

Writes the wheel and the sdist to dist/; uploads nothing. With --demo the main job runs from the wheel too, which
needs Docker and takes minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

from packaging.metadata import Metadata

from vllm_cluster import __version__

ROOT = Path(__file__).parents[1]
PACKAGES = ("vllm_cluster", "vcluster_sandbox")
# No module imports what runs elsewhere: it is missed only on a host.
IN_THE_WHEEL = ("py.typed", "_docker/Dockerfile", "_docker/cpu/Dockerfile", "_docker/host/Dockerfile")
IN_THE_SDIST = ("CHANGELOG.md", "LICENSE", "Makefile", "README.md", "docker/Dockerfile", "tests/conftest.py")
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
    wanted = files | {f"vllm_cluster/{name}" for name in IN_THE_WHEEL}
    found += [f"the wheel lacks {name}" for name in sorted(wanted - names)]
    ours = (*(f"{package}/" for package in PACKAGES), info)
    found += [f"the wheel holds {name}" for name in sorted(names) if not name.startswith(ours)]
    if str(metadata.version) != __version__ or not metadata.description or metadata.license_expression != "Apache-2.0":
        found.append(f"the wheel's metadata: {metadata.version}, {metadata.license_expression}")
    with tarfile.open(sdist) as source:
        inside = {name.partition("/")[2] for name in source.getnames()}
    return found + [f"the sdist lacks {name}" for name in IN_THE_SDIST if name not in inside]


def use(wheel: Path, folder: Path, *, demo: bool) -> None:
    """Install the wheel in an empty environment, and run what needs no host; with `demo` also the main job."""
    venv.create(folder / "venv", with_pip=True)
    binaries = folder / "venv" / "bin"
    # Elsewhere than in the checkout, whose package would be imported.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pip = [str(binaries / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, *constraints, str(wheel)], check=True, timeout=INSTALL_SECONDS)

    def call(*words: str) -> str:
        argv = [str(binaries / "vcluster"), *words]
        done = subprocess.run(
            argv, cwd=folder, env=environment, check=True, text=True, stdout=subprocess.PIPE, timeout=CALL_SECONDS
        )
        return done.stdout

    if call("--version") != f"vcluster {__version__}\n":
        raise SystemExit(f"the installed program is not {__version__}")
    call("--help")
    json.loads(call("init", "--schema"))
    call("init", "--host", "gpu1=10.0.0.11", "--host", "gpu2=10.0.0.12")
    call("--version", "-i", "inventory.yaml")
    if demo:
        _demo(folder, {**environment, "PATH": f"{binaries}:{environment['PATH']}"})


def _demo(folder: Path, environment: Mapping[str, str]) -> None:
    try:
        argv = [str(ROOT / "scripts" / "demo.sh"), str(folder)]
        subprocess.run(argv, env=environment, check=True, timeout=DEMO_SECONDS)
    finally:
        down = ["vcluster", "sandbox", "down"]
        subprocess.run(down, cwd=folder, env=environment, check=True, timeout=CALL_SECONDS)


def main() -> None:
    """Build into dist/, check, use."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", action="store_true", help="also run the main job from the wheel; needs Docker")
    demo = parser.parse_args().demo
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    sdist, wheel = build(dist)
    if found := problems(sdist, wheel):
        raise SystemExit("\n".join(found))
    with tempfile.TemporaryDirectory() as folder:
        use(wheel, Path(folder), demo=demo)
    print(f"built and tried: {wheel.relative_to(ROOT)}, {sdist.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
