"""How often a verb asks ssh where hosts are: for those that it reaches, once for all that ssh_config treats alike."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

from tests.support.in_process import run

HOSTS = 64
# Nothing listens there: each login ends at once.
HOST = "  gpu{n}: {{address: 10.0.0.{n}, ssh: {{host: 127.0.1.{n}, port: 1}}}}\n"
ALIKE = "Host 127.*\n  User me\nHost elsewhere\n  HostName 127.0.0.1\n"
# By a condition that is for ssh alone to judge, each host may be another.
EACH = "Match host elsewhere\n  User me\n"
WRAPPER = """#!/bin/sh
echo "$*" >>{asked}
exec {ssh} "$@"
"""


def asked(folder: Path, monkeypatch: pytest.MonkeyPatch, config: str, *argv: str) -> list[str]:
    """What `vcluster` with these words asked ssh, in a cluster of 64 hosts none of which answers."""
    words = folder / "asked"
    ssh = folder / "bin/ssh"
    ssh.parent.mkdir()
    ssh.write_text(WRAPPER.format(asked=words, ssh=shutil.which("ssh")))
    ssh.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(ssh.parent), prepend=":")
    hosts = "".join(HOST.format(n=n) for n in range(1, HOSTS + 1))
    head = (
        "version: 1\ncluster: lab\nimage: vllm/vllm-openai:v0.32.0\nmodel_cache: /data\nssh: {config: ./ssh_config}\n"
    )
    (folder / "inventory.yaml").write_text(f"{head}hosts:\n{hosts}")
    (folder / "ssh_config").write_text(config)
    ended = run(*argv, cwd=folder)
    assert ended.returncode == 4, ended.stderr
    return words.read_text().splitlines()


# fault: features/batch/head_job.py: self._runtime, [self.host])) → self._runtime))
# fault: features/logs/action.py: runtime, asked.hosts) → runtime)
@pytest.mark.spans
@pytest.mark.parametrize(
    "line",
    [
        "stop --yes",
        "complete hello",
        "endpoint --rotate",
        "endpoint --tunnel",
        "endpoint --key",
        "status --history",
        "status --wait 1",
        "exec gpu1 -- true",
        "logs gpu1",
    ],
)
def test_a_verb_of_one_host_asks_for_that_host_alone(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}\n')
    (found,) = asked(tmp_path, monkeypatch, EACH, *line.split())
    assert found.endswith("-- 127.0.1.1")


@pytest.mark.spans
@pytest.mark.parametrize("line", ["status", "check", "exec --all -- true", "logs", "down --yes", "plan"])
def test_hosts_that_ssh_config_treats_alike_are_asked_for_once(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(asked(tmp_path, monkeypatch, ALIKE, *line.split())) == 1
