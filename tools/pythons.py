"""The unit lane on every Python that we claim and this machine has: `make test-pythons`.

Looks on PATH, in the folders of pyenv and uv; installs none. Each gets an environment below .cache/pythons.
What runs elsewhere is imported at its floor: node programs by Python 3.10, the link test by 3.8.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.support.lanes import everywhere

ROOT = Path(__file__).parents[1]
LANE = ["-q", "-p", "no:cacheprovider", "-m", "not (deep or alone or slow)", *everywhere("unit")]
INSTALL_SECONDS, LANE_SECONDS = 900, 1800
# What some of them need, and images have.
OF_IMAGES = (
    "aiohttp",
    "httptools",
    "huggingface_hub",
)
_IMPORT = """import importlib, sys
for name in sys.argv[2:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        if getattr(error, "name", None) not in sys.argv[1].split(","):
            sys.exit(f"{name}: {type(error).__name__}: {error}")"""


def claimed() -> list[str]:
    """The versions that the package's classifiers name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))


def floors() -> dict[str, list[Path]]:
    """Files that run on an older Python than the package, by that version, as ruff gets them; the oldest floor wins."""
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["per-file-target-version"]
    found: dict[Path, str] = {}
    for pattern, target in sorted(targets.items(), key=lambda item: int(item[1][3:]), reverse=True):
        found |= dict.fromkeys(ROOT.glob(pattern), f"3.{target[3:]}")
    return {version: sorted(path for path in found if found[path] == version) for version in set(found.values())}


def interpreter(version: str) -> str | None:
    """A Python of this version that runs; a version manager's shim on PATH may not."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places = [shutil.which(f"python{version}"), *sorted(map(str, pyenv.glob(f"{version}.*/bin/python{version}")))]
    places += sorted(
        map(str, (Path.home() / ".local/share/uv/python").glob(f"cpython-{version}.*/bin/python{version}"))
    )
    return next((place for place in places if place and _runs(place)), None)


def _runs(python: str) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def compiled(python: str, paths: list[Path]) -> str:
    """What is wrong with these files for that Python; empty where nothing is."""
    script = "import sys\nfor path in sys.argv[1:]: compile(open(path, encoding='utf-8').read(), path, 'exec')"
    done = subprocess.run([python, "-c", script, *map(str, paths)], capture_output=True, text=True, check=False)
    return done.stderr.strip()


def imported(python: str, paths: list[Path]) -> str:
    """What is wrong with these files for that Python once they run: each is imported, and with it what it compiles."""
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths if path.stem != "__init__"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [python, "-c", _IMPORT, ",".join(OF_IMAGES), *names]
    done = subprocess.run(argv, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stderr.strip()


def lane(version: str, python: str) -> str:
    """Run the unit lane; the last that it printed."""
    folder = ROOT / ".cache" / "pythons" / version
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    inner = str(folder / "bin" / "python")
    pip = [inner, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", "constraints.txt"]
    subprocess.run([*pip, "--editable", ".[dev]"], check=True, cwd=ROOT, timeout=INSTALL_SECONDS)
    environment = {**os.environ, "VCLUSTER_DEPTH": "fast"}
    environment.pop("PYTHONPATH", None)
    argv = [inner, "-m", "pytest", *LANE]
    with (folder / "lane.log").open("w+") as log:
        done = subprocess.run(
            argv, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False, timeout=LANE_SECONDS
        )
        log.seek(0)
        last = log.read().strip().splitlines()[-1:]
    return f"{'passed' if done.returncode == 0 else 'FAILED'}: {''.join(last)} ({log.name})"


def report(wanted: list[str]) -> Iterator[tuple[bool, str]]:
    """Whether each is well, and a line about it."""
    for version, paths in sorted(floors().items()):
        python = interpreter(version)
        problem = compiled(python, paths) or imported(python, paths) if python else ""
        well = f"{len(paths)} files compile and can be imported" if python else "not on this machine, not tried"
        how = problem or well
        yield not problem, f"floor {version}: {how}"
    for version in wanted:
        began, python = time.monotonic(), interpreter(version)
        if python is None:
            yield True, f"{version}: not on this machine, not tried"
            continue
        result = lane(version, python)
        yield (
            result.startswith("passed"),
            f"{version}: {result}, {time.monotonic() - began:.0f} s with its installation",
        )


def main() -> int:
    """Every version, or those of the command line; 1 where one failed."""
    good = True
    for well, line in report(sys.argv[1:] or claimed()):
        print(line, flush=True)
        good &= well
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
