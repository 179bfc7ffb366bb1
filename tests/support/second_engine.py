"""A second Docker engine on a host, with a configuration and made-up GPUs of its own; the host's first continues."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from vllm_cluster.kernel.facts import parse
from vllm_cluster.kernel.facts.host_facts import HostFacts

AT = "/tmp/second"
SOCKET = f"unix://{AT}/docker.sock"
IMAGE = "sleep:1"
# nvidia-smi in the shape of its answer to the fact script; a toolkit whose hook does nothing; a file of CDI devices.
SMI = "#!/bin/sh\necho '0, GPU-00000000, NVIDIA H200, 143771, 0, 580.159.04, Disabled, 0, 00000000:06:00.0'\n"
SPEC = """cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- {name: "0", containerEdits: {env: [MADE_UP=0]}}
- {name: all, containerEdits: {env: [MADE_UP=all]}}
"""
_START = """
set -eu
at=$1; shift
first=$(cat /run/docker.pid 2>/dev/null || echo 1)
parent=$(tr '\\0' '\\n' </proc/"$first"/cmdline | grep -A1 -x -e --cgroup-parent | tail -n 1)
PATH=$at/bin:$PATH setsid dockerd --config-file $at/daemon.json --host unix://$at/docker.sock --data-root $at/data \\
  --exec-root $at/exec --pidfile $at/pid --storage-driver vfs --bridge none --iptables=false --ip6tables=false \\
  ${parent:+--cgroup-parent "$parent"} >>$at/log 2>&1 </dev/null &
for _ in $(seq 300); do
  docker --host unix://$at/docker.sock version >/dev/null 2>&1 && exit 0
  sleep 0.1
done
tail -n 5 $at/log >&2
exit 1
"""
_STOP = """
[ -e "$1/pid" ] || exit 0
kill "$(cat "$1/pid")"
for _ in $(seq 300); do [ -e "$1/pid" ] || exit 0; sleep 0.1; done
exit 1
"""
# On a busy machine the engine leaves the network namespace of its containers mounted, and no folder goes below a mount.
_REMOVE = """
rm -f /etc/cdi/nvidia.yaml; rmdir /etc/cdi 2>/dev/null
for _ in $(seq 50); do
  umount "$1"/exec/netns/* 2>/dev/null
  rm -rf "$1" 2>/dev/null && exit 0
  sleep 0.1
done
ls -R "$1" >&2
exit 1
"""
_IMPORT = """
tar -C / -ch bin/sleep $(ldd /bin/sleep | grep -o '/[^ ]*' | sed 's,^/,,') 2>/dev/null | docker --host $1 import - $2
"""


@dataclass(frozen=True)
class SecondEngine:
    """The engine on a host that is a container of this machine."""

    container: str

    def sh(self, script: str, *argv: str, stdin: str = "", ok: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a script as root on the host."""
        command = ["docker", "exec", "--interactive", self.container, "sh", "-c", script, "sh", *argv]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0 or not ok, f"{script[:200]}: {done.stdout}{done.stderr}"
        return done

    def docker(self, *argv: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
        """Run docker against this engine."""
        return self.sh('docker --host "$@"', SOCKET, *argv, ok=ok)

    def write(self, path: str, text: str, mode: str = "644") -> None:
        """A file on the host."""
        self.sh('mkdir -p "$(dirname "$1")" && cat >"$1" && chmod "$2" "$1"', path, mode, stdin=text)

    def restart(self, config: Mapping[str, Any]) -> None:
        """Stop it, and start it with this configuration."""
        self.sh(_STOP, AT)
        self.write(f"{AT}/daemon.json", json.dumps(config))
        self.sh(_START, AT)

    def facts(self) -> HostFacts:
        """What the fact script makes of the host with this engine."""
        script = files("vllm_cluster.kernel.facts").joinpath("facts.sh").read_text()
        wrapped = f'export DOCKER_HOST={SOCKET} PATH={AT}/bin:$PATH; exec sh -s -- "$@"'
        return parse.facts("gpu1", self.sh(wrapped, "10.0.0.1", "/models", stdin=script).stdout)

    def states(self) -> dict[str, str]:
        """The state of each container by name."""
        listed = self.docker("ps", "--all", "--format", "{{.Names}} {{.State}}").stdout
        return dict(line.split() for line in listed.splitlines())


@contextmanager
def second_engine(container: str, *, spec: bool, toolkit: bool) -> Iterator[SecondEngine]:
    """The engine, not started yet, on a host with a made-up GPU; nothing of it stays."""
    engine = SecondEngine(container)
    engine.write(f"{AT}/bin/nvidia-smi", SMI, "755")
    if toolkit:
        engine.write(f"{AT}/bin/nvidia-container-runtime-hook", "#!/bin/sh\nexit 0\n", "755")
    if spec:
        engine.write("/etc/cdi/nvidia.yaml", SPEC)
    try:
        yield engine
    finally:
        engine.docker("ps", "--quiet", ok=False)
        engine.sh("docker --host $1 rm -f $(docker --host $1 ps -aq)", SOCKET, ok=False)
        engine.sh(_STOP, AT, ok=False)
        engine.sh(_REMOVE, AT)


def make_image(engine: SecondEngine) -> None:
    """An image that holds /bin/sleep and its libraries."""
    engine.sh(_IMPORT, SOCKET, IMAGE)
