"""What a person with two terminals would do: the same containers, ssh in parallel, `ray start`, poll until counted."""

from __future__ import annotations

import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support.hosts import Sandbox

# Poll without a pause: a floor should lose no time.
COUNTED = re.compile(r"/(\d+)\.0 GPU")


def up(sandbox: Sandbox, plan: dict[str, Any], image: str) -> float:
    """Bring the planned containers up by hand; the seconds until Ray counts every GPU."""
    specs = [op["spec"] for stage in plan["stages"] for op in stage["operations"] if op["operation"] == "create"]
    total = sum(plan["gpus"].values())
    for spec in specs:
        _put_token(sandbox, spec)
    started = time.monotonic()
    with ThreadPoolExecutor(len(specs)) as pool:
        list(pool.map(lambda spec: sandbox.on(spec["host"], *_docker_run(spec, image)), specs))
    head = next(spec["host"] for spec in specs if spec["role"] == "head")
    while True:
        argv = ["ssh", "-F", str(sandbox.folder / "ssh_config"), head, "docker exec by-hand ray status"]
        said = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False).stdout
        found = COUNTED.search(said)
        if found and int(found.group(1)) == total:
            return time.monotonic() - started


def down(sandbox: Sandbox) -> None:
    """Remove what was made by hand."""
    for host in ("gpu1", "gpu2"):
        sandbox.on(host, "sh", "-c", "docker rm -f -v by-hand >/dev/null 2>&1; rm -f /tmp/by-hand-token; true")


def _put_token(sandbox: Sandbox, spec: dict[str, Any]) -> None:
    sandbox.on(spec["host"], "sh", "-c", "umask 077; printf %064d 7 >/tmp/by-hand-token")


def _docker_run(spec: dict[str, Any], image: str) -> list[str]:
    argv = ["docker", "run", "--detach", "--name", "by-hand", "--network", "host", "--ipc", "private", "--init"]
    argv += ["--shm-size", str(spec["shm_size"]), "--volume", "/models:/models"]
    argv += ["--user", "0", "--volume", "/tmp/by-hand-token:/token:ro"]
    environment = dict(spec["environment"]) | {"RAY_AUTH_TOKEN_PATH": "/token"}
    argv += [word for key, value in environment.items() for word in ("--env", f"{key}={value}")]
    ray = spec["command"][spec["command"].index("--") + 1 :]
    return [*argv, "--entrypoint", ray[0], image, *ray[1:]]
