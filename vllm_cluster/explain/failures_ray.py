"""Failures of Ray: rows 35 to 43."""

from __future__ import annotations

from vllm_cluster.explain.failure import KnownFailure, cause, note, symptom

CHECK = "vcluster check"

FAILURES = (
    KnownFailure(
        "35",
        "`No available node types can fulfill resource request`; the placement group never comes",
        "Ray has not what was asked for: a worker is missing, something else holds the GPUs, or an address is wrong",
        "vcluster status: which host is missing or counts fewer GPUs; ray list nodes: the addresses that Ray knows",
        CHECK,
        (
            symptom("No available node types can fulfill resource request"),
            symptom("Current node has no GPU available"),
            symptom("lacement group creation timed out"),
            symptom("cannot be scheduled right now"),
            symptom("Cannot provide a placement group"),
            symptom("does not allocate any GPUs on the driver node"),
            symptom("exceeds available GPUs", r"[Pp]arallel size \(?\d+\)? exceeds available GPUs"),
            symptom(
                "exceeds the total number of available", r"number of required \w+ exceeds the total number of available"
            ),
        ),
        kind="symptom",
    ),
    KnownFailure(
        "36",
        "Ray counts fewer GPUs than there are",
        "a worker has not joined, or joined without its GPUs (MIG, CUDA_VISIBLE_DEVICES, no --num-gpus)",
        "vcluster status names the host; vcluster up waits for the exact number",
        "vcluster up",
        (cause("Total cluster GPUs", r"(?i)total cluster gpus.{0,40}less than"),),
    ),
    KnownFailure(
        "37",
        "`Version mismatch: The cluster was started with: Ray: … Python: …`",
        "the hosts run different images",
        "image: by digest (NAME@sha256:…) in the inventory, then vcluster up",
        CHECK,
        (cause("Version mismatch: The cluster was started with"),),
        host=True,
    ),
    KnownFailure(
        "38",
        "ranks of one tensor parallel group lie on two hosts, or a host stays empty",
        "Ray packed the ranks otherwise than the layout wants",
        "--tp GPUs of a host and --pp hosts (vcluster's default), no other GPUs in Ray",
        "vcluster serve",
        (
            note("Tensor parallel workers can be spread out to"),
            note("is bigger than a reserved number of GPUs", r"tensor_parallel_size=\d+ is bigger"),
        ),
    ),
    KnownFailure(
        "39",
        "`RayChannelTimeoutError` on the first requests",
        "a stage did not answer Ray's compiled graph in time: it is slow, stuck or dead",
        'the log of the rank that fell silent first; RAY_CGRAPH_get_timeout: "1200" in environment: if all work',
        "",
        (symptom("RayChannelTimeoutError"),),
        kind="symptom",
    ),
    KnownFailure(
        "40",
        "`A worker died … SYSTEM_ERROR … connection error code 2. End of file`",
        "a rank ended without a word: killed by hand, by the kernel or by Ray for lack of memory, or it crashed",
        "that host: dmesg -T for `Out of memory` and `Xid`; docker inspect -f '{{json .State}}'; the rank's own log",
        "",
        (
            symptom("connection error code 2. End of file"),
            symptom("A worker died or was killed while executing"),
            symptom("died unexpectedly", r"Worker(?:Proc)? .{0,80}died unexpectedly"),
            symptom("Segmentation fault", r"^(?:Fatal Python error: )?Segmentation fault"),
            symptom("SIGSEGV received"),
            symptom("Raylet is terminated"),
            symptom('"ExitCode":137', r'"OOMKilled":false'),
            symptom("marked dead"),
            symptom("marked as dead", r"(?<!can be )marked as dead"),
            symptom("died", r"(?i)\b(?:process|proc|worker|engine|loop|executor|actor)\b.{0,120}\bdied\b"),
            symptom("already dead", r"(?i)engine is already dead"),
            symptom("code 137", r"\b(?:exit|exited with) code 137\b"),
            symptom("Exit Code:", r"Exit Code:\s{1,8}137\b"),
            symptom("Killed", r"^Killed(?:\s|$)|:\s{1,8}\d{0,9} Killed\s"),
        ),
        host=True,
        kind="symptom",
    ),
    KnownFailure(
        "41",
        "`ray up` starts the head only",
        "the head has no key for the workers",
        "vcluster starts every node from here and does not use ray up",
        silent="vcluster does not go this way",
    ),
    KnownFailure(
        "42",
        "GPUs stay taken in Ray after vLLM was killed",
        "its placement group has outlived it",
        "vcluster down && vcluster up: a fresh Ray",
        silent="what is logged is failure 35",
    ),
    KnownFailure(
        "43",
        "jobs of unknown users run in the cluster",
        "Ray's dashboard was open to the network",
        "vcluster binds it to loopback and demands a token on every node",
        CHECK,
        silent="an open port does not log",
    ),
)
