"""What is sent into containers and onto heads: parts of this package, which need the standard library alone there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import accumulate

from vllm_cluster.kernel.backends import NOT_PASSED_ON, TOKEN_PATH
from vllm_cluster.kernel.plan.desired import CODE_FOLDER

_NODE, _WIRE = "vllm_cluster.serving.node", "vllm_cluster.wire"


def importable(package: str) -> dict[str, bytes]:
    """The files by which a package, and the border, can be imported below any folder, by their path there.

    The folders above it have no code of their own there: that of this package is for laptops.
    """
    files, folders = dict[str, bytes](), set[str]()
    for name in (package, _WIRE):
        files |= dict(_sources(resources.files(name), name.replace(".", "/")))
        folders |= {*accumulate(name.split("."), "{}/{}".format)}
    return files | {f"{folder}/__init__.py": b"" for folder in folders}


def _sources(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    for one in folder.iterdir():
        if one.is_dir():
            yield from _sources(one, f"{path}/{one.name}")
        elif one.name.endswith(".py"):
            yield f"{path}/{one.name}", one.read_bytes()


@cache
def node_program() -> Mapping[str, bytes]:
    """The files of the node program, by their path below its folder; `node.py` is what to run."""
    files, folder = importable(_NODE), _NODE.replace(".", "/")
    # The one is run as a file; vLLM imports the other as a module of its own.
    return {
        "node.py": files.pop(f"{folder}/supervisor.py"),
        "vcluster_auth.py": files.pop(f"{folder}/vcluster_auth.py"),
        **files,
    }


# Each node's own, or not passed on: what starts ranks on other nodes fills gaps there from the head's environment.
PER_NODE_VARIABLES = (
    "GLOO_SOCKET_IFNAME",
    "HF_TOKEN_PATH",
    "NCCL_IB_HCA",
    "NCCL_SOCKET_IFNAME",
    TOKEN_PATH,
    "VCLUSTER_API_KEY_FILE",
    "VLLM_HOST_IP",
)


def node_files() -> dict[str, bytes]:
    """Content by absolute path in the container."""
    own = json.dumps(PER_NODE_VARIABLES).encode()
    return {
        **{f"{CODE_FOLDER}/{path}": content for path, content in node_program().items()},
        f"{CODE_FOLDER}/config/{NOT_PASSED_ON}": own,
    }


@cache
def program_digest() -> str:
    """A short hash of all files of the node program, for the spec."""
    whole = hashlib.sha256()
    for path, content in sorted(node_files().items()):
        whole.update(f"{path} {len(content)}\n".encode() + content)
    return whole.hexdigest()[:16]
