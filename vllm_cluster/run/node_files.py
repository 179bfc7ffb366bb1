"""The files that every node's container gets before it starts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from vllm_cluster.backends import backend
from vllm_cluster.core.desired import CODE_FOLDER
from vllm_cluster.run import node_program

# Each node's own, or not passed on: what starts ranks on other nodes fills gaps there from the head's environment.
PER_NODE_VARIABLES = (
    "GLOO_SOCKET_IFNAME",
    "HF_TOKEN_PATH",
    "NCCL_IB_HCA",
    "NCCL_SOCKET_IFNAME",
    backend.TOKEN_PATH,
    "VCLUSTER_API_KEY_FILE",
    "VLLM_HOST_IP",
)


def node_files() -> dict[str, bytes]:
    """Content by absolute path in the container."""
    own = json.dumps(PER_NODE_VARIABLES).encode()
    return {
        **{f"{CODE_FOLDER}/{path}": content for path, content in node_program.program().items()},
        f"{CODE_FOLDER}/config/{backend.NOT_PASSED_ON}": own,
    }


def digest(contents: Mapping[str, bytes]) -> str:
    """A short hash of all files, for the spec."""
    whole = hashlib.sha256()
    for path, content in sorted(contents.items()):
        whole.update(f"{path} {len(content)}\n".encode() + content)
    return whole.hexdigest()[:16]
