"""The sampling parameters of vLLM's API as options, each under its own name; what is not given is not sent."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer


@dataclass(frozen=True)
class Parameter:
    """One field of a request: the type of its option, and its help; `off` is a flag that the server has on."""

    type: Any
    help: str
    metavar: str | None = None
    min: float | None = None
    max: float | None = None
    off: bool = False


# In the order of help. Ranges that depend on the model are left to the server.
PARAMETERS: Mapping[str, Parameter] = {
    "temperature": Parameter(float, "Randomness; 0 always takes the most probable token.", min=0),
    "top_p": Parameter(float, "Sample from the most probable tokens that add up to this.", min=0, max=1),
    "top_k": Parameter(int, "Sample from this many most probable tokens; 0 or -1: all.", min=-1),
    "min_p": Parameter(float, "Least probability, relative to that of the most probable token.", min=0, max=1),
    "min_tokens": Parameter(int, "Do not end before this many tokens.", min=0),
    "max_tokens": Parameter(int, "End after this many tokens.", min=0),
    "frequency_penalty": Parameter(float, "Penalty on tokens by how often they occurred.", min=-2, max=2),
    "presence_penalty": Parameter(float, "Penalty on tokens that occurred.", min=-2, max=2),
    "repetition_penalty": Parameter(float, "Factor on tokens that occurred; above 1 penalizes.", min=0),
    "seed": Parameter(int, "Sample reproducibly."),
    "stop": Parameter(list[str], "End before this text; repeatable."),
    "stop_token_ids": Parameter(list[int], "End at this token id; repeatable.", "ID"),
    "bad_words": Parameter(list[str], "Never generate this text; repeatable."),
    "allowed_token_ids": Parameter(list[int], "Generate only this token id; repeatable.", "ID"),
    "logit_bias": Parameter(list[str], "Add to the logit of a token id; repeatable.", "ID=NUMBER"),
    "ignore_eos": Parameter(bool, "Continue after the end-of-sequence token."),
    "include_stop_str_in_output": Parameter(bool, "Keep the text of --stop in the answer."),
    "skip_special_tokens": Parameter(bool, "Keep special tokens in the answer.", off=True),
    "spaces_between_special_tokens": Parameter(bool, "Put no spaces between special tokens.", off=True),
    "truncate_prompt_tokens": Parameter(int, "Cut the prompt to this many tokens; -1: to what fits.", min=-1),
    "truncation_side": Parameter(str, "The side that is cut.", "left|right"),
    "n": Parameter(int, "Number of answers; complete and chat need --json for several.", min=1),
    "use_beam_search": Parameter(bool, "Search with --n beams; not streamed."),
    "length_penalty": Parameter(float, "Exponent of the length, for --use-beam-search."),
    "thinking_token_budget": Parameter(int, "Limit of the tokens of reasoning; -1: none.", min=-1),
    "priority": Parameter(int, "Lower is earlier, where the server schedules by priority."),
}


def with_sampling(function: Callable[..., None]) -> Callable[..., None]:
    """The function of a verb, with an option for each parameter; it gets those that were given as `sampling`."""
    own = [one for one in inspect.signature(function, eval_str=True).parameters.values() if one.name != "sampling"]

    def run(**given: Any) -> None:
        named = {one.name: given[one.name] for one in own if one.name in given}
        values = {name: given.get(_option(name)) for name in PARAMETERS}
        # Typer has an empty list for an option that was not given, and False for a flag.
        wanted = {name: value for name, value in values.items() if value or (value == 0 and value is not False)}
        function(**named, sampling={name: _value(name, value) for name, value in wanted.items()})

    options = [
        inspect.Parameter(
            _option(name), inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(name, one)
        )
        for name, one in PARAMETERS.items()
    ]
    parameters = [*(one.replace(kind=one.KEYWORD_ONLY) for one in own), *options]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__doc__ = function.__doc__
    return run


def _option(name: str) -> str:
    return f"no_{name}" if PARAMETERS[name].off else name


def _value(name: str, value: Any) -> Any:
    return not value if PARAMETERS[name].off else value


def _annotation(name: str, one: Parameter) -> Any:
    metavar = one.metavar or {bool: None, str: "TEXT", list[str]: "TEXT"}.get(one.type, "NUMBER")
    # Named, since typer would add the other side of a flag.
    made = typer.Option(
        "--" + _option(name).replace("_", "-"), metavar=metavar, min=one.min, max=one.max, help=one.help
    )
    return Annotated[bool if one.type is bool else one.type | None, made]
