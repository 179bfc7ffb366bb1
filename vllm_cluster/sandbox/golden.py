"""The golden data: a Docker data root with the engine image in it, and the model, both made once.

Every host starts from a clone of it (docker/host/clone), so no image is loaded twice.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from docker.client import DockerClient
from docker.errors import NotFound
from docker.models.containers import Container

from vllm_cluster.sandbox.containers import create, remove, rights, wait_for_engine
from vllm_cluster.sandbox.images import base_tag, ensure_base
from vllm_cluster.sandbox.local_docker import File, Report, execute, put
from vllm_cluster.sandbox.names import ENGINE_IMAGE, LABEL, MODEL, ROOT, VOLUME, build_files, files_below, recipe_key
from vllm_cluster.sandbox.wheels import ensure_wheels

_BUILD = f"{ROOT}/build"
_BUILD_S = 1800
_MODEL_S = 300


def golden_folder() -> str:
    """The golden data of this recipe, in the volume."""
    return f"{ROOT}/golden/{recipe_key(build_files('cpu'), base_tag('cpu'), ENGINE_IMAGE, MODEL)}"


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
    """Build in a folder of another name; the rename says that all is there."""
    making = f"{golden}.part"
    wheels = ensure_wheels(report)
    execute(builder, ["rm", "-rf", making, _BUILD], deadline=300)
    execute(builder, ["mkdir", "-p", making, _BUILD], deadline=30)
    execute(builder, ["engine", "start", making], deadline=30)
    wait_for_engine(builder)
    _send_base(engine, builder, report)
    report("building the CPU engine's image (a few minutes, once)")
    put(builder, _BUILD, _context(wheels))
    _build_engine(builder, report)
    report("making the model")
    _make_model(builder, making)
    # Hosts are to hold the engine image alone; the base stays as its first layer.
    execute(builder, ["docker", "image", "rm", base_tag("cpu")], deadline=60)
    execute(builder, ["docker", "image", "prune", "--force"], deadline=300)
    execute(builder, ["engine", "stop"], deadline=60)
    execute(builder, ["mv", making, golden], deadline=30)
    # Other recipes' data are needed no more: hosts hold their own links to the layers.
    others = [
        "find",
        f"{ROOT}/golden",
        "-mindepth",
        "1",
        "-maxdepth",
        "1",
        "!",
        "-path",
        golden,
        "-exec",
        "rm",
        "-rf",
        "{}",
        "+",
    ]
    execute(builder, others, deadline=300)
    execute(builder, ["rm", "-rf", _BUILD], deadline=60)


def _send_base(engine: DockerClient, builder: Container, report: Report) -> None:
    """Give the nested engine the base image: it may reach no registry."""
    base = ensure_base(engine, "cpu", report)
    with tempfile.NamedTemporaryFile() as spool:
        for chunk in engine.images.get(base).save(named=True):
            spool.write(chunk)
        spool.flush()
        put(builder, _BUILD, [File("base.tar", Path(spool.name))])
    execute(builder, ["docker", "load", "--input", f"{_BUILD}/base.tar"], deadline=300)
    execute(builder, ["rm", f"{_BUILD}/base.tar"], deadline=30)


def _context(wheels: Path) -> Iterator[File]:
    for name, file in files_below(build_files("cpu")):
        yield File(name, file)
    for wheel in sorted(wheels.glob("*.whl")):
        yield File(f"wheels/{wheel.name}", wheel)


def _build_engine(builder: Container, report: Report) -> None:
    command = [
        "docker",
        "build",
        "--network",
        "none",
        "--build-arg",
        f"BASE={base_tag('cpu')}",
        "--tag",
        ENGINE_IMAGE,
        _BUILD,
    ]

    def steps(line: str) -> None:
        if line.startswith("Step "):
            report("  " + line.partition("&&")[0].strip())

    # The hosts' Debian has no buildx, and the classic builder says so at length.
    execute(builder, command, deadline=_BUILD_S, env={"DOCKER_BUILDKIT": "0"}, on_line=steps)


def _make_model(builder: Container, making: str) -> None:
    mounts = ["--volume", f"{_BUILD}/make_model.py:/make_model.py:ro", "--volume", f"{making}/models:/models"]
    program = ["--entrypoint", "python3", ENGINE_IMAGE, "/make_model.py", "/models", MODEL]
    execute(builder, ["docker", "run", "--rm", "--network", "none", *mounts, *program], deadline=_MODEL_S)
