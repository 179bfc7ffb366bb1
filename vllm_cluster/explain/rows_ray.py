"""Failures of Ray: rows 35 to 43."""

from __future__ import annotations

from vllm_cluster.explain.row import Row, cause, note, symptom

CHECK = "vcluster check"

ROWS = (
    Row(
        "35",
        "`No available node types can fulfill resource request`; the placement group never comes",
        "VLLM_HOST_IP is not the address that Ray knows the node by, or something else holds the GPUs",
        "one value for --node-ip-address and VLLM_HOST_IP (address: in the inventory); vcluster down && vcluster up",
        CHECK,
        (
            cause("No available node types can fulfill resource request"),
            cause("Current node has no GPU available"),
            cause("Cannot provide a placement group"),
        ),
    ),
    Row(
        "36",
        "Ray counts fewer GPUs than there are",
        "a worker has not joined, or joined without its GPUs (MIG, CUDA_VISIBLE_DEVICES, no --num-gpus)",
        "vcluster status names the host; vcluster up waits for the exact number",
        "vcluster up",
        (
            cause(
                "exceeds the total number of available", r"number of required \w+ exceeds the total number of available"
            ),
            cause("Total cluster GPUs", r"(?i)total cluster gpus.{0,40}less than"),
        ),
    ),
    Row(
        "37",
        "`Version mismatch: The cluster was started with: Ray: … Python: …`",
        "the hosts run different images",
        "image: by digest (NAME@sha256:…) in the inventory, then vcluster up",
        CHECK,
        (cause("Version mismatch: The cluster was started with"),),
        host=True,
    ),
    Row(
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
    Row(
        "39",
        "`RayChannelTimeoutError` on the first requests",
        "Ray's compiled graph gave up waiting for a stage (vLLM before 0.32)",
        'RAY_CGRAPH_get_timeout: "1200" in environment: of the inventory, or a newer vLLM',
        "",
        (symptom("RayChannelTimeoutError"),),
    ),
    Row(
        "40",
        "`A worker died … SYSTEM_ERROR … connection error code 2. End of file`",
        "a rank was killed: by the kernel for lack of memory, by earlyoom, by Ray's monitor, or by hand",
        "dmesg -T | grep -i oom on that host; RAY_memory_monitor_refresh_ms=0 (vcluster sets it); more memory",
        "",
        (
            cause("node running low on memory", r"(?:killed|Task was killed).{0,80}node running low on memory"),
            cause("OutOfMemoryError", r"ray\.exceptions\.OutOfMemoryError"),
            symptom("connection error code 2. End of file"),
            symptom("A worker died or was killed while executing"),
            symptom("died unexpectedly", r"Worker(?:Proc)? .{0,80}died unexpectedly"),
            symptom("was marked dead", r"node with (?:node )?id.{0,200}was marked dead|marked dead because"),
        ),
        host=True,
    ),
    Row(
        "41",
        "`ray up` starts the head only",
        "the head has no key for the workers",
        "vcluster starts every node from here and does not use ray up",
        silent="vcluster does not go this way",
    ),
    Row(
        "42",
        "GPUs stay taken in Ray after vLLM was killed",
        "its placement group has outlived it",
        "vcluster down && vcluster up: a fresh Ray",
        silent="what is logged is row 35",
    ),
    Row(
        "43",
        "somebody else's jobs run in the cluster",
        "Ray's dashboard was open to the network",
        "vcluster binds it to loopback and demands a token on every node",
        CHECK,
        silent="an open port does not log",
    ),
)
