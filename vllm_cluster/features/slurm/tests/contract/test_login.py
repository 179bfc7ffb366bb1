"""A login node behind a real sshd: each verb on a job goes over SSH, from a machine that has no Slurm."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from getpass import getuser
from pathlib import Path

import pytest

from tests.support.carriers import Client
from tests.support.in_process import Finished, run
from tests.support.paths import VCLUSTER
from tests.support.sshd import Sshd, keygen, require_sshd
from tests.support.waiting import until
from vllm_cluster.features.slurm.tests.made import JOB, MODEL, SBIN, Slurm, ask, slurm, timed
from vllm_cluster.kernel.shell_line import Option, command_line

LOGIN = f"{getuser()}@login"
# What a session on the login node has.
THERE = ("SLURM_CONF", "VCLUSTER_JOBS", "PATH")


class Laptop:
    """A machine that reaches the login node by SSH alone, with its own ssh_config."""

    def __init__(self, folder: Path, server: Sshd, key: Path) -> None:
        self.folder, self.server = folder, server
        client = Client(folder, key)
        client.add("login", server)
        ssh = folder / "ssh"
        # OpenSSH looks for ssh_config in the home of the account, not in HOME.
        ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {client.config} "$@"\n')
        ssh.chmod(0o755)
        self.environment = {"PATH": f"{folder}:{SBIN}"}

    def verb(self, *words: str) -> Finished:
        """`vcluster slurm`, over SSH."""
        before = self.sessions()
        done = run("slurm", *words, "--login", LOGIN, cwd=self.folder, **self.environment)
        assert self.sessions() > before, f"{words[0]} did not go over SSH"
        return done

    def sessions(self) -> int:
        """How often the login node let someone in."""
        return (self.server.folder / "log").read_text().count("Accepted publickey")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A Slurm for all tests: each has jobs of its own."""
    with slurm(tmp_path_factory.mktemp("slurm")) as found:
        yield found


@pytest.fixture
def laptop(cluster: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Laptop]:
    """A machine beside the Slurm, and an sshd between them."""
    require_sshd()
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / "laptop").mkdir()
    key = keygen(tmp_path / "key")
    words = {"SHLVL": "2", "HF_HOME": f"{tmp_path}/hub", **{name: cluster.environment[name] for name in THERE}}
    options = (f"SetEnv {' '.join('='.join(one) for one in words.items())}",)
    server = Sshd(tmp_path / "sshd", key, options=options).start()
    yield Laptop(tmp_path / "laptop", server, key)
    server.stop()


def submitted(laptop: Laptop, *words: str) -> str:
    """The number of a job that was submitted over SSH, and is ready."""
    done = laptop.verb("--json", "--submit", *JOB, *words)
    assert done.returncode == 0, done.stderr
    number = str(json.loads(done.stdout)["job"])
    done = laptop.verb("status", number, "--wait", "2m")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"clients: vcluster slurm endpoint {number} --login {LOGIN}\n" in done.stdout
    return number


@contextmanager
def tunnel(laptop: Laptop, number: str) -> Iterator[int]:
    """The local port of an open tunnel, in a process that a signal ends in order."""
    argv = [str(VCLUSTER), "slurm", "endpoint", number, "--tunnel", "0", "--json", "--login", LOGIN]
    there = {**os.environ, **laptop.environment}
    with subprocess.Popen(argv, env=there, cwd=laptop.folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(json.loads(process.stdout.readline())["port"])
        except BaseException:
            process.kill()
            raise
        process.terminate()
        assert process.wait(60) == 0


# fault: features/slurm/jobs.py: "openssh" if destination else "local" → "local"
# fault: features/slurm/verb.py: forward(at.port, tunnel, remote_host=at.address) → forward(at.port + 2, tunnel, remote_host=at.address)
def test_a_job_is_submitted_followed_asked_and_stopped_over_ssh(laptop: Laptop, cluster: Slurm) -> None:
    number = submitted(laptop)
    assert f"--served-model-name={MODEL}" in laptop.verb("logs", number, "--rank", "1").stdout
    found = json.loads(laptop.verb("endpoint", number, "--json").stdout)
    assert found["key"] == (cluster.jobs / number / "key").read_text()
    assert "No start of it has failed." in laptop.verb("explain", number).stdout
    with tunnel(laptop, number) as port:
        assert ask(("127.0.0.1", port), {"prompt": "Hello"}, found["key"])[0] == 200
        assert ask(("127.0.0.1", port), {"prompt": "Hello"}, "wrong")[0] == 401
    assert laptop.verb("status", number).returncode == 0
    assert laptop.verb("stop", number, "--yes").returncode == 0
    until(lambda: cluster.state(number) == "CANCELLED")
    done = laptop.verb("status", number)
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, f"job {number} is ended: cancelled")


# fault: features/slurm/on_host/step.py: print(f"vcluster: ERROR: {how}", flush=True) → pass
def test_a_failure_is_explained_over_ssh(laptop: Laptop, cluster: Slurm) -> None:
    """With the lines that work from there."""
    number = submitted(laptop)
    ready = json.loads((cluster.jobs / number / "ready.json").read_text())
    key = (cluster.jobs / number / "key").read_text()
    assert ask((ready["address"], ready["port"]), {"prompt": "exit 0"}, key)[0] == 200
    timed((cluster.jobs / number / "ends").exists)
    assert laptop.verb("status", number, "--wait", "2m").returncode == 0
    printed = laptop.verb("explain", number).stdout
    line = command_line(
        "vcluster", "slurm", "logs", number, Option("--start"), "1", Option("--rank"), "0", Option("--login"), LOGIN
    )
    assert f"fix:     {line}\n" in printed, printed
