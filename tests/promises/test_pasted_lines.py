"""P53: a pasted `vllm serve` line means here what it means to the image's own vLLM, in any spelling of any flag."""

from __future__ import annotations

import base64
import json
import random
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.attack import attack
from tests.support.hosts import Sandbox
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.serving.translate.options import Translation
from vllm_cluster.serving.translate.text import translate

pytestmark = [pytest.mark.e2e, pytest.mark.promise, pytest.mark.deep]

LINES, PIECE = 4000, 90_000
# Gives the options of the image's `vllm serve`, or what its parser makes of each list of words in a file.
ORACLE = """
import contextlib, io, json, sys
from vllm.entrypoints.cli import serve
top = serve.FlexibleArgumentParser(prog="vllm")
parser = serve.cmd_init()[0].subparser_init(top.add_subparsers(dest="subparser"))
def read(words):
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            return vars(top.parse_args(["serve", *words]))
        except (SystemExit, Exception):
            return None
def row(one):
    kind = "switch" if one.nargs == 0 or type(one).__name__ == "BooleanOptionalAction" else "value"
    choices = [str(choice) for choice in one.choices] if one.choices else []
    return {"names": one.option_strings, "kind": kind, "choices": choices, "many": one.nargs in ("+", "*"),
            "type": getattr(one.type, "__name__", str(one.type)), "default": str(one.default)}
if len(sys.argv) == 1:
    print(json.dumps([row(one) for one in parser._actions if one.option_strings]))
else:
    for line in open(sys.argv[1]):
        found = read(json.loads(line))
        print(json.dumps(found and {key: repr(value) for key, value in found.items() if not callable(value)}))
"""
# Where they meet: what the image reads them as, and what they are here.
DEGREES = {
    "tensor_parallel_size": ("--tensor-parallel-size", "-tp"),
    "pipeline_parallel_size": ("--pipeline-parallel-size", "-pp"),
    "data_parallel_size": ("--data-parallel-size", "-dp"),
}
NAMES = ("--served-model-name",)
EXPERTS = ("--enable-expert-parallel", "-ep")
# Which hosts, which ranks and where it listens: vcluster's own, and named as dropped.
HOSTS = {
    "nnodes": ("--nnodes", "-n"),
    "node_rank": ("--node-rank", "-r"),
    "master_addr": ("--master-addr",),
    "master_port": ("--master-port",),
    "data_parallel_size_local": ("--data-parallel-size-local", "-dpl"),
    "data_parallel_address": ("--data-parallel-address", "-dpa"),
    "data_parallel_rpc_port": ("--data-parallel-rpc-port", "-dpp"),
    "data_parallel_start_rank": ("--data-parallel-start-rank", "-dpr"),
    "port": ("--port",),
    "host": ("--host",),
}
ADDRESSED = ("master_addr", "data_parallel_address", "host")
OURS = {
    *(DEGREES.keys() | HOSTS.keys()),
    *("enable_expert_parallel", "served_model_name", "model", "model_tag", "headless", "api_key", "hf_token"),
    *("distributed_executor_backend", "data_parallel_rank", "data_parallel_backend", "data_parallel_hybrid_lb"),
    *("data_parallel_external_lb", "data_parallel_multi_port_external_lb"),
}


@dataclass(frozen=True)
class Pasted:
    """A text that a person has, and the words that its shell would hand to vLLM."""

    text: str
    words: Sequence[str]


def value_of(flag: Mapping[str, Any], dice: random.Random) -> str:
    """A value that may fit a flag; the image's parser decides."""
    if flag["choices"]:
        return str(dice.choice(flag["choices"]))
    by_type: dict[str, Callable[[], str]] = {
        "int": lambda: str(dice.randrange(1, 4096)),
        "float": lambda: f"{dice.random():.3f}",
        "str": lambda: dice.choice(["auto", "a b", "x=y", "/models/it's", "päth", "$HOME"]),
    }
    spelled = ["1", "8", "0.5", "4k", "auto", '{"a": 1}', '{"mode": 3, "list": ["a b", 2]}', "true", "none", "org/name"]
    return by_type.get(flag["type"], lambda: dice.choice(spelled))()


def spelled(name: str, value: str | None, dice: random.Random) -> list[str]:
    """An option as people write it: with = or a blank, with underscores, or cut short."""
    if name.startswith("--") and dice.random() < 0.15:
        name = "--" + name[2:].replace("-", "_")
    if value is None:
        return [name]
    return [f"{name}={value}"] if name.startswith("--") and dice.random() < 0.4 else [name, value]


def composed(flags: Sequence[Mapping[str, Any]], dice: random.Random) -> list[str]:
    """The words of one line, in any order but for the model."""
    options = [spelled(dice.choice(names), str(dice.choice([1, 2, 4, 8, 16])), dice) for names in DEGREES.values()]
    options += [spelled(NAMES[0], dice.choice(["tiny", "a-name", "org/name"]), dice)]
    options += [[dice.choice(EXPERTS)]]
    for key, names in HOSTS.items():
        value = "10.1.0.1" if key in ADDRESSED else str(dice.randrange(1, 60))
        options.append(spelled(dice.choice(names), value, dice))
    options = dice.sample(options, dice.randrange(0, 7))
    for flag in dice.sample(flags, dice.randrange(0, 5)):
        name = dice.choice(flag["names"])
        options.append(spelled(name, None if flag["kind"] == "switch" else value_of(flag, dice), dice))
    dice.shuffle(options)
    words = [word for option in options for word in option]
    return [*words, "--model", "org/tiny"] if dice.random() < 0.2 else ["org/tiny", *words]


def pasted(words: Sequence[str], dice: random.Random) -> Pasted:
    """The words in a text as guides have it: a line, several, behind other programs, or a service of compose."""
    quoted = [shlex.quote(word) for word in words]
    line = " ".join(["vllm", "serve", *quoted])
    forms = [
        line,
        "vllm serve " + " \\\n    ".join(quoted),
        f"#!/bin/bash\nset -e\nexport NCCL_DEBUG=INFO\nsource venv/bin/activate\n{line} 2>&1 | tee log\n",
        f"NCCL_SOCKET_IFNAME=eth1 nohup {line} > log 2>&1 &",
        f"docker run --gpus all -p 8000:8000 --ipc=host vllm/vllm-openai:latest {' '.join(quoted)}",
        json.dumps({"services": {"it": {"image": "vllm/vllm-openai:latest", "command": [*words]}}}, indent=1).replace(
            "$", "$$"
        ),
    ]
    return Pasted(dice.choice(forms), words)


def canonical(found: Translation) -> list[str]:
    """What is served here, as words for the same parser: the degrees, and the flags that are handed on."""
    degrees = zip(DEGREES.values(), (found.tp, found.pp, found.dp), strict=True)
    return [found.model, *found.flags, *(word for names, number in degrees for word in (names[0], str(number)))]


def ask(cluster: Sandbox, many: Sequence[Sequence[str]]) -> list[dict[str, str] | None]:
    """What the image's parser makes of each list of words; None where it refuses them."""
    text = "".join(json.dumps(list(words)) + "\n" for words in many)
    node = ("exec", "vcluster-sandbox", "sh", "-c")
    cluster.docker("gpu1", *node, "rm -f /tmp/lines.b64")
    packed = base64.b64encode(text.encode()).decode()
    for at in range(0, len(packed), PIECE):
        cluster.docker("gpu1", *node, f"printf %s {packed[at : at + PIECE]} >> /tmp/lines.b64")
    cluster.docker("gpu1", *node, "base64 -d /tmp/lines.b64 > /tmp/lines")
    out = cluster.docker("gpu1", "exec", "vcluster-sandbox", "python3", "-c", ORACLE, "/tmp/lines")
    found = [json.loads(line) for line in out.splitlines() if line.startswith(("{", "null"))]
    assert len(found) == len(many)
    return found


def other_meaning(found: Translation, theirs: Mapping[str, str], here: Mapping[str, str]) -> str:
    """What of the line has another meaning here; empty where nothing has."""
    name = repr([found.name]) if found.name else "None"
    own = {"tensor_parallel_size": found.tp, "pipeline_parallel_size": found.pp, "data_parallel_size": found.dp}
    pairs = {key: (theirs[key], repr(number)) for key, number in own.items()}
    pairs["enable_expert_parallel"] = (theirs["enable_expert_parallel"], repr(found.expert_parallel))
    pairs["served_model_name"] = (theirs["served_model_name"], name)
    pairs |= {key: (theirs[key], here[key]) for key in theirs.keys() - OURS}
    return ", ".join(f"{key}: {one} is {other} here" for key, (one, other) in pairs.items() if one != other)


@pytest.mark.cluster("up")
def test_a_pasted_line_means_what_it_means_to_vllm(cluster: Sandbox) -> None:
    listed = cluster.docker("gpu1", "exec", "vcluster-sandbox", "python3", "-c", ORACLE)
    taken = {name for names in (*DEGREES.values(), *HOSTS.values(), NAMES, EXPERTS) for name in names}
    flags = [
        one
        for one in json.loads(listed.splitlines()[-1])
        if not one["many"] and not taken & set(one["names"]) and "--help" not in one["names"]
    ]
    dice = random.Random(53)
    lines = [pasted(composed(flags, dice), dice) for _ in range(LINES)]
    with attack("P53", "lines of any of its flags in six forms, beside the image's own parser") as measured:
        read = ask(cluster, [one.words for one in lines])
        meant = [(line, theirs) for line, theirs in zip(lines, read, strict=True) if theirs is not None]
        refused, accepted = Counter[str](), list[tuple[Pasted, Mapping[str, str], Translation]]()
        for line, theirs in meant:
            try:
                accepted.append((line, theirs, translate(line.text, "--from")))
            except UsageError as error:
                refused[error.message.partition(": ")[2].split(" ")[0]] += 1
        again = ask(cluster, [canonical(found) for *_, found in accepted])
        wrong = [
            (line.text, other_meaning(found, theirs, here) if here else "vLLM refuses it here")
            for (line, theirs, found), here in zip(accepted, again, strict=True)
        ]
        wrong = [(text, why) for text, why in wrong if why]
        assert not wrong, f"{len(wrong)} of {len(accepted)}: {wrong[:30]}"
        measured.figure = (
            f"{len(accepted)} lines with {len(flags)} flags of vLLM mean the same; "
            f"{sum(refused.values())} refused for {len(refused)} of its options; 0 in another meaning"
        )
    assert len(accepted) > LINES / 4 and len(refused) < 30, refused
