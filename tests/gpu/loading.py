"""How long a model takes to load, by vLLM's loading strategies: with its files in the page cache, and without."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

from tests.gpu.cluster import Cluster, Failed

# What each strategy is for vLLM, as flags behind `--`.
STRATEGIES = {
    "default": "",
    "prefetch": "--safetensors-load-strategy prefetch",
    "eager": "--safetensors-load-strategy eager",
    "threads": """--model-loader-extra-config '{"enable_multithread_load":true,"num_threads":8}'""",
    "fastsafetensors": "--load-format fastsafetensors",
    "runai_streamer": "--load-format runai_streamer",
}
# Random weights for a model that has only its config: as its classes name them, in files of some GB.
WRITE = """
import json, pathlib, sys, torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
folder, limit = pathlib.Path(sys.argv[1]), 4 << 30
if (folder / "model.safetensors.index.json").exists():
    sys.exit("it has weights")
for path in folder.glob("*.safetensors"):
    path.unlink()  # of a run that broke off: the index is written last
with torch.device("meta"):
    shapes = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16).state_dict()
parts, size = [{}], 0
for name, tensor in shapes.items():
    if size + 2 * tensor.numel() > limit:
        parts, size = [*parts, {}], 0
    parts[-1][name], size = tensor.shape, size + 2 * tensor.numel()
index = {}
for number, part in enumerate(parts, 1):
    file = f"model-{number:05}-of-{len(parts):05}.safetensors"
    torch.manual_seed(number)
    made = {name: 0.02 * torch.randn(shape, device="cuda", dtype=torch.bfloat16) for name, shape in part.items()}
    rows = {name: tensor.cpu() for name, tensor in made.items()}
    save_file(rows, folder / file, metadata={"format": "pt"})
    index |= dict.fromkeys(part, file)
total = sum(2 * shape.numel() for shape in shapes.values())
whole = {"metadata": {"total_size": total}, "weight_map": index}
(folder / "model.safetensors.index.json").write_text(json.dumps(whole))
print(total)
"""
# Takes a folder's files out of the page cache; prints their bytes and the bytes a second that one of them is read with
# after that, which takes its beginning back in.
DROP = """
import os, pathlib, sys, time
os.sync()
files = sorted(path for path in pathlib.Path(sys.argv[1]).rglob("*.safetensors"))
for path in files:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
with files[0].open("rb") as file:
    began = time.monotonic()
    read = len(file.read(256 << 20))
    rate = read / (time.monotonic() - began)
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
print(sum(path.stat().st_size for path in files), round(rate))
"""
# The snapshot of a repository in the node's cache, or the folder itself.
FOLDER = """
import os, pathlib, sys
home = pathlib.Path(os.environ["HF_HOME"], "hub", "models--" + sys.argv[1].replace("/", "--"))
print(home / "snapshots" / (home / "refs" / "main").read_text().strip() if home.is_dir() else sys.argv[1])
"""
_TOOK = re.compile(r"Loading weights took ([\d.]+) sec")


def python(cluster: Cluster, host: str, source: str, *argv: str, seconds: float) -> str:
    """What a program prints in a host's container.

    Raises:
        Failed: it did not end with 0.
    """
    done = cluster.on(host, "docker", "exec", cluster.node, "python3", "-c", source, *argv, seconds=seconds)
    if done.returncode:
        raise Failed(f"{host}: {done.stderr.decode(errors='replace').strip()[-600:]}")
    return done.text.strip().splitlines()[-1]


def write_weights(cluster: Cluster, model: str) -> None:
    """Random weights on every host that has none; the GPUs must be free."""
    cluster.vcluster("stop", "--yes", seconds=120).ok()
    for host in cluster.inventory.hosts:
        folder = python(cluster, host, FOLDER, model, seconds=60)
        try:
            python(cluster, host, WRITE, folder, seconds=300)
        except Failed as error:
            if "it has weights" not in str(error):
                raise


def measure(cluster: Cluster, model: str, flags: str, name: str, *, cold: bool, seconds: float) -> dict[str, Any]:
    """One start by a strategy; seconds of the whole `serve`, and of the slowest rank's load."""
    cluster.vcluster("stop", "--yes", seconds=120).ok()
    rates = {}
    if cold:
        for host in cluster.inventory.hosts:
            folder = python(cluster, host, FOLDER, model, seconds=60)
            size, rate = python(cluster, host, DROP, folder, seconds=120).split()
            rates[host] = round(int(rate) / 1e9, 2)
            rates["GB"] = round(int(size) / 1e9, 2)
    log = "/var/lib/vcluster/serve.log"
    before = int(cluster.inside(cluster.head, f"cat {log} 2>/dev/null | wc -c").text)
    extra = [*shlex.split(flags), *shlex.split(STRATEGIES[name])]
    run = cluster.vcluster("serve", model, "--yes", *(["--", *extra] if extra else []), seconds=seconds)
    said = cluster.inside(cluster.head, f"tail -c +{before + 1} {log}").text
    took = [float(value) for value in _TOOK.findall(said)]
    row: dict[str, Any] = {"strategy": name, "cold": cold, "seconds": run.seconds, "load": max(took, default=None)}
    phases = [f"{text} {spent:.0f}" for text, spent in run.phases() if spent >= 0.5]
    return {**row, "ranks": took, **rates, "phases": phases, **({"failed": run.failure[-300:]} if run.code else {})}


def rows(cluster: Cluster, options: Any, done: list[dict[str, Any]], left: Any) -> Iterator[dict[str, Any]]:
    """A row for each strategy, cold and warm, but for those that are done; an image that lacks one fails at once."""
    for name in options.strategies:
        for cold in (True, False):
            known = any(row["strategy"] == name and row["cold"] == cold for row in done)
            if not known and left() > 60:
                yield measure(cluster, options.model, options.flags, name, cold=cold, seconds=left())
