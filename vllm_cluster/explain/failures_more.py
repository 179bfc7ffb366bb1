"""What vLLM refuses, what its start reports, and GPUs that Docker cannot give: rows 95 to 105."""

from __future__ import annotations

from vllm_cluster.explain.failure import KnownFailure, broad, cause, symptom

CHECK = "vcluster check"
FIT = "vcluster fit MODEL"
SERVE = "vcluster serve"
UP = "vcluster up"
_RAISED = r"(?:ValueError: |AssertionError: |Value error, )"
_REFUSED = (
    r".{0,800}(?:[Nn]ot (?:yet |currently )?(?:be )?(?:supported|compatible|allowed)|[Uu]nsupported|[Ii]ncompatible"
    r"|n[o']t support\b|\bonly supports?\b|annot be (?:used|combined|larger|set|enabled)|mutually exclusive"
    r"|No valid attention backend|must be divisible)"
)

FAILURES = (
    KnownFailure(
        "95",
        "`is not supported for the current GPU. Minimum capability: …`, `Bfloat16 is only supported on GPUs with …`",
        "the GPU is of an older generation than this quantization, data type or kernel needs",
        "-- --dtype half for bfloat16; a checkpoint in another quantization (awq and gptq from 7.5 on); newer GPUs",
        FIT,
        (
            cause("is not supported for the current GPU"),
            cause("Quantization scheme is not supported for"),
            cause("is only supported on GPUs with compute capability"),
            cause("GPUs with compute capability below"),
            cause("fp8e4nv not supported in this architecture"),
            cause("only supports Ampere GPUs or newer"),
            cause(
                "compute capability",
                r"(?i)(?:requires?|needs?) .{0,80}compute capability"
                r"|compute capability.{0,60}\bor (?:higher|newer|above)",
            ),
            cause("is only supported on", r"(?i)is only supported on .{0,40}(?:hopper|blackwell|ampere|sm_?\d\d)"),
            cause("requires .target sm_"),
        ),
    ),
    KnownFailure(
        "96",
        "`Model architectures [...] are not supported for now`, `Transformers does not recognize this architecture`",
        "the image's vLLM or Transformers does not know this kind of model: it is newer, or never was supported",
        "a newer image: that has it; the list: docker run --rm IMAGE python3 -c "
        "'from vllm import ModelRegistry as m; print(m.get_supported_archs())'",
        FIT,
        (
            # Where the name is in the list that follows, its class could not be imported: something else is wrong.
            cause("are not supported for now", r"architectures \['(\w{1,120})'(?!.{0,4096}'\1')"),
            cause("does not recognize this architecture"),
            cause("GGUF model with architecture", r"architecture \S{1,80} is not supported yet"),
            cause("has no vLLM implementation"),
            cause("not compatible with vLLM", r"Transformers implementation is not compatible with vLLM"),
            cause("Unsupported architecture"),
        ),
    ),
    KnownFailure(
        "97",
        "`contains custom code which must be executed`, `set the option trust_remote_code=True`",
        "the model brings code of its own, which vLLM runs only when it is allowed",
        "read the *.py files of the model, then: vcluster serve MODEL -- --trust-remote-code",
        FIT,
        (
            cause("contains custom code which must be executed"),
            cause("requires you to execute the"),
            cause("argument `trust_remote_code=True` to allow"),
            cause("option `trust_remote_code=True` to remove this error"),
        ),
    ),
    KnownFailure(
        "98",
        "`KeyError: 'layers.0.mlp.…'` while weights are loaded, `There is no module or parameter named`",
        "the names or shapes of the weights are not those that vLLM's class expects: other quantization or version",
        "a checkpoint that vLLM's documentation names for this model, a newer image, or another --load-format",
        "",
        (
            cause("KeyError: '", r"^KeyError: '(?:\w{1,60}\.){0,12}(?:layers|blocks|layer|h)\.\d{1,4}\."),
            cause(
                "KeyError: '", r"^KeyError: '(?:\w{1,60}\.){1,12}\w{0,40}(?:weight|bias|scale|absmax|zeros)\w{0,40}'"
            ),
            cause("There is no module or parameter named"),
            cause("Unexpected weight:"),
            cause("were not initialized from checkpoint"),
            cause("Attempted to load weight (torch.Size"),
            cause("Tried to load weights of size"),
            cause("size mismatch for", r"size mismatch for [\w.]{1,200}: copying a param"),
        ),
    ),
    KnownFailure(
        "99",
        "`parser could not locate think start/end tokens in the tokenizer`",
        "the parser of reasoning or tool calls is one for another model",
        "take --reasoning-parser and --tool-call-parser out, or name the model's own: vllm serve --help=all lists them",
        SERVE,
        (cause("arser could not locate", r"[Pp]arser could not locate .{1,80} in the tokenizer"),),
    ),
    KnownFailure(
        "100",
        "`peer access is not supported between these two devices`",
        "the GPUs of this host cannot read each other's memory: their kind, the PCIe switch, or virtual machines",
        'NCCL_P2P_DISABLE: "1" in environment: of the inventory, and -- --disable-custom-all-reduce',
        "vcluster check --deep",
        (
            cause("peer access is not supported between these two devices"),
            cause("cudaErrorPeerAccessUnsupported"),
        ),
    ),
    KnownFailure(
        "101",
        "`Timed out waiting for engine core processes to start`",
        "the engines did not come up in the time that the API server waits: loading, compiling, or one rank is stuck",
        'read the last line of each rank; where it works on, set VLLM_ENGINE_READY_TIMEOUT_S: "3600" in environment:',
        "",
        (
            symptom("Timed out waiting for engine"),
            symptom("engine core processes to start", r"(?i)timed? ?out"),
            symptom("failed to report ZMQ addresses"),
        ),
        kind="symptom",
    ),
    KnownFailure(
        "102",
        "`Ray processes died unexpectedly`, `Unable to register worker with raylet`, `node timed out during startup`",
        "Ray did not start on this host, and this line does not name the process that failed, nor why",
        "/tmp/ray/session_latest/logs on that host: gcs_server.err, raylet.err, dashboard_agent.log, in this order",
        UP,
        (
            symptom("Unable to register worker with raylet"),
            symptom("Ray processes died unexpectedly"),
            symptom("Some Ray subprocesses exited unexpectedly"),
            symptom("node timed out during startup"),
            symptom("The current node has not been updated within"),
            symptom("have not registered within the timeout"),
            symptom("Failed to start GCS"),
            symptom("one Ray agent failed"),
            symptom("find a `node_ip_address.json`"),
            symptom("Could not find any running Ray instance"),
            symptom("Did not find socket name"),
            symptom("Could not connect to socket", r"Could not connect to socket .{0,300}(?:raylet|plasma)"),
        ),
        host=True,
        kind="symptom",
    ),
    KnownFailure(
        "103",
        "`WrongClusterID`",
        "a process of an earlier Ray talks to a head that was started since",
        "vcluster down && vcluster up; by hand: ray stop on every host, then the head, then the others",
        UP,
        (cause("WrongClusterID"),),
        host=True,
    ),
    KnownFailure(
        "104",
        "`ValueError: … is not supported`, `AssertionError: … only supports …`",
        "vLLM refuses this model, flag or GPU, alone or in combination; the line names it",
        "change what the line names; another version of image: may have it; -- --help=all lists the flags",
        FIT,
        (
            broad("rror", rf"^{_RAISED}{_REFUSED}"),
            broad("rror", rf"^(?:RuntimeError|NotImplementedError): (?!.*\b(?:CUDA|HIP|NCCL)\b){_REFUSED}"),
            broad("NotImplementedError: ", r"^NotImplementedError: \w"),
        ),
    ),
    KnownFailure(
        "105",
        "`nvidia-container-cli: mount error: failed to add device rules`, `cgroup subsystem devices not found`",
        "the NVIDIA container toolkit may not set up GPUs here: too old for cgroup v2, or Docker is rootless or a snap",
        "newer nvidia-container-toolkit; rootless: "
        "sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups --in-place",
        CHECK,
        (
            cause(
                "nvidia-container-cli: ",
                r"nvidia-container-cli: (?:container|mount) error: .{0,300}(?:cgroup|devices\.allow|bpf_)",
            ),
        ),
        host=True,
    ),
)
