"""Two Docker engines of this machine, one of which keeps its images in containerd, each a host of an inventory."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from tests.support.in_process import Finished, run
from tests.support.sshd import Sshd, keygen
from tests.support.waiting import until
from vcluster_sandbox.containers import remove, rights
from vcluster_sandbox.images import ensure_base, ensure_host
from vcluster_sandbox.local_docker import connect
from vcluster_sandbox.names import LABEL

DEFAULT = "unix:///var/run/docker.sock"
# Of documentation alone, on the loopback interface: other hosts of the inventory are reached there.
ADDRESSES, BRIDGED = ("192.0.2.201", "192.0.2.202"), "198.51.100.1/24"
_START = """parent=$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
exec dockerd --config-file /shared/daemon.json --host unix:///shared/docker.sock --data-root /var/lib/docker \\
  ${parent:+--cgroup-parent "$parent"} --bridge "$BRIDGE" --iptables=false --ip6tables=false >/shared/log 2>&1
"""


@dataclass
class TwoStores:
    """The hosts `classic`, whose Docker is this machine's, and `containerd`."""

    folder: Path
    # An image with Python, which `classic` has.
    base: str
    sockets: dict[str, str]

    def docker(self, host: str, *words: str, text: str = "") -> str:
        """Run docker on a host; its output."""
        environment = {**os.environ, "DOCKER_HOST": self.sockets[host], "DOCKER_BUILDKIT": "0"}
        done = subprocess.run(
            ["docker", *words], input=text, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def replace(self, host: str, name: str, program: str) -> None:
        """Have a host run this program where it is to run the one of that name."""
        place = self.folder / host / "bin" / name
        place.parent.mkdir(exist_ok=True)
        place.write_text(program)
        place.chmod(0o700)

    def vcluster(self, *words: str) -> Finished:
        """Run a verb on both."""
        return run(*words, cwd=self.folder, XDG_CACHE_HOME=str(self.folder / "cache"))


@contextmanager
def two_stores(folder: Path) -> Iterator[TwoStores]:
    """Make them, and leave nothing of them."""
    with ExitStack() as stack:
        sockets = {"classic": os.environ.get("DOCKER_HOST", DEFAULT), "containerd": _second_engine(folder, stack)}
        key = keygen(folder / "id_ed25519")
        known, hosts = "", ""
        for address, (name, docker) in zip(ADDRESSES, sockets.items(), strict=True):
            subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
            stack.callback(subprocess.run, ["ip", "address", "delete", f"{address}/32", "dev", "lo"], check=True)
            path = f"{folder}/{name}/bin:{os.environ['PATH']}"
            server = Sshd(folder / name, key, options=(f"SetEnv SHLVL=2 DOCKER_HOST={docker} PATH={path}",)).start()
            stack.callback(server.stop)
            known += server.known_line()
            hosts += f"  {name}: {{address: {address}, ssh: {{host: 127.0.0.1, port: {server.port}}}}}\n"
        (folder / "known_hosts").write_text(known)
        (folder / "config").write_text(
            f"Host *\nUserKnownHostsFile {folder}/known_hosts\nGlobalKnownHostsFile /dev/null\n"
            f"IdentityFile {key}\nIdentitiesOnly yes\n"
        )
        (folder / "inventory.yaml").write_text(
            "version: 1\ncluster: stores\nimage: stores/first:1\nmodel_cache: /data/models\n"
            f"ssh: {{config: {folder}/config}}\nhosts:\n{hosts}"
        )
        base = ensure_base(connect(), "cpu", print)
        made = TwoStores(folder, base, sockets)
        try:
            yield made
        finally:
            for name in ("stores/first:1", "stores/second:1"):
                argv = ["docker", "--host", sockets["classic"], "rmi", name]
                subprocess.run(argv, capture_output=True, check=False)


def _second_engine(folder: Path, stack: ExitStack) -> str:
    """Start an engine with containerd's store, in a container with the network of this machine; its address."""
    engine = connect()
    image = ensure_host(engine, print)
    allowed: dict[str, Any] = rights(engine, image)
    (folder / "shared").mkdir()
    (folder / "shared" / "daemon.json").write_text(json.dumps({"features": {"containerd-snapshotter": True}}))
    binds = [*allowed.get("Binds", ()), f"{folder}/shared:/shared"]
    # An engine without a bridge takes away the one of the engine that it shares this machine's network with.
    bridge = f"stores{token_hex(4)}"
    subprocess.run(["ip", "link", "add", bridge, "type", "bridge"], check=True)
    stack.callback(subprocess.run, ["ip", "link", "delete", bridge], check=True)
    subprocess.run(["ip", "address", "add", BRIDGED, "dev", bridge], check=True)
    api: Any = engine.api
    made = api.create_container(
        image,
        entrypoint=["sh", "-c", _START],
        name=f"vcluster-two-stores-{token_hex(4)}",
        labels={LABEL: "stores"},
        volumes=["/var/lib/docker"],
        environment={"BRIDGE": bridge},
        host_config={**allowed, "Binds": binds, "NetworkMode": "host"},
    )
    container = engine.containers.get(made["Id"])
    stack.callback(remove, container)
    container.start()
    socket = f"unix://{folder}/shared/docker.sock"
    answers = ["docker", "--host", socket, "version"]
    until(lambda: subprocess.run(answers, capture_output=True, check=False).returncode == 0)
    return socket
