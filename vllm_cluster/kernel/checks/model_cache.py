"""The model cache: what carries it, and whether the hosts hold the same."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from vllm_cluster.kernel.checks.finding import Finding, each_host, outliers
from vllm_cluster.kernel.facts.details import FileSystem
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.inventory.model import Host, Inventory
from vllm_cluster.kernel.plan.cached_model import REPOSITORY
from vllm_cluster.kernel.plan.loading import OVER_THE_NETWORK
from vllm_cluster.kernel.shell_line import Option, command_line

MAX_NAMED = 3


def filesystem(inventory: Inventory, facts: HostFacts) -> FileSystem | None:
    """What carries the host's model cache."""
    known = facts.details.filesystems if facts.details else ()
    return next((entry for entry in known if entry.path == inventory.model_cache), None)


@each_host
def cache_filesystem(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """A cache that is slow to read, or full."""
    carrier = filesystem(inventory, facts)
    if carrier and carrier.kind in OVER_THE_NETWORK:
        text = f"the model cache is on {carrier.kind} ({carrier.source}): every rank reads the weights through it"
        fix = "put models on local disks: model_cache in the inventory, then vcluster pull MODEL"
        yield Finding("cache-on-network", host.name, text, fix, severity="warning")
    free = facts.free_bytes.get(inventory.model_cache)
    if free is not None and free < 1e9:
        text = f"the model cache {inventory.model_cache} has {free / 1e6:.0f} MB free: no model can be downloaded"
        fix = "model_cache in the inventory, on a larger disk\nvcluster up"
        if facts.details and facts.details.revisions:
            # Where it has no model of the hub, there is no such folder either.
            folder = f"{inventory.model_cache}/hub"
            fix = f"{command_line('du', Option('-d'), '1', Option('-h'), folder, on=host.name)}\n{fix}"
        yield Finding("cache-full", host.name, text, fix, severity="warning")


@each_host
def incomplete_files(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """Files that are not whole."""
    if facts.details and facts.details.incomplete_files:
        text = f"incomplete downloads (interrupted or running): {facts.details.incomplete_files[0]}"
        fix = command_line("vcluster", "pull", _model(facts.details.incomplete_files[0]))
        yield Finding("cache-incomplete", host.name, text, fix, severity="warning")
    if facts.details and facts.details.broken_symlinks:
        text = f"broken symlinks in the model cache: {facts.details.broken_symlinks[0]}"
        fix = command_line("vcluster", "pull", _model(facts.details.broken_symlinks[0]))
        fix += "\nor copy it with the files behind symlinks: rsync --copy-unsafe-links"
        yield Finding("broken-symlinks", host.name, text, fix, severity="warning")


@each_host
def without_tokenizer(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[Finding]:
    """Models with weights and no tokenizer: vLLM loads all of them before it misses it."""
    for folder in facts.details.without_tokenizer if facts.details else ():
        model = _model(folder)
        text = f"{model} has weights and no tokenizer: {folder}"
        fix = f"{command_line('vcluster', 'pull', model)}\nor -- --tokenizer ORG/NAME, where another model has it"
        yield Finding("tokenizer-missing", host.name, text, fix, severity="warning")


def _model(path: str) -> str:
    """The repository whose file this is, as the hub's cache names its folder."""
    found = re.search(r"/models--([^/]+)/", path)
    name = found[1].replace("--", "/") if found else ""
    # Any program of the host may make a folder: the name of one is not yet that of a repository.
    return name if REPOSITORY.fullmatch(name) else "MODEL"


def same_models(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
    """Models that only some hosts have, or that differ in revision."""
    held = {name: host.details.revisions for name, host in facts.items() if host.details}
    number = Counter(model for revisions in held.values() for model in revisions)
    # Behind the head's and those of several hosts: what one host alone shows is not for a line that brings it to all.
    alone = {model for model in number if number[model] == 1} - {*held.get(inventory.head_name, ())}
    models = sorted(number, key=lambda model: (model in alone, model))
    for name, revisions in held.items():
        if lacking := [model for model in models if model not in revisions]:
            names = [model.replace("--", "/") for model in lacking]
            text = f"not in its model cache, and on other hosts: {', '.join(names[:MAX_NAMED])}"
            fix = command_line("vcluster", "pull", "MODEL" if lacking[0] in alone else names[0])
            yield Finding("model-absent", name, text, fix, severity="warning")
    for model in models:
        commits = {name: revisions[model] for name, revisions in held.items() if model in revisions}
        for name, commit, common, others in outliers(commits):
            repository = model.replace("--", "/")
            text = f"{repository} is at {commit[:12]}, that of {others}"
            fix = command_line("vcluster", "pull", repository)
            if common:
                same = command_line("vcluster", "serve", repository, Option("--"), Option(f"--revision={common}"))
                fix += f"\nor {same}"
            yield Finding("revision-differs", name, text, fix, severity="warning")


def one_device(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
    """One block device mounted by two hosts, which ruins an ordinary file system."""
    seen: dict[str, str] = {}
    for name, host in facts.items():
        carrier = filesystem(inventory, host)
        # The root of cloned machines has one UUID too; hosts of one kernel (containers) share its mounts safely.
        if carrier is None or not carrier.uuid or carrier.mount == "/" or carrier.kind in OVER_THE_NETWORK:
            continue
        first = seen.setdefault(carrier.uuid, name)
        if first != name and facts[first].boot_id != host.boot_id:
            text = f"the model cache is the {carrier.kind} file system {carrier.uuid}, as on {first}"
            fix = "if it is one disk, unmount it at once on all hosts but one, and share it with NFS"
            yield Finding("shared-block-device", name, text, fix, severity="warning")
