"""What can be known of a request to serve before anything is stopped for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import NamedTuple

from vllm_cluster.kernel.backends import vllm
from vllm_cluster.kernel.checks.gpus import find_out, name_processes
from vllm_cluster.kernel.errors import ConnectionLost, HostError, PreflightFailed
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.hosts.program import Message, python_source
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.plan import loading
from vllm_cluster.kernel.plan.cached_model import REPOSITORY
from vllm_cluster.kernel.plan.desired import CODE_FOLDER, hcas
from vllm_cluster.kernel.plan.gpus import held_by_others, of_node
from vllm_cluster.kernel.shell_line import Option, command_line, last_value
from vllm_cluster.kernel.text import by_hosts
from vllm_cluster.serving.fit.fit import gpu_memory
from vllm_cluster.serving.fit.layouts import GpuPool
from vllm_cluster.serving.fit.request import (
    Asked,
    Beside,
    Files,
    Judged,
    RequestProblem,
    fewer,
    find_problems,
    to_download,
)
from vllm_cluster.wire.order import Placement
from vllm_cluster.wire.programs import CheckQuestion
from vllm_cluster.wire.reading import RefusedDocument, convert

# What may name another repository, which is then read from the hub, or another place of the files.
_FETCHES = frozenset(
    {
        *("allowed_local_media_path", "chat_template", "code_revision", "config", "download_dir", "enable_lora"),
        *("generation_config", "hf_config_path", "hf_overrides", "load_format", "lora_modules"),
        *("speculative_config", "tokenizer", "tokenizer_revision", "trust_remote_code"),
    }
)


class CheckedRequest(NamedTuple):
    """The flags for how the weights are read; and whether every host has all files as they were pulled.

    `lacking` are the hosts that do not have the model, with the bytes of weights that each must download.
    """

    loading: tuple[str, ...]
    offline: bool
    lacking: Mapping[str, int]


def check_request(
    fleet: Fleet,
    inventory: Inventory,
    facts: Mapping[str, HostFacts],
    placed: tuple[Placement, ...],
    emit: Emit,
    *,
    pull: bool = False,
) -> CheckedRequest:
    """Refuse what cannot be served, all reasons at once; emit what could not be checked.

    With `pull` the model need not be there: it is brought, and then checked once more.

    Raises:
        PreflightFailed: the model is not there, vLLM refuses the flags, or it does not fit.
    """
    wanted, head = placed[0], inventory.head_name
    deployment, replica = wanted.deployment, wanted.replica
    model, extra, argv = deployment.model, deployment.flags, list(replica.leader.argv)
    emit(Event("phase", f"checking {model} and its flags"))
    ranks = {part.host: part.gpus for part in replica.parts if part.gpus}
    question = CheckQuestion(
        model,
        revision(extra),
        argv=tuple(argv[1:]),
        own=len(argv) - 3 - len(extra),
        ask=(*vllm.ASKED, "gpu_memory_utilization", *sorted(loading.OPTIONS)),
        env=replica.leader.env,
        seconds=VLLM_SECONDS,
    )
    all_hosts = _hosts(inventory, placed)
    files, judged = ask_nodes(fleet, inventory, question, list(dict.fromkeys((head, *all_hosts))))
    gpus = _gpus(inventory, facts, ranks)
    beside = {name: _beside(inventory, facts[name], number) for name, number in ranks.items()}
    dp, ep, may_group = replica.dp, deployment.expert_parallel, inventory.backend != "mp"
    reads = tuple(all_hosts)
    asked = Asked(model, replica.tp, replica.pp, argv, extra, gpus, tuple(ranks), beside, dp, ep, may_group, reads)
    lacking = _lacking(model, files, files[head].weights, extra, pull=pull)
    judged_files = {name: Files("unknown") if pull and name in lacking else one for name, one in files.items()}
    if found := list(find_problems(asked, head, judged_files, judged)):
        raise _refused(found)
    if pull and lacking:
        return CheckedRequest((), offline=False, lacking=lacking)
    by_default = not (deployment.tp or deployment.pp or deployment.hosts)
    if by_default and (advice := fewer(asked, files[head], judged)):
        emit(Event("note", advice))
    _report_unchecked(head, files, judged, emit)
    flags = _loading({host: files[host] for host in all_hosts or files}, files[head].weights, judged, emit)
    return CheckedRequest(flags, _is_proved(model, files, extra, emit), lacking)


def _refused(found: Sequence[RequestProblem]) -> PreflightFailed:
    lines = [f"{hosts}: {what}" for what, hosts in by_hosts((one.text, one.host) for one in found).items()]
    near = {one.near[0]: one.near[1] for one in found if one.near}
    hint = "\n".join(dict.fromkeys(one.fix for one in found if one.fix))
    return PreflightFailed(*lines, hint=hint or None, instead=near)


def _hosts(inventory: Inventory, placed: tuple[Placement, ...]) -> list[str]:
    """The hosts whose GPUs any of these replicas take, as the inventory has them."""
    taken = {part.host for one in placed for part in one.replica.parts if part.gpus}
    return [name for name in inventory.hosts if name in taken]


def _lacking(
    model: str, files: Mapping[str, Files], size: int | None, extra: Sequence[str], *, pull: bool
) -> dict[str, int]:
    """The hosts to which a pull would bring the model; without `pull`, those that would download it by themselves."""
    if not REPOSITORY.fullmatch(model) or {"download_dir", "load_format"} & {*vllm.options(extra)}:
        return {}
    places = ("hub", "nowhere") if pull else ("hub",)
    return {host: to_download(found, size) for host, found in files.items() if found.where in places}


def note_downloads(model: str, lacking: Mapping[str, int], emit: Emit) -> None:
    """That hosts download the model by themselves while it starts."""
    downloads = {host: number for host, number in lacking.items() if number}
    if downloads:
        most = f"{max(downloads.values()) / 1e9:.1f} GB"
        once = f"{command_line('vcluster', 'pull', model)} downloads them once"
        text = f"{', '.join(downloads)}: up to {most} are downloaded while it starts; {once}"
        emit(Event("note", text))


def _is_proved(model: str, files: Mapping[str, Files], extra: Sequence[str], emit: Emit) -> bool:
    for host, found in files.items():
        if found.changed:
            repair = command_line("vcluster", "pull", model, Option("--verify"))
            text = f"{model}: {found.changed} has changed since it was pulled; {repair}"
            emit(Event("warning", text, host, {"code": "model-changed"}))
    digests = {found.proved for found in files.values()}
    return len(digests) == 1 and "" not in digests and not _FETCHES & {*vllm.options(extra)}


def _loading(files: Mapping[str, Files], size: int | None, judged: Judged, emit: Emit) -> tuple[str, ...]:
    """The flags for how the hosts with ranks read the weights, with a note; none where a person gave such flags."""
    if "safetensors_load_strategy" not in judged.values or loading.OPTIONS & {*judged.theirs, *judged.given}:
        return ()
    places = {host: loading.WeightsPlace(found.carrier, found.memory) for host, found in files.items()}
    chosen = loading.choose_loading(places, size)
    if chosen is None:
        return ()
    emit(Event("note", chosen.reason))
    return chosen.flags


def revision(extra: Sequence[str]) -> str:
    """The revision as a word gives it, the last of several; only the head's vLLM also reads the file of --config."""
    found = last_value(extra, "--revision")
    return "main" if found is None else found


def _gpus(inventory: Inventory, facts: Mapping[str, HostFacts], ranks: Mapping[str, int]) -> GpuPool | None:
    """The GPUs of the hosts that get ranks; None where a host does not report their memory, or has CPUs in their place.

    The ranks of a CPU share its memory, and vLLM gives each a KV cache of 4 GiB by default.
    """
    if inventory.accelerator == "cpu":
        return None
    hosts = [inventory.hosts[name] for name in ranks]
    try:
        memory = min(gpu_memory(inventory, host, facts[host.name]) for host in hosts)
    except PreflightFailed:
        return None
    return GpuPool(tuple(ranks.values()), memory, all(hcas(host, facts[host.name]) for host in hosts))


def _beside(inventory: Inventory, facts: HostFacts, number: int) -> list[Beside]:
    """The GPUs that a host's ranks would share with others; Ray takes the first of the node's."""
    if inventory.accelerator == "cpu":
        return []
    host = inventory.hosts[facts.host]
    first = sorted(gpu.index for gpu in of_node(inventory.cluster, host, facts))[:number]
    held = [one for one in held_by_others(inventory.cluster, host, facts) if one.gpu.index in first]
    return [
        Beside(
            one.gpu.index,
            one.gpu.memory_mib << 20,
            one.free_mib << 20,
            one.share,
            name_processes(one, facts),
            find_out(host.name, held),
        )
        for one in held
        if not one.gpu.unified
    ]


def _report_unchecked(head: str, files: Mapping[str, Files], judged: Judged, emit: Emit) -> None:
    if judged.unchecked:
        what = "the flags and the model's config" if not judged.flags else "the model's config"
        emit(Event("note", f"skipped the check of {what}: {judged.unchecked}"))
    if files[head].where == "unknown":
        emit(Event("note", f"skipped the check of the model's name and files: {files[head].problem or 'not on a hub'}"))


# vLLM's parser answers in a tenth of a second; it is imported right after `up`, for the first time from a cold disk.
VLLM_SECONDS = 90.0
# Two requests to the hub, a start of Python, and what is above.
ASK_SECONDS = 130.0

# The node program's file, in a process that ends with its input.
_CHECK = f"""
import runpy, sys
sys.path.insert(0, {CODE_FOLDER!r})
sys.argv.append("check")
runpy.run_path("{CODE_FOLDER}/node.py", run_name="__main__")
"""


def ask_nodes(
    fleet: Fleet, inventory: Inventory, question: CheckQuestion, hosts: Sequence[str]
) -> tuple[dict[str, Files], Judged]:
    """What the nodes of these hosts answer about a model; the head, one of them, about flags and the hub too."""
    head = inventory.head_name
    # Without an `argv`: an earlier node program asks its vLLM wherever there is one.
    about_files = {"model": question.model, "revision": question.revision, "ask_hub": False}

    def ask(connection: HostConnection) -> tuple[Files, Judged]:
        return _ask(connection, inventory.cluster, asdict(question) if connection.name == head else about_files)

    answers = fleet.all(ask, hosts)
    return {host: files for host, (files, _) in answers.items()}, answers[head][1]


def _ask(connection: HostConnection, cluster: str, question: Message) -> tuple[Files, Judged]:
    check = python_source("check", _CHECK, seconds=ASK_SECONDS)
    try:
        ended = NodeHandle(connection, cluster).run(check, ASK_SECONDS + 10, question)
        answer = next(row for row in reversed(ended.messages) if row.get("v") == 1)
        return _files(answer["files"]), convert(Judged, answer["vllm"], "vllm")
    except ConnectionLost:
        raise
    except (HostError, StopIteration, LookupError, RefusedDocument) as error:
        why = error.detail if isinstance(error, HostError) else "the node gave no answer"
        return Files("unknown"), Judged(unchecked=why)


def _files(row: object) -> Files:
    """What a node found of the model; what it took over from a hub may be wrong where its answer on flags is not."""
    try:
        return convert(Files, row, "files")
    except RefusedDocument as refused:
        return Files("unknown", f"the node's answer: {refused.field} {refused.why}")
