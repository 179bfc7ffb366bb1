"""What a container can get, variables and folders, and what vcluster sets there itself; refusals are ValueErrors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from vllm_cluster.kernel.inventory.words import quote_value

# The variables that vcluster sets itself, with the key of the inventory that steers each.
# One value for all hosts is wrong for the first group: interfaces, devices and addresses differ between hosts.
_STEERED_BY = {
    "VLLM_HOST_IP": "hosts.NAME.address",
    "NCCL_SOCKET_IFNAME": "hosts.NAME.interface",
    "GLOO_SOCKET_IFNAME": "hosts.NAME.interface",
    "NCCL_IB_HCA": "hosts.NAME.hcas",
    "HF_HOME": "model_cache",
    "HF_TOKEN": "hf_token (a reference, not the token)",
    "HF_TOKEN_PATH": "hf_token (a reference, not the token)",
    "HUGGING_FACE_HUB_TOKEN": "hf_token (a reference, not the token)",
    "VLLM_API_KEY": "api_key (a reference, not the key)",
    "VLLM_PORT": "ports.api",
    "RAY_ADDRESS": "ports.gcs and head",
}
_SET_BY_VCLUSTER = (
    *("RAY_AUTH_", "RAY_USAGE_STATS_ENABLED", "VCLUSTER_", "VLLM_CONFIG_ROOT"),
    # On a folder that hosts share, these caches break: they are in each host's own volume.
    *("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "CUDA_CACHE_PATH"),
)
# What vcluster also sets, to values that an inventory need not know.
_SET_ANYWAY = frozenset(
    (
        *("AUTOSCALER_METRIC_PORT", "DASHBOARD_METRIC_PORT", "PATH", "PYTHONPATH"),
        *("VLLM_ENGINE_READY_TIMEOUT_S", "VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "VLLM_LOGGING_COLOR"),
    )
)
# Where every container has its program, its state and its secrets, and the logs of Ray, which the node program clears.
RESERVED_FOLDERS = ("/opt/vcluster", "/var/lib/vcluster", "/run/secrets/vcluster", "/tmp/ray")  # noqa: S108 (in the container)
# Below these the kernel answers: nothing can be mounted there.
_KERNEL_FOLDERS = ("/proc", "/sys", "/dev")
# A mount hides what an image has there: its programs and libraries, our program, Ray's and vLLM's own files.
_SYSTEM = re.compile(
    r"/(bin|boot|etc|lib(32|64|x32)?|opt|run(/secrets)?|sbin|tmp"
    r"|usr(/(s?bin|lib(32|64|exec)?|local(/(s?bin|lib))?|share))?|var(/(cache|lib|log|tmp))?)?"
)


def refuse_set_variable(name: str) -> str:
    """Let a variable's name pass unless vcluster sets it on each host."""
    if name in _STEERED_BY:
        raise ValueError(f"is set by vcluster on each host: remove it here and use {_STEERED_BY[name]}")
    if name.startswith(_SET_BY_VCLUSTER):
        raise ValueError("is set by vcluster on each host: remove it here")
    return name


def steered_by(name: str) -> str:
    """What gives a variable its value in a container; empty where the inventory's environment may."""
    if name == "CUDA_VISIBLE_DEVICES":
        return "gpus of the inventory and --hosts choose the GPUs"
    if name in _STEERED_BY:
        return f"set by {_STEERED_BY[name]} of the inventory"
    return "set by vcluster" if name.startswith(_SET_BY_VCLUSTER) or name in _SET_ANYWAY else ""


def refuse_secret(name: str) -> str:
    """Let the name of a secret variable pass unless vcluster, Ray or Python gives it its value."""
    refuse_set_variable(name)
    if name in _SET_ANYWAY or name.startswith("RAY_"):
        raise ValueError("is set by vcluster in every container: remove it here")
    return name


def absolute_folder(text: str) -> str:
    """An absolute path on the hosts, without the characters that mount syntax claims."""
    if text.startswith("~"):
        raise ValueError("~ is another folder on each host: write the whole path, beginning with /")
    if not text.startswith("/"):
        raise ValueError(f"{quote_value(text)} is not absolute: it is a path on the hosts and begins with /")
    if any(c in ":," or not c.isprintable() for c in text):
        raise ValueError(f"{quote_value(text)} holds a colon, a comma or an unprintable character")
    path = PurePosixPath("/" + text.lstrip("/"))
    if ".." in path.parts:
        raise ValueError(f"{quote_value(text)} goes up with ..: write where it ends")
    return str(path)


def mount_target(text: str) -> str:
    """A folder that a container can get without losing its own system."""
    path = absolute_folder(text)
    # In every image /var/run is a link to /run.
    real = re.sub(r"^/var/run(?=/|$)", "/run", path)
    if _SYSTEM.fullmatch(real) or _within(real, _KERNEL_FOLDERS):
        raise ValueError(
            f"{quote_value(path)} belongs to the container's system: choose another, such as /data/huggingface"
        )
    if _within(real, RESERVED_FOLDERS):
        raise ValueError(
            f"{quote_value(path)} is vcluster's own in the container: choose another, such as /data/huggingface"
        )
    return path


def _within(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)
