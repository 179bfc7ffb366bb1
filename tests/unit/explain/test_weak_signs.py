"""Words that many failures share name none of them, and what Python ignores does not count."""

from __future__ import annotations

import pytest

from tests.support.logs import explained

READY = "(APIServer pid=1) INFO:     Application startup complete.\n"
ENGINE = "(EngineCore pid=9) ERROR 11-03 10:00:00 [core.py:1] "
HUB = '  File "/usr/lib/python3.12/site-packages/huggingface_hub/utils/_http.py", line 31, in request\n'
DESTROYED = """Exception ignored in: <function Socket.__del__ at 0x14b7a0ee8720>
Traceback (most recent call last):
  File "/opt/venv/lib/python3.12/site-packages/zmq/sugar/socket.py", line 184, in __del__
{exception}
"""


@pytest.mark.parametrize(
    ("line", "slug"),
    [
        # Sizes that no model is split by.
        ("ValueError: block_size (10) must be divisible by 16", "combination-unsupported"),
        ("ValueError: num_heads (40) must be divisible by 3", "heads-indivisible"),
        ("AssertionError: hidden size 5120 is not divisible by 3", "heads-indivisible"),
        # Another server than the hub.
        ("requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: http://10.0.0.1:8000/v1/models", ""),
        ("requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: http://10.0.0.1:8000/v1/x", ""),
        ("HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/api/models/a/b", "access-denied"),
        ("HTTPError: 403 Client Error: Forbidden for url: http://mirror/a/b/resolve/main/config.json", "access-denied"),
        # A proxy on the way to the hub: its status is not the hub's.
        (
            "ProxyError: host='huggingface.co' url: /a/resolve/main/x (Tunnel connection failed: 403 Forbidden)",
            "hub-unreachable",
        ),
        # Schedulers of Kubernetes have one reason each for a pod that fits on no node.
        (
            "Warning  Unschedulable  2m  other-scheduler  2 node(s) did not have enough resources: GPUs.",
            "pod-unscheduled",
        ),
        # A file that is whole, and a port that needs a right.
        ("safetensors_rust.SafetensorError: File does not contain tensor lm_head.weight", ""),
        ("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge", "file-incomplete"),
        ("PermissionError: [Errno 13] error while attempting to bind on address ('0.0.0.0', 80): denied", ""),
        ("PermissionError: [Errno 13] Permission denied: '/root/.cache/vllm'", "cache-permission"),
        # An instruction of a GPU's kernel, and a table of the kernel's.
        ("torch.AcceleratorError: CUDA error: an illegal instruction was encountered", "gpu-lost-or-kernel"),
        ("Fatal Python error: Illegal instruction", "wrong-processor"),
        ("inotify_add_watch: No space left on device", "limit-too-low"),
        # What Docker, Ray, Abseil and vLLM write of an end.
        ('            "ExitCode": 137,', "rank-killed"),
        ('            "OOMKilled": true,', "host-memory-full"),
        ("*** SIGABRT received by PID 8562 (TID 8562) on cpu 236 from PID 8562; stack trace: ***", "rank-killed"),
        (
            "Memory on the node was 9GB / 10GB, which exceeds the memory usage threshold of 0.9. Ray killed it.",
            "host-memory-full",
        ),
        (
            "CRITICAL 11-03 10:00:00 [core_client.py:9] Got fatal signal from worker processes, shutting down.",
            "engine-died",
        ),
        # A file of any program, a connection of any server, and a request that was cut.
        ("FileNotFoundError: [Errno 2] No such file or directory: '/root/.docker/config.json'", ""),
        ("requests.exceptions.ChunkedEncodingError: Connection broken: IncompleteRead(9 bytes read)", ""),
        ("RuntimeError: cannot read the request: unexpected end of JSON input", ""),
        ("RuntimeError: cannot read index.json: unexpected end of JSON input", "file-incomplete"),
        ("HTTPError: got 12 files of https://huggingface.co/api/models/a/b in 403 ms", ""),
        ("OSError: [Errno 28] No space left on device: '/sys/fs/cgroup/docker/cpuset.cpus'", ""),
        # A shape at run time.
        ("RuntimeError: The size of tensor a (5120) must match the size of tensor b (640)", ""),
        # The reason is in other lines.
        (
            "Value error, Model architectures ['A'] failed to be inspected. Please check the logs. [type=value_error]",
            "",
        ),
        ("Value error, No model architectures are specified [type=value_error]", "combination-unsupported"),
        ("ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'", "cuda-compiler-old"),
        ("ptxas fatal   : Unresolved extern function '_Z6kernelPf'", "kernel-build-failed"),
        # What an adapter gives up after another error.
        (
            "gpu1:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with status=12 vendor err 129",
            "rdma-path",
        ),
        (
            "gpu1:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with status=5 vendor err 249",
            "nccl-error",
        ),
    ],
)
def test_words_that_many_failures_share_name_no_cause(line: str, slug: str) -> None:
    bare = line.startswith((" ", "*", "CRITICAL"))
    found = explained(("" if bare else ENGINE) + line + "\n")
    assert found.result not in ("nothing", "healthy", "healed")
    assert (found.named.failure.slug if found.named else "") == slug


@pytest.mark.parametrize(
    ("line", "slug"),
    [
        ("Fatal Python error: Bus error", "bus-error"),
        (
            "RuntimeError: killed by signal: Bus error. It is possible that it is out of shared memory.",
            "bus-error",
        ),
        ("RuntimeError: CUDA error: invalid device ordinal", "devices-set-twice"),
        ("OSError: [Errno 5] Input/output error", "read-failed"),
        (
            "RuntimeError: Gloo connectFullMesh failed with [/a/gloo/transport/tcp/pair.cc:144] no error",
            "gloo-interface",
        ),
        ("ConnectionError: ray client connection timeout", "peer-unanswered"),
        ("crun: error executing hook `/usr/bin/nvidia-cdi-hook` (exit code: 1): OCI runtime error", "container-hook"),
        (
            "DistBackendError: NCCL error in: a.hpp:2, remote process exited or there was a network error",
            "peer-gone",
        ),
        ("MQLLMEngine is already dead, terminating server process", "engine-died"),
        ("Failed to initialize NVML: Unknown Error", "nvml-lost"),
    ],
)
def test_what_has_many_causes_is_a_symptom(line: str, slug: str) -> None:
    found = explained(ENGINE + line + "\n")
    assert (found.result, found.symptom and found.symptom.failure.slug) == ("symptom", slug)


def test_a_bus_error_is_of_small_shared_memory_where_the_log_shows_that() -> None:
    small = "$ df -h /dev/shm\nshm              64M   64M     0 100% /dev/shm\n"
    found = explained(small + ENGINE + "Fatal Python error: Bus error\n")
    assert found.cause and found.cause.failure.slug == "shm-small"


# fault: kernel/explain/failures.toml: only = ["model-read"] → only = ["hub-asked"]
def test_a_file_is_one_of_a_model_where_its_path_or_its_reader_shows_it() -> None:
    lost = "FileNotFoundError: [Errno 2] No such file or directory: '/data/atlas/config.json'\n"
    reader = 'Traceback (most recent call last):\n  File "/usr/lib/python3/{}.py", line 5, in load\n    load()\n'
    assert explained(reader.format("frob/read") + lost).result == "exception"
    for read in (reader.format("transformers/configuration_utils") + lost, lost.replace("/data/", "/models/")):
        found = explained(read)
        assert found.cause and found.cause.failure.slug == "model-not-found"


# fault: kernel/explain/frame.py: (?:(?:increas|decreas| → (?:(?:decreas|
def test_a_refusal_names_the_setting_to_change_as_a_flag_or_as_python_does() -> None:
    trace = 'Traceback (most recent call last):\n  File "/usr/lib/python3/site-packages/{}.py", line 5, in load\n'
    refused = "ValueError: the item has 9 tokens, which is above 8. Please increase max_num_batched_tokens.\n"
    found = explained(trace.format("vllm/v1/core/encoder") + refused)
    assert found.cause and found.cause.failure.slug == "combination-unsupported"
    assert explained(trace.format("frob/core") + refused).result == "exception"


# fault: kernel/explain/progress.py: r"|\b(?:skipping|ignoring| → r"|\b(?:skips|ignores|
@pytest.mark.parametrize(
    "line", ["CUDA_HOME is not set, skipping the kernels", "No module named 'vllm': it will be ignored"]
)
def test_what_a_line_goes_without_is_not_a_failure(line: str) -> None:
    assert explained(line + "\n" + READY).named is None
    assert explained(line + "\n").cause is None


# fault: kernel/explain/diagnosis.py: or (kind == "nothing" and any(log.alive for log in logs)) → or False
def test_a_server_that_recovered_and_was_stopped_has_recovered() -> None:
    failed = ENGINE + "torch.OutOfMemoryError: CUDA out of memory.\n"
    answer = '(APIServer pid=1) INFO:     10.0.0.9:41000 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    stop = "(EngineCore pid=9) INFO 11-03 10:09:00 [core.py:1] Shutdown initiated (timeout=0)\n"
    found = explained(READY + failed + answer + stop, together=False)
    assert (found.result, [one.failure.slug for one in found.recovered]) == ("healed", ["gpu-memory-full"])


# fault: kernel/explain/progress.py: rf"(?<!\w\.)\b(?:{ → rf"\b(?:{
# fault: kernel/explain/progress.py: r"|\berrors?\"?: \"\"(?!\w)|\bfault → r"|\bfault
@pytest.mark.parametrize(
    "line",
    ["2026-11-03 10:00:00,173 uvicorn.error INFO Uvicorn running on http://0.0.0.0:8000", '        "Error": "",'],
)
def test_a_logger_and_an_empty_field_report_no_error(line: str) -> None:
    assert explained(line + "\n").result == "nothing"


# fault: kernel/explain/contradictions.py: unproved = bool(known.only) and not → unproved = False and not
# fault: kernel/explain/contradictions.py: unproved = bool(known.only) and → unproved = True and
def test_a_server_that_cannot_be_reached_is_the_hub_only_where_the_hub_was_asked() -> None:
    alone = explained("httpx.ConnectError: All connection attempts failed\n")
    assert alone.symptom and alone.symptom.failure.slug == "peer-unanswered"
    asked = explained(HUB + "httpx.ConnectError: All connection attempts failed\n")
    assert asked.cause and asked.cause.failure.slug == "hub-unreachable"
    # Each cause that needs no proof stays one.
    full = explained("torch.OutOfMemoryError: CUDA out of memory.\n")
    assert full.cause and full.cause.failure.slug == "gpu-memory-full"


# fault: kernel/explain/stream.py: elif self._ignored.holds(number, parsed, nearby): → elif False:
# fault: kernel/explain/frame.py: if number - begun > MAX_IGNORED or is_exception(parsed.words): → if number - begun > MAX_IGNORED:
# fault: kernel/explain/frame.py: self._begun[parsed.who] = number → pass
@pytest.mark.parametrize(
    "exception", ["KeyboardInterrupt: MQLLMEngine terminated", "ImportError: sys.meta_path is None"]
)
def test_what_python_ignores_does_not_count(exception: str) -> None:
    ignored = DESTROYED.format(exception=exception)
    assert explained(READY + ignored).result == "healthy"
    # The next exception counts, and so does what the catalogue knows.
    assert explained(READY + ignored + "FrobnicationError: the frob is out\n").result == "exception"
    lost = DESTROYED.format(exception="torch.AcceleratorError: CUDA error: an illegal memory access was encountered")
    assert explained(READY + lost).result == "symptom"


def test_semaphores_are_gone_for_more_than_one_reason() -> None:
    gone = explained(
        "    self._semlock = _multiprocessing.SemLock._rebuild(*state)\nFileNotFoundError: [Errno 2] No such file\n"
    )
    assert gone.symptom and "on another host" in gone.symptom.failure.cause


@pytest.mark.parametrize("word", ["JOB 5", "STEP 5.0"])
def test_a_job_that_is_cancelled_before_any_server_is_one_of_slurm_s(word: str) -> None:
    found = explained(f"slurmstepd: error: *** {word} ON node7 CANCELLED AT 2026-11-03T10:00:00 ***\n")
    assert (found.result, found.symptom and found.symptom.failure.slug) == ("symptom", "job-cancelled")


# fault: kernel/explain/stream.py: or (parsed.loud and not (self._trouble or self.seen.hits)) → or False
def test_errors_inside_a_traceback_whose_ends_are_missing_are_reported() -> None:
    inside = ENGINE + "        open device 1 failed, runtime result = 7.\n"
    assert explained(inside * 2).result == "unknown"
    assert explained(inside + READY).result == "healthy"


# fault: kernel/explain/progress.py: and not (words.endswith(":") and _NONE.match(below)) → and True
def test_a_heading_with_none_below_it_reports_no_failure() -> None:
    assert explained("Recent failures:\n (no failures)\n").result == "nothing"
    assert explained("Recent failures:\n gpu2: NodeTerminated\n").result == "unknown"


def test_a_fault_that_the_kernel_writes_is_reported() -> None:
    page = "[Tue Nov  3 02:30:28 2026] amdgpu 0000:c6:00.0: amdgpu:   cookie node_id 5 fault from die AID1.XCD0\n"
    assert explained(page).result == "unknown"
    assert explained("Fault tolerance of the router: enabled\n").result == "nothing"
