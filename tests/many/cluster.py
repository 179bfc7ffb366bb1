"""An inventory of many hosts, the farm that plays them, and the program driven against it and measured."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

from tests.many.farm import PORT
from tests.support.inventories import load
from vllm_cluster.kernel.facts import parse
from vllm_cluster.kernel.node.program import program_digest
from vllm_cluster.kernel.plan.desired import Inputs, desired
from vllm_cluster.kernel.plan.identity import owner_of
from vllm_cluster.kernel.plan.images import node_image_name
from vllm_cluster.kernel.plan.members import recorded
from vllm_cluster.kernel.plan.spec import BASE_IMAGE

# Each process of a test run has loopback addresses of its own: a lane of several runs beside one that is alone.
NETWORK = 7 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw-1").removeprefix("gw")) + 1
ROUND_TRIP = 0.1
IMAGE = "vllm/vllm-openai:v0.33.0"
BASE = "sha256:" + "ab" * 32
NODE_IMAGE = node_image_name(BASE, ("ray==2.56.1",))
IMAGES = [
    {"Id": BASE, "RepoTags": [IMAGE], "RepoDigests": [], "Labels": {}},
    {
        "Id": "sha256:" + "cd" * 32,
        "RepoTags": [NODE_IMAGE],
        "RepoDigests": [],
        "Labels": {},
    },
]
SECRETS = {"ray-token": "11", "api-key": "22"}
ID = "ab" * 8


@dataclass(frozen=True)
class Played:
    """One host: `kind` is how it behaves ("well", "mute", "half", "refuses")."""

    number: int
    kind: str = "well"

    @property
    def name(self) -> str:
        """Its name in the inventory."""
        return f"gpu{self.number:03}"

    @property
    def address(self) -> str:
        """Its address on the private network."""
        return f"10.7.{self.number // 250}.{self.number % 250 + 1}"

    @property
    def loopback(self) -> str:
        """Where its sshd listens."""
        return f"127.{NETWORK}.{self.number // 250}.{self.number % 250 + 1}"


@dataclass
class Cluster:
    """A folder with all that one laptop has, and the hosts."""

    folder: Path
    hosts: Sequence[Played]
    key: Path
    ssh: Mapping[str, object] = field(default_factory=dict)
    lines: Sequence[str] = ()
    known: str = ""
    keys: dict[str, asyncssh.SSHKey] = field(default_factory=dict)

    @property
    def inventory(self) -> Path:
        """The inventory's file."""
        return self.folder / "inventory.yaml"

    def write(self) -> None:
        """Everything that the laptop needs; JSON is YAML too."""
        self.folder.mkdir(exist_ok=True)
        known = [self.known]
        for host in self.hosts:
            self.keys[host.name] = asyncssh.generate_private_key("ssh-ed25519")
            known.append(f"[{host.loopback}]:{PORT} {self.keys[host.name].export_public_key().decode()}")
        (self.folder / "known_hosts").write_text("".join(known))
        common = [
            "Host *",
            f"UserKnownHostsFile {self.folder}/known_hosts",
            "GlobalKnownHostsFile /dev/null",
            f"IdentityFile {self.key}",
            "IdentitiesOnly yes",
        ]
        (self.folder / "ssh_config").write_text("\n".join([*self.lines, *common]) + "\n")
        words = {
            "version": 1,
            "cluster": "many",
            "image": IMAGE,
            "model_cache": "/models",
            "ssh": {"config": str(self.folder / "ssh_config"), "user": "root", **self.ssh},
            "hosts": {h.name: {"ssh": f"{h.loopback}:{PORT}", "address": h.address} for h in self.hosts},
        }
        self.inventory.write_text(json.dumps(words, indent=1))

    def facts(self, host: Played) -> str:
        """What the fact script prints there: two GPUs, one network."""
        nic = {
            "ifname": "eth1",
            "mtu": 1500,
            "operstate": "UP",
            "addr_info": [{"local": host.address, "prefixlen": 16}],
        }
        routes = [f"{peer.address} {'lo' if peer == host else 'eth1'}" for peer in self.hosts]
        sections = {
            "machine": f"machine-{host.number}",
            "hostname": host.name,
            "clock": "1700000000",
            "memory": str(1 << 40),
            "nics": json.dumps([nic]),
            "routes": "\n".join(routes),
            "listening": "",
            "hcas": "",
            "gpus": "\n".join(f"{index}, GPU-{host.number}-{index}, NVIDIA H200, 143771" for index in range(2)),
            "slots": "",
            "missing": "",
            "cdi": "",
            "docker": json.dumps({"Version": "28.0.0", "ApiVersion": "1.48", "Arch": "amd64"}),
            "dockerinfo": json.dumps({"Root": "/var/lib/docker", "Runtimes": {"nvidia": {}}}),
            "disks": "",
            "end": "",
            "whole": "",
        }
        return "".join(f"\n@@{name}\n{body}\n" for name, body in sections.items())

    def configuration(self, *, up: bool) -> dict[str, Any]:
        """What the farm gets: hosts on which nothing runs, or on which all runs as the inventory declares."""
        texts = {host.name: self.facts(host) for host in self.hosts}
        inventory = load(self.inventory, cwd=self.folder)
        facts = {name: parse.facts(name, text) for name, text in texts.items()}
        specs = {spec.host: spec for spec in desired(inventory, facts, Inputs(program_digest(), SECRETS, ID))}
        remembered = recorded(inventory, facts, specs.values(), None, ()).document
        nodes = [{"id": h.name, "address": h.address, "alive": True, "gpus": 2.0} for h in self.hosts]
        hosts = []
        for host in self.hosts:
            spec = specs[host.name]
            ray = {"state": "up", "restarts": 0, "error": None, "version": "2.56.1", "nodes": []}
            ray |= {"nodes": nodes} if spec.role == "head" else {}
            status = {"v": 1, "role": spec.role, "updated": time.time(), "group": ray, "serve": None, "error": None}
            hosts.append(
                {
                    "address": host.loopback,
                    "kind": host.kind,
                    "facts": texts[host.name],
                    "key": self.keys[host.name].export_private_key().decode(),
                    "containers": {spec.name: {**spec.labels(), BASE_IMAGE: BASE}} if up else {},
                    "volumes": dict.fromkeys((spec.state_volume, spec.secrets_volume), owner_of(spec).labels)
                    if up
                    else {},
                    "files": {
                        "status.json": json.dumps(status),
                        **({"cluster.json": remembered} if spec.role == "head" else {}),
                    },
                }
            )
        return {
            "round_trip": ROUND_TRIP,
            "authorized": self.key.with_suffix(".pub").read_text(),
            "images": IMAGES,
            "hosts": [words for words in hosts if words["kind"] != "refuses"],
        }

    @contextlib.contextmanager
    def played(self, *, up: bool) -> Iterator[None]:
        """The hosts answer while this lasts."""
        self.write()
        config = self.folder / "farm.json"
        config.write_text(json.dumps(self.configuration(up=up)))
        argv = [sys.executable, "-m", "tests.many.farm", str(config)]
        with (self.folder / "farm.log").open("wb") as log:
            farm = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        assert farm.stdin is not None and farm.stdout is not None
        try:
            assert farm.stdout.readline() == b"ready\n", (self.folder / "farm.log").read_text()
            yield
        finally:
            farm.kill()
            farm.communicate()
