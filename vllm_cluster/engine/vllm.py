"""What vLLM is told: its command line, its environment, and how a model is laid over the GPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vllm_cluster.core.errors import UsageError
from vllm_cluster.text import holds_token, redact

MIDDLEWARE = "vcluster_auth.RequireKey"

_GROUP = "vcluster starts the ranks through Ray"
_TLS = "the endpoint speaks plain HTTP: use vcluster tunnel, or a proxy that ends TLS"
# Each option that would undo what vcluster does, and what to use instead.
_OURS = {
    "--model": "give the model before --",
    "--served-model-name": "use --name",
    "--tensor-parallel-size": "use --tp",
    "--pipeline-parallel-size": "use --pp",
    "--host": "use --expose to bind the cluster address",
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
    "--ssl-keyfile": _TLS,
    "--ssl-certfile": _TLS,
    "--ssl-ca-certs": _TLS,
}
_SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-n": "--nnodes",
    "-r": "--node-rank",
}


@dataclass(frozen=True)
class Layout:
    """How many GPUs share each layer (TP), how many stages the layers form (PP), and why."""

    tp: int
    pp: int
    reasons: tuple[str, ...]


def serve_argv(
    model: str,
    *,
    name: str,
    tp: int,
    pp: int,
    host: str,
    port: int,
    extra: Sequence[str],
    download_dir: str | None = None,
) -> list[str]:
    """The command that serves a model.

    Raises:
        UsageError: the model cannot be one, or a flag would undo what vcluster does.
    """
    check(model, name, extra)
    return [
        "vllm",
        "serve",
        model,
        *extra,
        # Ours come last: the last of two equal flags wins, and the last middleware is asked first.
        f"--served-model-name={name}",
        f"--tensor-parallel-size={tp}",
        f"--pipeline-parallel-size={pp}",
        "--distributed-executor-backend=ray",
        f"--host={host}",
        f"--port={port}",
        f"--middleware={MIDDLEWARE}",
        *([f"--download-dir={download_dir}"] if download_dir else []),
    ]


def check(model: str, name: str, extra: Sequence[str]) -> None:
    """Refuse what vLLM could take for something else.

    Raises:
        UsageError: the model cannot be one, or a flag would undo what vcluster does.
    """
    _check_word("the model", model)
    _check_word("the name", name)
    for flag in extra:
        _check_flag(flag)
        if holds_token(flag):
            raise UsageError(
                f"{redact(flag)!r} holds a secret, which ps and vLLM's log would show",
                hint="set hf_token or secrets in the inventory; vLLM finds them in its environment",
            )


def environment() -> dict[str, str]:
    """What vLLM's processes get besides the container's own environment."""
    return {
        # Its 600 s end the load of a large model when there are several API servers.
        "VLLM_ENGINE_READY_TIMEOUT_S": "7200",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "VLLM_LOGGING_COLOR": "0",
    }


def _check_word(what: str, value: str) -> None:
    if not value or value.startswith("-") or not value.isprintable():
        raise UsageError(f"{value!r} cannot be {what}", hint="flags for vLLM go behind --")


def _check_flag(flag: str) -> None:
    if "\0" in flag:
        raise UsageError(f"{flag!r} holds a NUL, which no command line can carry")
    if flag == "--":
        raise UsageError("a second -- ends vLLM's flags before ours", hint="give only flags behind the first --")
    ours = _ours(flag)
    if ours:
        word = flag.partition("=")[0]
        text = ours if word == ours else f"{word!r}, which is {ours} for vLLM,"
        raise UsageError(f"{text} is set by vcluster", hint=_OURS[ours])


def _ours(flag: str) -> str | None:
    """The option of ours that vLLM's parser would take this word for."""
    name = flag.partition("=")[0].replace("_", "-")
    if name.startswith("--"):
        # Any beginning of an option stands for it, and none of vLLM's own options begins one of ours.
        return next((option for option in _OURS if option.startswith(name)), None)
    # Of a short option of one letter, the rest of the word is the value.
    name = name[:2] if name[:2] in _SHORT else name
    return next((option for short, option in _SHORT.items() if len(name) > 1 and short.startswith(name)), None)


def layout(nodes: Sequence[int], tp: int | None, pp: int | None) -> Layout:
    """TP = GPUs of a host and PP = hosts, unless told otherwise. `nodes` are the GPUs of each host, the head first.

    Raises:
        UsageError: it cannot be laid out so, with what can.
    """
    total = sum(nodes)
    if not nodes or min(nodes) < 1:
        raise UsageError("every host needs at least one GPU to serve on")
    for option, value in (("--tp", tp), ("--pp", pp)):
        if value is not None and value < 1:
            raise UsageError(f"{option} {value} is not a number of GPUs", hint="give 1 or more")
    tp, pp, reasons = _sizes(nodes, tp, pp)
    if tp * pp > total:
        text = f"TP={tp} x PP={pp} needs {tp * pp} GPUs; the cluster has {total}"
        raise UsageError(text, hint=f"choose --tp and --pp whose product is {total}, or give neither")
    if tp * pp < total:
        reasons.append(f"{total - tp * pp} of the {total} GPUs stay idle, Ray chooses which")
    if len(nodes) > 1 and any(count % tp for count in nodes):
        reasons.append(f"TP={tp} crosses hosts: every layer waits for the network, which only RDMA makes bearable")
    return Layout(tp, pp, tuple(reasons))


def _sizes(nodes: Sequence[int], tp: int | None, pp: int | None) -> tuple[int, int, list[str]]:
    total = sum(nodes)
    if tp is not None and pp is not None:
        return tp, pp, [f"TP={tp} and PP={pp} as told"]
    if tp is not None:
        pp = _other("--tp", tp, total)
        return tp, pp, [f"TP={tp} as told, PP={pp}: {total} GPUs in groups of {tp}"]
    if pp is not None:
        tp = _other("--pp", pp, total)
        return tp, pp, [f"PP={pp} as told, TP={tp}: {total} GPUs over {pp} stage{'s'[: pp > 1]}"]
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
    why = "the largest group that fits into each evenly"
    return tp, total // tp, [f"TP={tp}: the hosts have {counts} GPUs, {why}", f"PP={total // tp}: {total} GPUs / {tp}"]


def _other(option: str, value: int, total: int) -> int:
    if total % value:
        fitting = ", ".join(str(n) for n in range(1, total + 1) if total % n == 0)
        text = f"{option} {value} does not divide the cluster's {total} GPUs"
        raise UsageError(text, hint=f"choose one of {fitting}, or give both --tp and --pp")
    return total // value
