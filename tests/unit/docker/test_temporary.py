"""The temporary containers of a host while what made them is broken off."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.support import world
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.docker.client import DockerApi
from vllm_cluster.kernel.docker.temporary import TemporaryContainers
from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.hosts.runtime import SYSTEM


class Docker:
    """A Docker that takes its time to create a container, until it may; `interrupted` is Ctrl-C before it answers."""

    def __init__(self, *, interrupted: bool = False) -> None:
        self.there: set[str] = set()
        self.begun, self.may = threading.Event(), threading.Event()
        self._interrupted = interrupted

    def create(self, name: str, _body: Any) -> None:
        self.begun.set()
        assert self.may.wait(10)
        self.there.add(name)
        if self._interrupted:
            raise KeyboardInterrupt

    def remove(self, name: str, grace: int) -> None:
        assert grace == 0
        self.there.discard(name)

    def close(self) -> None:
        """Its connections end."""


def made(containers: TemporaryContainers) -> None:
    """Create one, which an end refuses."""
    with suppress(VclusterError):
        containers.create("one", {})


# fault: kernel/docker/temporary.py: if self._creating.acquire(timeout=deadline.left()): → if False:
def test_one_that_is_being_created_is_removed_once_it_is_there() -> None:
    """Ctrl-C came during the call: the removal found nothing, and Docker made it after that."""
    docker = Docker()
    containers = TemporaryContainers(lambda: cast(DockerApi, docker))
    creating = threading.Thread(target=made, args=(containers,))
    creating.start()
    assert docker.begun.wait(10)
    ending = threading.Thread(target=containers.end, args=(Deadline.after(10),))
    ending.start()
    ending.join(0.2)
    assert ending.is_alive()
    docker.may.set()
    ending.join(10)
    creating.join(10)
    assert docker.there == set()


# fault: kernel/docker/temporary.py: if self._ended: → if False:
def test_none_is_created_once_its_run_is_broken_off() -> None:
    docker = Docker()
    docker.may.set()
    containers = TemporaryContainers(lambda: cast(DockerApi, docker))
    containers.end(Deadline.after(10))
    with pytest.raises(VclusterError, match="one: not created"):
        containers.create("one", {})
    assert docker.there == set()


# fault: kernel/docker/temporary.py: if not to_come: → if True:
# fault: kernel/docker/temporary.py: # The end may not have waited so long → return  # the end
def test_one_that_comes_after_the_end_is_removed_and_not_used() -> None:
    """Docker took longer than the end waits: the removal found nothing, and its maker took it for removed."""
    docker, used = Docker(), list[str]()
    containers = TemporaryContainers(lambda: cast(DockerApi, docker))

    def work() -> None:
        with suppress(VclusterError), containers.door("lab", {}) as name:
            used.append(name)

    making = threading.Thread(target=work)
    making.start()
    assert docker.begun.wait(10)
    containers.end(Deadline.after(0.05))
    docker.may.set()
    making.join(10)
    assert (docker.there, used) == (set(), [])


# fault: kernel/docker/temporary.py: timeout=deadline.left() → timeout=60
def test_a_docker_that_does_not_answer_is_waited_for_no_longer_than_that() -> None:
    docker = Docker()
    containers = TemporaryContainers(lambda: cast(DockerApi, docker))
    creating = threading.Thread(target=made, args=(containers,))
    creating.start()
    assert docker.begun.wait(10)
    containers.end(Deadline.after(0.05))
    assert creating.is_alive(), "until Docker gave up"
    docker.may.set()
    creating.join(10)


# fault: kernel/docker/temporary.py: except BaseException: → except VclusterError:
def test_a_door_whose_answer_did_not_arrive_is_removed() -> None:
    docker = Docker(interrupted=True)
    docker.may.set()
    containers = TemporaryContainers(lambda: cast(DockerApi, docker))
    with pytest.raises(KeyboardInterrupt), containers.door("lab", {}):
        pass
    assert docker.there == set()


# fault: kernel/hosts/connection.py: connection.temporary.end(deadline) → None
def test_ctrl_c_waits_for_what_docker_is_asked_for_on_other_hosts() -> None:
    """Their connections were closed under the call; Docker made the container all the same."""
    docker = Docker()

    def ssh(argv: Sequence[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(argv, 0, f"user me\nhostname {argv[-1]}\nport 22\n".encode(), b"")

    with Fleet(world.inventory(2), replace(SYSTEM, processes=ssh)) as fleet:

        def work(connection: HostConnection) -> None:
            if connection.name == "gpu1":
                assert docker.begun.wait(10)
                raise KeyboardInterrupt
            made(connection.temporary)

        def answer() -> None:
            while not fleet.stopping:
                pause.wait(0.01)
            docker.may.set()

        pause = threading.Event()
        fleet.connections["gpu2"]._docker_api = cast(DockerApi, docker)
        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            fleet.each(work)
    assert docker.there == set()
