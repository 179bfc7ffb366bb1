"""vLLM's command line, its environment, and the parallelism of a model over the GPUs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from vllm_cluster.kernel.backends.seam import Degrees
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.text import count, holds_token, redact
from vllm_cluster.wire.values import served_name

MIDDLEWARE = "vcluster_auth.RequireKey"
# Eight parts of a host with as many are sent to it in one line of the roll (`wire/roll.py`): a longer line ends the
# connection, and with it what else the host serves.
MAX_FLAGS = 32 << 10
# Where every host has all files: then none downloads unseen.
OFFLINE = {"HF_HUB_OFFLINE": "1"}

_GROUP = "vcluster starts the ranks, through Ray or with --backend mp"
_ENGINES = "use --dp, and --tp and --pp for each engine"
_ONE = "vcluster serves on all GPUs behind one port: use --dp"
_TLS = "the endpoint speaks plain HTTP: use vcluster endpoint --tunnel, or a proxy that ends TLS"
# Each option that would undo what vcluster does, and what to use instead.
_RESERVED = {
    "--model": "give the model before --",
    "--served-model-name": "use --name",
    "--tensor-parallel-size": "use --tp",
    "--pipeline-parallel-size": "use --pp",
    "--host": "use --expose to listen on the head's private address",
    "--port": "set ports.api in the inventory",
    "--uds": "the endpoint is a port: ports.api in the inventory",
    "--hf-token": "set hf_token in the inventory: env:NAME, file:PATH or cmd:COMMAND",
    "--api-key": "set api_key in the inventory; the key guards every route",
    "--distributed-executor-backend": _GROUP,
    "--nnodes": _GROUP,
    "--node-rank": _GROUP,
    "--master-addr": _GROUP,
    "--master-port": _GROUP,
    "--headless": _GROUP,
    "--fd": "the endpoint is a port: ports.api in the inventory",
    "--grpc": "the endpoint speaks HTTP, with the key on every route",
    "--data-parallel-size": _ENGINES,
    "--data-parallel-size-local": _ENGINES,
    "--data-parallel-rank": _ENGINES,
    "--data-parallel-start-rank": _ENGINES,
    "--data-parallel-address": _ENGINES,
    "--data-parallel-rpc-port": _ENGINES,
    "--data-parallel-backend": _ONE,
    "--data-parallel-hybrid-lb": _ONE,
    "--data-parallel-external-lb": _ONE,
    "--data-parallel-multi-port-external-lb": _ONE,
    "--prefill-context-parallel-size": _ONE,
    "--ssl-keyfile": _TLS,
    "--ssl-certfile": _TLS,
    "--ssl-ca-certs": _TLS,
}
# Options of other launchers, which vLLM does not have.
_LAUNCHERS = dict.fromkeys(
    ("--nodes", "--num-nodes", "--gpus", "--num-gpus"),
    "use --hosts HOST,HOST for the hosts, --tp and --pp for the GPUs",
)
# Of these those that guides have with the value that vcluster sets, too.
_COMPARED = frozenset(
    {
        *("--model", "--served-model-name", "--host", "--port", "--distributed-executor-backend"),
        *("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size", "--data-parallel-rpc-port"),
        *("--nnodes", "--node-rank", "--master-addr", "--master-port"),
    }
)
_SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpl": "--data-parallel-size-local",
    "-dpn": "--data-parallel-rank",
    "-dpr": "--data-parallel-start-rank",
    "-dpa": "--data-parallel-address",
    "-dpp": "--data-parallel-rpc-port",
    "-dpb": "--data-parallel-backend",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpe": "--data-parallel-external-lb",
    "-pcp": "--prefill-context-parallel-size",
    "-n": "--nnodes",
    "-r": "--node-rank",
}


@dataclass(frozen=True)
class Parallelism:
    """How many GPUs share each layer (TP), how many stages the layers form (PP), and why."""

    tp: int
    pp: int
    reasons: tuple[str, ...]


def serve_argv(
    model: str,
    *,
    name: str,
    degrees: Degrees,
    host: str,
    port: int,
    extra: Sequence[str],
    engine: Sequence[str],
) -> list[str]:
    """The command that serves a model; `engine` are the flags that its backend needs.

    Raises:
        UsageError: the model cannot be one, or a flag would undo what vcluster does.
    """
    ensure_allowed(model, name, extra)
    return [
        "vllm",
        "serve",
        model,
        *extra,
        # vcluster's come last: the last of two equal flags wins, and the last middleware is asked first.
        f"--served-model-name={name}",
        f"--tensor-parallel-size={degrees.tp}",
        f"--pipeline-parallel-size={degrees.pp}",
        *([f"--data-parallel-size={degrees.dp}"] if degrees.dp > 1 else []),
        *(["--enable-expert-parallel"] if degrees.experts else []),
        *engine,
        f"--host={host}",
        f"--port={port}",
        f"--middleware={MIDDLEWARE}",
    ]


def ensure_allowed(model: str, name: str, extra: Sequence[str]) -> None:
    """Refuse what vLLM could take for something else.

    Raises:
        UsageError: the model cannot be one, or a flag would undo what vcluster does.
    """
    _check_word("the model", model)
    _check_word("the name", name)
    if (size := len(json.dumps(extra))) > MAX_FLAGS:
        text = f"the flags for vLLM have {size / 1000:.0f} kB, more than {MAX_FLAGS / 1000:.0f} kB"
        raise UsageError(text, hint="put them into a file that all hosts have: --config FILE")
    _check_flags([flag for at, flag in enumerate(extra) if not _agrees(flag, extra[at + 1 : at + 2])])


def comparable(flags: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Flags without those that may repeat what vcluster sets, and these: each option with its value.

    >>> comparable(["--seed", "1", "-tp", "8", "--port=8000"])
    (['--seed', '1'], [('--tensor-parallel-size', '8'), ('--port', '8000')])
    """
    kept, found, at = [], [], 0
    while at < len(flags):
        word, option = flags[at], reserved_option(flags[at])
        name, equals, value = word.partition("=")
        following = flags[at + 1 : at + 2]
        at += 1
        if option not in _COMPARED:
            kept.append(word)
        elif equals or (not name.startswith("--") and name[:2] in _SHORT and len(name) > 2):
            found.append((option, value if equals else name[2:]))
        elif following and not following[0].startswith("-"):
            found.append((option, following[0]))
            at += 1
        else:
            kept.append(word)
    return kept, found


def ensure_same(found: Iterable[tuple[str, str]], argv: Sequence[str]) -> None:
    """Refuse options whose value is not the one that a command has; `argv` is vcluster's.

    Raises:
        UsageError: there are such ones; with both values.
    """
    # What it leaves out is vLLM's own default.
    own = {"--data-parallel-size": "1", "--nnodes": "1", "--node-rank": "0", **_own(argv)}
    wrong = {}
    for option, value in found:
        if own.get(option) != value:
            set_to = f" to {own[option]}" if option in own else ""
            wrong[f"{option} is set by vcluster{set_to}, got {value}"] = _RESERVED[option]
    if wrong:
        raise UsageError(*wrong, hint="\n".join(dict.fromkeys(wrong.values())))


def instead(flag: str) -> str | None:
    """What to use in place of a flag that vcluster sets itself, or that vLLM does not have; None for all others."""
    reserved = reserved_option(flag)
    return _RESERVED[reserved] if reserved else _LAUNCHERS.get(flag)


def vllm_environment() -> dict[str, str]:
    """The environment of vLLM's processes, added to the container's own."""
    return {
        # Its 600 s end the load of a large model when there are several API servers: the node program has the limits.
        "VLLM_ENGINE_READY_TIMEOUT_S": "604800",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "VLLM_LOGGING_COLOR": "0",
    }


def _check_word(what: str, value: str) -> None:
    try:
        # Its length has an error of its own.
        served_name(value[:1000])
    except ValueError:
        signs = "use letters, digits and . _ - / : @ + = , ~ %"
        hint = "flags for vLLM go behind --" if value.startswith("-") or not value else signs
        raise UsageError(f"{value!r} cannot be {what}", hint=hint) from None


def _check_flags(flags: Sequence[str]) -> None:
    wrong = dict(found for flag in flags for found in _refusal(flag))
    if wrong:
        raise UsageError(*wrong, hint="\n".join(dict.fromkeys(wrong.values())) or None)


def _refusal(flag: str) -> Iterator[tuple[str, str]]:
    if flag == "--":
        yield "a second -- would end vLLM's flags before vcluster's own", "give only flags behind the first --"
    elif flag.startswith("--config="):
        yield "vLLM does not read the file of --config=FILE", "give two words: --config FILE"
    elif reserved := reserved_option(flag):
        word = flag.partition("=")[0]
        text = reserved if word == reserved else f"{word!r}, which is {reserved} for vLLM,"
        yield f"{text} is set by vcluster", _RESERVED[reserved]
    elif holds_token(flag):
        text = f"{redact(flag)!r} holds a secret, which ps and vLLM's log would show"
        yield text, "set hf_token or secrets in the inventory; vLLM finds them in its environment"


def _agrees(flag: str, following: Sequence[str]) -> bool:
    """Whether a flag repeats what vcluster sets anyway: many guides start with it."""
    name, _, value = flag.replace("_", "-").partition("=")
    return name == "--distributed-executor-backend" and (value or "".join(following)) == "ray"


# What vLLM's parser is asked for: where these are neither set here nor its own defaults, other words are served.
ASKED = (
    *("model_tag", "served_model_name", "tensor_parallel_size", "pipeline_parallel_size", "host", "port"),
    *("distributed_executor_backend", "middleware", "revision"),
)


def undone(
    values: Iterable[tuple[str, object]], given: Sequence[str], argv: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """The options that undo what `serve_argv` set, by what vLLM's own parser made of its words; and what to use."""
    own = _own(argv)
    for name, value in values:
        option = "--model" if name == "model_tag" else f"--{name.replace('_', '-')}"
        expected = own.get(option)
        got = value[-1] if isinstance(value, list) and value else value
        if expected is not None and str(got) != expected:
            yield option.replace("--model", "the model"), _RESERVED.get(option, _GROUP)
    for name in given:
        option = f"--{name.replace('_', '-')}"
        if option in _RESERVED and option not in own and name != "model":
            yield option, _RESERVED[option]


def _own(argv: Sequence[str]) -> dict[str, str]:
    """The values of the options that vcluster sets in a command; the last of several counts."""
    own = (word.partition("=") for word in argv if word.startswith("--") and "=" in word)
    return {"--model": argv[2], **{name: value for name, _, value in own}}


def options(words: Sequence[str]) -> Iterator[str]:
    """The names of the options among words, as vLLM's parser names their values."""
    for word in words:
        if word.startswith("--"):
            yield word.partition("=")[0].partition(".")[0].removeprefix("--").replace("-", "_")


def reserved_option(flag: str) -> str | None:
    """The option set by vcluster that vLLM's parser would take this word for."""
    name = flag.partition("=")[0].replace("_", "-")
    if name.startswith("--"):
        # Any beginning of an option means that option, and none of vLLM's own options begins one of vcluster's.
        return next((option for option in _RESERVED if option.startswith(name)), None)
    # Of a short option of one letter, the rest of the word is the value.
    name = name[:2] if name[:2] in _SHORT else name
    return next((option for short, option in _SHORT.items() if len(name) > 1 and short.startswith(name)), None)


def choose_parallelism(
    nodes: Sequence[int], tp: int | None, pp: int | None, *, where: str = "the cluster"
) -> Parallelism:
    """TP = GPUs of a host and PP = hosts, unless given. `nodes` are the GPUs of each host, the head first.

    `where` is what they are together.

    Raises:
        UsageError: the GPUs cannot be split so; names a split that works.
    """
    total = sum(nodes)
    if not nodes or min(nodes) < 1:
        raise UsageError("every host needs at least one GPU to serve on", hint="vcluster check --facts")
    for option, value in (("--tp", tp), ("--pp", pp)):
        if value is not None and value < 1:
            raise UsageError(f"{option} {value} is not a number of GPUs", hint="give 1 or more")
    tp, pp, reasons = _sizes(nodes, tp, pp, where)
    if tp * pp > total:
        text = f"TP={tp} x PP={pp} needs {tp * pp} GPUs; {where} has {total}"
        raise UsageError(text, hint=f"choose --tp and --pp whose product is {total}, or give neither")
    if len(nodes) > 1 and any(count % tp for count in nodes):
        reasons.append(f"TP={tp} spans hosts: each layer runs an all-reduce over the network; needs RDMA")
    return Parallelism(tp, pp, tuple(reasons))


def choose_engines(
    nodes: Sequence[int], tp: int | None, pp: int | None, dp: int, *, where: str = "the cluster"
) -> Parallelism:
    """TP and PP of each of several engines (data parallel), unless given: all GPUs are shared evenly.

    Raises:
        UsageError: they cannot be.
    """
    total = sum(nodes)
    if not nodes or min(nodes) < 1:
        raise UsageError("every host needs at least one GPU to serve on", hint="vcluster check --facts")
    each = total // dp
    if each < 1:
        raise UsageError(f"--dp {dp} needs {dp} GPUs; {where} has {total}", hint=f"give at most --dp {total}")
    pp = pp or 1
    tp = tp or max(1, math.gcd(each // pp, *nodes))
    if tp * pp * dp > total:
        text = f"DP={dp} engines of TP={tp} × PP={pp} need {tp * pp * dp} GPUs; {where} has {total}"
        raise UsageError(text, hint=f"give at most --dp {total // (tp * pp)}" if tp * pp <= total else None)
    why = f"DP={dp} (from the command line): {count(dp, 'engine')} share the requests, TP={tp} × PP={pp} each"
    return Parallelism(tp, pp, (why,))


def place_ranks(nodes: Mapping[str, int], tp: int, pp: int) -> dict[str, int]:
    """The GPUs of each host that get ranks: whole TP groups, the first hosts first; over hosts that are too small."""
    ranks, groups = {}, pp
    for host, number in nodes.items():
        if whole := min(groups, number // tp):
            ranks[host], groups = whole * tp, groups - whole
    if not groups:
        return ranks
    ranks, left = {}, tp * pp
    for host, number in nodes.items():
        if taken := min(left, number):
            ranks[host], left = taken, left - taken
    return ranks


def _sizes(nodes: Sequence[int], tp: int | None, pp: int | None, where: str) -> tuple[int, int, list[str]]:
    total = sum(nodes)
    if tp is not None and pp is not None:
        return tp, pp, [f"TP={tp}, PP={pp} (from the command line)"]
    if tp is not None:
        pp = _other("--tp", tp, total, where)
        return tp, pp, [f"TP={tp} (from the command line), PP={pp}: {total} GPUs in groups of {tp}"]
    if pp is not None:
        tp = _other("--pp", pp, total, where)
        return tp, pp, [f"PP={pp} (from the command line), TP={tp}: {total} GPUs over {count(pp, 'pipeline stage')}"]
    return _by_itself(nodes)


def _by_itself(nodes: Sequence[int]) -> tuple[int, int, list[str]]:
    total = sum(nodes)
    if len(nodes) == 1:
        return total, 1, [f"TP={total}: the GPUs of the one host", "PP=1: one host"]
    if len(set(nodes)) == 1:
        return nodes[0], len(nodes), [f"TP={nodes[0]}: GPUs of each host", f"PP={len(nodes)}: hosts"]
    # Ranks are dealt host by host, so groups stay within hosts when their size divides every host's GPUs.
    tp = math.gcd(*nodes)
    counts = ", ".join(map(str, nodes))
    why = f"the largest number that divides the GPUs of each host ({counts})"
    return tp, total // tp, [f"TP={tp}: {why}", f"PP={total // tp}: {total} GPUs in groups of {tp}"]


def _other(option: str, value: int, total: int, where: str) -> int:
    if total % value:
        fitting = ", ".join(str(n) for n in range(1, total + 1) if total % n == 0)
        text = f"{option} {value} does not divide the {total} GPUs of {where}"
        raise UsageError(text, hint=f"choose one of {fitting}, or give both --tp and --pp")
    return total // value
