"""Every command that the documentation shows is run, in its page's order, and succeeds."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import venv
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.endpoint import serving
from tests.support.hosts import Sandbox
from tests.support.models import checkpoints, configs
from tests.support.models.hub import hub
from tests.support.paths import ROOT, VCLUSTER
from tests.support.pulled import tiny_model, write_files
from tests.support.pulls import hub_for, model_files, repository
from tests.support.terminal import Terminal
from tests.support.waiting import until
from vllm_cluster.kernel.inventory.load import load_text

pytestmark = pytest.mark.e2e

# By their path below docs, and those of the repository's root by theirs.
PAGES = {
    **{f"/{path.name}": path for path in sorted(ROOT.glob("*.md"))},
    **{str(path.relative_to(ROOT / "docs")): path for path in sorted((ROOT / "docs").rglob("*.md"))},
}
# What the sandbox serves in the place of a model that fills sixteen GPUs.
LARGE, TINY = "meta-llama/Llama-3.1-405B-Instruct", "sandbox/tiny-llama"
# The pages for kinds of hosts: their own lines are those that need no host, and the others are of pages above.
FOR = [page for page in PAGES if page.startswith("for/")]
RUN = ("vcluster init ", "vcluster fit ")
# What is run nowhere, and why.
SHOWN = {
    "vcluster serve meta-llama/Llama-3.1-70B-Instruct": "the sandbox's hosts have like numbers of GPUs",
    "vcluster serve meta-llama/Llama-3.1-70B-Instruct --tp 2 --pp 1 --backend mp"
    " -- --enforce-eager --gpu-memory-utilization 0.8 --max-model-len 32768": "two GPU hosts",
    "vcluster serve Qwen/Qwen3-8B --hosts ws1": "the page on several models runs it on gpu1",
    "vcluster serve Qwen/Qwen3-4B --hosts ws2": "the page on several models runs it on gpu2",
}
# What stops a model that is served there.
# Where a page stops first, nothing is served any more when it takes the cluster down.
ASKS = {
    "first-cluster.md": (f"vcluster serve {LARGE} -- --max-model-len 1024", "vcluster stop"),
    "sandbox.md": ("vcluster down",),
}


def commands(page: str) -> list[str]:
    """The lines of a page's ``sh`` blocks, without their comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGES[page].read_text(), re.MULTILINE | re.DOTALL)
    lines = (re.sub(r"(?:^|  +)# .*", "", line) for block in blocks for line in block.splitlines())
    return [line for line in lines if line]


def shell(command: str, folder: Path, environment: Mapping[str, str], seconds: float = 900) -> str:
    """Run a line as a person would; returns what it printed."""
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": f"{VCLUSTER.parent}:{os.environ['PATH']}", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, f"$ {command}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def answer(command: str, folder: Path, environment: Mapping[str, str]) -> None:
    """Run a line that asks a question, and answer yes."""
    variables = {**os.environ, "PATH": f"{VCLUSTER.parent}:{os.environ['PATH']}", **environment}
    with Terminal(["bash", "-c", command], env=variables, cwd=folder) as terminal:
        terminal.until("[y/N] ", 120)
        terminal.press("y\n")
        assert terminal.end(300) == 0, terminal.shown


@contextmanager
def open_tunnel(folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """`vcluster endpoint --tunnel` in its own terminal."""
    process = subprocess.Popen(
        [VCLUSTER, "endpoint", "--tunnel", "--json"],
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert "url" in json.loads(process.stdout.readline())
        yield
    finally:
        process.terminate()
        process.communicate(timeout=30)


BEGUN = [
    pytest.param(marks=pytest.mark.cluster("plain", leaves="empty"), id="goes on"),
    pytest.param(marks=pytest.mark.cluster("empty"), id="from nothing"),
]


@pytest.mark.deep
@pytest.mark.parametrize((), BEGUN)
def test_a_first_cluster(sandbox: Sandbox, tmp_path: Path) -> None:
    """The page's hosts are the sandbox's: `ssh gpu1` works, as the page demands.

    Where the model is served already, its first `up` and `serve` find their work done, and the rest of the page is new.
    """
    inventory = tmp_path / "inventory.yaml"
    environment = {name: value for name, value in sandbox.environment.items() if name != "VCLUSTER_INVENTORY"}
    with ExitStack() as terminals:
        for command in commands("first-cluster.md"):
            if command == "vcluster endpoint --tunnel":
                terminals.enter_context(open_tunnel(tmp_path, environment))
                continue
            if command in ASKS["first-cluster.md"]:
                answer(command.replace(LARGE, TINY), tmp_path, environment)
                assert command != "vcluster stop" or serving(sandbox) is None
                continue
            said = shell(command.replace(LARGE, TINY), tmp_path, environment)
            if command.startswith("vcluster init"):
                shell("vcluster init --schema | python3 -m json.tool", tmp_path, environment)
                assert "10.0.0.12" in inventory.read_text()
                inventory.write_text(sandbox.inventory.read_text())
                shutil.copy(sandbox.folder / "ssh_config", tmp_path / "ssh_config")
            if "| curl" in command:
                assert json.loads(said)["choices"][0]["text"]


@pytest.mark.deep
@pytest.mark.cluster("empty")
def test_the_sandbox_page(tmp_path: Path) -> None:
    """Makes a sandbox of its own, and removes it."""
    environment: dict[str, str] = {}
    killed = False
    for command in commands("sandbox.md"):
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            environment[name] = value.strip('"').replace("$PWD", str(tmp_path))
            continue
        if command in ASKS["sandbox.md"]:
            answer(command, tmp_path, environment)
            continue
        # By its exit code the cluster is not what the inventory declares.
        shell(f"! {command}" if killed and command == "vcluster status" else command, tmp_path, environment)
        killed = "docker kill" in command


@pytest.mark.cluster("empty")
def test_the_fit_page(sandbox: Sandbox, tmp_path: Path) -> None:
    """The models are those of a hub on loopback; the hosts are the sandbox's."""
    names = {"8B": configs.LLAMA_8B, "405B": configs.LLAMA_405B}
    files = {
        f"meta-llama/Llama-3.1-{name}-Instruct": checkpoints.files(config, checkpoints.llama(config))
        for name, config in names.items()
    }
    deepseek = checkpoints.files(configs.DEEPSEEK_V3, checkpoints.mixture(configs.DEEPSEEK_V3))
    with hub(repositories={**files, "deepseek-ai/DeepSeek-V3": deepseek}) as made:
        environment = {"HF_ENDPOINT": made.url, **sandbox.environment}
        for command in commands("fit.md"):
            assert "fit at TP=" in shell(command, tmp_path, environment).replace("fits", "fit")


@pytest.mark.cluster("none")
@pytest.mark.parametrize("page", FOR)
def test_a_page_for_a_kind_of_hosts(page: str, tmp_path: Path) -> None:
    """What needs no host is run, with the models of a hub on loopback; each inventory that the page shows is read."""
    sizes = {"70B": configs.LLAMA_70B, "405B": configs.LLAMA_405B}
    files = {
        f"meta-llama/Llama-3.1-{size}-Instruct": checkpoints.files(config, checkpoints.llama(config))
        for size, config in sizes.items()
    }
    deepseek = checkpoints.files(configs.DEEPSEEK_V3, checkpoints.mixture(configs.DEEPSEEK_V3))
    with hub(repositories={**files, "deepseek-ai/DeepSeek-V3": deepseek}) as made:
        for command in commands(page):
            if command.startswith(RUN):
                shell(command, tmp_path, {"HF_ENDPOINT": made.url})
    shown = re.findall(r"^```yaml\n(version: 1\n.*?)^```$", PAGES[page].read_text(), re.MULTILINE | re.DOTALL)
    for text in shown:
        # The nodes of a job are asked of Slurm, whose own tests do that.
        load_text(
            text.replace("hosts_from: slurm:4711", "hosts: {node1: {address: 10.0.0.1}}").encode(), path=None, cwd=None
        )


@pytest.mark.cluster("empty")
def test_the_explain_page(sandbox: Sandbox, tmp_path: Path) -> None:
    """The logs are recorded ones, those that developers make are a tenth as long; the cluster is the sandbox's."""
    text = (ROOT / "tests" / "fixtures" / "logs" / "context-too-long.context.log").read_bytes()
    (tmp_path / "head.log").write_bytes(text)
    (tmp_path / "worker.log.gz").write_bytes(gzip.compress(text))
    for command in (*commands("explain.md"), *commands("developers/explain.md")):
        said = shell(re.sub("i<([0-9]+)0;", r"i<\1;", command), tmp_path, {**sandbox.environment})
        assert "(vcluster explain context-too-long)" in said or "head.log" not in command
    assert {path.name for path in tmp_path.glob("*.tar.gz")} == {"report.tar.gz"}


@pytest.mark.deep
@pytest.mark.cluster("up")
def test_the_replicas_page(sandbox: Sandbox, tmp_path: Path) -> None:
    """The model is the sandbox's; each host serves one of two replicas."""
    for command in commands("replicas.md"):
        said = shell(command.replace("Qwen/Qwen3-8B", TINY), tmp_path, {**sandbox.environment})
        assert command != "vcluster status" or "ready: 2 of 2 replicas" in said


@pytest.mark.deep
@pytest.mark.cluster("up")
def test_the_several_models_page(sandbox: Sandbox, tmp_path: Path) -> None:
    """Both models are the sandbox's, under two names; each host serves one."""
    for command in commands("several-models.md"):
        name = command.split()[2] if command.startswith("vcluster serve ") else ""
        given = command.replace(f"serve {name}", f"serve {TINY} --name {name}") if name else command
        said = shell(given, tmp_path, {**sandbox.environment})
        assert command != "vcluster status" or said.count(": ready for ") == 2


@pytest.mark.cluster("served")
def test_the_logs_page(sandbox: Sandbox, tmp_path: Path) -> None:
    """On a cluster that serves."""
    said = {command: shell(command, tmp_path, {**sandbox.environment}) for command in commands("logs.md")}
    assert "gpu2 rank 3 | " in said["vcluster logs --only rank=3"]
    # Ray counts late which of them are in use, where the machine is busy.
    asked = "vcluster exec --head -- ray status"
    assert "/4.0 GPU" in said[asked]
    until(lambda: "4.0/4.0 GPU" in shell(asked, tmp_path, {**sandbox.environment}), 60)
    assert said["vcluster status --wait 30m && echo ready"] == "ready\n"


@pytest.mark.cluster("served")
def test_the_pages_on_monitoring(sandbox: Sandbox, tmp_path: Path) -> None:
    """On a cluster that serves."""
    environment = {**sandbox.environment, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    lines = (*commands("monitoring.md"), *commands("metrics.md"))
    said = {command: shell(command, tmp_path, environment) for command in lines}
    assert said["vcluster status --watch --count 2"].count("KV cache") == 2
    assert json.loads((tmp_path / "monitoring" / "targets.json").read_text())[0]["labels"] == {"cluster": "sandbox"}


@pytest.mark.cluster("empty")
def test_the_check_page(sandbox: Sandbox, tmp_path: Path) -> None:
    """On hosts that are well."""
    environment = {**sandbox.environment}
    said = {command: shell(command, tmp_path, environment) for command in commands("check.md")}
    assert "2 hosts checked" in said["vcluster check"]
    assert "2 logical GPUs" in said["vcluster check --facts"]


@pytest.mark.cluster("up")
def test_the_models_page(sandbox: Sandbox, tmp_path: Path) -> None:
    """On hosts that have the same, with a hub on this machine."""
    with hub_for(sandbox, {"Qwen/Qwen3-8B": repository(model_files(1 << 20))}) as made:
        environment = {**sandbox.environment, "HF_ENDPOINT": made.url}
        said = {command: shell(command, tmp_path, environment) for command in commands("models.md")}
    assert "Qwen/Qwen3-8B" not in shell("vcluster models", tmp_path, environment)
    for model in (TINY, "Qwen/Qwen3-8B"):
        assert re.search(rf"^{model} .* all 2 .* complete$", said["vcluster models"], re.MULTILINE)


@pytest.mark.deep
@pytest.mark.cluster("up")
def test_the_page_on_own_models(sandbox: Sandbox, tmp_path: Path) -> None:
    """The folders are copies of the sandbox's model; it is served from where the page brought it."""
    write_files(tmp_path / "my-model", tiny_model(sandbox))
    copied = "mkdir -p /data && cp -rL /models/hub/models--sandbox--tiny-llama/snapshots/* /data/my-model"
    sandbox.on("gpu1", "sh", "-c", copied, root=True)
    environment = {**sandbox.environment}
    try:
        for command in commands("own-models.md"):
            shell(command, tmp_path, environment)
        assert serving(sandbox) == "ready"
    finally:
        shell("vcluster stop --yes", tmp_path, environment)
        sandbox.on("gpu1", "rm", "-rf", "/data/my-model", root=True)
        shell("vcluster models rm ./my-model --yes", tmp_path, environment)


@pytest.mark.cluster("up")
def test_the_images_page(sandbox: Sandbox, tmp_path: Path) -> None:
    """On a cluster that is up, whose hosts have the same image."""
    said = {command: shell(command, tmp_path, {**sandbox.environment}) for command in commands("images.md")}
    assert re.search(r"^vcluster-node:\S+ .* all 2 .* in-use$", said["vcluster image ls"], re.MULTILINE)


@pytest.mark.cluster("served")
def test_the_pages_on_asking(sandbox: Sandbox, tmp_path: Path) -> None:
    """The model is the sandbox's; the tunnel in the background is that of a cache of its own."""
    environment = {**sandbox.environment, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    asked = [*commands("use.md"), *commands("clients.md")]
    printed = {command: shell(command, tmp_path, environment) for command in asked}
    assert "MOST PROBABLE" in "".join(printed.values())
    assert list((tmp_path / "cache" / "vcluster" / "tunnels").iterdir()) == []


@pytest.mark.cluster("served")
def test_the_batch_page(sandbox: Sandbox, tmp_path: Path) -> None:
    """In its order: the second run finds all answered."""
    for command in commands("batch.md"):
        shell(command, tmp_path, {**sandbox.environment})
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 2
    twice = [json.loads(line) for line in (tmp_path / "twice.jsonl").read_text().splitlines()]
    assert [len(row["response"]["body"]["choices"]) for row in twice] == [2, 2]


@pytest.mark.deep
@pytest.mark.cluster("served")
def test_the_benchmark_page(sandbox: Sandbox, tmp_path: Path) -> None:
    """With few requests in the place of many: vLLM's figures, what was measured, and no secret."""
    few = "--output-len 4 --concurrency 1,4 --repeat 1"
    for command in commands("benchmark.md"):
        shell(command if "--compare" in command else f"{command} {few}", tmp_path, {**sandbox.environment})
    found = json.loads((tmp_path / "before" / "results.json").read_text())
    assert [one["point"]["concurrency"] for one in found["points"]] == [1, 4]
    figures = [run["figures"] for one in found["points"] for run in one["runs"]]
    assert [(run["completed"], run["failed"]) for run in figures] == [(4, 0), (8, 0)]
    assert [host["name"] for host in found["hosts"]] == ["gpu1", "gpu2"]
    key = sandbox.vcluster("endpoint", "--key").ok().out.strip()
    for path in (tmp_path / "before").iterdir():
        assert key.encode() not in path.read_bytes()


@pytest.mark.deep
@pytest.mark.cluster("none")
def test_the_demo_on_a_fresh_clone(tmp_path: Path) -> None:
    """The README's first command; then again, which must be quick and print the same."""
    clone = tmp_path / "clone"
    shell(f"git clone --quiet {ROOT} {clone}", tmp_path, {})
    try:
        first = shell("make demo", clone, {}, seconds=1500)
        again = shell("make demo", clone, {})
        answers = [
            re.findall(r"\n\$ vcluster complete [^\n]*\n(.+?)\n\nTP=2", said, re.DOTALL) for said in (first, again)
        ]
        assert answers[0] == answers[1] != []
        seconds = int(re.findall(r"answered (\d+) s after", again)[0])
        assert seconds < 60
    finally:
        shell("make clean", clone, {})
    assert not (clone / "sandbox" / "inventory.yaml").exists()


@pytest.mark.deep
@pytest.mark.cluster("none")
def test_what_pip_installs_is_whole(tmp_path: Path) -> None:
    """As README's `pipx install .`, in an environment of its own: the recipes must travel with the package."""
    venv.create(tmp_path / "venv", with_pip=True)
    shell(f"{tmp_path}/venv/bin/pip install --quiet --constraint constraints.txt .", ROOT, {})
    there = {"PATH": f"{tmp_path}/venv/bin:{os.environ['PATH']}"}
    shell("vllm-cluster --version", tmp_path, there)
    shell("vcluster init --host gpu1=10.0.0.11 --host gpu2=10.0.0.12", tmp_path, there)
    there_too = "print(recipe('Dockerfile').read_text(), recipe('cpu').stat())"
    probe = f"from vllm_cluster.kernel.images.recipes import recipe; {there_too}"
    shell(f"python -c {shlex.quote(probe)}", tmp_path, there)


@pytest.mark.cluster("none")
def test_no_command_of_the_docs_is_left_out() -> None:
    """A page with commands has a test above, or that of Slurm; what pages repeat counts once."""
    pages = (
        "first-cluster", "sandbox", "fit", "check", "explain", "use", "clients", "logs", "batch", "benchmark",
        "monitoring", "metrics", "models", "own-models", "images", "replicas", "several-models", "slurm",
        "developers/explain",
    )  # fmt: skip
    covered = {line for page in pages for line in commands(f"{page}.md")} | SHOWN.keys()
    covered |= {line for page in FOR for line in commands(page) if line.startswith(RUN)}
    # Run by the two tests above this one; the set-up and `make test` by whoever reads this.
    covered |= {
        "make .venv/ready",
        ". .venv/bin/activate",
        "make demo",
        "make test",
        "pipx install .",
        "vcluster init --host gpu1=10.0.0.11 --host gpu2=10.0.0.12",
    }
    left = {page: [line for line in commands(page) if line not in covered] for page in PAGES}
    assert {page: lines for page, lines in left.items() if lines} == {}
