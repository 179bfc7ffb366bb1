"""Failures of drivers, downloads and images: rows 87 to 94."""

from __future__ import annotations

from vllm_cluster.explain.failure import KnownFailure, cause, note, symptom

CHECK = "vcluster check"
FIT = "vcluster fit MODEL"
UP = "vcluster up"
_HUB = r"(?:huggingface\.co|hf\.co|hf-mirror|modelscope)"

FAILURES = (
    KnownFailure(
        "87",
        "`Max retries exceeded with url: …huggingface.co`, `CAS service error`, `429 Client Error`",
        "the model's hub cannot be reached from this host, or refuses more downloads: network, DNS, proxy, certificate",
        'curl -sSI https://huggingface.co on that host; the model in model_cache: and HF_HUB_OFFLINE: "1" need no hub',
        FIT,
        (
            cause("Max retries exceeded with url", _HUB),
            cause("Failed to resolve", _HUB),
            cause("CAS service error"),
            cause("Client Error: Too Many Requests", r"429 Client Error"),
            cause("Server Error", rf"\b50[0234] Server Error.{{0,200}}(?:{_HUB}|/api/models/|/resolve/)"),
            cause("ReadTimeoutError", _HUB),
            cause("ConnectTimeoutError", _HUB),
            cause("httpx.Connect", r"^httpx\.Connect(?:Error|Timeout): "),
            cause("httpx.ReadTimeout", r"^httpx\.ReadTimeout"),
            cause("is lower than the current limit", r"curl|ssl"),
            cause("ProxyError", _HUB),
            note("thrown while requesting", rf"thrown while requesting (?:HEAD|GET) https?://.{{0,40}}{_HUB}", ("60",)),
        ),
        host=True,
    ),
    KnownFailure(
        "88",
        "`manifest unknown`, `pull access denied`, `TLS handshake timeout` of a registry",
        "the image cannot be pulled: no such name or tag, no right to it, or no way to the registry",
        "docker pull IMAGE on that host shows it; docker login REGISTRY; correct image: in the inventory",
        UP,
        (
            cause("manifest unknown"),
            cause("manifest for", r"manifest for .{1,300} not found"),
            cause("pull access denied"),
            cause("unauthorized: authentication required"),
            cause("toomanyrequests:"),
            cause("error from registry"),
            cause("error pulling image"),
            cause("failed to resolve reference"),
            cause("failed to copy: httpReadSeeker"),
            cause(
                "registry", r"(?i)registry.{0,300}(?:TLS handshake timeout|request canceled|no such host|i/o timeout)"
            ),
            cause('/v2/"', r"(?:TLS handshake timeout|request canceled|no such host|i/o timeout|connection refused)"),
            cause("failed to fetch anonymous token"),
            cause("/manifests/", r"/v2/.{1,300}/manifests/.{1,200}: (?:denied|unauthorized|not found)"),
            cause("ImagePullBackOff"),
        ),
        host=True,
    ),
    KnownFailure(
        "89",
        "`nvml error: driver/library version mismatch`, `NVRM: API mismatch`",
        "the driver was upgraded, and the kernel still runs the one before",
        "sudo reboot; or, with nothing on the GPUs: "
        "sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia",
        CHECK,
        (
            cause("river/library version mismatch"),
            cause("NVRM: API mismatch"),
            cause("RmInitAdapter failed", r"version mismatch"),
        ),
        host=True,
    ),
    KnownFailure(
        "90",
        "`libnvidia-ml.so.1: cannot open shared object file`, `nvml error: driver not loaded`",
        "the host has no NVIDIA driver that works: not installed, not loaded, or of another kernel",
        "nvidia-smi on that host; sudo modprobe nvidia && dmesg | grep -i nvidia; install or rebuild the driver",
        CHECK,
        (
            cause("libnvidia-ml.so.1: cannot open shared object"),
            cause("nvml error: driver not loaded"),
            cause("couldn't communicate with the NVIDIA driver"),
            cause("WSL environment detected but no adapters"),
            cause("driver rpc error: ", r"initialization error: driver rpc error"),
        ),
        host=True,
    ),
    KnownFailure(
        "91",
        "`Failed to infer device type`, `No platform detected`, `Found no NVIDIA driver on your system`",
        "vLLM found no GPU where it runs: a container without GPUs, no driver, or an image for another kind of GPU",
        "run nvidia-smi in the container, then on the host; vcluster check shows which of the two fails",
        CHECK,
        (
            symptom("Failed to infer device type"),
            symptom("Found no NVIDIA driver on your system"),
            symptom("libcuda.so.1: cannot open shared object"),
            symptom("NVML Shared Library Not Found"),
            symptom("No devices were found"),
            symptom("no GPUs found"),
            symptom("Device string must not be empty"),
            symptom("no CUDA-capable device is detected"),
            symptom("Torch not compiled with CUDA enabled"),
        ),
        kind="symptom",
    ),
    KnownFailure(
        "92",
        "`pthread_create failed: Resource temporarily unavailable`, `can't start new thread`, `Too many open files`",
        "a limit of this user or container is too low: of processes and threads, or of open files",
        "ulimit -u; ulimit -n; cat /sys/fs/cgroup/pids.max in the container: docker run --pids-limit=-1 --ulimit "
        "nofile=1048576",
        "",
        (
            cause("pthread_create", r"pthread_create.{0,60}Resource temporarily unavailable"),
            cause("can't start new thread"),
            cause(
                "Resource temporarily unavailable", r"\bfork\b.{0,60}Resource temporarily|BlockingIOError: \[Errno 11\]"
            ),
            cause("Too many open files", r"Errno 24\]|os error 24|: Too many open files"),
        ),
        host=True,
    ),
    KnownFailure(
        "93",
        "`undefined symbol`, `ImportError: cannot import name`, `has no attribute all_special_tokens_extended`",
        "packages of the image do not fit each other: built for another PyTorch, or of versions that differ too far",
        "an image of vllm/vllm-openai as it is, without pip install on top; docker run --rm IMAGE pip check",
        UP,
        (
            cause(
                "undefined symbol",
                r"^(?:\w{1,40}\.){0,6}(?:ImportError|OSError|RuntimeError): .{1,300}undefined symbol",
            ),
            cause("cannot import name", r"^ImportError: cannot import name"),
            cause("has no attribute all_special_tokens_extended"),
            cause("No module named", r"^ModuleNotFoundError: No module named '(?:vllm|transformers|torch|ray)\."),
            cause("GLIBC", r"version [`'](?:GLIBC|GLIBCXX|CXXABI)_[\d.]{1,12}' not found"),
            cause("compiled using NumPy 1.x cannot be run"),
            cause("numpy.core.multiarray failed to import"),
            cause("numpy.dtype size changed"),
            cause(
                ": cannot open shared object file",
                r"^ImportError: lib(?:cud|cub|cuf|nv|nccl|torch|mpi)[\w.-]{1,60}: cannot",
            ),
            cause("is required for a normal functioning of this module"),
            cause("Symbol not found:"),
            cause("does not exist", r"operator \w{1,40}::\w{1,80} does not exist"),
            cause("_OpNamespace", r"'_OpNamespace' .{1,80} has no attribute"),
        ),
    ),
    KnownFailure(
        "94",
        "`nvcc fatal`, `ptxas fatal`, `Unsupported gpu architecture`",
        "the CUDA compiler in the image is older than the kernels that it is to build, or than the GPU",
        'an image with a newer CUDA; or avoid the kernel: VLLM_USE_FLASHINFER_SAMPLER: "0" in environment:',
        "",
        (
            cause("nvcc fatal"),
            cause("ptxas fatal"),
            cause("Unsupported gpu architecture"),
            cause("is not defined for option 'gpu-name'"),
            cause("PTX .version", r"Unsupported \.version|PTX \.version .{0,60}not support"),
        ),
    ),
)
