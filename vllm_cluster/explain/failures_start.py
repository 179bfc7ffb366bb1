"""Failures of a start that never had a chance, and what users see of many causes: rows 74 to 86."""

from __future__ import annotations

from vllm_cluster.explain.failure import KnownFailure, cause, symptom

CHECK = "vcluster check"
SERVE = "vcluster serve"
FIT = "vcluster fit MODEL"

FAILURES = (
    KnownFailure(
        "74",
        "`vllm: error: unrecognized arguments: …`, `error: argument --x: invalid choice`",
        "vLLM does not know a flag, or refuses its value, alone or beside another flag",
        "correct the flag after --; vllm serve --help=all in the image lists those of its version",
        SERVE,
        (
            # What a swallowed entrypoint leaves is row 2's.
            cause("error: unrecognized arguments:", r"arguments: (?!(?:start|bash|-c|sh|ray|--block)\b)"),
            cause("error: argument ", r"error: argument -[\w-]+(?:[/, ]+-[\w-]+)*:"),
            cause("error: the following arguments are required:"),
            cause("error: ambiguous option:"),
            cause("Input should be", r"^Input should be .{1,600}\[type=\w{1,60}, input_value="),
            cause("invalid tool call parser"),
            cause("invalid reasoning parser"),
            cause("got an unexpected keyword argument", r"Args\.__init__\(\) got an unexpected"),
            cause("cannot be other value than"),
            cause("max_num_batched_tokens", r"max_num_batched_tokens \(\d+\) (?:is smaller than|must be greater)"),
            cause("is greater than max_lora_rank"),
            cause("Unknown quantization method:"),
            cause("in the model config (", r"method specified in the model config .{1,200} does not match"),
            cause("is not supported for quantization method"),
            cause("appears path-like, but doesn't exist"),
            cause("--enable-auto-tool-choice requires"),
            cause("Invalid value '", r"Invalid value '.{0,200}' for VLLM_"),
        ),
    ),
    KnownFailure(
        "75",
        "`max_model_len (N) is greater than the derived max_model_len (M)`",
        "the length that is asked for is above what the model was made for",
        "-- --max-model-len M, the number in the line, or leave it out; vcluster fit MODEL",
        SERVE,
        (cause("is greater than the derived max_model_len"),),
    ),
    KnownFailure(
        "76",
        "`This model does not support …`, `The model does not support Completions API`, HTTP 404 for completions",
        "the model has no task of that kind: an embedding model completes no text, and the reverse",
        "ask the endpoint of its task (/v1/embeddings, /rerank, /classify), or -- --runner with one that it supports",
        "",
        (
            cause(
                "does not support", r"[Tt]h(?:e|is) model does not support (?:`--(?:runner|convert|task)|the '|'\w+')"
            ),
            cause("does not support", r"model does not support [\w -]{1,40}API\b"),
            cause("Supported tasks:", r"task\.? Supported tasks:"),
            cause("a completion ended with HTTP 404"),
        ),
    ),
    KnownFailure(
        "77",
        "`Cannot include dashboard with missing packages`",
        "the image has plain ray, without the packages of ray[default] that the dashboard needs",
        "an image with ray[default], or one without Ray: vcluster up then adds its own",
        "vcluster up",
        (
            cause("Cannot include dashboard with missing packages"),
            cause("Not all Ray Dashboard dependencies were found"),
        ),
        host=True,
    ),
    KnownFailure(
        "78",
        '`could not select device driver "cdi"`',
        "CDI is off in Docker, so it knows no device by a CDI name",
        "features: {cdi: true} in /etc/docker/daemon.json (Docker 28.2 has it on), then systemctl restart docker",
        CHECK,
        (
            cause('could not select device driver "cdi"'),
            cause("while adding custom device", r'adding custom device "[\w.-]+/[\w.-]+='),
        ),
        host=True,
    ),
    KnownFailure(
        "79",
        "`Failed to find C compiler`, `Python.h: No such file or directory`, `python3: not found` in the container",
        "the image lacks a program or a file that the start needs",
        "an image with it: vllm/vllm-openai has a compiler, Python's headers and Ray's requirements",
        "vcluster up",
        (
            cause("Failed to find C compiler"),
            cause("No such file or directory", r"fatal error: [\w./+-]{1,120}\.h(?:pp)?: No such file"),
            cause("Python.h: No such file or directory"),
            cause("Could not find nvcc"),
            cause("nvcc: not found"),
            cause("python3: not found"),
            cause("python3: command not found"),
            cause('exec: "python3"', r'exec: "python3": executable file not found'),
            # Which module: of Ray it is row 1, of a package that is there in another version row 93.
            cause(
                "No module named", r"^ModuleNotFoundError: No module named '(?!(?:ray|vllm\.|transformers\.|torch\.)\b)"
            ),
            cause("No module named 'vllm'"),
            cause("No module named", r"RaySystemError: System error: No module named"),
            cause(": stat ", r"unable to start container process: exec: .{1,200}no such file or directory"),
            cause("vllm: not found"),
            cause("vllm: command not found"),
        ),
        host=True,
    ),
    KnownFailure(
        "80",
        "`local_world_size (16) must be less than or equal to the number of visible devices (8)`",
        "more ranks than this host has GPUs, for an executor that places all of them here",
        "--distributed-executor-backend ray, and --tp and --pp whose product is the number of GPUs",
        SERVE,
        (
            cause("local_world_size (", r"local_world_size \(\d+\) must be"),
            cause(
                "max local gpu count", r"to (?:be )?less than (?:than )?max local gpu count|less than than max local"
            ),
            cause("is not equal to tensor_model_parallel_size"),
        ),
    ),
    KnownFailure(
        "81",
        "`failed to get the hash of the compiled graph`, `corrupted compilation artifact`, `Stale file handle`",
        "hosts or processes write one compile cache at the same time: it lies on a shared folder",
        "VLLM_CACHE_ROOT in environment: on a disk of each host's own (vcluster's default); remove torch_compile_cache",
        "",
        (
            cause("failed to get the hash of the compiled graph"),
            cause("corrupted compilation artifact"),
            cause(
                "Stale file handle",
                r"(?:cache|ld: |inductor|triton|jit).{0,200}Stale file"
                r"|Stale file handle.{0,200}(?:cache|inductor|triton|jit)",
            ),
            cause("torch_compile_cache", r"FileNotFoundError.{0,300}torch_compile_cache"),
            cause(
                "No such file or directory",
                r"No such file or directory: '.{0,200}(?:triton|inductor)[\w./-]{0,200}\.tmp",
            ),
        ),
    ),
    KnownFailure(
        "82",
        "`invalid device ordinal`, `Duplicate GPU detected`",
        "two lists of devices are set: Ray's or Docker's, and CUDA_VISIBLE_DEVICES beside it",
        "take CUDA_VISIBLE_DEVICES out of environment: and of the image; gpus: of the host names the devices once",
        "",
        (
            cause("invalid device ordinal"),
            cause("Duplicate GPU detected"),
        ),
    ),
    KnownFailure(
        "83",
        "`CUDA error: unspecified launch failure`, `illegal memory access`, `No CUDA GPUs are available`",
        "a rank lost its GPU, or a kernel went wrong: a defect of the card, of the driver or of vLLM all look like it",
        "dmesg -T | grep -i xid on that rank's host, nvidia-smi -q -d ECC; the first rank's log; another image version",
        CHECK,
        (
            symptom(
                "CUDA error: ",
                r"CUDA error: (?!out of memory|uncorrectable|the provided PTX|system not yet|invalid device ordinal"
                r"|CUDA driver version|no kernel image)",
            ),
            symptom("No CUDA GPUs are available"),
            symptom("CUDA error ", r"CUDA error /\S{1,300} '(?!out of memory)"),
            symptom("HIP error", r"HIP error:? (?!out of memory)"),
            symptom("CUDA driver error: ", r"CUDA driver error: (?!out of memory)"),
            symptom("Triton Error [CUDA]: ", r"\[CUDA\]: (?!out of memory|device kernel image is invalid)"),
            symptom("CUBLAS_STATUS_", r"CUBLAS_STATUS_(?!ALLOC_FAILED)"),
            symptom("CUDNN_STATUS_"),
        ),
        kind="symptom",
    ),
    KnownFailure(
        "84",
        "`Connection closed by peer`, `Connection reset by peer`, `remote process exited or there was a network error`",
        "another rank is gone, or the way to it: this rank only saw its connection end",
        "the log of the rank at the other end, and the first rank that fell silent; vcluster check for the way",
        CHECK,
        (
            symptom("ncclRemoteError"),
            symptom("remote process exited or there was a network error"),
            symptom("onnection closed by remote peer"),
            symptom("actor is temporarily unavailable"),
            symptom("Connection was likely closed"),
            symptom("Broken pipe", r"(?i)(?:gloo|c10d|nccl|tcpstore|sendBytes).{0,200}Broken pipe"),
            symptom("Connection closed by peer", r"(?i)(?:gloo|c10d|nccl).{0,200}Connection closed by peer"),
            symptom("Connection reset by peer", r"(?i)(?:gloo|c10d|nccl).{0,200}Connection reset by peer"),
        ),
        kind="symptom",
    ),
    KnownFailure(
        "85",
        "`CUDA driver version is insufficient`, `PTX was compiled with an unsupported toolchain`",
        "the image's CUDA is newer than the host's driver, or has no kernels for its GPUs",
        "a newer driver on that host, or an image for the CUDA that nvidia-smi shows",
        CHECK,
        (
            cause("CUDA driver version is insufficient"),
            cause("The NVIDIA driver on your system is too old"),
            cause("forward compatibility was attempted on non supported HW"),
            cause("system has unsupported display driver / cuda driver combination"),
            cause("nvidia-container-cli: requirement error"),
            cause("was compiled with an unsupported toolchain"),
            cause("no kernel image is available for execution"),
            cause("is not compatible with the current PyTorch installation"),
            cause("device kernel image is invalid"),
        ),
        host=True,
    ),
    KnownFailure(
        "86",
        "`InvalidAuthToken`, `no authentication token was found`",
        "a node of Ray has no token, or another one than its head",
        "vcluster up writes one token to all hosts; by hand: the same file at RAY_AUTH_TOKEN_PATH on each",
        "vcluster up",
        (
            cause("InvalidAuthToken"),
            cause("no authentication token was found"),
            cause("issing authentication token", r"(?i)(?:invalid|missing).{0,20}authentication token"),
        ),
        host=True,
    ),
)
