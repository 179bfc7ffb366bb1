"""Every port on which vcluster, or what it starts, listens: who may connect, and what protects it.

`tools/security.py` prints it in SECURITY.md; a test holds that no other place listens and that no port is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

LOOPBACK = "127.0.0.1"
CHOSEN = "chosen by the kernel"
_NODES, _PRIVATE = "every host", "the host's `address`"
# As `ss -ltn` shows them beside a Ray 2.56.1 with --node-ip-address.
_ANY = "every address of the host"
_CLUSTER = "the hosts; and whoever reaches that network"
_USERS = "every user and program of this machine"
_NOTHING = "**nothing: whoever reaches it runs code there** (pickle)"


@dataclass(frozen=True)
class Listener:
    """What listens, where, and for whom.

    `ports` are keys of `ports:` in the inventory, or words; `files` are those of the package that listen or start it.
    """

    what: str
    verbs: tuple[str, ...]
    on: str
    address: str
    ports: tuple[str, ...]
    clients: str
    protection: str
    files: tuple[str, ...]


LISTENERS = (
    Listener(
        "API of the model",
        ("serve", "rollback"),
        "the head",
        f"{LOOPBACK}; with `--expose` its `address`",
        ("api",),
        "users and programs of the head; with `--expose` also whoever reaches that network",
        "the API key on every route but `/health` and `/ping` (P29); plain HTTP: with `--expose` key, prompts and "
        "answers can be read on that network",
        ("serving/serve/serve.py", "serving/node/front.py", "serving/node/front_processes.py"),
    ),
    Listener(
        "vLLM's own API, behind the front",
        ("serve", "rollback"),
        "the head",
        LOOPBACK,
        (CHOSEN,),
        "users and programs of the head",
        "a key of the cluster's own, which the front has and clients do not",
        ("serving/node/start.py",),
    ),
    Listener(
        "vLLM's API of a replica that another host leads",
        ("serve", "rollback"),
        "every other host",
        _PRIVATE,
        ("replicas",),
        _CLUSTER,
        "a key of the cluster's own, which the front has and clients do not; plain HTTP: key, prompts and answers can "
        "be read on that network. Once it has ended, the front may send them to whoever listens there, until it knows",
        ("kernel/backends/vllm.py",),
    ),
    Listener(
        "API of the model in a Slurm job, and torch's store of its ranks",
        ("slurm",),
        "the job's first node",
        "its address; the store: every address",
        ("20000 and above, by the job's number",),
        "whoever reaches that network: other users of the cluster too",
        "the API: the job's own key, as above; plain HTTP. Once the job has ended, `slurm endpoint` may send key and "
        "prompts to whoever listens there, for up to 10 s. The store: **nothing** (pickle)",
        ("kernel/backends/vllm.py",),
    ),
    Listener(
        "List of the nodes that have joined",
        ("up",),
        "the head",
        _PRIVATE,
        ("nodes",),
        _CLUSTER,
        "the cluster's token: every line is signed with it, both ways; without Ray it orders what nodes run; not "
        "encrypted, and nothing secret is in it",
        ("serving/node/head_roll.py",),
    ),
    Listener(
        "Ray's GCS",
        ("up",),
        "the head",
        _ANY,
        ("gcs",),
        _CLUSTER,
        "Ray's token on every call (P30); not encrypted",
        ("kernel/backends/ray.py",),
    ),
    Listener(
        "Ray's managers and workers",
        ("up",),
        _NODES,
        _ANY,
        ("node_manager", "object_manager", "dashboard_agent_grpc", "worker_min", "worker_max"),
        _CLUSTER,
        "Ray's token on every call (P30); not encrypted",
        ("kernel/backends/ray.py",),
    ),
    Listener(
        "Ray's client server",
        ("up",),
        "the head",
        _PRIVATE,
        ("client_server",),
        _CLUSTER,
        "Ray's token on every call (P30); not encrypted",
        ("kernel/backends/ray.py",),
    ),
    Listener(
        "Ray's agents",
        ("up",),
        _NODES,
        _PRIVATE,
        ("dashboard_agent", "runtime_env_agent"),
        _CLUSTER,
        "Ray's token on every call (P30); not encrypted",
        ("kernel/backends/ray.py",),
    ),
    Listener(
        "Ray's dashboard",
        ("up",),
        "the head",
        LOOPBACK,
        ("dashboard",),
        "users and programs of the head",
        "Ray's token",
        ("kernel/backends/ray.py",),
    ),
    Listener(
        "vLLM's message queues between ranks",
        ("serve", "rollback"),
        _NODES,
        _PRIVATE,
        (CHOSEN,),
        _CLUSTER,
        _NOTHING,
        ("kernel/backends/vllm.py",),
    ),
    Listener(
        "torch's store of the ranks, without Ray (`backend: mp`, `--dp`)",
        ("serve", "rollback"),
        "the head",
        _ANY,
        ("master",),
        _CLUSTER,
        _NOTHING,
        ("kernel/backends/mp.py",),
    ),
    Listener(
        "where the engines of `--dp` meet, until all have",
        ("serve", "rollback"),
        "the head",
        _PRIVATE,
        ("data_parallel",),
        _CLUSTER,
        _NOTHING,
        ("kernel/backends/mp.py",),
    ),
    Listener(
        "torch's store of the ranks",
        ("serve", "rollback"),
        "the host of the first rank",
        _ANY,
        (CHOSEN,),
        _CLUSTER,
        _NOTHING,
        ("kernel/backends/vllm.py",),
    ),
    Listener(
        "NCCL and Gloo between ranks",
        ("serve", "rollback", "check"),
        _NODES,
        _PRIVATE,
        (CHOSEN,),
        _CLUSTER,
        "nothing: the data of the ranks can be read and changed",
        ("features/check/on_host/allreduce.py",),
    ),
    Listener(
        "torch's store of the all-reduce, while `check --deep` runs",
        ("check",),
        "the first host of each test",
        _ANY,
        (CHOSEN,),
        _CLUSTER,
        _NOTHING,
        ("features/check/on_host/allreduce.py",),
    ),
    Listener(
        "the link test, while `check` runs",
        ("check",),
        _NODES,
        _PRIVATE,
        ("every pinned port that is free", f"two and one of UDP {CHOSEN}"),
        _CLUSTER,
        "a word made for this run; it answers with what it was sent and runs nothing; three minutes at most",
        ("kernel/links/on_host/link_test.py",),
    ),
    Listener(
        "files of a model, or layers of an image, while they are sent from host to host",
        ("pull", "serve", "up", "image push"),
        _NODES,
        _PRIVATE,
        ("pull",),
        _CLUSTER,
        "only the hosts of the transfer are read, 16 connections of each; a key made for it signs each request and "
        "answer; every file is hashed; not encrypted",
        ("kernel/spread/spread_serve.py",),
    ),
    Listener(
        "the tunnel to the API",
        ("endpoint", "chat", "complete"),
        "this machine",
        LOOPBACK,
        ("`--tunnel PORT`", "with `--tunnel` alone that of `ports.api`", f"else {CHOSEN}"),
        f"{_USERS}; others than yours, root in a container too, have 128 of its 512 places",
        "the API key; SSH from here to the head. A Prometheus that runs on after the tunnel has ended offers the key "
        "to whoever listens at its port then",
        ("kernel/transport/forward.py", "serving/endpoint/tunnel.py"),
    ),
    Listener(
        "the page of the dashboard",
        ("dashboard",),
        "this machine",
        LOOPBACK,
        ("`--port`", f"else {CHOSEN}"),
        _USERS,
        "a secret in its URL; requests of other hosts' pages are refused",
        ("serving/status/local_page.py",),
    ),
)
