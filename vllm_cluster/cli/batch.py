"""`vcluster batch`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vllm_cluster.cli import question
from vllm_cluster.cli.options import InventoryPath, Json
from vllm_cluster.cli.sampling import with_sampling
from vllm_cluster.cli.session import Session
from vllm_cluster.errors import UsageError

if TYPE_CHECKING:
    from vllm_cluster.actions.batch_on_head import HeadBatch
    from vllm_cluster.batch.work import BatchResult

LIVE_SECONDS, LINE_SECONDS = 1.0, 10.0

Source = Annotated[
    Path | None,
    typer.Argument(metavar="IN", help="Requests in OpenAI's batch format, one a line; or a JSON array of prompts."),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="OUT", help="Where answers are added; one that exists is continued."),
]
Errors = Annotated[
    Path | None,
    typer.Option("--errors", metavar="FILE", help="Where lines without an answer go. Default: OUT with .errors."),
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
    ),
]
RetryTimeout = Annotated[
    float,
    typer.Option(
        "--retry-timeout",
        metavar="DURATION",
        min=0,
        max=1e9,
        help="Longest wait for a model or a connection to come back.",
    ),
]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="DURATION", min=1, max=1e6, help="Longest wait for one answer.")
]
OnHead = Annotated[
    bool,
    typer.Option(
        "--on-head",
        help="Answer on the head, also while this machine is off. Run it again to fetch.",
    ),
]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="With --on-head: fetch what there is, and return.")]
List = Annotated[
    bool, typer.Option("--list", "-l", help="Show the batches on the head whose answers are not all fetched.")
]
Cancel = Annotated[bool, typer.Option("--cancel", help="With --on-head: stop it, and fetch what is answered.")]


@with_sampling
def batch(
    sampling: Mapping[str, Any],
    source: Source = None,
    output: Output = None,
    errors: Errors = None,
    repeat: Repeat = 1,
    concurrency: Concurrent = None,
    set_: question.Set = None,
    on_head: OnHead = False,
    detach: Detach = False,
    cancel: Cancel = False,
    list_: List = False,
    retry_timeout: RetryTimeout = 3600.0,
    timeout: Timeout = 3600.0,
    inventory: InventoryPath = None,
    as_json: Json = False,
) -> None:
    """Answer a file of requests with the served model."""
    with Session(inventory, as_json=as_json) as session:
        if list_:
            _list(session, retry_timeout, given=source is not None or output is not None)
            return
        if source is None:
            text = "IN is missing: --list shows the batches on the head" if on_head else "IN is missing"
            raise UsageError(text, hint="vcluster batch --list" if on_head else "vcluster batch --help")
        out = _out_of(source, output)
        _ensure_one_way(on_head=on_head, detach=detach, cancel=cancel)
        fields = question.fields(sampling, set_ or (), None)
        loaded = session.load()
        from vllm_cluster.actions.batch import CEILING
        from vllm_cluster.actions.batch_on_head import HeadBatch
        from vllm_cluster.batch.engine import Options
        from vllm_cluster.batch.work import BatchFiles
        from vllm_cluster.laptop import expanded

        files = BatchFiles(expanded(source), out, expanded(errors) if errors else _errors_of(out))
        live = sys.stderr.isatty() and not as_json
        seconds = LIVE_SECONDS if live else LINE_SECONDS
        options = Options(repeat, fields, concurrency, CEILING, timeout, seconds)
        if on_head:
            _on_head(session, HeadBatch(loaded, files, options, retry_timeout), detach=detach, cancel=cancel)
            return
        from vllm_cluster.actions.batch import batch as answer

        _show(session, answer(loaded, files, options, session.emit, wait=retry_timeout), files.source, files.errors)


def _out_of(source: Path, output: Path | None) -> Path:
    """Where answers go, once it is known that there is an input."""
    from vllm_cluster.laptop import expanded

    if output is None:
        raise UsageError("missing -o OUT", again=("-o", "answers.jsonl"))
    if str(source) == "-":
        text = "IN must be a file: it is read twice, and again to continue"
        raise UsageError(text, hint="cat > requests.jsonl\nvcluster batch requests.jsonl -o answers.jsonl")
    if not expanded(source).is_file():
        hint = 'echo \'["The capital of France is", "A river"]\' > prompts.json'
        hint += f"\nvcluster batch prompts.json -o {output}"
        raise UsageError(f"{source} is not a file", hint=hint)
    out = expanded(output)
    # It has a name with .errors beside it.
    if not out.name:
        hint = shlex.join(["vcluster", "batch", str(source), "-o", "answers.jsonl"])
        raise UsageError(f"cannot write {out}: Is a directory", hint=hint)
    return out


def _ensure_one_way(*, on_head: bool, detach: bool, cancel: bool) -> None:
    if (detach or cancel) and not on_head:
        raise UsageError("--detach and --cancel are for a batch on the head", again=("--on-head",))
    if detach and cancel:
        raise UsageError("--detach and --cancel exclude each other", hint="vcluster batch --help")


def _list(session: Session, retry_timeout: float, *, given: bool) -> None:
    if given:
        raise UsageError("--list shows all batches on the head: use it without IN and -o", hint="vcluster batch --list")
    loaded = session.load()
    from vllm_cluster.actions.batches import batches
    from vllm_cluster.cli.render.batches import batches_document, show_batches

    found = batches(loaded, session.progress, wait=retry_timeout)
    session.show(
        lambda: batches_document(loaded.head_name, found), lambda: show_batches(loaded.head_name, found, session.paste)
    )


def _errors_of(output: Path) -> Path:
    return output.with_suffix(f".errors{output.suffix or '.jsonl'}")


def _on_head(session: Session, wanted: HeadBatch, *, detach: bool, cancel: bool) -> None:
    from vllm_cluster.actions.batch_on_head import batch_on_head
    from vllm_cluster.actions.batch_on_head import cancel as cancel_batch
    from vllm_cluster.events import Event
    from vllm_cluster.text import count

    files, head = wanted.files, wanted.inventory.head_name
    if cancel:
        found = cancel_batch(wanted, session.emit)
        text = f"Stopped on {head}; {found.answered} of {count(found.total, 'request')} are answered in {files.output}"
        session.emit(Event("result", text, data=asdict(found)))
        return
    found, runs = batch_on_head(wanted, session.emit, detach=detach)
    if not runs:
        _show(session, found, files.source, files.errors)
        return
    text = (
        f"{found.answered} of {count(found.total, 'request')} are answered in {files.output}; {head} answers the rest, "
    )
    session.emit(Event("result", text + "and the same command fetches it", data={"host": head, **asdict(found)}))


def _show(session: Session, result: BatchResult, source: Path, errors: Path) -> None:
    from vllm_cluster.errors import VclusterError
    from vllm_cluster.events import Event
    from vllm_cluster.text import count

    tokens = result.prompt_tokens + result.completion_tokens
    of_prompts = f", {result.prompt_tokens} of them of prompts" if result.completion_tokens else ""
    rate = f", {tokens} tokens at {tokens / result.seconds:.0f}/s{of_prompts}" if tokens and result.seconds else ""
    if result.answered_now:
        before = result.answered - result.answered_now
        earlier = f", {before} of {result.total} before" if before else ""
        text = f"Answered {count(result.answered_now, 'request')}{earlier}{rate}"
    else:
        text = f"{result.answered} of {count(result.total, 'request')} were answered before"
    session.emit(Event("result", text, data=asdict(result)))
    if result.failed:
        lines = count(result.failed, "request")
        message = f"{lines} without an answer: {errors} has the reasons"
        if result.invalid == result.failed:
            raise VclusterError(message, hint=f"correct them in {source}, then run the same command again")
        raise VclusterError(message, again=())
