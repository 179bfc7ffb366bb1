"""`vcluster batch`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.terminal.options import InventoryPath, Json
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.serving.api import question

if TYPE_CHECKING:
    from vllm_cluster.features.batch.on_head.files import BatchFiles, BatchResult

LIVE_SECONDS, LINE_SECONDS = 1.0, 10.0
# The longest wait for one whole answer, and for a model or a connection to come back.
ANSWER_SECONDS = RETRY_SECONDS = 3600.0

Source = Annotated[
    Path | None,
    typer.Argument(metavar="IN", help="Requests in OpenAI's batch format, one a line; or a JSON array of prompts."),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="OUT", help="Where answers are added; one that exists is continued."),
]
Concurrent = Annotated[
    int | None,
    typer.Option(
        "--concurrency",
        metavar="N",
        min=1,
        max=1024,
        help="Requests open at once. Default: found from the server's queue.",
    ),
]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Fetch what there is, and return; the head continues.")]
List = Annotated[
    bool, typer.Option("--list", "-l", help="Show the batches on the head whose answers are not all fetched.")
]
Cancel = Annotated[bool, typer.Option("--cancel", help="Stop it, and fetch what is answered.")]


@question.asks
def batch(
    source: Source = None,
    output: Output = None,
    concurrency: Concurrent = None,
    asked: question.RequestOptions = question.RequestOptions(),
    detach: Detach = False,
    cancel: Cancel = False,
    list_: List = False,
    inventory: InventoryPath = None,
    as_json: Json = False,
) -> None:
    """Answer a file of requests with the served model."""
    with Session(inventory, as_json=as_json) as session:
        if list_:
            _list(session, given=source is not None or output is not None)
            return
        files = _files(source, output)
        if detach and cancel:
            raise UsageError("--detach and --cancel exclude each other", hint="vcluster batch --help")
        fields = asked.fields()
        loaded = session.load()
        from vllm_cluster.features.batch import action
        from vllm_cluster.kernel.events import Event
        from vllm_cluster.kernel.text import count

        seconds = LIVE_SECONDS if sys.stderr.isatty() and not as_json else LINE_SECONDS
        wanted = action.Batch(loaded, files, fields, concurrency, ANSWER_SECONDS, RETRY_SECONDS, seconds)
        if cancel:
            found = action.cancel_batch(wanted, session.emit)
            text = f"Stopped on {loaded.head_name}; {found.answered} of {count(found.total, 'request')} are answered"
            session.emit(Event("result", f"{text} in {files.output}", data=asdict(found)))
            return
        found, runs = action.answer_batch(wanted, session.emit, detach=detach)
        if not runs:
            _show(session, found, files)
            return
        text = f"{found.answered} of {count(found.total, 'request')} are answered in {files.output}; "
        text += f"{loaded.head_name} answers the rest, and the same command fetches it"
        session.emit(Event("result", text, data={"host": loaded.head_name, **asdict(found)}))


def _files(source: Path | None, output: Path | None) -> BatchFiles:
    """The input and where answers go, once it is known that there is an input."""
    from vllm_cluster.features.batch.on_head.files import BatchFiles
    from vllm_cluster.kernel.laptop import expanded

    if source is None:
        raise UsageError("IN is missing: --list shows the batches on the head", hint="vcluster batch --list")
    if output is None:
        raise UsageError("missing -o OUT", again=("-o", "answers.jsonl"))
    if not expanded(source).is_file():
        raise _no_input(source, output)
    out = expanded(output)
    # It has a name with .errors beside it.
    if not out.name:
        hint = command_line("vcluster", "batch", str(source), Option("-o"), "answers.jsonl")
        raise UsageError(f"cannot write {out}: Is a directory", hint=hint)
    return BatchFiles(expanded(source), out)


def _no_input(source: Path, output: Path) -> UsageError:
    from vllm_cluster.kernel.laptop import expanded

    if str(source) == "-" or expanded(source).exists():
        text = f"{source} is not a file; a batch reads its input again when it continues"
        return UsageError(text, hint="save the requests in a file, and name that")
    example = Path("prompts.json")
    if example.exists():
        return UsageError(f"{source} is not there", hint=command_line("stat", str(source.parent)))
    hint = f'echo \'["The capital of France is", "A river"]\' > {example}'
    hint += "\n" + command_line("vcluster", "batch", str(example), Option("-o"), str(output))
    return UsageError(f"{source} is not there", hint=hint)


def _list(session: Session, *, given: bool) -> None:
    if given:
        raise UsageError("--list shows all batches on the head: use it without IN and -o", hint="vcluster batch --list")
    loaded = session.load()
    from vllm_cluster.features.batch.jobs import batches
    from vllm_cluster.features.batch.render import batches_document, show_batches

    found = batches(loaded, session.progress)
    session.show(lambda: batches_document(loaded.head_name, found), lambda: show_batches(loaded.head_name, found))


def _show(session: Session, result: BatchResult, files: BatchFiles) -> None:
    from vllm_cluster.kernel.errors import VclusterError
    from vllm_cluster.kernel.events import Event
    from vllm_cluster.kernel.text import count

    tokens = result.prompt_tokens + result.completion_tokens
    of_prompts = f", {result.prompt_tokens} of them of prompts" if result.completion_tokens else ""
    before = result.answered - result.answered_now
    # The head counts the tokens of the whole batch: those of an earlier call took none of this one's time.
    speed = f" at {tokens / result.seconds:.0f}/s" if result.seconds and not before else ""
    rate = f", {tokens} tokens{speed}{of_prompts}" if tokens else ""
    if result.answered_now:
        earlier = f", {before} of {result.total} before" if before else ""
        text = f"Answered {count(result.answered_now, 'request')}{earlier}{rate}"
    else:
        text = f"{result.answered} of {count(result.total, 'request')} were answered before"
    session.emit(Event("result", text, data=asdict(result)))
    if result.failed:
        message = f"{count(result.failed, 'request')} without an answer: {files.errors} has the reasons"
        hint = f"correct them in {files.source} where they are wrong, then run the same command again"
        raise VclusterError(message, hint=hint)
