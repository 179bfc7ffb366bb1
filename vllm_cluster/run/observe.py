"""Looks at the hosts: one script each, and what their Docker engines hold."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files

from vllm_cluster.core import parse
from vllm_cluster.core.errors import CommandFailed
from vllm_cluster.core.facts import HostFacts
from vllm_cluster.core.preflight import engine_problem
from vllm_cluster.core.spec import CLUSTER
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.fleet import Link
from vllm_cluster.transport.base import Deadline

OBSERVE_SECONDS = 60.0


def observe(inventory: Inventory, link: Link) -> HostFacts:
    """The facts of one host; where its Docker cannot be used, the facts say why and list nothing.

    Raises:
        HostError: the host did not answer, or not to the end.
    """
    script = files("vllm_cluster.run").joinpath("facts.sh").read_bytes()
    peers = ",".join(host.address for host in inventory.hosts.values())
    paths = [inventory.model_cache, *(volume.source for volume in inventory.volumes)]
    result = link.transport.run(["sh", "-s", "--", peers, *paths], Deadline.after(OBSERVE_SECONDS), stdin=script)
    try:
        facts = parse.facts(link.name, result.text)
    except ValueError as error:
        stderr = result.stderr.decode("utf-8", "replace").strip()
        raise CommandFailed(
            link.name, f"cannot read its facts: {error}: {stderr[-300:]}", exit_code=result.returncode, stderr=stderr
        ) from error
    if engine_problem(facts):
        return facts
    engine = link.open_engine(facts.engine.api_version)
    return replace(facts, containers=engine.containers(CLUSTER), images=engine.images())
