"""Runs a Python script in an image once, and leaves nothing behind."""

from __future__ import annotations

from secrets import token_hex

from vllm_cluster.docker.engine import EngineClient
from vllm_cluster.docker.output import Ended
from vllm_cluster.docker.spec import probe_body
from vllm_cluster.transport.base import Deadline


def run_once(engine: EngineClient, cluster: str, purpose: str, image: str, *, script: str, deadline: Deadline) -> Ended:
    """What the script printed and how it ended, in a throwaway container without network."""
    name = passing_name(cluster, purpose)
    engine.create(name, probe_body(cluster, image, script))
    try:
        engine.start(name)
        return Ended(engine.wait(name, deadline), engine.logs(name))
    finally:
        engine.remove(name, grace=0)


def passing_name(cluster: str, purpose: str) -> str:
    """A name that nobody has: whoever else's container is called almost like it stays. Labels tell that it is ours."""
    return f"vcluster-{cluster}-{purpose}-{token_hex(4)}"
