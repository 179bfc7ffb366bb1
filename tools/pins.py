"""Renews the pins of Ray's wheels, for each Python and processor that an image may have: `python -m tools.pins`.

Pip resolves `ray[default]` for each, with the configuration of whoever runs it; what is kept are versions and hashes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from vllm_cluster.kernel.images import wheels
from vllm_cluster.kernel.versions import RAY

PYTHONS, MACHINES = ("3.10", "3.11", "3.12", "3.13"), ("x86_64", "aarch64")
ROOT = f"ray[default]=={RAY}"
# The last ones that take protobuf 5.29 to 7, as images have it; newer ones would change the protobuf of an image.
OLDER = ("google-api-core<2.34", "proto-plus<1.28.3", "googleapis-common-protos<1.75.1")
SECONDS = 600
# The first release of what is coupled to the SDK that fits one that Ray takes (1.30).
FIRST = 30 + wheels.APART
Found = dict[str, dict[str, Any]]


def resolved(python: str, machine: str, wanted: Iterable[str], *more: str) -> Found:
    """What pip would install there, by name."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        argv = ["-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", str(report)]
        argv += ["--target", folder, *wheels.for_image(python, machine, wheels.PINNED_GLIBC), *more, *wanted]
        subprocess.run([sys.executable, *argv], check=True, timeout=SECONDS)
        entries = json.loads(report.read_text())["install"]
    return {canonicalize_name(entry["metadata"]["name"]): entry for entry in entries}


def needed(found: Found, environment: Mapping[str, str]) -> dict[str, set[str]]:
    """What Ray needs there, with what is required of each: pip judges markers by the Python that runs it."""
    wanted: dict[str, set[str]] = {}
    waiting = [Requirement(ROOT)]
    seen: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        wanted.setdefault(name, set()).add(str(requirement.specifier))
        if str(requirement) in seen or name not in found:
            continue
        seen.add(str(requirement))
        for line in found[name]["metadata"].get("requires_dist", []):
            below = Requirement(line)
            marker, extras = below.marker, requirement.extras or {""}
            if marker is None or any(marker.evaluate({**environment, "extra": extra}) for extra in extras):
                below.marker = None
                waiting.append(below)
    return wanted


def pins(python: str, machine: str) -> list[str]:
    """The lines for an image with this Python and processor."""
    environment = {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine}
    environment |= {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    more = [*OLDER]
    while True:
        found = resolved(python, machine, [ROOT, *more])
        wanted = needed(found, environment)
        lacking = [f"{name}{','.join(sorted(filter(None, wanted[name])))}" for name in wanted if name not in found]
        if not lacking:
            break
        more += lacking
    newest = int(found[wheels.COUPLED]["metadata"]["version"].split(".")[1].partition("b")[0])
    return sorted([*(line(found[name]) for name in wanted), *map(coupled, range(FIRST, newest))])


@cache
def coupled(minor: int) -> str:
    """The line of the last wheel of a release of what is coupled to the SDK: one for every Python and processor."""
    release = f"{wheels.COUPLED}>=0.{minor}b0,<0.{minor + 1}b0"
    (entry,) = resolved(PYTHONS[0], MACHINES[0], [release], "--no-deps", "--pre").values()
    return line(entry)


def line(entry: Mapping[str, Any]) -> str:
    """Name, version and hash of one wheel."""
    name, version = canonicalize_name(entry["metadata"]["name"]), entry["metadata"]["version"]
    return f"{name}=={version} --hash=sha256:{entry['download_info']['archive_info']['hashes']['sha256']}"


def main() -> None:
    """Write the file of each."""
    for python in PYTHONS:
        for machine in MACHINES:
            path = wheels.pins_file(python, machine)
            path.write_text("".join(f"{one}\n" for one in pins(python, machine)), encoding="utf-8")
            print(path)


if __name__ == "__main__":
    main()
