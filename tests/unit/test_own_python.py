"""A Python that vcluster starts imports nothing of the folder that a person happens to be in."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcluster_sandbox import wheels as sandbox_wheels
from vllm_cluster.errors import VclusterError
from vllm_cluster.images import wheels
from vllm_cluster.images.contents import parse
from vllm_cluster.run.detached import State

NOWHERE = "http://127.0.0.1:1"
TRAPS = ("pip", "json", "subprocess", "vllm_cluster", "huggingface_hub", "sitecustomize", "usercustomize")


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a trap writes; the current folder is full of them, and the environment points there."""
    found, folder = tmp_path / "ran", tmp_path / "traps"
    folder.mkdir()
    for name in TRAPS:
        (folder / f"{name}.py").write_text(f"open({str(found)!r}, 'a').write({name!r} + ' ')\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", ".")
    monkeypatch.setenv("PYTHONSTARTUP", "json.py")
    monkeypatch.setenv("PIP_INDEX_URL", NOWHERE)
    monkeypatch.setenv("PIP_RETRIES", "0")
    return found


def test_pip_of_an_image_without_ray(ran: Path, tmp_path: Path) -> None:
    image = parse([{"python": "3.12.3", "machine": "x86_64", "glibc": "2.39", "have": {"vllm": "0.33.0"}}])[0]
    with pytest.raises(VclusterError, match=r"cannot download ray\[default\]==2\.56\.1 .*No matching distribution"):
        wheels.wheels(image, "ray==2.56.1", tmp_path / "cache")
    assert not ran.exists(), ran.read_text()


def test_pip_of_the_sandbox(ran: Path, tmp_path: Path) -> None:
    wanted = tmp_path / "requirements.txt"
    wanted.write_text("torch==1.0\n")
    with pytest.raises(VclusterError):
        sandbox_wheels._download(wanted, tmp_path, lambda _: None)
    assert not ran.exists(), ran.read_text()


# fault: laptop.py: "-E", "-P", → "-E",
def test_the_tunnel_in_the_background(ran: Path, tmp_path: Path) -> None:
    state = State(tmp_path / "tunnels", "k")
    with state.locked(), pytest.raises(VclusterError, match=r"missing\.yaml"):
        state.start(["-m", "vllm_cluster", "status", "-i", str(tmp_path / "missing.yaml")])
    assert not ran.exists(), ran.read_text()
