"""What asks the head alone begins there at once, however many hosts the inventory has."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.many.cluster import Cluster, Played
from tests.many.farm import PORT
from tests.support.figures import record

pytestmark = pytest.mark.alone

HOSTS, RUNS, PATIENCE = 64, 5, 60.0
# What 64 hosts may cost more than one, in processor time up to the first dial; the rest is Python and its imports.
MORE_SECONDS = 0.2


# fault: serving/head.py: with Fleet(inventory, runtime, [inventory.head_name]) → with Fleet(inventory, runtime)
@pytest.mark.promise("P21")
@pytest.mark.parametrize(
    "verb", ["endpoint --key", "stop --yes", pytest.param("endpoint --tunnel", marks=pytest.mark.deep)]
)
def test_the_head_is_dialled_at_once(verb: str, key: Path, tmp_path: Path) -> None:
    """One process of ssh, too, also where ssh_config has each host by itself: 64 take a second of two cores."""
    calls, programs = tmp_path / "calls", tmp_path / "bin"
    programs.mkdir()
    (programs / "ssh").write_text(f'#!/bin/sh\necho "$*" >> {calls}\nexec {shutil.which("ssh")} "$@"\n')
    (programs / "ssh").chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def first_dial(count: int) -> float:
        """The seconds of processor time that it took."""
        hosts = [Played(n) for n in range(count)]
        alone = [f"Host {host.loopback}\nPort {PORT}" for host in hosts]
        cluster = Cluster(tmp_path / f"laptop-{count}", hosts, key, lines=alone)
        cluster.write()
        argv = [sys.executable, "-m", "vllm_cluster", *verb.split(), "-i", str(cluster.inventory)]
        with socket.create_server((hosts[0].loopback, PORT)) as server:
            server.settimeout(PATIENCE)
            process = subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                server.accept()[0].close()
                words = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            finally:
                process.kill()
                process.wait()
        # utime, stime, and those of the children that have ended.
        return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")

    one, many = (min(first_dial(count) for _ in range(RUNS)) for count in (1, HOSTS))
    asked = len(calls.read_text().splitlines()) / RUNS / 2
    passed = asked == 1 and many - one <= MORE_SECONDS
    text = f"first dial after {many:.2f} s of processor time, with one host {one:.2f} s; {asked:.1f} ssh -G"
    record("P21", f"{verb} on {HOSTS} hosts", text, passed)
    assert passed, text
