"""The sandbox's images on this machine's engine: Debian with a list of packages, and the host on top of it.

Where Debian's image can be pulled, the packages are installed into it; where it can't, mmdebstrap makes the same.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import requests
from docker.client import DockerClient
from docker.errors import BuildError, DockerException, ImageNotFound

from vcluster_sandbox.local_docker import Report
from vcluster_sandbox.names import LABEL, recipe_key
from vcluster_sandbox.progress import HOST_IMAGE
from vllm_cluster.kernel.errors import PreflightFailed, VclusterError
from vllm_cluster.kernel.images.recipes import recipe

# The hosts need a Docker that knows CDI and containerd's store, and the engine's torch needs Python 3.11: no Debian has
# both.
_DEBIAN = {"host": "trixie", "cpu": "bookworm"}
_FOR = {"host": "for the hosts", "cpu": "with the engine's Python 3.11"}
_BOOTSTRAP_S = 900


def packages(name: str) -> list[str]:
    """What is installed in the base of an image."""
    return (recipe(name) / "packages.txt").read_text(encoding="utf-8").split()


def base_tag(name: str) -> str:
    """The base image of `name`, called by what is in it."""
    return f"vcluster-sandbox/{name}-base:{recipe_key(_DEBIAN[name], *packages(name))}"


def host_tag() -> str:
    """The host image, called by its build files."""
    return f"vcluster-sandbox/host:{recipe_key(base_tag('host'), recipe('host'))}"


def ensure_host(engine: DockerClient, report: Report) -> str:
    """The host image, built if it isn't there."""
    tag = host_tag()
    if not _exists(engine, tag):
        base = ensure_base(engine, "host", report)
        report(HOST_IMAGE)
        _build(engine, tag, recipe("host"), {"BASE": base})
    return tag


def ensure_base(engine: DockerClient, name: str, report: Report) -> str:
    """Debian with the packages of `name`, pulled or made if it isn't there."""
    tag = base_tag(name)
    if _exists(engine, tag):
        return tag
    debian = f"debian:{_DEBIAN[name]}-slim"
    try:
        if not _exists(engine, debian):
            report(f"pulling {debian}")
            engine.images.pull(debian)
        report(f"installing {len(packages(name))} packages into {debian}")
        _build(engine, tag, recipe("base"), {"DEBIAN": debian, "PACKAGES": " ".join(packages(name))})
    except (DockerException, VclusterError, requests.RequestException) as error:
        _bootstrap(engine, tag, name, error, report)
    return tag


def _exists(engine: DockerClient, tag: str) -> bool:
    try:
        engine.images.get(tag)
    except ImageNotFound:
        return False
    return True


def _build(engine: DockerClient, tag: str, folder: Path, arguments: dict[str, str]) -> None:
    try:
        engine.images.build(
            path=str(folder), tag=tag, buildargs=arguments, labels={LABEL: "image"}, rm=True, forcerm=True
        )
    except BuildError as error:
        output = "".join(str(line.get("stream", "")) for line in error.build_log)
        last = "\n".join(output.splitlines()[-12:])
        raise VclusterError(f"building {tag} failed: {error.msg}\n{last}") from error


def _bootstrap(engine: DockerClient, tag: str, name: str, cause: Exception, report: Report) -> None:
    """Make the base from Debian's packages alone."""
    if shutil.which("mmdebstrap") is None:
        raise PreflightFailed(
            f"Debian's image cannot be had ({cause}), and mmdebstrap, which makes one from packages, isn't installed",
            hint="Let Docker reach a registry, or install mmdebstrap (apt-get install mmdebstrap).",
        ) from cause
    suite = _DEBIAN[name]
    report(f"no Debian image can be pulled here; making {suite}, {_FOR[name]}, from packages")
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "root.tar"
        include = ",".join(packages(name))
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={include}", suite, str(archive)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_BOOTSTRAP_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise VclusterError(
                f"mmdebstrap took longer than {_BOOTSTRAP_S} s", hint="Is Debian's mirror reachable?"
            ) from error
        if done.returncode != 0:
            last = "\n".join(done.stderr.splitlines()[-8:])
            raise VclusterError(
                f"mmdebstrap failed ({done.returncode})\n{last}", hint="Is Debian's mirror reachable?"
            ) from cause
        repository, _, version = tag.partition(":")
        engine.api.import_image_from_file(str(archive), repository, version, [f"LABEL {LABEL}=image"])
