"""What is wrong with a request to serve, by what the nodes and the image's own vLLM answered about it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from vllm_cluster.kernel.backends import switches, vllm
from vllm_cluster.kernel.backends.seam import Degrees
from vllm_cluster.kernel.plan.cached_model import agreed
from vllm_cluster.kernel.shell_line import Option, command_line, last_value
from vllm_cluster.serving.fit.layouts import (
    FIXED,
    RELEASED,
    UTILISATION,
    GpuPool,
    Layout,
    Model,
    Workload,
    evaluate,
    smallest,
    split_problem,
)
from vllm_cluster.serving.fit.model_config import ModelConfig, model_config
from vllm_cluster.serving.fit.weights import gib, spread, weigh

# With one of these, what is computed from the stored config and weights is not what vLLM will load.
_OTHERWISE = frozenset(
    {
        "config",
        "config_format",
        "cpu_offload_gb",
        "decode_context_parallel_size",
        "download_dir",
        "dtype",
        "gpu_memory_utilization",
        "hf_config_path",
        "hf_overrides",
        "kv_cache_dtype",
        "kv_cache_memory_bytes",
        "kv_transfer_config",
        "load_format",
        "model_impl",
        "offload_backend",
        "quantization",
        "revision",
        "speculative_config",
    }
)
# Our estimate of the KV cache is this near to what vLLM measures, at worst: nothing is refused that could just fit.
DOUBT = 1.25
SHARE_OPTION = "--gpu-memory-utilization"
_OFFLINE = "or remove HF_HUB_OFFLINE from environment: of the inventory, then vcluster up"


class RequestProblem(NamedTuple):
    """Why a request cannot work, where, and what to do; `near` is a word of the request with the one that was meant."""

    host: str
    text: str
    fix: str
    near: tuple[str, ...] = ()


@dataclass(frozen=True)
class Beside:
    """A GPU that a rank would share with others; bytes. `share` is the most of it that vLLM can take beside `holders`.

    `find_out` is the command that shows whose those processes are.
    """

    gpu: int
    total: int
    free: int
    share: float
    holders: str
    find_out: str


@dataclass(frozen=True)
class Files:
    """What lies on a host of the model, or what the hub would give it; bytes, None where it is not known.

    `carrier` is the kind of its file system, `memory` what is free of the host's.
    `proved` is the digest of the manifest of a pull, where the files agree with it; `changed` the first that does not.
    """

    where: str
    problem: str = ""
    near: tuple[str, ...] = ()
    config: Mapping[str, object] | None = None
    weights: int | None = None
    missing: int | None = None
    held: int = 0
    free: int | None = None
    carrier: str = ""
    memory: int | None = None
    lacking: tuple[str, ...] = ()
    tensors: tuple[tuple[str, str, int], ...] | None = None
    proved: str = ""
    changed: str = ""


@dataclass(frozen=True)
class Judged:
    """What the image's vLLM takes the flags and the model for; `unchecked` is why it was not asked all.

    `version` is vLLM's, empty where it is not known.
    """

    flags: str = ""
    model: str = ""
    problem: str = ""
    unchecked: str = ""
    values: Mapping[str, object] = field(default_factory=dict)
    given: tuple[str, ...] = ()
    theirs: Mapping[str, object] = field(default_factory=dict)
    max_model_len: int | None = None
    supports_pp: bool | None = None
    version: str = ""


@dataclass(frozen=True)
class Asked:
    """The request: the model, its layout, the words of vLLM's command line; and the hosts that get
    ranks, with the GPUs of each, and with what others hold of these. `may_group` is whether Ray can
    join the hosts, too; `reads` are the hosts with ranks of any replica.
    """

    model: str
    tp: int
    pp: int
    argv: Sequence[str]
    extra: Sequence[str]
    gpus: GpuPool | None
    hosts: tuple[str, ...] = ()
    beside: Mapping[str, Sequence[Beside]] = field(default_factory=dict)
    dp: int = 1
    ep: bool = False
    may_group: bool = True
    reads: tuple[str, ...] = ()

    @property
    def degrees(self) -> Degrees:
        """How the model is split; --enable-expert-parallel among the words for vLLM is --ep."""
        return Degrees(self.tp, self.pp, self.dp, self.ep or "enable_expert_parallel" in vllm.options(self.extra))

    def layout(self, model: Model, gpus: GpuPool, workload: Workload) -> Layout:
        """What it needs and gives."""
        to = self.degrees
        return evaluate(model, gpus, workload, to.tp, to.pp, dp=to.dp, experts=to.experts)


def find_problems(asked: Asked, head: str, files: Mapping[str, Files], judged: Judged) -> Iterator[RequestProblem]:
    """Everything that would make the request fail after the running model was stopped."""
    named = list(_named(asked, head, files))
    yield from named
    yield from _flags(asked, head, judged, named=bool(named))
    if not named:
        yield from _fits(asked, head, files[head], judged)
        yield from _room(asked, head, files)
        share = utilisation(asked.extra, [*vllm.options(asked.extra)], judged.values)
        needed = _needed(asked, files[head], judged)
        for host, gpus in asked.beside.items():
            yield from (RequestProblem(host, *one) for one in too_little(asked.model, gpus, share, needed))


def _named(asked: Asked, head: str, files: Mapping[str, Files]) -> Iterator[RequestProblem]:
    names = agreed({host: found.near for host, found in files.items()}, head)
    folder = f"./{asked.model}"
    alike = [folder] if folder in names else difflib.get_close_matches(asked.model, names, n=1, cutoff=0.5)
    alike = [Option(f"./{one[2:]}") if one.startswith("./") else one for one in alike]
    for host, found in files.items():
        if found.where == "nowhere" and host in (head, *(asked.reads or asked.hosts or files)):
            near = [] if asked.model in found.near else alike
            fix = _fix(asked.model, found.problem, near=bool(near))
            text = f"{asked.model}: {found.problem}"
            if host != head and files[head].where in ("cache", "folder"):
                # Each rank reads its own host's files.
                pulled = files[head].where == "cache"
                fix = command_line("vcluster", "pull", asked.model) if pulled else f"copy it to {host} too"
                yield RequestProblem(host, text, fix)
            elif near:
                yield RequestProblem(host, f"{text}; did you mean {near[0]}?", fix, (asked.model, near[0]))
            else:
                yield RequestProblem(host, text, fix)
        elif found.where == "folder" and found.lacking:
            text = f"{asked.model} is incomplete: its index names {found.lacking[0]}, which does not exist"
            repair = command_line("vcluster", "pull", f"./{asked.model.rpartition('/')[2]}", Option("--verify"))
            yield RequestProblem(host, text, f"{repair}\nor, where vcluster pull has not brought it: copy it again")


def _fix(model: str, problem: str, *, near: bool) -> str:
    if "gated" in problem:
        return "accept its terms on the hub\nset hf_token in the inventory\nvcluster up"
    if near or "HF_HUB_OFFLINE" in problem:
        return "" if near else f"{command_line('vcluster', 'pull', model)}\n{_OFFLINE}"
    return "check the name: ORG/NAME, or a folder below model_cache\nvcluster models"


def _flags(asked: Asked, head: str, judged: Judged, *, named: bool) -> Iterator[RequestProblem]:
    if judged.flags == "refused" and (too_old := _spanning(asked, head, judged.problem)):
        yield too_old
        return
    if judged.flags == "refused":
        text = f"vLLM refuses these flags: {judged.problem}"
        # The whole help has thousands of lines; with a word vLLM shows the flags that hold it.
        near = re.search(r"unrecognized arguments: (--[\w-]{1,80}).{0,400}did you mean (--[\w-]{1,80})", judged.problem)
        topic = Option(f"--help={near[2].removeprefix('--') if near else 'all'}")
        known = command_line("vcluster", "exec", Option("--head"), Option("--"), "vllm", "serve", topic)
        lacking = "No such file" in judged.problem and "config" in vllm.options(asked.extra)
        old = switches.old_spellings(asked.extra)
        known = "\n".join([*(f"write {today} in place of {given}" for given, today in old.items()), known])
        fix = "vLLM reads the file of --config in the node: put it below model_cache, or mount its folder with volumes"
        in_file = judged.problem.startswith("--config ")
        remedy = fix if lacking else "correct that file" if in_file else known
        yield RequestProblem(head, text, remedy, near.groups() if near and not in_file else ())
        return
    # Values in the file of --config that those of vcluster override: as words of the command line they are refused too.
    read = [one for one in judged.values.items() if one[0] in vllm.ASKED]
    overridden = [one for one in judged.theirs.items() if one[0] in vllm.ASKED and one[0] != "middleware"]
    for option, fix in dict(vllm.undone([*read, *overridden], judged.given, asked.argv)).items():
        text = f"{option} is set by vcluster, and these flags or their --config file set it too"
        yield RequestProblem(head, text, fix)
    if judged.model == "refused" and not named:
        # Behind the first sentence vLLM has how to serve it all the same.
        longer = re.search(r"max_model_len \((\d{1,12})\) is greater than .{0,400}?=(\d{1,12})", judged.problem)
        why = judged.problem.partition(". ")[0] if longer else judged.problem
        fix = "" if longer else "change the flag or the model that it names"
        yield RequestProblem(head, f"vLLM refuses {asked.model}: {why}", fix, longer.groups() if longer else ())


def _spanning(asked: Asked, head: str, refusal: str) -> RequestProblem | None:
    """That the image's vLLM is too old to span hosts by itself, where its parser does not know the options for it."""
    unknown = [word.partition("=")[0] for word in refusal.split() if word.startswith("--")]
    if not refusal.startswith("unrecognized arguments: ") or "--nnodes" not in unknown:
        return None
    text = "the image's vLLM is too old to span hosts without Ray: it does not know --nnodes"
    ways = ["use --backend ray"] if asked.may_group and asked.degrees.dp == 1 else []
    ways += [f"use --hosts {head}: one host needs no such option", "set image to a newer vLLM, then vcluster up"]
    return RequestProblem(head, text, "\n".join(ways))


def _shape(found: Files) -> ModelConfig | None:
    try:
        return model_config(found.config) if found.config else None
    except (ValueError, RecursionError, TypeError, KeyError):
        return None


def fewer(asked: Asked, found: Files, judged: Judged) -> str:
    """Fewer GPUs than the default layout takes, where they hold the model with its whole context: how, and the reason.

    Empty where there are none, or where it is not known.
    """
    gpus, known = asked.gpus, _shape(found)
    given = judged.given or tuple(vllm.options(asked.extra))
    if gpus is None or known is None or not found.weights or set(given) & _OTHERWISE:
        return ""
    length = judged.max_model_len or known.context
    model, experts = _model(asked, found, known, judged), asked.degrees.experts
    small = smallest(model, gpus, Workload(context=length), experts=experts) if asked.dp == 1 else None
    if small is None or small.tp * small.pp >= asked.tp * asked.pp:
        return ""
    nodes = dict(zip(asked.hosts, gpus.nodes, strict=True))
    ranks = vllm.place_ranks(nodes, small.tp, small.pp)
    whole = all(nodes[host] == number for host, number in ranks.items())
    words = f"--hosts {','.join(ranks)}" if whole else f"--tp {small.tp} --pp {small.pp}"
    return (
        f"it also fits on {small.tp * small.pp} of the {asked.tp * asked.pp} GPUs ({words}): on {', '.join(ranks)} a "
        f"GPU holds {gib(small.weights_bytes)} of weights, "
        f"and the KV cache {small.requests} requests of {length} tokens"
    )


def _fits(asked: Asked, head: str, found: Files, judged: Judged) -> Iterator[RequestProblem]:
    given = judged.given or tuple(vllm.options(asked.extra))
    known = _shape(found)
    if known is None or set(given) & _OTHERWISE:
        return
    split = split_problem(known, asked.degrees)
    if not split and asked.pp > 1 and judged.supports_pp is False:
        split = f"the image's vLLM cannot split {known.architecture} into stages"
    if split:
        yield RequestProblem(head, f"{asked.model} cannot be split so: {split}", _other_split(asked, known))
    elif found.weights:
        yield from _memory(asked, head, found, known, judged)


def _other_split(asked: Asked, known: ModelConfig) -> str:
    if asked.degrees.experts and not known.experts_used:
        return "leave out --ep: it deals experts, and this model has none"
    total = asked.tp * asked.pp
    others = [(tp, total // tp) for tp in range(total, 0, -1) if total % tp == 0]
    good = next(
        (f"--tp {tp} --pp {pp}" for tp, pp in others if not split_problem(known, Degrees(tp, pp))), "fewer GPUs"
    )
    return f"try {good}; vcluster fit shows the rest"


def _memory(asked: Asked, head: str, found: Files, known: ModelConfig, judged: Judged) -> Iterator[RequestProblem]:
    gpus = asked.gpus
    if gpus is None:
        return
    model = _model(asked, found, known, judged)
    length = judged.max_model_len or known.context
    layout = asked.layout(model, gpus, Workload(context=length))
    # A folder of the hosts is none of this machine.
    there = "FOLDER" if asked.model.startswith("/") else ""
    where = ", with the model's folder or its config.json on this machine," if there else ""
    to = asked.degrees
    engines = [*([Option("--dp"), str(to.dp)] if to.dp > 1 else []), *([Option("--ep")] if to.experts else [])]
    advice = f"{command_line('vcluster', 'fit', there or asked.model, *engines)}{where} shows what fits"
    if layout.problem:
        yield RequestProblem(head, f"{asked.model} cannot be split so: {layout.problem}", advice)
    elif layout.weights_bytes + FIXED > UTILISATION * gpus.memory_bytes:
        sizes = f"{gib(layout.weights_bytes)} of a GPU's {gib(gpus.memory_bytes)}"
        text = f"its weights take {sizes} at {layout.name}"
        yield RequestProblem(head, f"{asked.model} does not fit: {text}", advice)
    elif known.notes or layout.fits or layout.max_context is None:
        return  # a shape that is only guessed may need less than this
    elif layout.max_context * DOUBT < length:
        yield RequestProblem(head, f"{asked.model} does not fit: {_short(layout, length)}", _shorter(layout, advice))


def _model(asked: Asked, found: Files, known: ModelConfig, judged: Judged) -> Model:
    weights = weigh(found.tensors, known) if found.tensors else spread(found.weights or 0, known)
    version = tuple(int(part) for part in re.findall(r"\d{1,6}", judged.version)[:2]) or RELEASED
    return Model(asked.model, weights, known, judged.supports_pp, version)


def _short(layout: Layout, length: int) -> str:
    left = gib(max(0, layout.kv_cache_bytes))
    return f"a GPU has {left} left for the KV cache, room for {layout.max_context} of {length} tokens"


def _shorter(layout: Layout, advice: str) -> str:
    return f"-- --max-model-len={layout.max_context}; {advice}" if layout.max_context else advice


def _room(asked: Asked, head: str, files: Mapping[str, Files]) -> Iterator[RequestProblem]:
    size = files[head].weights
    if {"download_dir", "load_format"} & {*vllm.options(asked.extra)}:
        return  # onto another disk, or nothing
    for host, found in files.items():
        if asked.hosts and host not in (asked.reads or asked.hosts):
            continue  # the head without ranks loads no weights
        missing = to_download(found, size)
        if missing and found.free is not None and missing > found.free:
            text = f"{missing / 1e9:.0f} GB of {asked.model} must be downloaded, and {found.free / 1e9:.0f} GB are free"
            yield RequestProblem(host, text, f"on {host}: make room below model_cache, or give a larger disk")


def _needed(asked: Asked, found: Files, judged: Judged) -> float:
    """Bytes that a GPU must have for the weights; 0 where that is not known."""
    given, known = judged.given or tuple(vllm.options(asked.extra)), _shape(found)
    if known is None or not found.weights or asked.gpus is None or set(given) & _OTHERWISE - {"gpu_memory_utilization"}:
        return 0
    layout = asked.layout(_model(asked, found, known, judged), asked.gpus, Workload(context=1))
    return layout.weights_bytes + FIXED


def to_download(found: Files, size: int | None) -> int:
    """Bytes of weights that a host does not have yet; only the head asked the hub how many there are in all."""
    if found.where != "hub":
        return 0
    return found.missing if found.missing is not None else max(0, (size or 0) - found.held)


def utilisation(extra: Sequence[str], names: Collection[str], values: Mapping[str, object]) -> float | None:
    """The share of a GPU that vLLM takes, by what its own parser read or by the words; None where it is not known.

    `names` are those of the options among the words.
    """
    value = values.get("gpu_memory_utilization")
    if "kv_cache_memory_bytes" in names or (value is None and "config" in names):
        return None
    try:
        return float(str(value or last_value(extra, SHARE_OPTION) or UTILISATION))
    except ValueError:
        return None


def too_little(model: str, gpus: Sequence[Beside], share: float | None, needed: float) -> Iterator[tuple[str, str]]:
    """Why vLLM would end at once on GPUs of a host, and what to do: it starts only where all of its share is free.

    `needed` are the bytes of a GPU without which the weights do not fit.
    """
    short = [gpu for gpu in gpus if share is not None and share * gpu.total > gpu.free]
    if share is None or not short:
        return
    there = ", ".join(f"GPU {gpu.gpu} has {gib(gpu.free)} beside {gpu.holders}" for gpu in short)
    taken = f"{gib(share * short[0].total)} of a GPU ({SHARE_OPTION} {share:g})"
    most = min(short, key=lambda gpu: gpu.share)
    smaller = command_line("vcluster", "serve", model, Option("--"), Option(SHARE_OPTION), f"{most.share:g}")
    beside = f"\nor {smaller}" if most.share * most.total > needed else ""
    yield f"{model} does not fit: vLLM takes {taken}, and {there}", f"{short[0].find_out}, then end it{beside}"
