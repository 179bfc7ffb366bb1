"""P31: a laptop full of logins, and every byte that reaches `docker` on real hosts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.attack import attack
from tests.support.breaks import HOSTS
from tests.support.canaries import Laptop, forms, laptop
from tests.support.hosts import Sandbox

pytestmark = [pytest.mark.e2e, pytest.mark.promise("P31"), pytest.mark.deep]

WRAPPER, NOTES = "/usr/local/bin/docker", "/var/tmp/what-docker-was-sent"
# Before the host's docker on the PATH: notes the arguments, the environment and all input, and passes them on.
SCRIPT = f"""#!/bin/sh
note={NOTES}/$$-$(date +%N)
{{ printf '%s\\n' "$0" "$@"; env; }} > "$note.asked"
[ "$*" = "system dial-stdio" ] || exec /usr/bin/docker "$@"
# Not a pipeline: what notes the input would keep the connection open after docker has ended.
mkfifo "$note.pipe" && exec 3<&0
tee "$note.sent" <&3 >"$note.pipe" 2>/dev/null &
/usr/bin/docker "$@" <"$note.pipe"
code=$?
kill $!
exit $code
"""
INSTALL = f"mkdir -m 1777 {NOTES} && cat > {WRAPPER} && chmod 755 {WRAPPER}"
VERBS = (
    ("plan",),
    ("check",),
    ("check", "--facts"),
    ("up", "--yes"),
    ("up", "--yes"),
    ("status", "--history"),
    ("stop", "--yes"),
)


@pytest.fixture
def noted(sandbox: Sandbox) -> Iterator[Sandbox]:
    """Hosts that note what their docker is asked."""
    try:
        for host in HOSTS:
            on(sandbox, host, INSTALL, SCRIPT.encode())
        yield sandbox
    finally:
        for host in HOSTS:
            on(sandbox, host, f"rm -rf {WRAPPER} {NOTES}")


def on(sandbox: Sandbox, host: str, script: str, stdin: bytes = b"") -> bytes:
    """Run a script as root on a host."""
    argv = ["docker", "exec", "-i", sandbox.container(host), "sh", "-c", script]
    return subprocess.run(argv, input=stdin, capture_output=True, check=True, timeout=120).stdout


def found(sandbox: Sandbox, made: Laptop) -> list[str]:
    """The notes of the hosts that hold a secret in any form, by host and secret."""
    hits = []
    for host in HOSTS:
        for name, secret in made.secrets.items():
            # By standard input: on a command line they would be in the notes themselves.
            patterns = b"\n".join(forms(secret)) + b"\n"
            notes = (
                on(sandbox, host, f"grep -laF -f - {NOTES}/*.asked {NOTES}/*.sent || true", patterns).decode().split()
            )
            hits += [f"{host}: {name} in {note}" for note in notes]
    return hits


@pytest.mark.cluster("empty", leaves="up")
def test_no_byte_of_the_laptop_reaches_docker_on_a_host(
    noted: Sandbox, empty: dict[str, set[str]], tmp_path: Path
) -> None:
    made = laptop(tmp_path, path=os.environ["PATH"])
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    # pip may use the laptop's proxies, which lead nowhere here.
    proxies = {"NO_PROXY": "*", "no_proxy": "*"}
    environment = {**noted.environment, **made.environment, "XDG_CACHE_HOME": cache, **proxies}
    there = replace(noted, environment=environment)
    with attack("P31", "config.json, netrc, proxies and caches full of canaries, every byte sent") as measured:
        if layer := noted.docker("gpu1", "images", "-q", "vcluster-node").split():
            noted.docker("gpu1", "rmi", "-f", *layer)
        on(noted, "gpu1", f"rm -f {NOTES}/*")
        for verb in VERBS:
            there.vcluster(*verb).ok()
        assert found(noted, made) == []
        assert not made.record.exists(), f"a credential helper was run: {made.record.read_text()}"
        sent = on(noted, "gpu1", f"cat {NOTES}/*.sent")
        assert b"/build?" in sent, "nothing was built"
        size = sum(int(on(noted, host, f"cat {NOTES}/*.sent | wc -c")) for host in HOSTS) / 1e6
        measured.figure = f"0 of {len(made.secrets)} canaries in {size:.0f} MB; no credential helper was run"
