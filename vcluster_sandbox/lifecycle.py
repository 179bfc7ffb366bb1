"""`vcluster sandbox up` and `sandbox down`."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from docker.client import DockerClient
from docker.errors import APIError, DockerException, NotFound

from vcluster_sandbox import folder as files
from vcluster_sandbox import hosts as machines
from vcluster_sandbox.containers import in_volume, remove, rights
from vcluster_sandbox.golden import ensure_golden, golden_folder, parts_ahead
from vcluster_sandbox.images import ensure_host, host_tag
from vcluster_sandbox.local_docker import Report, connect
from vcluster_sandbox.names import LABEL, LABEL_RECIPE, VOLUME, Sandbox, host_names
from vcluster_sandbox.progress import STARTING, with_time_left
from vcluster_sandbox.wheels import cache_folder
from vllm_cluster.kernel.errors import UsageError, VclusterError
from vllm_cluster.kernel.laptop import make_private

_MAX_HOSTS = 32
_MAX_GPUS = 16


def up(*, hosts: int, gpus: int, folder: Path, report: Report) -> Path:
    """Bring up a sandbox of `hosts` hosts with `gpus` logical GPUs each; returns its inventory.

    Run again it builds nothing and leaves running hosts as they are.
    """
    if not 1 <= hosts <= _MAX_HOSTS or not 1 <= gpus <= _MAX_GPUS:
        raise UsageError(f"a sandbox has 1 to {_MAX_HOSTS} hosts of 1 to {_MAX_GPUS} GPUs, not {hosts} of {gpus}")
    reported = with_time_left(report)
    with closing(connect()) as engine, _alone(), _docker_errors():
        reported("looking for the images and hosts of the sandbox")
        folder.mkdir(parents=True, exist_ok=True)
        return _up(engine, Sandbox(folder), hosts, gpus, reported)


def _up(engine: DockerClient, sandbox: Sandbox, count: int, gpus: int, report: Report) -> Path:
    found = machines.found(engine, sandbox)
    public_key = files.ensure_key(sandbox.folder, hosts=bool(found))
    if not found and (aside := files.set_aside(sandbox.folder)):
        report(f"{aside}: an inventory that was there before the hosts is not used")
    with parts_ahead(engine, report):
        image = ensure_host(engine, report)
    recipe = f"{host_tag()} {golden_folder()}"
    names = host_names(count)
    present = {name: host for name, host in found.items() if name in names and host.labels.get(LABEL_RECIPE) == recipe}
    missing = [name for name in names if name not in present]
    # What takes long and can fail comes before anything is removed.
    golden = ensure_golden(engine, image, report) if missing else golden_folder()
    for name in sorted(found.keys() - present.keys()):
        why = "its recipe has changed" if name in names else f"--hosts {count} leaves it out"
        report(f"{name}: removing it and what it holds: {why}")
        machines.remove_host(engine, sandbox, image, name, found[name])
    subnet = machines.ensure_network(engine, sandbox)
    allowed = rights(engine, image) if missing else {}
    for name in missing:
        report(f"{name}: creating it")
        address = machines.address_of(subnet, names.index(name))
        present[name] = machines.make_host(
            engine, sandbox, name, image=image, golden=golden, recipe=recipe, address=address, allowed=allowed
        )
    ordered = [present[name] for name in names]
    for container in ordered:
        machines.configure(container, public_key, gpus)
    if machines.start_all(ordered):
        report(STARTING)
    return files.write_files(sandbox.folder, [machines.wait_until_up(container, sandbox) for container in ordered])


def down(*, folder: Path, report: Report, purge: bool = False) -> bool:
    """Remove the folder's hosts, their network, their data and its files; `purge` also what all sandboxes share.

    Returns whether there were hosts.
    """
    sandbox = Sandbox(folder)
    with closing(connect()) as engine, _alone(), _docker_errors():
        present = machines.found(engine, sandbox)
        for name, container in sorted(present.items()):
            report(f"{name}: removing it and what it holds")
            remove(container)
        if present:
            report("removing the data of the hosts")
        _remove_data(engine, sandbox)
        machines.remove_network(engine, sandbox)
        if purge:
            _purge(engine, report)
    if files.has_files(folder):
        report(f"removing the key, the ssh_config and the inventory in {folder}")
        if kept := files.remove_files(folder):
            report(f"kept {kept}: it was changed")
    return bool(present)


def _remove_data(engine: DockerClient, sandbox: Sandbox) -> None:
    """Remove the hosts' folders from the volume, if there is one."""
    try:
        engine.volumes.get(VOLUME)
        engine.images.get(host_tag())
    except NotFound:
        return
    in_volume(engine, host_tag(), "rm", "-rf", sandbox.home)


def _purge(engine: DockerClient, report: Report) -> None:
    """Remove the golden data and the images, unless another folder's sandbox uses them."""
    others = engine.containers.list(all=True, filters={"label": LABEL})
    if others:
        names = ", ".join(sorted(str(container.name) for container in others))
        report(f"kept the images and the model: other sandboxes use them ({names})")
        return
    with suppress(NotFound):
        engine.volumes.get(VOLUME).remove()
    for image in engine.images.list(all=False, filters={"label": LABEL}):
        engine.images.remove(str(image.id), force=True)
    report("removed the images and the model")


@contextmanager
def _alone() -> Iterator[None]:
    """One at a time on this machine: two that build the same image would build it twice, and meet."""
    make_private(cache_folder())
    with (cache_folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _docker_errors() -> Iterator[None]:
    """Docker's refusals as errors that a person reads."""
    try:
        yield
    except APIError as error:
        raise VclusterError(f"Docker refused: {error.explanation or error}") from error
    except DockerException as error:
        raise VclusterError(f"Docker: {error}") from error
