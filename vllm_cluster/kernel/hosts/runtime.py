"""What a verb takes from the machine that it runs on: time, threads, processes, chance and the ways out."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Protocol

from vllm_cluster.kernel.clock import SYSTEM_CLOCK, Clock, Deadline
from vllm_cluster.kernel.docker.client import DockerApi
from vllm_cluster.kernel.hosts.secrets import secret_id as hash_secret
from vllm_cluster.kernel.hosts.visited import Visited
from vllm_cluster.kernel.transport import Kind, make_transport
from vllm_cluster.kernel.transport.base import Target, Transport
from vllm_cluster.kernel.transport.jumps import Jumps
from vllm_cluster.kernel.transport.ssh_config import Run, SshEndpoint


class Background(Protocol):
    """Work that runs beside the verb."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most so many seconds."""
        ...

    def is_alive(self) -> bool:
        """Whether it has not ended yet."""
        ...


class Repeated(Background, Protocol):
    """Work that is done again and again."""

    def stop(self) -> None:
        """Do it no more; what has begun runs to its end."""
        ...


class _RepeatedThread(threading.Thread):
    def __init__(self, work: Callable[[], bool], seconds: float, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._work, self._seconds = work, seconds
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(self._seconds) and self._work():
            pass

    def stop(self) -> None:
        self._stopped.set()


def _pool(workers: int) -> Executor:
    return ThreadPoolExecutor(workers, thread_name_prefix="host")


def _background(work: Callable[[], None], name: str) -> Background:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def _repeat(work: Callable[[], bool], seconds: float, name: str) -> Repeated:
    thread = _RepeatedThread(work, seconds, name)
    thread.start()
    return thread


def _connect(target: Target, kind: Kind, endpoint: SshEndpoint | None, jumps: Jumps) -> Transport:
    return make_transport(target, kind, jumps, endpoint)


def _docker(transport: Transport, api_version: str, clock: Clock) -> DockerApi:
    return DockerApi(transport, api_version, clock=clock)


@dataclass(frozen=True)
class Runtime:
    """One for a verb: this machine's by default, and another where a simulation runs the verb.

    `repeat` does its work every so many seconds until it returns False; `processes` is called as subprocess.run is;
    `run` differs between two runs of a verb.
    """

    clock: Clock = SYSTEM_CLOCK
    pool: Callable[[int], Executor] = _pool
    background: Callable[[Callable[[], None], str], Background] = _background
    repeat: Callable[[Callable[[], bool], float, str], Repeated] = _repeat
    processes: Run = subprocess.run
    token: Callable[[int], str] = token_hex
    run: str = field(default_factory=lambda: token_hex(4))
    secret_id: Callable[[str, str, str], str] = hash_secret
    connect: Callable[[Target, Kind, SshEndpoint | None, Jumps], Transport] = _connect
    docker: Callable[[Transport, str, Clock], DockerApi] = _docker
    visited: Visited = field(default_factory=Visited)

    def after(self, seconds: float) -> Deadline:
        """The moment `seconds` from now."""
        return Deadline.after(seconds, self.clock)


SYSTEM = Runtime()
