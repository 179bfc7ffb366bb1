"""The golden data: a Docker data root with the CPU image in it, and the model, both made once.

Every host starts from a clone of it (docker/host/clone), so no image is loaded twice.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from docker.client import DockerClient
from docker.errors import NotFound
from docker.models.containers import Container

from vcluster_sandbox.containers import create, remove, rights, wait_for_engine
from vcluster_sandbox.images import base_tag, ensure_base
from vcluster_sandbox.local_docker import File, Report, connect, execute, put
from vcluster_sandbox.names import CPU_IMAGE, LABEL, MODEL, ROOT, VOLUME, files_below, recipe_key
from vcluster_sandbox.progress import IMAGE_AND_MODEL, INSTALLING
from vcluster_sandbox.wheels import ensure_wheels
from vllm_cluster.kernel.images.recipes import recipe

_BUILD = f"{ROOT}/build"
_BUILD_S = 1800


def golden_folder() -> str:
    """The golden data of this recipe, in the volume."""
    return f"{ROOT}/golden/{recipe_key(recipe('cpu'), base_tag('cpu'), CPU_IMAGE, MODEL)}"


@contextmanager
def parts_ahead(engine: DockerClient, report: Report) -> Iterator[None]:
    """Get what `ensure_golden` starts from while the block runs, on an engine that never had a sandbox.

    Each part waits for the network by itself. An error of the block comes after their end: what they made is kept.
    """
    if _had_a_sandbox(engine):
        yield
        return
    with ThreadPoolExecutor(2) as pool:
        parts: list[Future[Any]] = [pool.submit(ensure_wheels, report), pool.submit(_base_ahead, report)]
        yield
        for part in parts:
            part.result()


def _had_a_sandbox(engine: DockerClient) -> bool:
    try:
        engine.volumes.get(VOLUME)
    except NotFound:
        return False
    return True


def _base_ahead(report: Report) -> None:
    # A client of its own: that of the block is in use.
    with closing(connect()) as engine:
        ensure_base(engine, "cpu", report)


def ensure_golden(engine: DockerClient, image: str, report: Report) -> str:
    """The golden data, made if this recipe was never built here."""
    golden = golden_folder()
    # Mounting the volume makes it, and a volume without our label is one that `down` would not remove.
    engine.volumes.create(VOLUME, labels={LABEL: "volume"})
    with _builder(engine, image) as builder:
        found = execute(builder, ["sh", "-c", f"test -d {golden} && echo there || true"], deadline=30)
        if "there" not in found:
            _make(engine, builder, golden, report)
    return golden


@contextmanager
def _builder(engine: DockerClient, image: str) -> Iterator[Container]:
    """A container that can hold an engine, for as long as the block lasts."""
    name = "vcluster-sandbox-builder"
    with suppress(NotFound):
        remove(engine.containers.get(name))
    builder = create(
        engine,
        image=image,
        name=name,
        entrypoint=["tini", "--", "sleep", "infinity"],
        command=[],
        labels={LABEL: "builder"},
        host_config=rights(engine, image),
    )
    try:
        builder.start()
        yield builder
    finally:
        remove(builder)


def _make(engine: DockerClient, builder: Container, golden: str, report: Report) -> None:
    """Build in a folder of another name; the rename marks it complete."""
    making = f"{golden}.part"
    wheels = ensure_wheels(report)
    _run(builder, f"rm -rf {making} {_BUILD}")
    _run(builder, f"mkdir -p {making} {_BUILD}")
    _run(builder, f"engine start {making}")
    wait_for_engine(builder)
    _send_base(engine, builder, report)
    put(builder, _BUILD, _context(wheels))
    report(INSTALLING)
    _install(builder, making)
    report(IMAGE_AND_MODEL)
    _make_image(builder)
    _run(builder, "engine stop")
    _run(builder, f"mv {making} {golden}")
    # Other recipes' data are needed no more: hosts hold their own links to the layers.
    _run(builder, f"find {ROOT}/golden -mindepth 1 -maxdepth 1 ! -path {golden} -exec rm -rf {{}} +")
    _run(builder, f"rm -rf {_BUILD}")


def _run(builder: Container, command: str, deadline: int = 300) -> None:
    """Run a command whose words hold no blanks."""
    execute(builder, command.split(), deadline=deadline)


def _send_base(engine: DockerClient, builder: Container, report: Report) -> None:
    """Give the nested engine the base image: it may reach no registry."""
    base = ensure_base(engine, "cpu", report)
    with tempfile.NamedTemporaryFile() as spool:
        for chunk in engine.images.get(base).save(named=True):
            spool.write(chunk)
        spool.flush()
        put(builder, _BUILD, [File("base.tar", Path(spool.name))])
    _run(builder, f"docker load --input {_BUILD}/base.tar")
    _run(builder, f"rm {_BUILD}/base.tar")


def _context(wheels: Path) -> Iterator[File]:
    for name, file in files_below(recipe("cpu")):
        yield File(name, file)
    for wheel in sorted(wheels.glob("*.whl")):
        yield File(f"wheels/{wheel.name}", wheel)


def _install(builder: Container, making: str) -> None:
    """Install into a container: a COPY of the wheels, or of what they became, would be a layer more."""
    mounts = f"--volume {_BUILD}:/build --volume {making}/models:/models"
    _run(builder, f"docker run --detach --name install --network none {mounts} {base_tag('cpu')} sleep infinity")
    _run(builder, "docker exec install sh /build/install.sh", _BUILD_S)


def _make_image(builder: Container) -> None:
    """Commit the container, and make the model in it meanwhile: that reads what the image gets, and adds nothing.

    Half the time of a commit a core is idle, and the model needs one.
    """
    base, installed = base_tag("cpu"), "vcluster-sandbox/cpu-installed"
    # A program that is imported would leave its bytecode in the middle of the commit.
    made = (
        f"docker exec --env PYTHONDONTWRITEBYTECODE=1 install /opt/venv/bin/python /build/make_model.py /models {MODEL}"
    )
    script = (
        f"{made} & model=$!; docker commit --pause=false install {installed}; wait $model; docker rm --force install"
    )
    execute(builder, ["sh", "-euc", script], deadline=600)
    # From a file on stdin there is no context: nothing of the build folder is sent.
    build = f"docker build --network none --build-arg BASE={installed} --tag {CPU_IMAGE} - < {_BUILD}/Dockerfile"
    # The hosts' Debian has no buildx, so images are built by the classic builder.
    execute(builder, ["sh", "-c", build], deadline=300, env={"DOCKER_BUILDKIT": "0"})
    # Hosts are to hold the CPU image alone; what it is built on stays as its layers.
    _run(builder, f"docker image rm {installed} {base}")
