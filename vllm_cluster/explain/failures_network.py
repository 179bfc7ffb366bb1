"""Failures of interfaces, Gloo, NCCL and RDMA: rows 19 to 34."""

from __future__ import annotations

from vllm_cluster.explain.failure import KnownFailure, cause, note, symptom

CHECK = "vcluster check"
DEEP = "vcluster check --deep"
# NCCL retries for a while and logs it at level INFO.
_PEER = r"(?i)^(?!.*nccl info)(?!.*https?://).*(?:nccl|gloo|c10d|nvshmem|ucx|nixl|tcpstore|socket|raylet|gcs|grpc|zmq)"
_UNREACHED = ("onnection timed out", "onnection refused", "o route to host", "etwork is unreachable")

FAILURES = (
    KnownFailure(
        "19",
        "`Gloo connectFullMesh failed`",
        "Gloo chose an interface that the other hosts cannot reach: docker0, a VPN, another subnet",
        "interface: of each host in the inventory (GLOO_SOCKET_IFNAME=NAME): the one that holds its address",
        CHECK,
        (cause("Gloo connectFullMesh failed"), cause("connectFullMesh", r"(?i)connectFullMesh.{0,80}fail")),
    ),
    KnownFailure(
        "20",
        "`Unable to resolve hostname to a (local) address. Using the loopback address`; peers connect to 127.0.0.1",
        "a rank offers the others its loopback address: /etc/hosts maps the host's name there, or nothing maps it",
        "VLLM_HOST_IP and GLOO_SOCKET_IFNAME (vcluster sets both); or the private address for `hostname` in /etc/hosts",
        CHECK,
        (
            # On one host it is right: a failure to connect makes it the cause.
            note("Using the loopback address as fallback", explains=("19", "23", "30")),
            note("connectFullMesh failed", r"remote=\[127\.\d+\.\d+\.\d+\]", ("19",)),
            cause("connect [127.0.1.1]"),
        ),
    ),
    KnownFailure(
        "21",
        "the wrong interface though one is named, or `no socket interface found`",
        "no interface has that name on this host, or NCCL took the name as a prefix (eth1 is also eth10)",
        "interface: per host in the inventory; NCCL_SOCKET_IFNAME==eth1 with the equals sign means exactly eth1",
        CHECK,
        (
            cause("no socket interface found"),
            cause("Unable to find address for:"),
            # What an interface that is not there leaves as an address.
            cause("is neither AF_INET", r"with family \d+ is neither AF_INET"),
            cause("Unable to find interface for:"),
            cause("unable to find interface", r"(?i)gloo|unable to find interface [\w.-]+"),
        ),
    ),
    KnownFailure(
        "22",
        "workers use the head's interface or adapter names",
        "Ray's executor copies the head's environment to workers that have none",
        "ray_non_carry_over_env_vars.json in vLLM's config folder (vcluster puts it there), and per-host values",
        CHECK,
        silent="its log lines are those of failure 21, written by a worker",
    ),
    KnownFailure(
        "23",
        "`Watchdog caught collective operation timeout`, or ncclCommInitRank never returns",
        "a collective was never completed: a rank had died or was stuck, or its packets were lost",
        "the log of the rank that fell silent first, and its host's dmesg; vcluster check --deep finds a bad link; "
        "then try NCCL_P2P_DISABLE=1, NCCL_NVLS_ENABLE=0, NCCL_IB_DISABLE=1, one at a time",
        DEEP,
        (
            symptom("Watchdog caught collective operation timeout"),
            symptom("watchdog got stuck for"),
            symptom("detected by watchdog at work"),
            symptom("Timeout at NCCL work"),
            symptom("NCCL communicator was aborted"),
            symptom("Timed out waiting", r"Timed out waiting \d+ms for (?:send|recv) operation"),
        ),
        kind="symptom",
    ),
    KnownFailure(
        "24",
        "it works, slowly: `via NET/Socket` in NCCL's log",
        "NCCL goes over TCP: no RDMA device in the container, no port ACTIVE, or a wrong list of adapters",
        "hcas: in the inventory; NCCL_NET=IB makes it fail instead of crawl",
        DEEP,
        (
            note("NCCL INFO NET/IB : No device found"),
            note("via NET/Socket", r"NCCL INFO Channel \d+.{0,200}via NET/Socket"),
            note("NCCL INFO Using network Socket"),
        ),
    ),
    KnownFailure(
        "25",
        "`GPU Direct RDMA Disabled for HCA`",
        "nvidia_peermem is not loaded and DMA-BUF is not available, or IOMMU/ACS blocks peer access",
        "modprobe nvidia_peermem; iommu=pt on the kernel's command line; ACS off on the PCIe switches",
        DEEP,
        # NCCL writes the same about every Ethernet interface, where it is normal.
        (note("GPU Direct RDMA Disabled for HCA", r"NET/IB\b.{0,40}GPU Direct RDMA Disabled"),),
    ),
    KnownFailure(
        "26",
        "`ibv_modify_qp failed`, `Got completion … error 12`, `vendor err 129`",
        "the adapters do not reach each other: GID index, adapters of different rails or subnets, MTU, ACS",
        "hcas: with the exact adapters; NCCL_IB_GID_INDEX for RoCE v2 (show_gids); one MTU; NCCL_CROSS_NIC=0",
        DEEP,
        (
            cause("ibv_modify_qp failed"),
            cause(
                "Got completion", r"Got completion (?:from peer|with error).{0,200}(?:vendor err|error (?:4|5|12)\b)"
            ),
        ),
    ),
    KnownFailure(
        "27",
        "`ibv_reg_mr_iova2 failed … Cannot allocate memory`",
        "the limit of locked memory is too low, as Docker inherits it",
        "--ulimit memlock=-1 --cap-add IPC_LOCK (vcluster sets both where an adapter is ACTIVE); LimitMEMLOCK=infinity",
        CHECK,
        (
            cause("ibv_reg_mr", r"ibv_reg_(?:dmabuf_)?mr\w* failed.{0,80}(?:annot allocate|error 12)"),
            cause("ibv_create_cq", r"ibv_create_cq.{0,20}failed.{0,80}annot allocate"),
        ),
    ),
    KnownFailure(
        "28",
        "`Error while creating shared memory segment /dev/shm/nccl-…`, `Bus error`",
        "/dev/shm is too small: 64 MB is Docker's default",
        "shm_size: 16g in the inventory (docker run --shm-size=16g), then vcluster up",
        CHECK,
        (
            cause("Insufficient space in /dev/shm"),
            cause("Error while creating shared memory segment"),
            cause("posix_fallocate failed", r"posix_fallocate failed.{0,20}No space left"),
            cause("failed to extend /dev/shm/"),
            cause("o space left on device", r"(?i)(?:/dev/shm|shm_?open|shared memory|psm_).{0,200}no space left"),
            cause("o space left on device", r"(?i)no space left on device.{0,120}(?:/dev/shm|/psm_|/torch_)"),
            cause("SHM", r"(?i)open shm in SHMManager failed|shmem.{0,40}fail.{0,40}size"),
            cause("out of shared memory"),
            cause("unable to allocate shared memory"),
            cause("unable to write to file </torch"),
            cause("Bus error"),
            cause("SIGBUS received"),
        ),
    ),
    KnownFailure(
        "29",
        "`unhandled cuda error`, `unhandled system error`, `NCCL error: …` without a detail",
        "a call of NCCL failed, and this line does not name it: driver, RDMA devices, memory, another rank",
        "NCCL_DEBUG: INFO in environment: of the inventory; then the first NCCL WARN of any rank names the call",
        CHECK,
        (
            symptom("ncclUnhandledCudaError"),
            symptom("unhandled cuda error", r"(?i)nccl"),
            symptom("ncclSystemError"),
            symptom("unhandled system error", r"(?i)nccl"),
            symptom("NCCL error", r"NCCL error(?:: (?!remote process)| in: )"),
            symptom("Cuda failure", r"NCCL WARN.{0,40}Cuda failure (?!(?:2 )?'out of memory)"),
            symptom("ncclInternalError"),
            symptom("ncclInvalidUsage"),
            symptom("Test NCCL failure", r"Test NCCL failure.{0,120}'(?:internal|unhandled)"),
        ),
        kind="symptom",
    ),
    KnownFailure(
        "30",
        "`The client socket has timed out … trying to connect to (IP, PORT)`; workers never join",
        "a port of another host does not answer: nothing listens there, or a firewall drops what goes there",
        "the log of the host at that address: does its Ray or rank 0 run? vcluster check measures the ports between",
        CHECK,
        (
            symptom("client socket has timed out"),
            symptom("TCP client failed to connect/validate"),
            symptom("RuntimeError: Socket Timeout"),
            symptom("client socket has failed to connect to"),
            symptom("waiting for clients", r"Timed out after \d+ seconds waiting for clients"),
            symptom("Failed to connect to GCS"),
            symptom("Unable to connect to GCS"),
            symptom("failed to connect to all addresses", r"(?i)failed to connect to all addresses.{0,300}:\d+"),
            symptom("no connection to the head"),
            symptom("cannot be retrieved (gai error"),
            symptom("Network is unreachable", r"^OSError: \[Errno 101\]"),
            symptom("wait timeout after", r"wait timeout after \d+ms"),
            symptom("retrieving ncclUniqueId"),
            *(symptom(words, _PEER) for words in _UNREACHED),
            symptom("GCS", r"Failed to get cluster ID from GCS|GCS.{0,80}(?:is unreachable|may be dead|timed out)"),
        ),
        host=True,
        kind="symptom",
    ),
    KnownFailure(
        "31",
        "one interface listens, the kernel sends from another",
        "two interfaces in one subnet",
        "one interface a subnet, or source routing",
        CHECK,
        silent="packets are lost and nothing logs it",
    ),
    KnownFailure(
        "32",
        "small messages pass, large ones hang",
        "the path takes smaller packets than the interfaces believe (MTU, jumbo frames)",
        "one MTU on hosts and switches; ping -M do -s 8972 PEER",
        CHECK,
        silent="it hangs; what is logged later is failure 23",
    ),
    KnownFailure(
        "33",
        "the fabric is dead after a reboot",
        "its addresses were added by hand",
        "netplan or NetworkManager",
        "",
        silent="what is logged is failure 21 or 30",
    ),
    KnownFailure(
        "34",
        "NCCL goes over TCP or a VPN though there is a fast network",
        "the interface that was chosen is a tunnel or a bridge",
        "address: and interface: of each host: those of the fast network",
        CHECK,
        (
            note(
                "NCCL INFO",
                r"(?:NET/Socket : Using|Bootstrap ?: ?Using).{0,80}\b(?:tailscale|wg|tun|docker|veth|virbr)\d",
                ("23", "30"),
            ),
        ),
    ),
)
