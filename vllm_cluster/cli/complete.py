"""`vcluster complete`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from vllm_cluster.cli import question
from vllm_cluster.cli.answering import answer, ensure_printable
from vllm_cluster.cli.options import InventoryPath, Json
from vllm_cluster.cli.sampling import with_sampling
from vllm_cluster.cli.session import Session

Prompt = Annotated[str | None, typer.Argument(metavar="PROMPT", help="The text to continue; - reads standard input.")]


@with_sampling
def complete(
    sampling: Mapping[str, Any],
    prompt: Prompt = None,
    file: question.Files = None,
    model: question.Model = None,
    logprobs: question.Logprobs = None,
    prompt_logprobs: question.PromptLogprobs = None,
    json_schema: question.JsonSchema = None,
    set_: question.Set = None,
    timeout: question.Timeout = 600.0,
    inventory: InventoryPath = None,
    as_json: Json = False,
) -> None:
    """Continue a text with the served model."""
    with Session(inventory, as_json=as_json) as session:
        given = question.fields(sampling, set_ or (), json_schema)
        ensure_printable(given, as_json=as_json)
        text = question.read_prompt(prompt, file or ())
        given["prompt"] = "".join([*map(question.text_of, file or ()), text])
        loaded, schema = session.load(), str(json_schema or "")
        from vllm_cluster.actions.ask import ModelRequest, open_api
        from vllm_cluster.core.answer import COMPLETIONS

        with open_api(loaded) as api:
            answer(
                session,
                api,
                ModelRequest(COMPLETIONS, given, model, logprobs, prompt_logprobs, timeout, schema),
            )
