"""`vcluster complete` and `vcluster chat`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vllm_cluster.kernel.errors import UsageError, VclusterError
from vllm_cluster.kernel.terminal.options import InventoryPath, Json
from vllm_cluster.kernel.terminal.output import document, err, out
from vllm_cluster.kernel.terminal.session import SETTINGS, Session
from vllm_cluster.kernel.terminal.text import plain
from vllm_cluster.serving.api import question

if TYPE_CHECKING:
    from vllm_cluster.serving.api.answer import ModelReply
    from vllm_cluster.serving.endpoint.api import ModelApi, ModelRequest

Text = Annotated[str | None, typer.Argument(metavar="PROMPT", help="The text to continue; - reads standard input.")]
Message = Annotated[
    str | None,
    typer.Argument(
        metavar="PROMPT", help="The one message to answer; - reads standard input. Default: a conversation."
    ),
]
System = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="The system prompt.")]


def complete(
    prompt: Text = None,
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
        _ensure_printable(given, as_json=as_json)
        text = question.read_prompt(prompt, file or ())
        given["prompt"] = "".join([*map(question.text_of, file or ()), text])
        loaded, schema = session.load(), str(json_schema or "")
        from vllm_cluster.serving.api.answer import COMPLETIONS
        from vllm_cluster.serving.endpoint.api import ModelRequest, open_api

        with open_api(loaded) as api:
            api.ensure_fields([COMPLETIONS], question.names(set_))
            _answer(
                session,
                api,
                ModelRequest(COMPLETIONS, given, model, logprobs, prompt_logprobs, timeout, schema),
            )


def chat(
    prompt: Message = None,
    system: System = None,
    file: question.ChatFiles = None,
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
    """Talk with the served model."""
    with Session(inventory, as_json=as_json) as session:
        given = question.fields(
            json_schema, set_, max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed, stop=stop
        )
        _ensure_printable(given, as_json=as_json)
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        talk = prompt is None and sys.stdin.isatty() and not as_json
        typed = "" if talk else question.read_prompt(prompt, file or ())
        first = question.content(typed, file or ())
        loaded, schema = session.load(), str(json_schema or "")
        from vllm_cluster.serving.api.answer import CHAT
        from vllm_cluster.serving.endpoint.api import ModelRequest, open_api

        with open_api(loaded) as api:
            api.ensure_fields([CHAT], question.names(set_))

            def ask(content: object) -> str:
                turn = [*messages, {"role": "user", "content": content}]
                asked = ModelRequest(
                    CHAT, {**given, "messages": turn}, model, logprobs, prompt_logprobs, timeout, schema
                )
                text = _answer(session, api, asked).first.text
                messages[:] = [*turn, {"role": "assistant", "content": text}]
                return text

            if talk:
                _talk(session, api.model, ask, file or ())
            else:
                ask(first)


def _talk(session: Session, model: str, ask: Callable[[object], object], files: Sequence[Path]) -> None:
    """Ask what is typed, line by line, until Ctrl-D; Ctrl-C ends an answer, and not the conversation."""
    session.finish()
    if SETTINGS.verbosity >= 0:
        err(f"{model}: Ctrl-C ends an answer, Ctrl-D the conversation")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    while True:
        try:  # around all of it: the key may come right after a line was typed, before its question is on its way
            line = _read_line()
            if line is None:
                return
            if line.strip():
                content, files = question.content(line, files), ()
                ask(content)
        except KeyboardInterrupt:
            err("Interrupted.")
        except UsageError as error:  # too long, or refused: the conversation is as it was before
            # The server's own text, which may repeat the question.
            err(f"error: {plain(error.message)}")


def _read_line() -> str | None:
    """What is typed, with editing and history; None at the end."""
    import readline  # noqa: F401 - gives input() its editing and history

    try:
        return input("> ")
    except KeyboardInterrupt:
        out()
        return ""
    except EOFError:
        out()
        return None
    except OSError as error:
        raise VclusterError(f"cannot read standard input: {error.strerror}") from None


def _ensure_printable(given: Mapping[str, Any], *, as_json: bool) -> None:
    """Refuse several answers where they would be mixed."""
    if (given.get("n") or 1) != 1 and not as_json:
        raise UsageError(f"n={given['n']}: several answers are printed as JSON", again=("--json",))


def _answer(session: Session, api: ModelApi, question: ModelRequest) -> ModelReply:
    """Ask, and print the answer, its tables and what it took; an answer that breaks off as far as it came."""
    from vllm_cluster.features.ask.render import Printer, answer_document, summary, tables
    from vllm_cluster.serving.api.answer import ModelReply

    reply, incomplete = ModelReply(), True
    printer = Printer(as_json=session.as_json, quiet=SETTINGS.verbosity < 0)
    session.finish()
    try:
        for piece in api.ask(question, reply):
            printer.show(piece)
        incomplete = False
    finally:
        printer.end()
        if session.as_json and reply.answers:
            document(answer_document(question.model or api.model, reply))
        elif reply.answers:
            out("".join(f"{line}\n" for line in tables(reply)), end="")
        if SETTINGS.verbosity >= 0 and reply.answers and not session.as_json:
            err(summary(reply, incomplete=incomplete))
    return reply
