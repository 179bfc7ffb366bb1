"""The program that looks around in an image, run on made-up packages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vllm_cluster.kernel.hosts.program import python
from vllm_cluster.kernel.images.contents import OPTIONS, ImageContents, read_contents

RAY = (
    'aiohttp>=3.13; extra == "default"',
    "aiohttp_cors; extra == 'default'",
    'py-spy>=0.2.0; python_version < "3.12" and extra == "default"',
    'pyarrow; extra == "data"',
    "click",
)
ARGUMENTS = """class EngineArgs:
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    # distributed executor
    distributed_executor_backend: str | None = None
"""
FRONTEND = "class FrontendArgs:\n    middleware: list[str] = field(default_factory=list)\n"


def package(site: Path, name: str, version: str, needs: tuple[str, ...] = (), **files: str) -> None:
    """A package as pip leaves it."""
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {need}" for need in needs)]
    (info / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(lines) + "\n")
    for path, text in files.items():
        file = site / path.replace("__", "/").replace("_py", ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def look(site: Path, *words: str) -> list[dict[str, Any]]:
    """What the program prints with these packages and no other."""
    argv = [sys.executable, "-S", *python("kernel.images.on_host", "inspect_image", *words, seconds=300).argv[1:]]
    alone = {"PYTHONPATH": str(site)}
    done = subprocess.run(argv, env=alone, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def made(site: Path, *have: str, frontend: str = FRONTEND) -> ImageContents:
    """An image with vLLM, Ray and these packages."""
    for name in have:
        package(site, name, "1.0")
    package(site, "ray", "2.56.1", RAY)
    package(site, "vllm", "0.33.0")
    for path, text in (("engine/arg_utils.py", ARGUMENTS), ("entrypoints/launchers/cli_args.py", frontend)):
        (site / "vllm" / path).parent.mkdir(parents=True)
        (site / "vllm" / path).write_text(text)
    (site / "vllm/__init__.py").write_text("raise SystemExit('importing vLLM takes a minute')")
    (site / "torch").mkdir()
    (site / "torch/__init__.py").write_text("raise SystemExit('importing torch takes seconds')")
    (site / "torch/version.py").write_text("__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n")
    return read_contents(look(site, "", *OPTIONS))[0]


def test_a_whole_image(tmp_path: Path) -> None:
    inside = made(tmp_path, "aiohttp", "aiohttp_cors", "click")
    assert (inside.version("ray"), inside.version("vllm"), inside.cuda) == ("2.56.1", "0.33.0", "13.0")
    assert (inside.lacking, inside.unknown, inside.is_complete, inside.refusal) == ((), (), True, "")


# fault: kernel/images/on_host/inspect_image.py: "lacking": lacking() if installed("ray") else [], → "lacking": [],
def test_plain_ray_lacks_what_its_dashboard_needs(tmp_path: Path) -> None:
    """As vLLM's images before 0.18 had it: its version is new enough, and `ray start` with a dashboard dies."""
    inside = made(tmp_path, "aiohttp", "click")
    assert (inside.lacking, inside.ray_is_new, inside.is_complete) == (("aiohttp_cors",), True, False)
    assert inside.to_add(["ray==2.58.0"]) == "ray==2.56.1"


def test_a_vllm_without_an_option_that_vcluster_sets(tmp_path: Path) -> None:
    inside = made(tmp_path, frontend="class FrontendArgs:\n    # middleware is gone\n    api_key: str\n")
    assert inside.unknown == ("middleware",)
    assert inside.refusal == "has vLLM 0.33.0, which does not know --middleware"


def test_what_a_container_reaches(tmp_path: Path) -> None:
    """Run as whoever runs the tests: root may write anywhere but into a folder that is not there."""
    (tmp_path / "cache").mkdir()
    _, reach = read_contents(look(tmp_path, str(tmp_path / "cache")))
    assert reach.unwritable == ""
    assert list((tmp_path / "cache").iterdir()) == []
    _, reach = read_contents(look(tmp_path, str(tmp_path / "nowhere")))
    assert reach.unwritable.startswith("No such file or directory (as user ")
    if reach.gpus is None:
        assert "libcuda.so.1" in reach.problem
    else:
        assert reach.gpus >= 0


@pytest.mark.parametrize("said", [{"python": "3.12; rm"}, {"glibc": "x"}, {}])
def test_an_output_with_invalid_versions_is_refused(said: dict[str, Any]) -> None:
    whole = {"python": "3.12.3", "machine": "x86_64", "glibc": "2.39"}
    with pytest.raises(ValueError, match="printed nothing"):
        read_contents([{**whole, **said}] if said else [])
