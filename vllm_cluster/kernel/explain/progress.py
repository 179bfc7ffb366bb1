"""Lines that show how far a start is, where one begins, and what any trouble looks like."""

from __future__ import annotations

import re

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
STRONG = (b"Application startup complete", b'"POST /')
ANSWERED = re.compile(rb'Application startup complete|"POST /[^"\n]{1,300}" 200')
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
GROUP_START = ("Ray runtime started",)

# Ray's lists of what may be the reason.
POSSIBLE = re.compile(r"Possible reasons include|There are some potential root causes|Some common causes include")

# A line that reports a failure of any kind.
TROUBLE = re.compile(
    r"^(?:Traceback \(|[\w.]{0,120}(?:Error|Exception|Exit)\b:?|(?:\w{1,40}\.){1,8}(?:errors|exc|exceptions)\.\w+: )"
    r"|\b(?:ERROR|CRITICAL|FATAL)\b|\b[Ee]rror:|: error\b|panic:|Segmentation fault|core dumped|^Killed\b|^Aborted\b"
    r"|^\[[\d\- :,.]{19,27} [EFC] |^\[[EF]\d{3,4} \d\d:|\bNCCL WARN\b"
)

# What ssh, Docker, the kernel, daemons and C++ libraries write when they fail: no word ERROR, no level.
QUIET_WORDS = (
    *("FAILED rc=", "non-zero status", "not accessible, exiting", "segfault at", "Main process exited", "UFW BLOCK"),
    *("Failed with result", "sending SIG", "terminate called after", "error while loading shared libraries"),
    *("No route to host", "Permission denied", "what():", "Error response from daemon"),
    *("Failed: Cuda error", "Assertion `", "Assertion failed:", "failed to start.", "CrashLoopBackOff"),
)
# A process leaves: from here on, lost connections do not count.
LEAVES = "destroy_process_group() was not called"
# An engine's regular report.
RATES = "Avg generation throughput:"
ENGINE = re.compile(r"Engine \d{1,5}")
IDLE = re.compile(r"prompt throughput: 0\.0 tokens/s, Avg generation throughput: 0\.0 tokens/s, Running: [1-9]")
