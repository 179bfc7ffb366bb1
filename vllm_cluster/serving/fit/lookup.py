"""What the image's vLLM knows of a model's class."""

from __future__ import annotations

from vllm_cluster.kernel.docker.temporary import TemporaryContainer
from vllm_cluster.kernel.errors import CommandFailed, TimedOut
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.hosts.program import InNode, Place, python, run_program
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.identity import without_lease
from vllm_cluster.kernel.plan.images import find_image
from vllm_cluster.kernel.plan.spec import node_name

# Importing vLLM and a model's class took a minute on two busy cores.
CLASS_SECONDS = 180.0


def supports_pp(head: HostConnection, facts: HostFacts, inventory: Inventory, architecture: str) -> bool | None:
    """Whether the image's vLLM can split a model class into pipeline stages; None where that is unknown."""
    image = find_image(inventory.image, facts.images)
    if image is None or not architecture.isidentifier():
        return None
    program = python("serving.fit.on_host", "supports_pp", architecture, seconds=CLASS_SECONDS)
    node = node_name(inventory.cluster)
    up = any(container.name == node and container.state == "running" for container in facts.containers)
    beside = TemporaryContainer(without_lease(inventory.cluster), "fit", image.id)
    place: Place = InNode(node) if up else beside
    try:
        rows = run_program(head, program, place, head.runtime.after(CLASS_SECONDS)).messages
    except (CommandFailed, TimedOut):
        return None
    supported = next((row["supports_pp"] for row in reversed(rows) if "supports_pp" in row), None)
    return supported if isinstance(supported, bool) else None
