"""Asks the hub what a repository holds, from the host that would download it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_cluster.core.pull import HubFile, HubModel, unfit_path
from vllm_cluster.errors import CommandFailed, PreflightFailed, Unreachable, VclusterError
from vllm_cluster.run.connection import HostConnection
from vllm_cluster.run.program import Place, python, run

# Four tries of two requests, and a start of Python with the hub's library.
ASK_SECONDS = 150.0


def ask_hub(connection: HostConnection, place: Place, question: Mapping[str, Any]) -> HubModel:
    """The repository at the commit behind the revision; the question has model, revision, token, endpoint and measure.

    Raises:
        PreflightFailed: it is not there, or not given to us.
        Unreachable: the hub cannot be reached from that host.
        HostError: the program gave no answer.
    """
    program = python("image", "hub_files", seconds=ASK_SECONDS)
    model = question["model"]
    ended = run(connection, program, place, connection.runtime.after(ASK_SECONDS + 10), question)
    files = [row for row in ended.messages if "path" in row]
    last: dict[str, Any] = next((row for row in ended.messages if "commit" in row or "problem" in row), {})
    if "problem" in last:
        raise _refusal(connection.name, question, last)
    if last and not files:
        raise PreflightFailed(f"{connection.name}: pull: {model} has no files", hint="check the name: ORG/NAME")
    if not last:
        what = f"the image's huggingface_hub gave no answer: {ended.text[-300:]}"
        raise CommandFailed(connection.name, f"pull: {what}", exit_code=ended.code, stderr=ended.text[-300:])
    try:
        found = tuple(HubFile(str(row["path"]), int(row["size"]), str(row["blob"])) for row in files)
    except (TypeError, ValueError):
        raise PreflightFailed(f"{connection.name}: pull: {last['endpoint']} lists no sizes for {model}") from None
    wrong = next((file.path for file in found if not _has_hash(file)), unfit_path(found))
    if wrong is not None:
        raise PreflightFailed(f"{connection.name}: pull: {model} lists a file that cannot be: {wrong[:80]!a}")
    rate = float(last.get("rate") or 0.0)
    return HubModel(str(last["name"]), str(last["commit"]), str(last["endpoint"]), found, rate)


def _has_hash(file: HubFile) -> bool:
    return len(file.blob) in (40, 64) and all(digit in "0123456789abcdef" for digit in file.blob)


def _refusal(host: str, question: Mapping[str, Any], last: dict[str, Any]) -> VclusterError:
    endpoint, code, model, revision = last["endpoint"], last["code"], question["model"], question["revision"]
    how = "with the token that is set" if question["token"] else "without a token"
    page = f"{endpoint}/{model}"
    access = f"open {page} and accept its terms\nset hf_token in the inventory to a token of that account"
    texts = {
        "gated": (f"{model} is gated: {endpoint} answers {code} {how}", access),
        "missing": (f"{endpoint} has no {model}, or it is private ({how})", "check the name: ORG/NAME; set hf_token"),
        "revision": (f"{model} has no revision {revision}", f"open {page}/branches/main"),
        "name": (f"{model}: {last['words']}", "check the name: ORG/NAME"),
        "answer": (f"{endpoint} answers {code} for {model}", "try again later, or set HF_ENDPOINT"),
        "unreachable": (
            f"cannot reach {endpoint}: {last['words']}",
            "use --via HOST with a host that reaches it, or set HF_ENDPOINT to a mirror",
        ),
    }
    text, hint = texts[last["problem"]]
    if last["problem"] == "unreachable":
        return Unreachable(host, f"pull: {text}", hint=hint)
    return PreflightFailed(f"{host}: pull: {text}", hint=hint)
