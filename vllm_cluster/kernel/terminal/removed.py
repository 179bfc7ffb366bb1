"""Spellings that earlier versions had, with what to use instead: each ends with exit code 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.shell_line import command_line

_ASK = {"complete": "vcluster complete PROMPT", "chat": "vcluster chat PROMPT", "batch": "vcluster batch IN -o OUT"}
# Options that are fields of the request under their own names.
_FIELDS = {
    **dict.fromkeys(("top_k", "min_p", "min_tokens", "n", "length_penalty", "priority"), "NUMBER"),
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "repetition_penalty"), "NUMBER"),
    **dict.fromkeys(("truncate_prompt_tokens", "thinking_token_budget"), "NUMBER"),
    **dict.fromkeys(("ignore_eos", "include_stop_str_in_output", "use_beam_search"), "true"),
    **dict.fromkeys(("no_skip_special_tokens", "no_spaces_between_special_tokens"), "false"),
    **dict.fromkeys(("stop_token_ids", "allowed_token_ids"), "[ID]"),
    "bad_words": '["TEXT"]',
    "logit_bias": '{"ID": NUMBER}',
    "truncation_side": "left",
    "reasoning_effort": "LEVEL",
}
# What is typed behind `vcluster` → the line to use: a verb ("facts"), or an option of a verb ("batch --on-head").
INSTEAD: Mapping[str, str] = {
    "bundle": "vcluster explain --bundle report.tar.gz",
    "explain --anonymous": "vcluster explain --bundle report.tar.gz",
    "facts": "vcluster check --facts",
    "history": "vcluster status --history",
    "key": "vcluster endpoint --key",
    "schema": "vcluster init --schema",
    "ssh": "vcluster exec --head --ssh",
    "status --ray": "vcluster exec --head -- ray status",
    "top": "vcluster status --watch",
    "tunnel": "vcluster endpoint --tunnel",
    "wait": "vcluster status --wait",
    "logs --fold": "vcluster logs --errors",
    "logs --polls": "vcluster logs --grep GET",
    **{
        f"{verb} --{name.replace('_', '-')}": command_line(
            *line.split(), "--set", f"{name.removeprefix('no_')}={value}"
        )
        for verb, line in _ASK.items()
        for name, value in _FIELDS.items()
    },
    "bench --dataset": "vcluster bench --input-len TOKENS --output-len TOKENS",
    "endpoint --curl": "vcluster complete PROMPT",
    "endpoint --python": 'eval "$(vcluster endpoint --env)"',
    **dict.fromkeys(("fit --params", "fit --bits"), "vcluster fit FOLDER --gpus NUMBER --gpu-memory SIZE"),
    "up --dry-run": "vcluster plan",
    "batch --on-head": "vcluster batch IN -o OUT",
    "batch --errors": "vcluster batch IN -o OUT",
    "batch --repeat": "vcluster batch IN -o OUT --set n=NUMBER",
}


def refuse(path: str, names: Sequence[str]) -> None:
    """Refuse a verb or options that were removed; `path` is the program, or the verb with the program before it.

    Raises:
        UsageError: one of these names was removed; the hint is the line to use instead.
    """
    verb = path.partition(" ")[2]
    gone = {name: INSTEAD[key] for name in names if (key := f"{verb} {name}".strip()) in INSTEAD}
    if gone:
        raise UsageError(f"{path} no longer has {', '.join(gone)}", hint="\n".join(dict.fromkeys(gone.values())))
