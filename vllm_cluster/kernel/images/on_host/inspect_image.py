"""Reports what an image holds and what a container of it can reach, as one line of JSON; nothing large is imported.

Arguments: a folder that must be writable, and the names of vLLM's options that must be there.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
from pathlib import Path


def lacking() -> list[str]:
    """What ray[default] needs of other packages, and is not there."""
    found = set()
    for line in importlib.metadata.requires("ray") or ():
        name, _, marker = line.partition(";")
        # Those for some versions of Python alone are left to pip.
        if re.fullmatch(r"""\s*extra\s*==\s*["']default["']\s*""", marker):
            found.add(re.split(r"[^\w.-]", name.strip())[0])
    return sorted(name for name in found if not installed(name))


def installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _unknown(options: list[str]) -> list[str]:
    """The options that the source of vLLM's command line does not hold."""
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        return []
    home = Path(next(iter(found.submodule_search_locations)))
    files = [home / "engine" / "arg_utils.py", *home.glob("entrypoints/**/*.py")]
    text = "\n".join(path.read_text("utf-8", "replace") for path in files if path.is_file())
    field = r"--{}\b|^\s+{}\s*:"
    return [name for name in options if not re.search(field.format(name, name.replace("-", "_")), text, re.MULTILINE)]


def cuda() -> str:
    """The CUDA that torch was built for, empty where it was built for none."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        return ""
    path = Path(next(iter(found.submodule_search_locations))) / "version.py"
    stated = re.search(r"^cuda\b.*=\s*'([\d.]+)'", path.read_text() if path.is_file() else "", re.MULTILINE)
    return stated[1] if stated else ""


def _gpus() -> dict[str, object]:
    """How many GPUs the driver's own library shows here, or why it shows none; it makes no context on them."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"gpus": None, "problem": str(error)}
    code = driver.cuInit(0)
    if code:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(code, ctypes.byref(text))
        return {"gpus": 0, "problem": f"cuInit: {code}, {(text.value or b'').decode()}"}
    count, version = ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    driver.cuDriverGetVersion(ctypes.byref(version))
    return {"gpus": count.value, "driver": f"{version.value // 1000}.{version.value % 1000 // 10}"}


def unwritable(folder: str) -> str:
    """Why nothing can be written to a folder, empty where it can."""
    path = Path(folder) / f".vcluster-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        path.touch()
        path.unlink()
    except OSError as error:
        return f"{error.strerror} (as user {os.getuid()}:{os.getgid()})"
    return ""


def main(folder: str, options: list[str]) -> None:
    have = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions() if d.metadata["Name"]}
    found: dict[str, object] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "glibc": platform.libc_ver()[1],
        "have": have,
        "lacking": lacking() if installed("ray") else [],
        "unknown": _unknown(options),
        "cuda": cuda(),
    }
    print(json.dumps({**found, **_gpus(), "unwritable": unwritable(folder)} if folder else found))


if __name__ == "__main__":
    main((sys.argv[1:2] or [""])[0], sys.argv[2:])
