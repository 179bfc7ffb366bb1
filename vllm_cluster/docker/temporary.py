"""Runs a Python script in an image once, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from secrets import token_hex

from vllm_cluster.clock import Deadline
from vllm_cluster.core.identity import Owner
from vllm_cluster.docker.client import DockerApi
from vllm_cluster.docker.container_body import probe_body
from vllm_cluster.docker.output import ExecResult
from vllm_cluster.errors import HostError


def run_once(
    engine: DockerApi,
    owner: Owner,
    purpose: str,
    image: str,
    *,
    script: str,
    deadline: Deadline,
    words: Sequence[str] = (),
) -> ExecResult:
    """What the script printed and how it ended, in a throwaway container without network."""
    with temporary_container(engine, owner.cluster, purpose, probe_body(owner, image, script, words)) as name:
        engine.start(name)
        return ExecResult(engine.wait(name, deadline), engine.logs(name))


@contextmanager
def temporary_container(engine: DockerApi, cluster: str, purpose: str, body: Mapping[str, object]) -> Iterator[str]:
    """A container that is removed again; what failed in between is raised, not a failure of the removal after it."""
    name = temporary_name(cluster, purpose)
    engine.create(name, body)
    try:
        yield name
    except BaseException:
        with suppress(HostError):
            engine.remove(name, grace=0)
        raise
    engine.remove(name, grace=0)


def temporary_name(cluster: str, purpose: str) -> str:
    """A name that no other container has; `core.identity` knows it again."""
    return f"vcluster-{cluster}-{purpose}-{token_hex(4)}"
