"""Lines that look like a failure and are harmless, with the reason, and lines that show progress."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class BenignPattern:
    """Words that look like a failure. With a `row`, they are harmless only if work continues, else that failure."""

    needle: str
    why: str
    row: str = ""


BENIGN = (
    BenignPattern(
        "No available shared memory broadcast block found",
        "written whenever one task takes long: loading, compiling, a first large prompt",
        "51",
    ),
    BenignPattern(
        "Waiting for creating a placement group", "Ray needs seconds, or minutes on a busy head, to give the GPUs", "35"
    ),
    BenignPattern("Could not find: libnccl-net", "NCCL looks for a plug-in that few images have, and works without it"),
    BenignPattern("NET/Plugin", "NCCL looks for a plug-in that few images have, and works without it"),
    BenignPattern("TUNER/Plugin", "NCCL looks for a plug-in that few images have, and works without it"),
    BenignPattern("Failed to open libibverbs.so", "a host without RDMA has no such library; NCCL uses TCP instead"),
    BenignPattern(
        "The object store is using /tmp instead of /dev/shm", "vLLM moves its tensors itself, not through Ray's"
    ),
    BenignPattern("unauthenticated requests to the HF Hub", "public models need no token; only the rate is lower"),
    BenignPattern("failed to automatically increase with error", "a limit of open files that serving does not reach"),
    BenignPattern("Failed to import from vllm._C", "the host has no GPU; vLLM runs on the CPU without it"),
    BenignPattern("numa_migrate_pages failed", "a container may not move memory; it only costs speed"),
    BenignPattern("numa_set_membind failed", "a container may not bind memory; it only costs speed"),
    BenignPattern("The node with ID", "Ray reports a node that has left"),
    BenignPattern("Ray's metrics", "serving does not need Ray's metrics"),
    BenignPattern("Failed to establish connection to the metrics exporter", "serving does not need Ray's metrics"),
    BenignPattern("metrics agent", "serving does not need Ray's metrics"),
)

# Work has continued; the strong ones show that the server answers and has survived what failed before.
PROGRESS = (
    "Starting to load model",
    "shards:",
    "Loading weights took",
    "Available KV cache memory",
    "KV cache size:",
    "init engine (profile",
    "Capturing CUDA graph",
    "Graph capturing finished",
    "Dynamo bytecode transform",
    "is assigned as DP rank",
    "Init COMPLETE",
    "vLLM is using nccl",
)
STRONG = re.compile(rb'Application startup complete|"POST /[^"\n]{1,300}" 200')
# These only announce a traceback, whose last line names what happened.
ANNOUNCED = (
    "Traceback",
    "Error in chat completion",
    "Error in completion",
    "Exception in worker",
    "Exception in ASGI application",
)
# A new start of vLLM: every line before it belongs to an earlier run.
START = ("vLLM API server version", "non-default args:")
# The node program writes this, in the log that holds all attempts.
OWN_START = "vcluster starts vLLM"
# vLLM is stopped by a request: from here on its processes end, and write so.
OWN_STOP = "vcluster stops vLLM"
RAY_START = ("Ray runtime started",)

# Ray's lists of what may be the reason.
POSSIBLE = re.compile(r"Possible reasons include|There are some potential root causes|Some common causes include")

# A line that reports a failure of any kind.
TROUBLE = re.compile(
    r"^(?:Traceback \(|[\w.]{0,120}(?:Error|Exception|Exit)\b:?)"
    r"|\b(?:ERROR|CRITICAL|FATAL)\b|\b[Ee]rror:|: error\b|panic:|Segmentation fault|core dumped|^Killed\b|^Aborted\b"
    r"|^\[[\d\- :,.]{19,27} [EFC] |^\[[EF]\d{3,4} \d\d:|\bNCCL WARN\b"
)
