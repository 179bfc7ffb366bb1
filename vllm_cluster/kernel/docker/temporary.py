"""Containers that are made for one purpose, and leave nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from secrets import token_hex

from vllm_cluster.kernel.clock import Due
from vllm_cluster.kernel.docker.client import DockerApi
from vllm_cluster.kernel.docker.container_body import host_config, node_body, volume_mount
from vllm_cluster.kernel.errors import HostError, VclusterError
from vllm_cluster.kernel.plan.identity import Owner
from vllm_cluster.kernel.plan.spec import ContainerSpec, Mount

_ATTACHED = {"OpenStdin": True, "StdinOnce": True, "AttachStdin": True, "AttachStdout": True, "AttachStderr": True}


@dataclass(frozen=True)
class TemporaryContainer:
    """Where one program runs: a bare container, or one `like` a node's: its devices, network, folders and environment.

    `kind` is one of `kernel.plan.identity.KINDS`. It ends with the connection that feeds it, and removes itself.
    """

    owner: Owner
    kind: str
    image: str
    like: ContainerSpec | None = None
    network: str = "none"
    user: str = ""
    volume: Mount | None = None
    drop: tuple[str, ...] = ()
    # A folder that goes with it, and in which the program runs.
    scratch: str = ""

    def body(self, argv: Sequence[str]) -> dict[str, object]:
        """The body of the call that creates it."""
        node = node_body(self.like, self.image, "") if self.like else {}
        bare: dict[str, object] = {"NetworkMode": self.network, "CapDrop": list(self.drop)}
        host = host_config(self.like) if self.like else bare
        once = {"RestartPolicy": {"Name": "no"}, "AutoRemove": True, "LogConfig": {"Type": "none"}}
        mounts = [volume_mount(self.volume, self.owner)] if self.volume else []
        mounts += [{"Type": "volume", "Target": self.scratch}] if self.scratch else []
        return {
            **node,
            **_ATTACHED,
            **({"User": self.user} if self.user else {}),
            **({"WorkingDir": self.scratch} if self.scratch else {}),
            "Image": self.image,
            "Entrypoint": [argv[0]],
            "Cmd": list(argv[1:]),
            "Labels": self.owner.labels,
            "HostConfig": {**host, **once, "Mounts": mounts},
        }


class TemporaryContainers:
    """Those that this run has on one host: what is broken off removes them, since nothing ends one that never ran."""

    def __init__(self, docker: Callable[[], DockerApi]) -> None:
        self._docker = docker
        # Held while one is created: until Docker has answered, no removal finds it.
        self._creating = threading.Lock()
        self._there: set[str] = set()
        self._asked_for = ""
        self._ended = False

    def create(self, name: str, body: Mapping[str, object]) -> None:
        """Create one; who does removes it, also where this raises.

        Raises:
            HostError: as `DockerApi.create`.
            VclusterError: this run is being broken off.
        """
        with self._creating:
            self._refuse_ended(name)
            self._there.add(name)
            self._asked_for = name
            try:
                self._docker().create(name, body)
            finally:
                self._asked_for = ""
        # The end may not have waited so long: who made it removes it, and does not use it.
        self._refuse_ended(name)

    def _refuse_ended(self, name: str) -> None:
        if self._ended:
            raise VclusterError(f"{name}: not created, since this run is broken off", hint="run the command again")

    @contextmanager
    def door(self, cluster: str, body: Mapping[str, object]) -> Iterator[str]:
        """One through which a volume is reached, by its name; it is removed again.

        What failed in between is raised, not a failure of the removal after it.
        """
        name = temporary_name(cluster, "door")
        try:
            self.create(name, body)
            yield name
        except BaseException:
            with suppress(HostError):
                self.remove(name)
            raise
        self.remove(name)

    def forget(self, name: str) -> None:
        """Note that one has removed itself."""
        self._there.discard(name)

    def remove(self, name: str) -> None:
        """Remove one, unless that was done; while Docker is asked for it, it may come after this, too.

        Raises:
            HostError: as `DockerApi.remove`.
        """
        if name in self._there:
            to_come = name == self._asked_for
            self._docker().remove(name, grace=0)
            if not to_come:
                self._there.discard(name)

    def end(self, deadline: Due) -> None:
        """Create no more, and remove those that are there; one that is being created is waited for."""
        self._ended = True
        if self._creating.acquire(timeout=deadline.left()):
            self._creating.release()
        for name in tuple(self._there):
            with suppress(HostError):
                self.remove(name)


def temporary_name(cluster: str, purpose: str) -> str:
    """A name that no other container has; `kernel.plan.identity` knows it again."""
    return f"vcluster-{cluster}-{purpose}-{token_hex(4)}"
