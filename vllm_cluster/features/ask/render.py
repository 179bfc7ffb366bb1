"""An answer as it arrives, the table of its tokens, and what it took."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from vllm_cluster.kernel.terminal.output import data, err, out
from vllm_cluster.kernel.terminal.printable import plain
from vllm_cluster.kernel.terminal.table import columns, table
from vllm_cluster.kernel.text import count
from vllm_cluster.serving.api.answer import ModelReply, Piece, TokenLogprob, probability


class Printer:
    """Writes answers on standard output, and reasoning on standard error; nothing where a document follows."""

    def __init__(self, *, as_json: bool, quiet: bool) -> None:
        self._as_json, self._quiet = as_json, quiet
        self._ends_line = self._reasons_end_line = True

    def show(self, piece: Piece) -> None:
        """Write a piece as it arrives."""
        if self._as_json:
            return
        if piece.reasoning and not self._quiet:
            data(piece.reasoning, of_errors=True)
            self._reasons_end_line = piece.reasoning.endswith("\n")
        if piece.text:
            if not self._reasons_end_line:
                err()
                self._reasons_end_line = True
            self._ends_line = piece.text.endswith("\n")  # before it is written: Ctrl-C may come in between
            data(piece.text)

    def end(self) -> None:
        """End the line, also of an answer that broke off."""
        for ends_line, write in ((self._ends_line, out), (self._reasons_end_line, err)):
            if not ends_line:
                write()
        self._ends_line = self._reasons_end_line = True


def summarize_reply(reply: ModelReply, *, incomplete: bool = False) -> str:
    """How many tokens, how fast, and why it ended."""
    tokens = reply.usage.completion_tokens if reply.usage else 0
    parts = [f"{count(tokens, 'token')} in {reply.seconds:.2f} s"]
    if reply.tokens_per_second is not None and reply.seconds_to_first is not None:
        parts.append(f"the first after {reply.seconds_to_first:.2f} s, then {reply.tokens_per_second:.1f} tokens/s")
    reasons = {answer.finish_reason for answer in reply.answers.values()}
    if incomplete:
        parts.append("incomplete")
    elif "length" in reasons:
        parts.append("cut at max_tokens or at the end of the context")
    return ", ".join(parts)


def tables(reply: ModelReply) -> list[str]:
    """The tokens of the prompt and of the answer, as far as they were asked for."""
    lines: list[str] = []
    for title, rows in (("prompt", reply.prompt_logprobs), ("answer", reply.first.logprobs)):
        if rows:
            lines += ["", f"Tokens of the {title}:", *_table(rows)]
    return lines


def answer_document(model: str, reply: ModelReply) -> dict[str, Any]:
    """The `--json` document."""
    usage = reply.usage
    return {
        "v": 1,
        "model": model,
        "answers": [asdict(reply.answers[index]) for index in sorted(reply.answers)],
        "prompt_logprobs": [asdict(row) for row in reply.prompt_logprobs],
        "prompt_tokens": usage.prompt_tokens if usage else None,
        "completion_tokens": usage.completion_tokens if usage else None,
        "seconds": round(reply.seconds, 3),
        "seconds_to_first": None if reply.seconds_to_first is None else round(reply.seconds_to_first, 3),
        "tokens_per_second": None if reply.tokens_per_second is None else round(reply.tokens_per_second, 1),
    }


def _table(rows: Sequence[TokenLogprob]) -> list[str]:
    cells = [
        {
            "token": _shown(row.token),
            "rank": _rank(row),
            "probability": _percent(row.logprob),
            "most probable": "  ".join(f"{_shown(one.token)} {_percent(one.logprob)}" for one in row.top),
        }
        for row in rows
    ]
    return table({"token": 0, "rank": 0, "probability": 0, "most probable": 0}, cells, columns())


def _rank(row: TokenLogprob) -> str:
    if row.rank is not None or row.logprob is None:
        return str(row.rank or "")
    return "?" if row.merged else f">{len(row.top)}" if row.top else ""


def _shown(token: str) -> str:
    """A token with its spaces and line ends to be seen."""
    return plain(json.dumps(token, ensure_ascii=False))


def _percent(logprob: float | None) -> str:
    found = probability(logprob)
    return "" if found is None else f"{100 * found:.2f} %"
