"""P13: canaries for every secret, looked for in all that is stored or sent, in every form that a program may write."""

from __future__ import annotations

import hashlib
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.attack import attack
from tests.support.breaks import HOSTS
from tests.support.canaries import forms
from tests.support.hosts import Sandbox
from tests.support.served import API_KEY, HF_TOKEN, S3_KEY, serve, with_secrets
from vcluster_sandbox import names

pytestmark = [pytest.mark.e2e, pytest.mark.promise, pytest.mark.deep]

# Every file below these; of an image's layers only those that a container has written.
PLACES = "/tmp /var/tmp /var/log /home /root /etc /run /models {root}/containers {root}/image {root}/volumes {upper}"
SECRET_FILES = "/volumes/vcluster-sandbox-secrets-"
# A secret that Ray and vLLM are to have in their environment, which Linux shows to root and to them.
VARIABLE = "SANDBOX_S3"
ENVIRONS = f"cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep -av '^{VARIABLE}=' | tr '\\n' '\\0'"
# Loaded by every Python below this folder: plays a bug where secrets are at hand.
CRASH = """
import vllm_cluster.kernel.docker.client as engine
put = engine.DockerApi.put_files
def crash(self, container, folder, files):
    if "secrets" in folder:
        raise RuntimeError(f"unexpected in {self!r} for {container} {folder} {list(files)}")
    return put(self, container, folder, files)
engine.DockerApi.put_files = crash
"""


class Watch:
    """Every command line and environment on the hosts, and every command line here, read over and over."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.seen: dict[str, bytes] = {}
        self.looks = 0
        self._over = threading.Event()
        script = f"while :; do cat /proc/[0-9]*/cmdline; {ENVIRONS}; sleep 0.1; done 2>/dev/null"
        self._hosts = {
            host: subprocess.Popen(
                ["docker", "exec", sandbox.container(host), "timeout", "1500", "sh", "-c", script],
                stdout=subprocess.PIPE,
            )
            for host in HOSTS
        }
        self._threads = [threading.Thread(target=self._host, args=(host,)) for host in HOSTS]
        self._threads.append(threading.Thread(target=self._here))
        for thread in self._threads:
            thread.start()

    def _host(self, host: str) -> None:
        pipe = self._hosts[host].stdout
        assert pipe is not None
        lines: set[bytes] = set()
        while data := pipe.read(1 << 16):
            lines.update(data.split(b"\0"))
        pipe.close()
        self.seen[f"processes of {host}"] = b"\n".join(sorted(lines))

    def _here(self) -> None:
        lines: set[bytes] = set()
        while not self._over.wait(0.05):
            self.looks += 1
            for file in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    lines.update(file.read_bytes().split(b"\0"))
                except OSError:
                    continue
        self.seen["command lines here"] = b"\n".join(sorted(lines))

    def end(self, sandbox: Sandbox) -> None:
        """Stop looking."""
        self._over.set()
        for host, process in self._hosts.items():
            sandbox.on(host, "pkill", "-f", "^timeout 1500 sh -c while", root=True)
            process.wait(30)
        for thread in self._threads:
            thread.join(30)


@contextmanager
def watching(sandbox: Sandbox) -> Iterator[Watch]:
    """Look while the block runs."""
    watch = Watch(sandbox)
    try:
        yield watch
    finally:
        watch.end(sandbox)


def files_with(sandbox: Sandbox, secrets: list[set[bytes]]) -> list[str]:
    """The files of the hosts that hold a secret in any form, other than the secrets' own."""
    patterns = b"\n".join(form for forms_ in secrets for form in forms_) + b"\n"
    hits: list[str] = []
    for host in HOSTS:
        root = f"{names.Sandbox(sandbox.folder).data(host)}/docker"
        upper = sandbox.docker(host, "inspect", "-f", "{{.GraphDriver.Data.UpperDir}}", "vcluster-sandbox").strip()
        # The patterns come by standard input: on a command line they would be in `ps` themselves.
        script = f"grep -rlaF -f - {PLACES.format(root=root, upper=upper)} 2>/dev/null || true"
        argv = ["docker", "exec", "-i", sandbox.container(host), "sh", "-c", script]
        found = subprocess.run(argv, input=patterns, capture_output=True, check=True, timeout=120).stdout.decode()
        own = [line for line in found.splitlines() if SECRET_FILES in line]
        assert own, f"the search on {host} found not even the secrets' own files"
        hits += [f"{host}:{line}" for line in found.splitlines() if SECRET_FILES not in line]
    return hits


def asked(sandbox: Sandbox) -> dict[str, bytes]:
    """What Docker has about containers and images, and what every verb prints at its loudest."""
    seen: dict[str, str] = {}
    for host in HOSTS:
        images = sandbox.docker(host, "images", "-q").split()
        seen[f"docker inspect on {host}"] = sandbox.docker(host, "inspect", "vcluster-sandbox", *images)
        seen[f"docker logs on {host}"] = sandbox.docker(host, "logs", "vcluster-sandbox")
        seen[f"docker info on {host}"] = sandbox.docker(host, "info")
        for image in images:
            seen[f"history of {image} on {host}"] = sandbox.docker(host, "history", "--no-trunc", image)
    for argv in (
        ["plan"],
        ["plan", "--json"],
        ["status"],
        ["status", "--json"],
        ["status", "--history"],
        ["up", "--json"],
    ):
        run = sandbox.vcluster("-vv", *argv).ok()
        seen[" ".join(argv)] = run.out + run.err
    return {name: text.encode() for name, text in seen.items()}


def crashed(sandbox: Sandbox, folder: Path) -> dict[str, bytes]:
    """What a bug leaves behind that strikes while secrets are being written."""
    (folder / "sitecustomize.py").write_text(CRASH)
    sandbox.vcluster("down", "--yes").ok()
    argv = ("-vv", "up", "--yes", "--json")
    run = sandbox.vcluster(*argv, PYTHONPATH=str(folder), XDG_CACHE_HOME=str(folder), PYTHONDEVMODE="1")
    log = folder / "vcluster" / "crash.log"
    assert run.code == 1, run.out
    assert "RuntimeError: unexpected in" in log.read_text()
    calls = [path.read_bytes() for path in (folder / "vcluster" / "logs").iterdir()]
    assert any(b"/containers/create" in call for call in calls)
    left = {f"debug log {number}": call for number, call in enumerate(calls)}
    return {"the output of a crash": (run.out + run.err).encode(), "crash.log": log.read_bytes(), **left}


def with_variable(sandbox: Sandbox) -> dict[str, set[str]]:
    """The programs that have the secret variable with its value in their environment, host by host."""
    look = f"""for e in /proc/[0-9]*/environ; do
        printf '%s %s\\n' "$(tr '\\0' '\\n' <$e | grep -a '^{VARIABLE}=' | sha256sum)" "$(cat ${{e%environ}}comm)"
    done 2>/dev/null"""
    wanted = hashlib.sha256(f"{VARIABLE}={S3_KEY}\n".encode()).hexdigest()
    found: dict[str, set[str]] = {}
    for host in HOSTS:
        told = [line.split() for line in sandbox.on(host, "sh", "-c", look, root=True).splitlines()]
        found[host] = {" ".join(words[2:]) for words in told if words[0] == wanted}
    return found


def test_secrets_are_nowhere(sandbox: Sandbox, tmp_path: Path) -> None:
    cluster = with_secrets(sandbox)
    with attack("P13", "canaries of HF token, API key, S3 key and Ray token, in 17 forms each, everywhere") as measured:
        with watching(cluster) as watch:
            seen = crashed(cluster, tmp_path)
            up = cluster.vcluster("-vv", "up", "--yes", "--json").ok()
            seen["up"] = (up.out + up.err).encode()
            serve(cluster)
            assert cluster.vcluster("endpoint", "--key").ok().out.strip() == API_KEY
            seen |= asked(cluster)
            given = with_variable(cluster)
        seen |= watch.seen
        ray = cluster.docker(
            "gpu1", "exec", "vcluster-sandbox", "sh", "-c", "cat /run/secrets/vcluster/ray-token-*"
        ).strip()
        assert len(ray) >= 32
        modes = "stat -c %a /run/secrets/vcluster/*"
        assert set(cluster.docker("gpu1", "exec", "vcluster-sandbox", "sh", "-c", modes).split()) == {"600"}
        secrets = [forms(secret) for secret in (HF_TOKEN, API_KEY, S3_KEY, ray)]
        hits = [name for name, text in seen.items() if any(form in text for every in secrets for form in every)]
        hits += files_with(cluster, secrets)
        assert hits == []
        assert watch.looks > 20
        # Where it is for use: Ray and the ranks, on both hosts.
        for host, programs in given.items():
            assert "raylet" in programs, (host, programs)
            assert any(name.startswith(("ray::", "VLLM", "python")) for name in programs), (host, programs)
        texts, size = len(seen), sum(map(len, seen.values())) / 1e6
        measured.figure = (
            f"0 hits in {texts} texts ({size:.1f} MB), in {watch.looks} looks at command lines, "
            "and in every file that Docker, Ray, vLLM and we wrote; no registry password is handled: see P31"
        )
