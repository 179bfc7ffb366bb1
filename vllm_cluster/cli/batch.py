"""`vcluster batch`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vllm_cluster.cli import question
from vllm_cluster.cli.options import InventoryPath, Json
from vllm_cluster.cli.sampling import with_sampling
from vllm_cluster.cli.session import Session
from vllm_cluster.errors import UsageError

if TYPE_CHECKING:
    from vllm_cluster.actions.batch import BatchResult

LIVE_SECONDS, LINE_SECONDS = 1.0, 10.0

Source = Annotated[
    Path,
    typer.Argument(metavar="IN", help="Requests in OpenAI's batch format, one a line; or a JSON array of prompts."),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="OUT", help="Where answers are added; one that exists is continued."),
]
Errors = Annotated[
    Path | None,
    typer.Option(
        "--errors",
        metavar="FILE",
        help="Where lines without an answer go. Default: OUT with .errors.",
        show_default=False,
    ),
]
Repeat = Annotated[int, typer.Option("--repeat", metavar="N", min=1, max=1_000_000, help="Ask each line N times.")]
Concurrent = Annotated[
    int | None,
    typer.Option(
        "--concurrency",
        metavar="N",
        min=1,
        max=500,
        help="Requests open at once. Default: found from the server's queue.",
        show_default=False,
    ),
]
Away = Annotated[
    float,
    typer.Option(
        "--wait", metavar="DURATION", min=0, max=1e9, help="Longest wait for a model or a connection to come back."
    ),
]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="DURATION", min=1, max=1e6, help="Longest wait for one answer.")
]


@with_sampling
def batch(
    sampling: Mapping[str, Any],
    source: Source,
    output: Output = None,
    errors: Errors = None,
    repeat: Repeat = 1,
    concurrency: Concurrent = None,
    set_: question.Set = None,
    wait: Away = 3600.0,
    timeout: Timeout = 3600.0,
    inventory: InventoryPath = None,
    as_json: Json = False,
) -> None:
    """Answer a file of requests with the served model."""

    def action(session: Session) -> None:
        if output is None:
            raise UsageError("missing -o OUT", again=("-o", "answers.jsonl"))
        if str(source) == "-":
            text = "IN must be a file: it is read twice, and again to continue"
            raise UsageError(text, hint="cat > requests.jsonl\nvcluster batch requests.jsonl -o answers.jsonl")
        if not source.expanduser().is_file():
            raise UsageError(f"{source} is not a file", hint="name a file of requests: docs/batch.md shows one")
        fields = question.fields(sampling, set_ or (), None)
        loaded = session.load()
        from vllm_cluster.actions import batch as action
        from vllm_cluster.batch.engine import Options
        from vllm_cluster.laptop import expanded

        out = expanded(output)
        files = action.BatchFiles(expanded(source), out, expanded(errors) if errors else _errors_of(out))
        live = sys.stderr.isatty() and not as_json
        seconds = LIVE_SECONDS if live else LINE_SECONDS
        options = Options(repeat, fields, concurrency, action.CEILING, timeout, seconds)
        result = action.batch(loaded, files, options, session.emit, wait=wait)
        _show(session, result, files.source, files.errors)

    Session(inventory, as_json=as_json).run(action)


def _errors_of(output: Path) -> Path:
    return output.with_suffix(f".errors{output.suffix or '.jsonl'}")


def _show(session: Session, result: BatchResult, source: Path, errors: Path) -> None:
    from dataclasses import asdict

    from vllm_cluster.errors import VclusterError
    from vllm_cluster.events import Event
    from vllm_cluster.text import age, count

    tokens = result.prompt_tokens + result.completion_tokens
    of_prompts = f", {result.prompt_tokens} of them of prompts" if result.completion_tokens else ""
    rate = f", {tokens} tokens at {tokens / result.seconds:.0f}/s{of_prompts}" if tokens and result.seconds else ""
    text = f"Answered {result.now} of {count(result.total, 'request')} in {age(result.seconds)}{rate}"
    before = result.answered - result.now
    text += f"; {before} were answered before" if before else ""
    session.emit(Event("result", text, data=asdict(result)))
    if result.failed:
        lines = count(result.failed, "request")
        message = f"{lines} without an answer: {errors} has the reasons"
        if result.invalid == result.failed:
            raise VclusterError(message, hint=f"correct them in {source}, then run the same command again")
        raise VclusterError(message, again=())
