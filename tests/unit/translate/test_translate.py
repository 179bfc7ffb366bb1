"""What command lines of vLLM, as people have them, ask for here: nothing of it in another meaning."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.serving.translate.options import Translation
from vllm_cluster.serving.translate.text import translate

PLACE = "--from"


def facts(found: Translation) -> tuple[Any, ...]:
    """Model, name, degrees, experts, and what is handed on as one line."""
    layout = (found.tp, found.pp, found.dp, found.expert_parallel)
    return (found.model, found.name, layout, shlex.join(found.flags))


def rows(found: Translation, kind: str) -> dict[str, str]:
    """The rows of a kind: what was given, and why it is so."""
    return {row.given: row.why for row in found.rows if row.kind == kind}


# Two hosts of eight GPUs, of four, two small ones, in the ways in which guides start them.
LINES: list[tuple[str, tuple[Any, ...]]] = [
    (
        "vllm serve org/large-moe --tensor-parallel-size 8 --pipeline-parallel-size 2 --nnodes 2 --node-rank 0 "
        "--master-addr 10.1.0.1 --master-port 29501 --gpu-memory-utilization 0.92",
        ("org/large-moe", "", (8, 2, 1, False), "--gpu-memory-utilization 0.92"),
    ),
    (
        "vllm serve org/large-moe -tp 16 --nnodes=2 --node-rank=1 --master-addr=10.1.0.1 --headless -ep",
        ("org/large-moe", "", (16, 1, 1, True), ""),
    ),
    (
        "vllm serve org/experts --port 8100 --served-model-name experts --trust-remote-code -dp 16 -dpl 8 "
        "-dpa 10.1.0.1 -dpp 13345 --enable-expert-parallel --max-num-seqs 256",
        ("org/experts", "experts", (1, 1, 16, True), "--trust-remote-code --max-num-seqs 256"),
    ),
    (
        "vllm serve org/experts --enable-expert-parallel --data-parallel-hybrid-lb --data-parallel-size 8 "
        """--data-parallel-size-local 4 --compilation-config '{"cudagraph_mode": "FULL", "custom_ops": ["all"]}'""",
        ("org/experts", "", (1, 1, 8, True),
         """--compilation-config '{"cudagraph_mode": "FULL", "custom_ops": ["all"]}'"""),
    ),
    (
        "vllm serve org/dense --tensor_parallel_size=4 --distributed-executor-backend ray --enforce-eager "
        "--enable-chunked-prefill=False --dtype float16",
        ("org/dense", "", (4, 1, 1, False), "--enforce-eager --no-enable-chunked-prefill --dtype float16"),
    ),
    (
        "vllm serve org/dense -cc.pass_config.fuse_allreduce_rms=False -pp=4 --attention_config.use_fp4=True --seed -1",
        ("org/dense", "", (1, 4, 1, False),
         "-cc.pass_config.fuse_allreduce_rms=False --attention_config.use_fp4=True --seed -1"),
    ),
    ("vllm serve org/tiny", ("org/tiny", "", (1, 1, 1, False), "")),
    ("vllm serve --model org/tiny --host 0.0.0.0", ("org/tiny", "", (1, 1, 1, False), "")),
    ("vllm serve --max-model-len 4096 org/tiny --seed 1",
     ("org/tiny", "", (1, 1, 1, False), "--max-model-len 4096 --seed 1")),
    ("vllm serve --enforce-eager org/tiny", ("org/tiny", "", (1, 1, 1, False), "--enforce-eager")),
    ("vllm serve org/tiny -tp 4 -tp 8 -n2 -r 1", ("org/tiny", "", (8, 1, 1, False), "")),
    ("vllm serve org/tiny --enable-prefix-caching True --no-enable-expert-parallel",
     ("org/tiny", "", (1, 1, 1, False), "--enable-prefix-caching")),
    ("vllm serve org/tiny --lora-modules a=/l/a b=/l/b --enable-lora",
     ("org/tiny", "", (1, 1, 1, False), "--lora-modules a=/l/a b=/l/b --enable-lora")),
    ("sudo env NCCL_DEBUG=INFO nohup /opt/venv/bin/vllm serve org/tiny -tp 2 > log 2>&1 &",
     ("org/tiny", "", (2, 1, 1, False), "")),
    ("python3 -m vllm.entrypoints.openai.api_server --model org/tiny --tensor-parallel-size 2 --swap-space 8",
     ("org/tiny", "", (2, 1, 1, False), "--swap-space 8")),
    ("docker run --runtime nvidia --gpus all -v ~/.cache/huggingface:/root/.cache/huggingface --env HF_TOKEN=$HF_TOKEN "
     "-p 8000:8000 --ipc=host vllm/vllm-openai:v0.33.0 --model org/tiny -tp 2 --max-model-len 4096",
     ("org/tiny", "", (2, 1, 1, False), "--max-model-len 4096")),
    ("podman run --device nvidia.com/gpu=all docker.io/vllm/vllm-openai:latest org/tiny --max-model-len 4096",
     ("org/tiny", "", (1, 1, 1, False), "--max-model-len 4096")),
    ("docker run --gpus all --entrypoint bash vllm/vllm-openai:latest -c 'pip install x && vllm serve org/tiny -tp 2'",
     ("org/tiny", "", (2, 1, 1, False), "")),
    ("srun --nodes=2 bash -c \"ray start --head; vllm serve org/tiny -tp 8 -pp 2\"",
     ("org/tiny", "", (8, 2, 1, False), "")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), LINES)
def test_a_command_line_asks_for_the_same_here(text: str, expected: tuple[Any, ...]) -> None:
    assert facts(translate(text, PLACE)) == expected


SCRIPT = """#!/bin/bash
set -euo pipefail
export NCCL_SOCKET_IFNAME=eth1 VLLM_USE_DEEP_GEMM=1
MODEL=${1:-org/large-moe}
NODES=2
GPUS=8
MASTER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)
ARGS=(--max-model-len 32768 --trust-remote-code)
# what every host runs
HF_TOKEN=hf_abcdefghijklmnopqrstuv vllm serve "$MODEL" \\
  --tensor-parallel-size $GPUS --pipeline-parallel-size "$NODES" \\
  --master-addr $MASTER --node-rank ${SLURM_PROCID} \\
  "${ARGS[@]}" &
wait
"""


# fault: serving/translate/options.py: self._row("variable", name, "", steered) → self._row("variable", value, "", steered)
def test_a_script_is_read_with_what_it_assigns() -> None:
    found = translate(SCRIPT, "serve.sh")
    assert facts(found) == ("org/large-moe", "", (8, 2, 1, False), "--max-model-len 32768 --trust-remote-code")
    assert {*rows(found, "dropped")} == {"--master-addr $(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -1)",
                                         "--node-rank $SLURM_PROCID"}  # fmt: skip
    variables = rows(found, "variable")
    assert {*variables} == {"NCCL_SOCKET_IFNAME", "VLLM_USE_DEEP_GEMM=1", "HF_TOKEN"}
    assert variables["NCCL_SOCKET_IFNAME"] == "set by hosts.NAME.interface of the inventory"
    assert found.variables == {"VLLM_USE_DEEP_GEMM": "1"}


COMPOSE = """services:
  ui:
    image: example/web-ui:1
  model:
    image: vllm/vllm-openai:v0.33.0
    environment:
      - VLLM_LOGGING_LEVEL=DEBUG
    command: %s
    ports: ["8000:8000"]
"""


@pytest.mark.parametrize(
    "command",
    [
        "--model org/tiny --tensor-parallel-size 2 --max-model-len ${LENGTH:-4096}",
        "org/tiny -tp 2 --max-model-len 4096",
        '["--model", "org/tiny", "--tensor-parallel-size", 2, "--max-model-len", "4096"]',
        "\n      - org/tiny\n      - -tp=2\n      - --max-model-len\n      - 4096",
        ">\n      vllm serve org/tiny\n      -tp 2\n      --max-model-len 4096",
        "bash -c 'vllm serve org/tiny -tp 2 --max-model-len 4096'",
    ],
)
def test_a_service_of_compose_is_read(command: str) -> None:
    found = translate(COMPOSE % command, "compose.yaml")
    assert facts(found) == ("org/tiny", "", (2, 1, 1, False), "--max-model-len 4096")
    assert "VLLM_LOGGING_LEVEL=DEBUG" in rows(found, "variable")


def test_what_is_dropped_has_its_reason_and_secrets_are_not_shown() -> None:
    text = "vllm serve org/tiny --port 8000 --api-key token-abc123 --hf-token hf_abcdefghijklmnopqrst --worker-use-ray"
    found = translate(text, PLACE)
    assert found.flags == ()
    dropped = rows(found, "dropped")
    assert {*dropped} == {"--port 8000", "--api-key", "--hf-token", "--worker-use-ray"}
    assert all(dropped.values())
    assert "abc" not in str(found)


def test_commands_of_several_hosts_are_one_where_they_differ_in_what_is_dropped() -> None:
    line = "vllm serve org/tiny -tp 16 --nnodes 2 --master-addr 10.1.0.1 --max-num-seqs 8"
    both = f"# head\n{line} --node-rank 0\n# the other\n{line} --node-rank 1 --headless\n"
    assert facts(translate(both, "README.md"))[2] == (16, 1, 1, False)


REFUSED = [
    ("", "--from: nothing in it serves a model"),
    ("echo vllm", "--from: nothing in it serves a model"),
    ("vllm bench serve --model x", "--from: nothing in it serves a model"),
    ("vllm serve", "--from:1: names no model"),
    ("vllm serve --port 8000", "--from:1: names no model"),
    ("vllm serve --seed 1 a --max-num-seqs 2 b", "--from:1: several words may be the model"),
    ("vllm serve org/x -tp", "--from:1: -tp has no value"),
    ("vllm serve org/x -tp --seed 1", "--from:1: -tp has no value"),
    (
        "vllm serve org/x \\\n  -tp eight",
        "--from:2: --tensor-parallel-size must be an integer of at least 1, got eight",
    ),
    ("vllm serve org/x -tp 0", "must be an integer of at least 1, got 0"),
    ("vllm serve org/x -tp ٣", "must be an integer of at least 1"),
    ("vllm serve org/x -tp $GPUS", "--from:1: $GPUS has no value in this text"),
    ("vllm serve $MODEL", "--from:1: $MODEL has no value in this text"),
    ("vllm serve org/x --max-model-len $(cat n)", "--from:1: $(cat n) has no value in this text"),
    ("vllm serve org/x \u2013tensor-parallel-size 8", "begins with a dash that vLLM does not know"),
    ("vllm serve org/x --ssl-keyfile k", "--from:1: --ssl-keyfile cannot be served here"),
    ("vllm serve org/x --uds /tmp/s", "--uds cannot be served here"),
    ("vllm serve org/x -pcp 2", "--prefill-context-parallel-size cannot be served here"),
    ("vllm serve org/x -tp 8 stray", "--from:1: stray behind -tp belongs to no option"),
    ("vllm serve org/x stray", "--from:1: stray belongs to no option"),
    ("vllm serve org/x\n  --seed 1", "--from:2: --seed begins a command by itself"),
    ("vllm serve org/x\nvllm serve org/y", "--from: 2 commands serve: those of lines 1 and 2 ask for different"),
    ("vllm serve org/x -tp 8\nvllm serve org/x -tp 4", "lines 1 and 2"),
    ("apiVersion: v1\nkind: Pod\n", "a manifest of Kubernetes is not read"),
    ("services:\n  a: [\n", "--from:"),
    (
        "model:\n  model_id: org/x\ncompatible_strategies:\n  - multi_node_tp\n",
        "--from:3: a recipe, whose layout the hosts decide",
    ),
    ("x" * 300_000, "--from: longer than 256 kB"),
    # The line to paste would have it as an option of vcluster.
    ("vllm serve --model='--from=evil.sh'", "--from:1: --from=evil.sh cannot be the model: it begins with -"),
    ("vllm serve --model=-ievil.yaml", "--from:1: -ievil.yaml cannot be the model: it begins with -"),
    ("vllm serve org/x --served-model-name=--yes", "--from:1: --yes cannot be the name: it begins with -"),
]


# fault: serving/translate/options.py: self._ensure_name("model", model) → pass
# fault: serving/translate/options.py: self._ensure_name("name", name) → pass
@pytest.mark.parametrize(("text", "error"), REFUSED)
def test_what_cannot_be_served_is_refused_with_its_line_and_one_reason(text: str, error: str) -> None:
    with pytest.raises(UsageError) as refused:
        translate(text, PLACE)
    assert error in str(refused.value)
    assert "\n" not in str(refused.value)


# fault: serving/translate/options.py: hint="leave it out, or put text with blanks in quotes" → hint=""
def test_a_command_that_may_give_a_flag_is_refused_with_what_to_do() -> None:
    """As scripts for Slurm have it: only the other nodes are headless."""
    line = "vllm serve org/x --node-rank $RANK --master-addr $MASTER $([ $RANK -gt 0 ] && echo --headless)"
    with pytest.raises(UsageError, match="behind --master-addr belongs to no option") as refused:
        translate(line, PLACE)
    assert refused.value.hint == "leave it out, or put text with blanks in quotes"


NAMES = st.sampled_from(["--seed", "--max-model-len", "--enforce-eager", "-cc.x", "--kv-cache-dtype"])
VALUES = st.lists(st.text(st.characters(codec="utf-8", categories=["L", "N", "S", "Zs"]), min_size=1), max_size=1)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=5), st.integers(1, 64), st.booleans())
def test_flags_for_vllm_arrive_unchanged(flags: list[tuple[str, list[str]]], tp: int, first: bool) -> None:
    extra = [word for name, values in flags for word in (name, *values)]
    own = ["--port", "1", "-tp", str(tp)]
    found = translate(
        shlex.join(["vllm", "serve", "org/x", *(own if first else []), *extra, *([] if first else own)]), PLACE
    )
    old = [word for word in extra if word.lower() not in ("true", "false")]
    assert (found.tp, [*found.flags]) == (tp, extra if old == extra else [*found.flags])


PIECES = [
    "vllm serve",
    "org/x",
    "-tp",
    "8",
    "--port",
    "'",
    '"',
    "\\\n",
    "$X",
    "${",
    "services:",
    "\n",
    " ",
    "command: ",
    "-",
    "--",
    "=",
    "#",
]


@given(st.lists(st.sampled_from(PIECES), max_size=14))
def test_any_text_is_translated_or_refused_in_one_line(pieces: list[str]) -> None:
    try:
        translate("".join(pieces), PLACE)
    except UsageError as error:
        assert str(error).startswith("--from:")
        assert "\n" not in str(error)
