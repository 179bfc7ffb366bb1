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
from vllm_cluster.kernel.terminal.output import document, err, out, with_ends
from vllm_cluster.kernel.terminal.printable import plain
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.kernel.terminal.settings import SETTINGS
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


@question.asks
def complete(
    prompt: Text = None,
    file: question.Files = None,
    logprobs: question.Logprobs = None,
    asked: question.RequestOptions = question.RequestOptions(),
    inventory: InventoryPath = None,
    as_json: Json = False,
) -> None:
    """Continue a text with the served model."""
    with Session(inventory, as_json=as_json) as session:
        given, model, of_prompt = _own_fields(asked)
        _ensure_printable(given, as_json=as_json)
        text = question.read_prompt(prompt, file or ())
        given["prompt"] = "".join([*map(question.text_of, file or ()), text])
        loaded, schema = session.load(), str(asked.json_schema or "")
        from vllm_cluster.serving.api.answer import COMPLETIONS
        from vllm_cluster.serving.endpoint.api import ModelRequest, open_api

        with open_api(loaded) as api:
            api.ensure_fields([COMPLETIONS], asked.names)
            _answer(session, api, ModelRequest(COMPLETIONS, given, model, logprobs, of_prompt, schema=schema))


@question.asks
def chat(
    prompt: Message = None,
    system: System = None,
    file: question.ChatFiles = None,
    logprobs: question.Logprobs = None,
    asked: question.RequestOptions = question.RequestOptions(),
    inventory: InventoryPath = None,
    as_json: Json = False,
) -> None:
    """Talk with the served model."""
    with Session(inventory, as_json=as_json) as session:
        given, model, of_prompt = _own_fields(asked)
        _ensure_printable(given, as_json=as_json)
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        talk = prompt is None and sys.stdin.isatty() and not as_json
        typed = "" if talk else question.read_prompt(prompt, file or ())
        first = question.content(typed, file or ())
        loaded, schema = session.load(), str(asked.json_schema or "")
        from vllm_cluster.serving.api.answer import CHAT
        from vllm_cluster.serving.endpoint.api import ModelRequest, open_api

        with open_api(loaded) as api:
            api.ensure_fields([CHAT], asked.names)

            def ask(content: object) -> str:
                turn = [*messages, {"role": "user", "content": content}]
                request = ModelRequest(CHAT, {**given, "messages": turn}, model, logprobs, of_prompt, schema=schema)
                text = _answer(session, api, request).first.text
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
        raise VclusterError(f"cannot read standard input: {error.strerror}", again=()) from None


def _own_fields(asked: question.RequestOptions) -> tuple[dict[str, Any], str | None, int | None]:
    """The fields of the request, and two of them that are read here: the model, and the table of the prompt."""
    given = asked.fields()
    model, number = given.pop("model", None), given.pop("prompt_logprobs", None)
    if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
        raise UsageError(f"--set prompt_logprobs must be a number, got {number!r}", hint="--set prompt_logprobs=5")
    return given, None if model is None else str(model), number


def _ensure_printable(given: Mapping[str, Any], *, as_json: bool) -> None:
    """Refuse several answers where they would be mixed."""
    if (given.get("n") or 1) != 1 and not as_json:
        raise UsageError(f"n={given['n']}: several answers are printed as JSON", again=("--json",))


def _answer(session: Session, api: ModelApi, question: ModelRequest) -> ModelReply:
    """Ask, and print the answer, its tables and what it took; an answer that breaks off as far as it came."""
    from vllm_cluster.features.ask.render import Printer, answer_document, summarize_reply, tables
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
            out(*with_ends(tables(reply)), end="")
        if SETTINGS.verbosity >= 0 and reply.answers and not session.as_json:
            err(summarize_reply(reply, incomplete=incomplete))
    return reply
