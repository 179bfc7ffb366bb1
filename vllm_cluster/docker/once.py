"""Runs a Python script in an image once, and leaves nothing behind."""

from __future__ import annotations

from vllm_cluster.docker.engine import Ended, EngineClient
from vllm_cluster.docker.spec import probe_body
from vllm_cluster.transport.base import Deadline


def run_once(engine: EngineClient, cluster: str, purpose: str, image: str, *, script: str, deadline: Deadline) -> Ended:
    """What the script printed and how it ended, in a throwaway container without network."""
    name = f"vcluster-{cluster}-{purpose}"
    engine.remove(name, grace=0)
    engine.create(name, probe_body(cluster, image, script))
    try:
        engine.start(name)
        return Ended(engine.wait(name, deadline), engine.logs(name))
    finally:
        engine.remove(name, grace=0)
