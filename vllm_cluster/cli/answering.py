"""One question and its answer on the screen, whole or as far as it came."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vllm_cluster.cli.session import SETTINGS, Session
from vllm_cluster.errors import UsageError

if TYPE_CHECKING:
    from vllm_cluster.actions.ask import ModelApi, ModelRequest
    from vllm_cluster.core.answer import ModelReply


def ensure_printable(given: Mapping[str, Any], *, as_json: bool) -> None:
    """Refuse several answers where they would be mixed."""
    if (given.get("n") or 1) != 1 and not as_json:
        raise UsageError(f"n={given['n']}: several answers are printed as JSON", again=("--json",))


def answer(session: Session, api: ModelApi, question: ModelRequest) -> ModelReply:
    """Ask, and print the answer, its tables and what it took; an answer that breaks off as far as it came."""
    import json

    from vllm_cluster.cli.render.answer import Printer, answer_document, summary, tables
    from vllm_cluster.core.answer import ModelReply

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
            print(json.dumps(answer_document(question.model or api.model, reply)), flush=True)
        elif reply.answers:
            sys.stdout.writelines(f"{line}\n" for line in tables(reply))
            sys.stdout.flush()
        if SETTINGS.verbosity >= 0 and reply.answers and not session.as_json:
            sys.stderr.write(summary(reply, incomplete=incomplete) + "\n")
    return reply
