"""Code that vLLM compiled on this host, kept by image in the state volume; that of images long gone is removed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

FOLDER = "compiled"
# The image that runs, and the one before it, to which a user may go back.
KEPT = 2


def keep_compiled(state: Path, current: str) -> None:
    """Use the folder of the current image, and remove those of all images but the one used before it."""
    folder = state / FOLDER
    try:
        (folder / current).mkdir(parents=True, exist_ok=True, mode=0o700)
        os.utime(folder / current)  # when it was used last
        # A clock that was put back makes the others look newer: the current one is not among them.
        others = [path for path in folder.iterdir() if path.name != current]
        others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return  # vLLM then compiles without, and logs it
    for old in others[KEPT - 1 :]:
        shutil.rmtree(old, ignore_errors=True)
