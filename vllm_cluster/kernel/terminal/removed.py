"""Spellings that earlier versions had, with what to use instead: each ends with exit code 2."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Container, Mapping, Sequence

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.shell_line import Option, command_line, typed_words
from vllm_cluster.kernel.terminal.typed import guessed

_ASK = {"complete": "vcluster complete PROMPT", "chat": "vcluster chat PROMPT", "batch": "vcluster batch IN -o OUT"}
# Options that are fields of the request under their own names.
_FIELDS = {
    **dict.fromkeys(("top_k", "min_p", "min_tokens", "n", "length_penalty", "priority", "seed"), "NUMBER"),
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
# Options of sbatch that `slurm` had under names of its own, with sbatch's.
_SBATCH = {
    **dict.fromkeys(("--partition", "-p"), "partition=NAME"),
    **dict.fromkeys(("--account", "-A"), "account=NAME"),
    **dict.fromkeys(("--constraint", "-C"), "constraint=LIST"),
    "--qos": "qos=NAME",
    "--mail": "mail-user=ADDRESS",
    "--cpus": "cpus-per-task=NUMBER",
    "--memory": "mem=SIZE",
}
# What is typed behind `vcluster` → the line to use: a verb ("facts"), or an option of a verb ("batch --on-head").
INSTEAD: Mapping[str, str] = {
    "bundle": "vcluster explain --bundle report.tar.gz",
    "explain --anonymous": "vcluster explain --bundle report.tar.gz",
    "facts": "vcluster check --facts",
    "history": "vcluster status --history",
    "key": "vcluster endpoint --key",
    "key --rotate": "vcluster endpoint --rotate",
    "metrics": "vcluster dashboard --prometheus",
    "schema": "vcluster init --schema",
    "ssh": "vcluster exec --head --ssh",
    "status --interval": "vcluster status --watch DURATION",
    "status --last": "vcluster status --history NUMBER",
    "status --timeout": "vcluster status --wait DURATION",
    "status --ray": "vcluster exec --head -- ray status",
    "top": "vcluster status --watch",
    "tunnel": "vcluster endpoint --tunnel",
    "wait": "vcluster status --wait",
    "logs --fold": "vcluster logs --errors",
    "logs --polls": "vcluster logs --grep GET",
    **{
        f"{verb} --{name.replace('_', '-')}": command_line(
            *typed_words(line.split()), Option("--set"), f"{name.removeprefix('no_')}={value}"
        )
        for verb, line in _ASK.items()
        for name, value in _FIELDS.items()
    },
    **{
        f"{verb} --{name.replace('_', '-')}": command_line(
            *typed_words(_ASK[verb].split()), Option("--set"), f"{name}={value}"
        )
        for verb in ("complete", "chat")
        for name, value in (("model", "NAME"), ("prompt_logprobs", "NUMBER"))
    },
    **{f"{verb} --timeout": line for verb, line in _ASK.items()},
    "logs --rank": "vcluster logs --only rank=NUMBER",
    "logs --ray": "vcluster logs --only ray",
    "logs --replica": "vcluster logs --only replica=NUMBER",
    "logs --vllm": "vcluster logs --only vllm",
    "batch --retry-timeout": "vcluster batch IN -o OUT",
    **dict.fromkeys(("rollback --drain", "rollback --wait"), "vcluster rollback"),
    "status --gpus": "vcluster up",
    "fit --nodes": "vcluster fit FOLDER --gpus NUMBERxNUMBER --gpu-memory SIZE",
    "bench --timeout": "vcluster bench",
    "bench --prompts": "vcluster bench --repeat NUMBER",
    "dashboard --force": "vcluster dashboard --prometheus",
    **dict.fromkeys(("exec --no-tty", "exec -T"), "vcluster exec --head -- COMMAND | cat"),
    **{
        f"init --{key.replace('_', '-')}": f"vcluster init --host NAME=ADDRESS -o FILE\nset {key} in FILE"
        for key in ("image", "model_cache")
    },
    **dict.fromkeys(("endpoint --port", "endpoint -p"), "vcluster endpoint --tunnel NUMBER"),
    "slurm endpoint --port": "vcluster slurm endpoint JOB --tunnel NUMBER",
    "endpoint --grace": "vcluster endpoint --rotate DURATION",
    "endpoint --wait": "vcluster endpoint --rotate",
    "image prune --wait": "vcluster image prune",
    "models rm --wait": "vcluster models rm MODEL",
    "bench --dataset": "vcluster bench --input-len TOKENS --output-len TOKENS",
    "endpoint --curl": "vcluster complete PROMPT",
    "endpoint --python": 'eval "$(vcluster endpoint --env)"',
    **dict.fromkeys(("fit --params", "fit --bits"), "vcluster fit FOLDER --gpus NUMBER --gpu-memory SIZE"),
    **{
        f"slurm job {old}": command_line("vcluster", "slurm", "MODEL", Option("--sbatch"), new)
        for old, new in _SBATCH.items()
    },
    "serve --recipe": "vcluster serve --from RECIPE",
    "serve --tunnel": "vcluster endpoint --tunnel",
    "up --dry-run": "vcluster plan",
    "batch --on-head": "vcluster batch IN -o OUT",
    "batch --errors": "vcluster batch IN -o OUT",
    "batch --repeat": "vcluster batch IN -o OUT --set n=NUMBER",
}


# A word in the place of what a person puts there.
_PLACE = re.compile(
    r"\b(ADDRESS|DURATION|FILE|FOLDER|ID|IN|LEVEL|LIST|MODEL|NAME|NUMBER|OUT|PROMPT|RECIPE|SIZE|TEXT|TOKENS)\b"
)
# What an option that is gone without another took: a number, a time.
_MEASURE = re.compile(r"\d+(\.\d+)?[a-z]*")


def refuse_removed(path: str, name: str, typed: Sequence[str] = (), bare: Container[str] = ()) -> None:
    """Refuse a verb or an option that was removed; `path` is the program, or the verb with the program before it.

    `typed` are the words behind that, in which the option is replaced where the same verb has another; those in `bare`
    may have been typed without their value, and got one.

    Raises:
        UsageError: this name was removed; the hint is the line to use instead.
    """
    key = f"{path.partition(' ')[2]} {name}".strip()
    if key in INSTEAD:
        line = INSTEAD[key]
        if typed and key.startswith(_verb_of(line)):
            line = as_typed(line, name, typed, bare)
        raise UsageError(f"{path} no longer has {name}", hint=line)


def _verb_of(line: str) -> str:
    """The verb of a line to use, without the program: what is before its first place and option."""
    words = itertools.takewhile(lambda word: not (word.startswith("-") or _PLACE.search(word)), line.split()[1:])
    return " ".join(words)


def as_typed(line: str, name: str, typed: Sequence[str], bare: Container[str] = ()) -> str:
    """Return the words that were typed, with what a line to use has in place of an option; the line where that fails.

    An option of the line that was typed too stays as it was typed, but for one of KEY=VALUE, of which there may be
    several, and for one in `bare`: the value of the option that is gone is for that one.
    """
    words = shlex.split(line)
    tail = words[next((place for place, word in enumerate(words) if word.startswith("-")), len(words)) :]
    pairs = [tail[at : at + 2] for at in range(0, len(tail), 2)]
    given = {word.partition("=")[0] for word in typed}
    filled = {pair[0] for pair in pairs if pair[0] in bare and _PLACE.search(pair[-1])} & given
    new = [pair for pair in pairs if pair[0] not in given or pair[0] in filled or "=" in pair[-1]]
    takes = sum(len(_PLACE.findall(word)) for pair in new for word in pair)
    if "\n" in line or "NUMBERx" in line or "|" in words or (takes and (new != pairs[-1:] or new[0][0] == "-o")):
        return line
    made: list[str] = []
    rest = [*typed] if takes < 2 else []
    while rest:
        word = rest.pop(0)
        option, sign, value = word.partition("=")
        if option in filled:
            rest = rest if sign else rest[1:]
            continue
        if option != name:
            made.append(word)
            continue
        if not sign and rest and (takes or (not new and _MEASURE.fullmatch(rest[0]))):
            value = rest.pop(0)
        if takes and not value:
            return line
        made += [_filled(part, value) for pair in new for part in pair]
    return guessed("vcluster", *_verb_of(line).split(), *made) if made else line


def _filled(part: str, value: str) -> str:
    """A word with what was typed in its place, in quotes as JSON has it."""
    text = json.dumps(value, ensure_ascii=False)[1:-1] if '"' in part else value
    # What is put in place of a pattern has backslashes of its own.
    return _PLACE.sub(text.replace("\\", "\\\\"), part)


def refuse_removed_verb(path: str, words: Sequence[str]) -> None:
    """Refuse a verb that was removed, with the line for its first option where that has one of its own.

    Raises:
        UsageError: there was this verb; the hint is the line to use instead.
    """
    with_option = " ".join(words[:2])
    refuse_removed(path, with_option if with_option in INSTEAD else words[0])


def refuse_removed_arguments(path: str, words: Sequence[str]) -> None:
    """Refuse words behind a verb that it took before.

    Raises:
        UsageError: the hint is what to use instead.
    """
    if path == "vcluster init" and (hosts := [word for word in words if "=" in word and not word.startswith("-")]):
        named = [part for host in hosts for part in ("--host", host)]
        raise UsageError(f"{path} no longer has NAME=ADDRESS", hint=command_line(*path.split(), *typed_words(named)))
    if path == "vcluster endpoint" and (command := words[words.index("--") + 1 :] if "--" in words else ()):
        lines = (
            'eval "$(vcluster endpoint --detach --env)"',
            command_line(*typed_words(command)),
            "vcluster endpoint --close",
        )
        raise UsageError(f"{path} no longer runs a command", hint="\n".join(lines))
