"""P30: Ray without its token, or with a wrong one, from another host and from the head itself."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.attack import attack
from tests.support.breaks import HOSTS
from tests.support.hosts import Sandbox
from tests.support.served import addresses, node_status, serve, with_secrets

pytestmark = [pytest.mark.e2e, pytest.mark.promise, pytest.mark.deep]

NONE, WRONG = {"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
EVIL = "touch /tmp/pwned"
TASK = f"import ray; ray.init('{{}}'); ray.get(ray.remote(lambda: __import__('os').system('{EVIL}')).remote())"
FETCH = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode() or None, {"Content-Type": "application/json"})
print(urllib.request.urlopen(request, timeout=10).read())
"""
# The exit code of `timeout`: it was not refused, it hung.
ENDLESS = 124
JOB = json.dumps({"entrypoint": EVIL})


def tries(head: str) -> Iterator[tuple[str, str, dict[str, str], list[str]]]:
    """What is tried, on which host, with which environment, and the command."""
    for environment, name in ((NONE, "no token"), (WRONG, "a wrong token")):
        join = ["ray", "start", f"--address={head}:6379", "--num-gpus=1", "--disable-usage-stats"]
        yield f"join, {name}", "gpu2", environment, join
        for address in (f"{head}:6379", f"ray://{head}:10001"):
            yield f"driver at {address}, {name}", "gpu2", environment, ["python3", "-c", TASK.format(address)]
        for host, address in (("gpu2", head), ("gpu1", "127.0.0.1")):
            job = ["ray", "job", "submit", f"--address=http://{address}:8265", "--", *EVIL.split()]
            yield f"job at {address}, {name}", host, environment, job
    for path in ("api/jobs/", "nodes?view=summary", "api/v0/nodes", "logs", "api/cluster_status"):
        yield f"GET {path}", "gpu1", NONE, ["python3", "-c", FETCH, f"http://127.0.0.1:8265/{path}", ""]
    places = [("gpu1", "127.0.0.1:8265/api/jobs/"), ("gpu2", f"{head}:6382/api/job_agent/jobs/")]
    places += [("gpu2", f"{head}:6383/get_or_create_runtime_env"), ("gpu2", f"{head}:6383/get_runtime_envs_info")]
    for host, place in places:
        yield f"POST {place}", host, NONE, ["python3", "-c", FETCH, f"http://{place}", JOB]


def outsider(cluster: Sandbox, host: str, environment: dict[str, str], command: list[str]) -> tuple[int, str]:
    """Run a command in a container of its own on a host, with Ray in it and without its token."""
    image = cluster.docker(host, "inspect", "-f", "{{.Image}}", "vcluster-sandbox").strip()
    words = [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
    argv = ["docker", "run", "--rm", "--network=host", "--shm-size=1g", *words, "--entrypoint=timeout", image, "60"]
    done = subprocess.run(
        ["docker", "exec", cluster.container(host), *argv, *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout[-300:] + done.stderr[-300:]


def nodes(sandbox: Sandbox) -> set[str]:
    """The ids of Ray's living nodes."""
    status = node_status(sandbox)
    assert status is not None
    return {node["id"] for node in status["group"]["nodes"] if node["alive"]}


def test_ray_without_its_token(sandbox: Sandbox) -> None:
    cluster = serve(with_secrets(sandbox))
    head = addresses(cluster)["gpu1"]
    with attack("P30", "join, driver, client, jobs, dashboard: no token, a wrong one") as measured:
        before = nodes(cluster)
        # Ray's own clients try for half a minute before they give up.
        with ThreadPoolExecutor(4) as pool:
            every = list(tries(head))
            results = pool.map(lambda one: outsider(cluster, *one[1:]), every)
            ended = {one[0]: result for one, result in zip(every, results, strict=True)}
        assert {what: said for what, (code, said) in ended.items() if code in (0, ENDLESS)} == {}
        assert nodes(cluster) == before
        token = cluster.docker("gpu1", "exec", "vcluster-sandbox", "sh", "-c", "cat $RAY_AUTH_TOKEN_PATH").strip()
        right = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
        code, said = outsider(cluster, "gpu1", right, ["ray", "job", "list", "--address=http://127.0.0.1:8265"])
        assert code == 0, f"not even the right token opens it, so that the refusals mean nothing: {said}"
        for host in HOSTS:
            assert "pwned" not in cluster.docker(host, "exec", "vcluster-sandbox", "ls", "/tmp")
        measured.figure = f"{len(every)} ways tried, all refused; Ray's nodes unchanged, nothing was run"
