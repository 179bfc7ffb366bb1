"""Containers that can hold a Docker engine: all rights where they can be had, else the ones that are there."""

from __future__ import annotations

from typing import Any

from docker.client import DockerClient
from docker.errors import APIError, ContainerError, NotFound
from docker.models.containers import Container

from vcluster_sandbox.local_docker import execute
from vcluster_sandbox.names import LABEL, ROOT, VOLUME
from vllm_cluster.kernel.errors import VclusterError

_START_S = 120
# Every capability that an engine of Docker 20.10 can name, but SYS_RESOURCE: some machines have given that one up,
# and there --privileged, which wants all, fails with "unable to apply caps".
# fmt: off
_CAPABILITIES = (
    "AUDIT_CONTROL", "AUDIT_WRITE", "BLOCK_SUSPEND", "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID",
    "IPC_LOCK", "IPC_OWNER", "KILL", "LEASE", "LINUX_IMMUTABLE", "MAC_ADMIN", "MAC_OVERRIDE", "MKNOD", "NET_ADMIN",
    "NET_BIND_SERVICE", "NET_BROADCAST", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYSLOG", "SYS_ADMIN",
    "SYS_BOOT", "SYS_CHROOT", "SYS_MODULE", "SYS_NICE", "SYS_PACCT", "SYS_PTRACE", "SYS_RAWIO", "SYS_TIME",
    "SYS_TTY_CONFIG", "WAKE_ALARM",
)
# fmt: on


def rights(engine: DockerClient, image: str) -> dict[str, Any]:
    """What a container needs to hold an engine, as fields of its HostConfig."""
    version1 = engine.info().get("CgroupVersion", "1") == "1"
    # Under version 2 the nested engine must own the root of its tree; under version 1 there is but one tree.
    common: dict[str, Any] = {"CgroupnsMode": "host" if version1 else "private", "Tmpfs": {"/run": ""}}
    if _privileged_works(engine, image):
        return {**common, "Privileged": True}
    binds = ["/sys/fs/cgroup:/sys/fs/cgroup:rw"] if version1 else []
    return {
        **common,
        "CapAdd": list(_CAPABILITIES),
        "SecurityOpt": ["seccomp=unconfined", "apparmor=unconfined"],
        # What the client's systempaths=unconfined means: /proc/sys is to be written.
        "MaskedPaths": [],
        "ReadonlyPaths": [],
        "DeviceCgroupRules": ["a *:* rwm"],
        "Binds": binds,
    }


def _privileged_works(engine: DockerClient, image: str) -> bool:
    """Whether all rights can be had: only a start shows it, and a container that did not start is removed here."""
    probe = engine.containers.create(image, entrypoint=["true"], privileged=True, labels={LABEL: "probe"})
    try:
        probe.start()
    except APIError:
        return False
    finally:
        remove(probe)
    return True


def create(
    engine: DockerClient,
    *,
    image: str,
    name: str,
    command: list[str],
    labels: dict[str, str],
    host_config: dict[str, Any],
    entrypoint: list[str] | None = None,
    hostname: str | None = None,
    network: tuple[str, str] | None = None,
) -> Container:
    """Create a container with the volume mounted; `network` is a network and the address there."""
    api: Any = engine.api
    binds = [*host_config.get("Binds", []), f"{VOLUME}:{ROOT}"]
    attached = {"host_config": {**host_config, "Binds": binds}}
    if network:
        endpoint = api.create_endpoint_config(ipv4_address=network[1], aliases=[hostname or name])
        attached["host_config"]["NetworkMode"] = network[0]
        attached["networking_config"] = api.create_networking_config({network[0]: endpoint})
    made = api.create_container(
        image,
        command=command,
        name=name,
        hostname=hostname,
        labels=labels,
        entrypoint=entrypoint,
        ports=[22],
        **attached,
    )
    return engine.containers.get(made["Id"])


def in_volume(engine: DockerClient, image: str, *argv: str) -> None:
    """Run one command on the volume, in a container that goes with it."""
    try:
        engine.containers.run(
            image,
            entrypoint=[argv[0]],
            command=list(argv[1:]),
            volumes={VOLUME: {"bind": ROOT, "mode": "rw"}},
            labels={LABEL: "errand"},
            network_disabled=True,
            remove=True,
        )
    except ContainerError as error:
        output = (
            (error.stderr or b"").decode(errors="replace") if isinstance(error.stderr, bytes) else str(error.stderr)
        )
        raise VclusterError(f"`{' '.join(argv)}` on the sandbox's volume failed: {output.strip()}") from error


def remove(container: Container) -> None:
    """Remove a container, running or not, gone already or not."""
    try:
        container.remove(force=True, v=True)
    except NotFound:
        return


def wait_for_engine(host: Container) -> None:
    """Wait until the engine inside answers; the error holds its last log lines when it doesn't."""
    # The pid file is there only once the engine is under way: then it must stay alive.
    gone = "[ -f /run/docker.pid ] && ! kill -0 $(cat /run/docker.pid)"
    poll = f"until docker info >/dev/null 2>&1; do if {gone}; then exit 1; fi; sleep 0.1; done"
    try:
        execute(host, ["sh", "-c", poll], deadline=_START_S)
    except (VclusterError, APIError) as error:
        raise VclusterError(f"{host.name}: its Docker engine did not start\n{_last_words(host)}") from error


def _last_words(host: Container) -> str:
    """What a host that doesn't come up has printed."""
    printed = host.logs(tail=8).decode(errors="replace").strip()
    try:
        return f"{printed}\n{execute(host, ['tail', '-n', '8', '/var/log/dockerd.log'], deadline=10)}".strip()
    except (VclusterError, APIError):
        return printed
