"""What is on the sandbox's hosts, and ways to break them that are undone."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.hosts import Sandbox
from vcluster_sandbox import names

HOSTS = ("gpu1", "gpu2")
# Its folder is named after the host's engine.
LOCK = "/tmp/vcluster-*/lock"
IMAGE = names.CPU_IMAGE
CLUSTER = "io.vcluster.cluster=sandbox"
ID = "io.vcluster.id"

# The host's `date` is an hour ahead: all hosts share this machine's real clock, which must stay as it is.
FAST = (
    """printf '#!/bin/sh\nexec /usr/bin/date -d "+1 hour" "$@"\n' >/usr/local/bin/date; chmod 755 /usr/local/bin/date"""
)

_LIST = """
docker ps -a --format 'container {{.Names}}'
docker volume ls --format 'volume {{.Name}}' | sed -E 's/(-secrets)-[0-9a-f]{12}$/\\1/'
docker network ls --format 'network {{.Name}}'
pgrep -u vcluster -a | sed 's/^[0-9]* /process /'
find /tmp /var/tmp /home/vcluster /root -mindepth 1 -xdev | sed 's/^/file /'
echo "shims $(pgrep -c containerd-shim)"
"""
UP = {"container vcluster-sandbox", "volume vcluster-sandbox-state", "volume vcluster-sandbox-secrets"}


def everything(sandbox: Sandbox) -> dict[str, set[str]]:
    """All containers, volumes, networks, files in folders of users, and processes of the user, host by host."""
    return {host: set(sandbox.on(host, "sh", "-c", _LIST, root=True).splitlines()) for host in HOSTS}


@dataclass
class Normal:
    """The seconds of an `up` on empty hosts that are not attacked."""

    sandbox: Sandbox
    seconds: float = 0.0

    def measure(self) -> float:
        """Take one down and up, and time it."""
        self.sandbox.vcluster("down", "--yes", "--wait", "30").ok()
        return timed(self.sandbox, "up")

    def beside(self, seconds: float, more: float) -> float:
        """What to compare with: where something took some seconds longer, an `up` of this very moment."""
        return self.seconds if seconds <= self.seconds + more else self.measure()


def timed(sandbox: Sandbox, *argv: str) -> float:
    """The seconds of a run that must succeed."""
    began = time.monotonic()
    sandbox.vcluster(*argv).ok()
    return time.monotonic() - began


def settle(sandbox: Sandbox, wanted: dict[str, set[str]], seconds: float) -> float:
    """Wait until exactly this is on the hosts; the seconds it took.

    Raises:
        AssertionError: it did not come to that, with what is too much and what is missing.
    """
    began = time.monotonic()
    while (found := everything(sandbox)) != wanted:
        more = {host: sorted(found[host] - wanted[host]) for host in HOSTS}
        less = {host: sorted(wanted[host] - found[host]) for host in HOSTS}
        assert time.monotonic() - began < seconds, f"after {seconds:.0f} s left behind: {more}, missing: {less}"
        time.sleep(0.1)
    return time.monotonic() - began


def with_nodes(empty: dict[str, set[str]]) -> dict[str, set[str]]:
    """What is on hosts when the cluster is up and no person is connected, beside what was there without it."""
    return {host: (found - {"shims 0"}) | UP | {"shims 1"} for host, found in empty.items()}


def root(sandbox: Sandbox, host: str, script: str) -> str:
    """Run a script on a host as root, past its sshd."""
    return sandbox.on(host, "sh", "-c", script, root=True)


@contextmanager
def broken(sandbox: Sandbox, host: str, script: str, undo: str) -> Iterator[None]:
    """Break a host as its root would, and repair it."""
    root(sandbox, host, script)
    try:
        yield
    finally:
        root(sandbox, host, undo)


@contextmanager
def small_disk(sandbox: Sandbox, folder: str, size: str) -> Iterator[None]:
    """A file system of its own, and a small one, in place of a folder of gpu2's Docker."""
    place = f"{names.Sandbox(sandbox.folder).data('gpu2')}/docker{folder}"
    with broken(sandbox, "gpu2", f"mount -t tmpfs -o size={size} tmpfs {place}", f"umount {place}"):
        yield


@contextmanager
def black_hole(sandbox: Sandbox, host: str) -> Iterator[None]:
    """Nothing of ssh gets through any more, in either direction, and no side gets an error."""
    rules = ("INPUT -p tcp --dport 22 -j DROP", "OUTPUT -p tcp --sport 22 -j DROP")
    cut, mend = (" && ".join(f"iptables -{what} {rule}" for rule in rules) for what in "ID")
    with broken(sandbox, host, cut, mend):
        yield


def direct(sandbox: Sandbox, transport: str) -> Sandbox:
    """The same hosts at their own addresses: Docker's proxy, which takes every connection, is not in between."""
    addresses = dict(re.findall(r"^  (gpu\d): {address: ([\d.]+)}", sandbox.inventory.read_text(), re.MULTILINE))
    ssh_config, known = (sandbox.folder / "ssh_config").read_text(), (sandbox.folder / "known_hosts").read_text()
    for host, address in addresses.items():
        block = re.search(rf"Host {host}\n  HostName (\S+)\n  Port (\d+)\n", ssh_config)
        assert block
        ssh_config = ssh_config.replace(block[0], f"Host {host}\n  HostName {address}\n")
        known = known.replace(f"[{block[1]}]:{block[2]} ", f"{address} ")
    ssh_config = ssh_config.replace("/known_hosts", "/known_direct")
    (sandbox.folder / "ssh_direct").write_text(ssh_config)
    (sandbox.folder / "known_direct").write_text(known)
    words = [("{config: ssh_config}", f"{{config: ssh_direct, transport: {transport}}}")]
    made = sandbox.rewrite(Path(f"direct-{transport}.yaml"), replace=words)
    return Sandbox(sandbox.folder, {**sandbox.environment, "VCLUSTER_INVENTORY": str(made)})


@contextmanager
def something_to_do(sandbox: Sandbox, seconds: float) -> Iterator[None]:
    """A container on gpu2 that an earlier run seems to have left: `up` removes it, for which it needs the lease.

    The container takes its time to end, and so the lease is held for that long.
    """
    name = "vcluster-sandbox-probe-0a1b2c3d"
    script = f"trap 'sleep {seconds}; exit 0' TERM; sleep 1000 & wait"
    identity = root(
        sandbox, "gpu2", f"docker inspect -f '{{{{index .Config.Labels \"{ID}\"}}}}' vcluster-sandbox"
    ).strip()
    labels = ["--label", CLUSTER, "--label", f"{ID}={identity}"]
    argv = ["--detach", "--network=none", *labels, "--name", name, "--entrypoint", "sh", IMAGE, "-c", script]
    sandbox.on("gpu2", "docker", "run", *argv, root=True)
    try:
        yield
    finally:
        root(sandbox, "gpu2", f"docker rm -f -v {name} >/dev/null 2>&1 || true")


def lease_is_free_after(sandbox: Sandbox, began: float, seconds: float) -> float:
    """The seconds since `began` until anybody could take the lease, asked on the head itself.

    Raises:
        AssertionError: not within `seconds`.
    """
    # Opened to be read: `flock FILE` would make a file of root's where the holder has just removed its own.
    ask = f'until set -- {LOCK}; [ ! -e "$1" ] || flock -n 9 9<"$1"; do sleep 0.02; done 2>/dev/null'
    argv = ["docker", "exec", sandbox.container("gpu1"), "timeout", f"{seconds}", "sh", "-c", ask]
    done = subprocess.run(argv, check=False, timeout=seconds + 30)
    assert done.returncode == 0, f"the lease is still held after {seconds:.0f} s"
    return time.monotonic() - began
