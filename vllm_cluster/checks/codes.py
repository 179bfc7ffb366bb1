"""Why each finding matters, and which rows of the failure catalogue (docs/failures.md) it forestalls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Code(NamedTuple):
    """One sentence, and the rows."""

    why: str
    rows: tuple[int, ...] = ()


CODES: Mapping[str, Code] = {
    "unreachable": Code("Nothing can be started there, and the links to it are not measured."),
    "no-shell": Code("vcluster inspects and changes a host by commands in its login shell."),
    # Docker
    "docker-missing": Code("Every node is a container.", (6,)),
    "docker-forbidden": Code("Nothing can be started by this user.", (6,)),
    "docker-stopped": Code("Nothing can be started, and what ran has ended.", (6,)),
    "docker-old": Code("Its API lacks what nodes need.", (6,)),
    "other-cluster": Code("Two clusters on one host take each other's ports and GPUs.", (10,)),
    "newer": Code("This version may not understand what the newer one made.", (10,)),
    "name-taken": Code("Docker refuses a second container of one name.", (10,)),
    "stale-container": Code("It may hold GPUs and Ray's ports, and an old script comes back with it.", (10, 42)),
    "member-left": Code("Ray counts its GPUs, or waits for it, and no other verb reaches it.", (36, 42)),
    "room": Code("The pull would fail midway.", (17,)),
    "disk-full": Code("Containers, logs and image layers need disk space; a full disk stops all of them.", (17,)),
    "gpu-runtime": Code('Docker fails with: could not select device driver "" with capabilities: [[gpu]].', (3, 78)),
    "cdi-stale": Code("Docker cannot make a container with a file that is gone.", (5,)),
    "cdi-restart": Code("After a reboot of the host the node stays down until `vcluster up` runs.", (5,)),
    "cdi-off": Code("Docker ignores the file; a container that asks for its devices cannot be made.", (5,)),
    "toolkit-old": Code("After a systemctl daemon-reload the GPUs vanish from running containers.", (4,)),
    "container": Code("Every node is a container; `up` would fail at its first.", (3, 5, 54, 105)),
    "container-gpus": Code("The host's GPUs are not visible in a container: vLLM would find none.", (3, 4, 8, 91)),
    "container-cuda": Code("CUDA fails with: the driver is too old for this runtime.", (29,)),
    "image-unfit": Code("A node needs its Python, its vLLM and the options with which it is started.", (1,)),
    # GPUs
    "gpus-fewer": Code("Ray would count GPUs that do not exist.", (8, 36)),
    "gpu-named": Code("The node would get fewer GPUs than it is to serve with.", (8, 36)),
    "gpus-none": Code("A node without a GPU runs no rank.", (8, 89, 90)),
    "gpu-busy": Code("vLLM refuses to start when less is free than it may take, 92 % by default.", (9, 53, 73)),
    "mig": Code("A rank would get a slice, and ranks cannot join slices.", (8, 36)),
    "gpu-ecc": Code("The GPU lost data; the next such error ends the rank.", (8, 83)),
    "fabric": Code("CUDA fails with: Error 802: system not yet initialized.", (7,)),
    "xid": Code("The driver saw a GPU fail; it often fails again under load.", (8, 83)),
    "gpu-repair": Code("The GPU asks for a reset before it can be trusted.", (8,)),
    "nvlink": Code("TP over the remaining links is slow, or hangs.", (8, 23)),
    "gpus-differ": Code("All ranks get the same share, so the smallest GPU bounds them.", (53,)),
    "driver-differs": Code("Ranks of different drivers were seen to hang in NCCL's start.", (23, 29, 85)),
    "driver-old": Code("Kernels of a newer CUDA do not run on it, unless the image brings a compatible driver.", (85,)),
    # Network
    "ip-missing": Code("Without it NCCL, Gloo and Ray would have to guess the interface.", (19, 21)),
    "address": Code("Ray would register an address at which no other host finds it.", (13, 35, 46)),
    "interface": Code("NCCL and Gloo would find no interface of that name.", (19, 21, 22)),
    "route": Code("The worker could never join.", (13, 30)),
    "tunnel": Code("NCCL would send its traffic through a VPN or a container bridge.", (19, 34)),
    "nic-down": Code("An interface that is down carries no traffic.", (30,)),
    "mtu-differs": Code("Small messages pass and large ones hang.", (26, 32)),
    "nics-one-subnet": Code("Answers leave by an interface that the peer does not expect.", (31,)),
    "route-other": Code("NCCL listens on one interface while the kernel sends by another.", (19, 31)),
    "nic-slow": Code("The cluster would be up, and slow.", (24,)),
    "hostname-loopback": Code(
        "Programs that resolve the hostname get 127.0.0.1; vcluster's nodes use the address.", (20,)
    ),
    "hostname-unknown": Code(
        "Libraries that resolve the hostname fail or wait; vcluster's nodes use the address.", (20,)
    ),
    "port": Code("Ray, or the endpoint, could not listen.", (30, 43, 46)),
    # Between hosts
    "link-silent": Code(
        "A firewall drops packets that Ray, NCCL or Gloo need; they would wait without end.", (13, 30, 84)
    ),
    "link-refused": Code("A firewall rejects it, or another machine has the address.", (13, 30)),
    "link-unreachable": Code("There is no route between the two addresses.", (13, 19, 30)),
    "link-foreign": Code("A proxy, NAT or another machine answers in the peer's place.", (13, 30)),
    "link-mtu": Code("Small messages pass and the first large one hangs.", (32,)),
    "link-mtu-differs": Code("TCP tolerates this, RDMA does not.", (32,)),
    "link-source": Code("The host listens on one interface and its kernel sends from another.", (31,)),
    "collective-host": Code("Its own ranks, or every pair with it, cannot reduce.", (23, 28, 29)),
    "collective-link": Code("Both ends work, but not with each other.", (23, 26)),
    "collective-together": Code("Hosts and pairs work, all ranks together do not.", (23,)),
    "collective-slow": Code("Every step of the model waits for it.", (24,)),
    "collective-socket": Code("NCCL uses TCP although HCAs are ACTIVE.", (24,)),
    "collective-gdr": Code("Every byte goes through the host's memory.", (25,)),
    "collective-unseen": Code("The cluster may still fail at its first all-reduce."),
    # RDMA
    "hca": Code("NCCL would select an HCA without a link.", (24,)),
    "rdma-device": Code("The container cannot be made without the device, and NCCL cannot use the HCA.", (24, 29)),
    "hca-left": Code("NCCL on HCAs used for storage is slow, and slows storage.", (24, 26)),
    "hca-idle": Code("HCAs exist but are not ACTIVE: NCCL uses TCP.", (24,)),
    "hcas-differ": Code("HCAs of different kinds or rates do not connect, or run at the lower rate.", (24, 26)),
    "peermem": Code("Without GPUDirect RDMA every byte goes through the host's memory.", (25,)),
    "iommu": Code("Transfers between GPU and HCA are slow, or fail.", (25,)),
    "acs": Code("Transfers between GPU and HCA are slow, or hang.", (23, 25, 26)),
    "memlock": Code("ibv_reg_mr fails with: Cannot allocate memory.", (27,)),
    "roce-address": Code("Without RoCE v2 addresses packets do not pass routers, and NCCL's pairs time out.", (26,)),
    # Host
    "volume": Code("Docker would refuse the container, or make an empty folder.", (60,)),
    "model-cache": Code("Every model would be downloaded.", (60,)),
    "shm-small": Code("Ranks die with Bus error when it is full.", (28,)),
    "shm-large": Code("Filling it would end in the kernel killing a rank.", (54,)),
    "same-machine": Code("Ray would count its GPUs twice.", (16,)),
    "same-gpus": Code("NCCL refuses two ranks on one GPU.", (16,)),
    "same-hostname": Code("Ray's lists and logs show both hosts under one name.", (16,)),
    "clock": Code("Tokens and TLS fail, and log lines of several hosts cannot be ordered.", (15,)),
    # Image
    "image-differs": Code("Ray refuses other versions, and ranks of different vLLM hang.", (37,)),
    "processor": Code("The kernel fails with: exec format error.", (18,)),
    "image-absent": Code("vcluster up pulls it, which may take long and needs a registry.", (17, 37)),
    "ray-layer": Code("vLLM images have not included Ray since 0.18; vcluster up adds it.", (1,)),
    # Model cache
    "cache-write": Code("vLLM would fail at the first download, deep in its log.", (64,)),
    "cache-network": Code("Loading can take an hour when all ranks read through one server.", (66,)),
    "cache-full": Code("A download would fail midway.", (17, 65)),
    "cache-incomplete": Code("Incomplete weight files cannot be loaded.", (65,)),
    "cache-links": Code("A copy of symlinks without their files has no weights.", (61,)),
    "model-absent": Code("Ranks there download the model, or fail without access to the hub.", (60, 63)),
    "revision-differs": Code("Ranks would load different weights.", (68,)),
    "one-device": Code("Two kernels that write to one ordinary file system corrupt it.", (67,)),
}

# Rows of stage P about one host, or about several, that need no check or allow none, and why.
PREVENTED_BY_DESIGN: Mapping[int, str] = {
    2: "vcluster always sets the entrypoint",
    11: "every error names host, step, exit code and the last lines",
    12: "`ssh -G` is read first; `ssh.transport: openssh` runs your own ssh",
    14: "shared memory is private to the container, so logind cannot remove it; `facts` shows RemoveIPC and linger",
    21: "NCCL gets `=name`, the whole name",
    22: "each node gets its own values, and a list keeps Ray from copying the head's",
    33: "a host does not report whether an address survives a reboot; `facts` shows dynamic addresses",
    43: "Ray asks for a token, and its dashboard listens on loopback",
    58: "vcluster does not need io_uring",
    62: "`fit` asks the hub with the token before anything starts",
    69: "a readiness probe must pass before the model is ready",
    70: "secrets are files; tests look for them in argv, environment, inspect and logs",
}
