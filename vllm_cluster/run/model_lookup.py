"""What the image's vLLM knows of a model's class."""

from __future__ import annotations

import json

from vllm_cluster.core.identity import without_lease
from vllm_cluster.core.images import find_image
from vllm_cluster.core.spec import node_name
from vllm_cluster.docker.temporary import run_once
from vllm_cluster.errors import CommandFailed, TimedOut
from vllm_cluster.facts.host_facts import HostFacts
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.connection import HostConnection

# Importing vLLM and a model's class took a minute on two busy cores.
CLASS_SECONDS = 180.0

# The container ends by itself, also where the laptop that would remove it is gone.
_CLASS = """
import json, os, threading
end = threading.Timer({seconds}, os._exit, (1,))
end.daemon = True
end.start()
from vllm.model_executor.models.registry import ModelRegistry
known = ModelRegistry.models.get({architecture!r})
print(json.dumps({{"supports_pp": known.inspect_model_cls().supports_pp if known else None}}))
"""


def supports_pp(head: HostConnection, facts: HostFacts, inventory: Inventory, architecture: str) -> bool | None:
    """Whether the image's vLLM can split a model class into pipeline stages; None where that is unknown."""
    image = find_image(inventory.image, facts.images)
    if image is None or not architecture.isidentifier():
        return None
    deadline = head.runtime.after(CLASS_SECONDS)
    script = _CLASS.format(architecture=architecture, seconds=CLASS_SECONDS)
    node, owner = node_name(inventory.cluster), without_lease(inventory.cluster)
    try:
        if any(container.name == node and container.state == "running" for container in facts.containers):
            ended = head.engine.exec(node, ["timeout", f"{CLASS_SECONDS:.0f}", "python3", "-c", script], deadline)
        else:
            ended = run_once(head.engine, owner, "fit", image.id, script=script, deadline=deadline)
        lines = [json.loads(line) for line in ended.output.splitlines() if line.startswith('{"supports_pp"')]
    except (CommandFailed, TimedOut, ValueError):
        return None
    supported = lines[-1]["supports_pp"] if lines else None
    return supported if isinstance(supported, bool) else None
