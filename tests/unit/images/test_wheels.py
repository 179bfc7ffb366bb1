"""Whether an image needs Ray, and what is sent for it."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tools import pins
from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.images import wheels
from vllm_cluster.kernel.images.contents import ImageContents, read_contents
from vllm_cluster.kernel.versions import RAY


def inside(**have: str) -> ImageContents:
    """An image with these distributions."""
    said = {"python": "3.12.3", "machine": "x86_64", "glibc": "2.39", "have": have}
    return read_contents([said])[0]


# fault: kernel/images/contents.py: MIN_RAY = (2, 55) → MIN_RAY = (2, 5)
@pytest.mark.parametrize(("ray", "will_do"), [("2.56.1", True), ("2.55.0", True), ("2.54.9", False), ("2.9", False)])
def test_ray_must_be_able_to_ask_for_a_token(ray: str, will_do: bool) -> None:
    assert inside(vllm="0.33.0", ray=ray).is_complete is will_do


# fault: kernel/images/contents.py: return self.ray_is_new and not self.lacking → return self.ray_is_new
def test_a_ray_without_what_its_dashboard_needs_gets_that_beside_it() -> None:
    plain = replace(inside(vllm="0.33.0", ray="2.56.1"), lacking=("aiohttp",))
    assert (plain.ray_is_new, plain.is_complete, plain.to_add(["ray==2.60.0"])) == (True, False, "ray==2.56.1")


def test_an_image_without_ray() -> None:
    found = inside(vllm="0.33.0")
    assert (found.is_complete, found.version("ray"), found.version("vllm")) == (False, None, "0.33.0")


def test_an_image_that_prints_something_else() -> None:
    with pytest.raises(ValueError, match="printed nothing"):
        read_contents([])


class Pip:
    """A pip that notes how it was called, and leaves a wheel."""

    def __init__(self, stderr: str = "") -> None:
        self.calls: list[list[str]] = []
        self.pins: list[list[str]] = []
        self.environment: dict[str, str] = {}
        self._stderr = stderr

    def __call__(self, argv: list[str], *, env: dict[str, str], **_: object) -> subprocess.CompletedProcess[bytes]:
        folder = Path(argv[argv.index("--dest") + 1])
        self.calls.append(argv)
        self.pins.append(Path(argv[argv.index("--requirement") + 1]).read_text().splitlines())
        self.environment = env
        (folder / "ray-2.56.1-cp312-cp312-manylinux2014_x86_64.whl").write_bytes(b"ray")
        return subprocess.CompletedProcess(argv, int(bool(self._stderr)), b"", self._stderr.encode())


def names(pins: list[str]) -> list[str]:
    """What is pinned, without the hashes."""
    return [line.split()[0] for line in pins]


# fault: kernel/images/wheels.py: "--no-input", "--require-hashes"] → "--no-input"]
def test_pip_is_asked_once_for_pinned_wheels_alone(tmp_path: Path) -> None:
    pip, image = Pip(), inside(vllm="0.33.0", click=pinned("click"), colorful="0.1")
    for _ in range(2):
        folder = wheels.wheels(image, "ray==2.56.1", tmp_path, pip)
    (argv,), (pins,) = pip.calls, pip.pins
    assert {"--require-hashes", "--no-deps", "--only-binary=:all:"} < set(argv)
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.]+ --hash=sha256:[0-9a-f]{64}", line) for line in pins)
    # What the image has in the same version does not travel; what it has in another one may be too old.
    assert "ray==2.56.1" in names(pins)
    assert {line.partition("==")[0] for line in names(pins)} & {"click", "colorful"} == {"colorful"}
    with tarfile.open(fileobj=io.BytesIO(b"".join(wheels.context(folder)))) as tar:
        held = tar.extractfile("wheels/constraints.txt")
        assert held
        assert held.read().decode().splitlines() == [f"click=={pinned('click')}", "colorful==0.1", "vllm==0.33.0"]
        wheel = "wheels/ray-2.56.1-cp312-cp312-manylinux2014_x86_64.whl"
        assert set(tar.getnames()) == {"Dockerfile", "wheels/constraints.txt", wheel}


def _as_large_as_a_disk(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(20 << 30)


STRANGE: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "itself": lambda path: path.symlink_to(path),
    "folder": Path.mkdir,
    "large": _as_large_as_a_disk,
}


# fault: kernel/images/wheels.py: if made.size > MAX_WHEELS: → if False:
# fault: kernel/docker/tar_stream.py: with open_plain(path) as file: → with path.open("rb") as file:
@pytest.mark.parametrize("kind", STRANGE)
def test_strange_files_among_the_wheels_are_refused(tmp_path: Path, kind: str) -> None:
    """A file of 20 GB was read into memory."""
    STRANGE[kind](tmp_path / "ray.whl")
    tried: list[str | None] = []

    def ask() -> None:
        with pytest.raises(VclusterError, match=r"ray\.whl|at most \d+ are sent") as caught:
            wheels.context(tmp_path)
        tried.append(caught.value.hint)

    asked = threading.Thread(target=ask, daemon=True)
    asked.start()
    asked.join(20)
    assert tried == [f"rm -r {tmp_path}"]


# fault: kernel/docker/tar_stream.py: file.read(min(PIECE, left)) → file.read(left)
# fault: kernel/docker/tar_stream.py: return -self.length % tarfile.BLOCKSIZE → return 0
def test_wheels_are_sent_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "ray.whl").write_bytes(bytes(9 << 20) + b"end")
    made = wheels.context(tmp_path)
    pieces = list(made)
    assert max(map(len, pieces)) <= 1 << 20
    assert sum(map(len, pieces)) == made.size
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
        held = tar.extractfile("wheels/ray.whl")
        assert held
        assert held.read() == bytes(9 << 20) + b"end"
        assert tar.getnames() == ["Dockerfile", "wheels/ray.whl"]
    (tmp_path / "ray.whl").write_bytes(b"short")
    with pytest.raises(OSError, match="has become shorter"):
        list(made)


# fault: kernel/images/wheels.py: if path.is_dir() and not path.is_symlink(): → if True:
@pytest.mark.parametrize("put", [os.mkfifo, Path.touch])
def test_what_is_in_the_place_of_the_wheels_is_replaced(tmp_path: Path, put: Callable[[Path], None]) -> None:
    pip, image = Pip(), inside(vllm="0.33.0")
    folder = wheels.wheels(image, "ray==2.56.1", tmp_path, pip)
    shutil.rmtree(folder)
    put(folder)
    made: list[Path] = []
    asked = threading.Thread(
        target=lambda: made.append(wheels.wheels(image, "ray==2.56.1", tmp_path, pip)), daemon=True
    )
    asked.start()
    asked.join(20)
    assert made == [folder]
    assert list(folder.parent.iterdir()) == [folder]


# fault: kernel/images/wheels.py: os.environ.get("PIP_CONFIG_FILE", os.devnull) → os.environ.get("PIP_CONFIG_FILE", "")
@pytest.mark.parametrize("named", [None, "/etc/pip.conf"])
def test_pip_reads_no_configuration_that_is_not_named(
    named: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_CONFIG_FILE", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "http://index.example")
    if named:
        monkeypatch.setenv("PIP_CONFIG_FILE", named)
    pip = Pip()
    wheels.wheels(inside(vllm="1"), "ray==2.56.1", tmp_path, pip)
    assert pip.environment["PIP_CONFIG_FILE"] == (named or os.devnull)
    assert pip.environment["PIP_INDEX_URL"] == "http://index.example"
    assert "http://index.example" not in pip.calls[0]


def test_a_wheel_with_another_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real pip, with a wheel of the pinned name and version but of another content."""
    (tmp_path / "index").mkdir()
    wheel = tmp_path / "index" / f"colorful-{pinned('colorful')}-py2.py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"colorful-{pinned('colorful')}.dist-info/METADATA", "Name: colorful\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    lines = wheels.pins_file("3.12", "x86_64").read_text().splitlines()
    others = {name: version for name, version in (one.split("==") for one in names(lines)) if name != "colorful"}
    with pytest.raises(VclusterError, match="Got        "):
        wheels.wheels(inside(**others), "ray==2.56.1", tmp_path / "cache")


def test_pip_that_fails_is_an_error_with_its_words_and_the_ways_to_an_index(tmp_path: Path) -> None:
    with pytest.raises(VclusterError, match=r"wheels of Ray for Python 3.12.3 on x86_64: no matching") as caught:
        wheels.wheels(inside(vllm="1"), "ray==2.56.1", tmp_path, Pip("no matching"))
    assert "PIP_INDEX_URL" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("said", "ray", "why"),
    [
        ({"python": "3.12.3", "machine": "x86_64"}, "2.60.0", "ray==2.60.0 is not pinned .* ray==2.56.1 is"),
        ({"python": "3.9.1", "machine": "x86_64"}, "2.56.1", "no wheels of Ray are pinned for Python 3.9.1 on x86_64"),
        ({"python": "3.12.3", "machine": "ppc64le"}, "2.56.1", "pinned for Python 3.12.3 on ppc64le"),
    ],
)
def test_what_is_not_pinned_is_refused(said: dict[str, str], ray: str, why: str, tmp_path: Path) -> None:
    (image, _) = read_contents([{"glibc": "2.39", "have": {"vllm": "1"}, **said}])
    with pytest.raises(VclusterError, match=why) as caught:
        wheels.wheels(image, f"ray=={ray}", tmp_path, Pip())
    assert "docker/Dockerfile" in (caught.value.hint or "")


def test_what_a_ray_of_the_image_lacks_comes_without_another_ray(tmp_path: Path) -> None:
    pip = Pip()
    wheels.wheels(inside(vllm="1", ray="2.55.0"), "ray==2.55.0", tmp_path, pip)
    assert [name for name in names(pip.pins[0]) if name.startswith("ray==")] == []
    assert any(name.startswith("aiohttp==") for name in names(pip.pins[0]))


# fault: kernel/images/wheels.py: int(release[1]) == int(of_sdk[1]) + APART → int(release[1]) > int(of_sdk[1]) + APART
@pytest.mark.parametrize(("sdk", "exporter"), [("1.40.0", "0.61b0"), ("1.30.0", "0.51b0"), ("1.20.0", ""), ("", "")])
def test_the_exporter_is_the_one_of_the_images_sdk(sdk: str, exporter: str, tmp_path: Path) -> None:
    pip = Pip()
    wheels.wheels(inside(vllm="1", **({"opentelemetry-sdk": sdk} if sdk else {})), "ray==2.56.1", tmp_path, pip)
    (found,) = (name for name in names(pip.pins[0]) if name.startswith(wheels.COUPLED))
    assert found == f"{wheels.COUPLED}=={exporter or pinned(wheels.COUPLED)}"


@pytest.mark.parametrize("machine", pins.MACHINES)
@pytest.mark.parametrize("python", pins.PYTHONS)
def test_the_pins_are_those_of_ray_and_hold_no_address(python: str, machine: str) -> None:
    lines = wheels.pins_file(python, machine).read_text().splitlines()
    assert f"ray=={RAY}" in names(lines)
    assert [one for one in lines if not re.fullmatch(r"[a-z0-9-]+==[\w.]+ --hash=sha256:[0-9a-f]{64}", one)] == []
    # What Ray's dashboard needs is there, and once each but for what is coupled to the SDK.
    distributions = [name.partition("==")[0] for name in names(lines)]
    assert {"aiohttp", "aiohttp-cors", "colorful", "grpcio", "opencensus", "py-spy", "virtualenv"} < set(distributions)
    assert {name for name in distributions if distributions.count(name) > 1} == {wheels.COUPLED}


def pinned(name: str) -> str:
    """The newest pinned version of a distribution."""
    lines = wheels.pins_file("3.12", "x86_64").read_text().splitlines()
    return max(one.split("==")[1] for one in names(lines) if one.startswith(f"{name}=="))


# fault: wire/programs.py: WORD = "[A-Za-z0-9][A-Za-z0-9._+!-]{0,127}" → WORD = "[^/]*"
def test_output_of_an_image_gives_pip_no_option() -> None:
    have = {"--index-url": "http://x", "a\n--index-url http://x": "1", "-r": "1", "good": "1.0+cpu", "odd": "1 --pre"}
    said = {"python": "3.12.1", "machine": "x86_64", "glibc": "2.35", "have": have}
    assert read_contents([said])[0].have == (("good", "1.0+cpu"),)
    assert read_contents([{**said, "glibc": ""}])[0].glibc == ""


@pytest.mark.parametrize(
    "wrong",
    [{"python": "-x"}, {"machine": "../x"}, {"glibc": "2.x"}, {"glibc": "2." + "9" * 5000}, {"python": "3 --pre"}],
)
def test_an_answer_without_a_version_is_refused(wrong: dict[str, str]) -> None:
    said = {"python": "3.12.1", "machine": "x86_64", "glibc": "2.35", "have": {}}
    with pytest.raises(ValueError, match=r"is not a (name|version)"):
        read_contents([{**said, **wrong}])
