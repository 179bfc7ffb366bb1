"""What runs inside the containers: standard library only, and Python 3.10, because the user chose the image."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

_MODULES = (
    "api.py",
    "argv.py",
    "attempt.py",
    "backends/__init__.py",
    "backends/ray.py",
    "checker.py",
    "compiled.py",
    "elapsed.py",
    "serve_state.py",
    "files.py",
    "idle_gpus.py",
    "key_file.py",
    "model_files.py",
    "movement.py",
    "timing.py",
    "phases.py",
    "process.py",
    "requests.py",
    "serving.py",
    "serve_request.py",
)


@cache
def program() -> Mapping[str, bytes]:
    """The files of the node program, by their path below its folder; `node.py` is what to run.

    The package's own folders are there without their `__init__` code, which is for laptops.
    """
    here = resources.files("vllm_cluster.remote.node")
    parts = {name: here.joinpath(name).read_bytes() for name in ("supervisor.py", "vcluster_auth.py", *_MODULES)}
    return {
        "node.py": parts["supervisor.py"],
        "vcluster_auth.py": parts["vcluster_auth.py"],
        "vllm_cluster/__init__.py": b"",
        "vllm_cluster/remote/__init__.py": b"",
        "vllm_cluster/remote/node/__init__.py": b"",
        **{f"vllm_cluster/remote/node/{name}": parts[name] for name in _MODULES},
    }
