"""A host is dialled before what only its answer, or a failure, needs is imported: a third of the processor's time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REFUSED = """version: 1
cluster: lab
image: vllm/vllm-openai:v0.33.0
model_cache: /data
hosts:
  gpu1: {address: 10.0.0.1, ssh: {host: 127.0.0.1, port: 1}}
"""
SCRIPT = """import sys
from vllm_cluster.cli.app import app
try: app(sys.argv[1:], prog_name="vcluster")
except SystemExit as end: print(end.code)
late = {"fabric", "paramiko", "vllm_cluster.kernel.explain.catalogue", "vllm_cluster.kernel.transport.fabric.dial"}
late |= {"vllm_cluster.kernel.assess", "vllm_cluster.kernel.checks.registry"}
print(*sorted(late & sys.modules.keys()))
"""


# fault: kernel/transport/fabric/dial.py: import queue → import paramiko, queue
# fault: kernel/hosts/observe.py: checks.docker import → checks.registry import
# fault: serving/ask_head.py: from dataclasses → import vllm_cluster.kernel.explain.catalogue; from dataclasses
@pytest.mark.parametrize("verb", ["endpoint --key", "endpoint --tunnel", "stop --yes"])
def test_a_port_that_refuses_needs_no_fabric(verb: str, tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text(REFUSED)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    argv = [sys.executable, "-c", SCRIPT, *verb.split()]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["4", "vllm_cluster.kernel.transport.fabric.dial"]
