"""The environment variables that vcluster sets itself, and the key of the inventory that steers each."""

from __future__ import annotations

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
# Where every container has its program, its state and its secrets, and the logs of Ray, which the node program clears.
RESERVED_FOLDERS = ("/opt/vcluster", "/var/lib/vcluster", "/run/secrets/vcluster", "/tmp/ray")  # noqa: S108 (in the container)
# What vcluster also sets, to values that an inventory need not know.
_SET_ANYWAY = frozenset(
    (
        *("AUTOSCALER_METRIC_PORT", "DASHBOARD_METRIC_PORT", "PATH", "PYTHONPATH"),
        *("VLLM_ENGINE_READY_TIMEOUT_S", "VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "VLLM_LOGGING_COLOR"),
    )
)


def refuse(name: str) -> str:
    """Let a variable's name pass unless vcluster sets it on each host."""
    if name in _STEERED_BY:
        raise ValueError(f"is set by vcluster on each host: remove it here and use {_STEERED_BY[name]}")
    if name.startswith(_SET_BY_VCLUSTER):
        raise ValueError("is set by vcluster on each host: remove it here")
    return name


def refuse_secret(name: str) -> str:
    """Let the name of a secret variable pass unless vcluster, Ray or Python gives it its value."""
    refuse(name)
    if name in _SET_ANYWAY or name.startswith("RAY_"):
        raise ValueError("is set by vcluster in every container: remove it here")
    return name
