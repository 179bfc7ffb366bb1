"""Where the image recipes lie: in the checkout, or inside the installed package."""

from __future__ import annotations

from pathlib import Path

import vllm_cluster


def recipe(name: str) -> Path:
    """The path of a file or folder below docker/."""
    package = Path(vllm_cluster.__file__).parent
    installed = package / "_docker"
    return (installed if installed.is_dir() else package.parent / "docker") / name
