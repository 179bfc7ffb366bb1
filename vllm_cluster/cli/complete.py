"""`vcluster complete`."""

from __future__ import annotations

from typing import Annotated

import typer

from vllm_cluster.cli import question
from vllm_cluster.cli.answering import answer, ensure_printable
from vllm_cluster.cli.options import InventoryPath, Json
from vllm_cluster.cli.session import Session

Prompt = Annotated[str | None, typer.Argument(metavar="PROMPT", help="The text to continue; - reads standard input.")]


def complete(
    prompt: Prompt = None,
    file: question.Files = None,
    model: question.Model = None,
    logprobs: question.Logprobs = None,
    prompt_logprobs: question.PromptLogprobs = None,
    json_schema: question.JsonSchema = None,
    max_tokens: question.MaxTokens = None,
    temperature: question.Temperature = None,
    top_p: question.TopP = None,
    seed: question.Seed = None,
    stop: question.Stop = None,
    set_: question.Set = None,
    timeout: question.Timeout = 600.0,
    inventory: InventoryPath = None,
    as_json: Json = False,
) -> None:
    """Continue a text with the served model."""
    with Session(inventory, as_json=as_json) as session:
        given = question.fields(
            json_schema, set_, max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed, stop=stop
        )
        ensure_printable(given, as_json=as_json)
        text = question.read_prompt(prompt, file or ())
        given["prompt"] = "".join([*map(question.text_of, file or ()), text])
        loaded, schema = session.load(), str(json_schema or "")
        from vllm_cluster.actions.ask import ModelRequest, open_api
        from vllm_cluster.core.answer import COMPLETIONS

        with open_api(loaded) as api:
            api.ensure_fields([COMPLETIONS], question.names(set_))
            answer(
                session,
                api,
                ModelRequest(COMPLETIONS, given, model, logprobs, prompt_logprobs, timeout, schema),
            )
