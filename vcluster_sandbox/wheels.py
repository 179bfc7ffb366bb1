"""The CPU engine's wheels, downloaded by the user's own pip: it knows the index, the mirrors and the certificates."""

from __future__ import annotations

import re
import subprocess
from collections import deque
from pathlib import Path

from vcluster_sandbox.local_docker import Report
from vcluster_sandbox.names import recipe_key
from vcluster_sandbox.progress import DOWNLOADING
from vllm_cluster.kernel import laptop
from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.images.recipes import recipe
from vllm_cluster.kernel.laptop import own_python

# The Python and the glibc of the image (Debian 12), not those of this machine.
_PYTHON = "3.11"
_GLIBC_MINOR = 36
_MIN_MINOR = 5
_DOWNLOAD_S = 3600
# What pip prints of a file that takes a while: "Downloading transformers-5.19.0-py3-none-any.whl (12.6 MB)".
_LARGE = re.compile(r"Downloading (?P<name>[^-]+)-\S+ \((?P<megabytes>\d{2,}\.\d) MB\)")


def cache_folder() -> Path:
    """Where what was downloaded is kept; removing it costs only time.

    Raises:
        UsageError: as that of the whole program.
    """
    return laptop.cache_folder() / "sandbox"


def platform_tags() -> list[str]:
    """Every platform tag that the image can run; pip takes one for exactly itself, not for the older ones too."""
    modern = [f"manylinux_2_{minor}_x86_64" for minor in range(_GLIBC_MINOR, _MIN_MINOR - 1, -1)]
    return [*modern, "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]


def ensure_wheels(report: Report) -> Path:
    """A folder that holds exactly the wheels of requirements.txt."""
    requirements = recipe("cpu") / "requirements.txt"
    target = cache_folder() / "wheels" / recipe_key(requirements.read_text(encoding="utf-8"))
    if target.is_dir():
        return target
    # pip keeps what the folder has, so a download that was cut short continues where it was.
    partial = target.with_suffix(".part")
    laptop.make_private(partial)
    report(DOWNLOADING)
    _download(requirements, partial, report)
    partial.rename(target)
    return target


def _download(requirements: Path, folder: Path, report: Report) -> None:
    command = [
        *["-m", "pip", "download", "--no-input", "--disable-pip-version-check", "--progress-bar=off"],
        *["--no-deps", "--only-binary=:all:", "--implementation=cp", f"--python-version={_PYTHON}"],
        *[f"--platform={tag}" for tag in platform_tags()],
        *["--dest", str(folder.absolute()), "--requirement", str(requirements)],
    ]
    last: deque[str] = deque(maxlen=12)
    with own_python(subprocess.Popen, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        for line in pip.stdout or ():
            words = line.strip()
            last.append(words)
            if large := _LARGE.match(words):
                report(f"  {large['name']} ({large['megabytes']} MB)")
        code = pip.wait(_DOWNLOAD_S)
    if code != 0:
        raise _failed("\n".join(last))


def _failed(output: str) -> VclusterError:
    if "No matching distribution found for torch==" in output:
        return VclusterError(
            "pip finds no CPU build of PyTorch for the sandbox's engine",
            hint="Set PIP_EXTRA_INDEX_URL=INDEX or PIP_FIND_LINKS=FOLDER to where PyTorch's CPU builds are.",
        )
    return VclusterError(
        f"pip could not download the CPU engine's wheels\n{output}",
        hint="Check which index pip takes (pip config list) and run it again: it continues where it stopped.",
    )
