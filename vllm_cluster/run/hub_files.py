"""Asks the hub what a repository holds, from the host or the machine that would download it."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from importlib.resources import files as resources
from typing import Any

from vllm_cluster.core.pull import COMMIT, REPOSITORY, HubFile, HubModel, unfit_path
from vllm_cluster.errors import CommandFailed, PreflightFailed, Unreachable, VclusterError
from vllm_cluster.laptop import THIS_MACHINE, own_python, require_library
from vllm_cluster.run.connection import HostConnection
from vllm_cluster.run.program import Place, message_in, python, run
from vllm_cluster.run.runtime import Runtime

# Four tries of two requests, and a start of Python with the hub's library.
ASK_SECONDS = 150.0
LIBRARY, VERSION = "huggingface_hub", "1.0"


def ask_hub(connection: HostConnection, place: Place, question: Mapping[str, Any]) -> HubModel:
    """The repository at the commit behind the revision; the question has model, revision, token and endpoint.

    Raises:
        PreflightFailed: it is not there, or not given to us.
        Unreachable: the hub cannot be reached from that host.
        HostError: the program gave no answer.
    """
    program = python("image", "hub_files", seconds=ASK_SECONDS)
    ended = run(connection, program, place, connection.runtime.after(ASK_SECONDS + 10), question)
    found = _listed(connection.name, question, ended.messages)
    if found is None:
        what = f"the image's huggingface_hub gave no answer: {ended.text[-300:]}"
        raise CommandFailed(connection.name, f"pull: {what}", exit_code=ended.code, stderr=ended.text[-300:])
    return found


def ask_hub_here(runtime: Runtime, question: Mapping[str, Any]) -> HubModel:
    """As `ask_hub`, from this machine and with its own huggingface_hub.

    Raises:
        PreflightFailed: this machine has no huggingface_hub; or as `ask_hub`.
        Unreachable: the hub cannot be reached from here.
    """
    require_library(LIBRARY, VERSION)
    source = resources("vllm_cluster.remote.image").joinpath("hub_files.py").read_text()
    try:
        # The question has the token: not among the arguments, which every user of this machine can read.
        ended = own_python(
            runtime.processes,
            ["-c", source],
            input=json.dumps(question) + "\n",
            capture_output=True,
            text=True,
            timeout=ASK_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unreachable(THIS_MACHINE, f"pull: the hub did not answer within {ASK_SECONDS:.0f} s") from None
    rows = [row for line in ended.stdout.splitlines() if (row := message_in(line.encode()))]
    found = _listed(THIS_MACHINE, question, rows)
    if found is None:
        why = ended.stderr.strip().split("\n")[-1][-300:]
        raise PreflightFailed(f"{THIS_MACHINE}: pull: {LIBRARY} gave no answer: {why}")
    return found


def _listed(host: str, question: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> HubModel | None:
    """The answer of the program that asked the hub; None where there is none."""
    model = question["model"]
    files = [row for row in rows if "path" in row]
    last = next((row for row in rows if "commit" in row or "problem" in row), None)
    if last is None:
        return None
    if "problem" in last:
        raise _refusal(host, question, last)
    if not files:
        raise PreflightFailed(f"{host}: pull: {model} has no files", hint="check the name: ORG/NAME")
    name, commit = str(last.get("name")), str(last["commit"])
    try:
        found = tuple(HubFile.read(row) for row in files)
    except ValueError as error:
        raise PreflightFailed(f"{host}: pull: {model} lists {error}") from None
    wrong = next((file.path for file in found if not file.blob), unfit_path(found))
    if wrong is not None:
        raise PreflightFailed(f"{host}: pull: {model} lists a file that cannot be: {wrong[:80]!a}")
    if not (COMMIT.fullmatch(commit) and REPOSITORY.fullmatch(name)):
        raise PreflightFailed(f"{host}: pull: {model} is listed as {name[:80]!a} at {commit[:80]!a}, which cannot be")
    return HubModel(name, commit, str(last["endpoint"]), found)


def _refusal(host: str, question: Mapping[str, Any], last: Mapping[str, Any]) -> VclusterError:
    endpoint, code, model, revision = last["endpoint"], last["code"], question["model"], question["revision"]
    how = "with the token that is set" if question["token"] else "without a token"
    page = f"{endpoint}/{model}"
    access = f"open {page} and accept its terms\nset hf_token in the inventory to a token of that account"
    own = ""
    if not question["token"] and host != THIS_MACHINE:
        # Its own token stays here: a host gets the one that the inventory has.
        own = f"\nor {shlex.join(['vcluster', 'pull', model, '--via', 'local'])}: with the token of this machine"
    texts = {
        "gated": (f"{model} is gated: {endpoint} answers {code} {how}", access + own),
        "missing": (
            f"{endpoint} has no {model}, or it is private ({how})",
            f"check the name: ORG/NAME\nor, if it is private, set hf_token in the inventory{own}",
        ),
        "revision": (f"{model} has no revision {revision}", f"open {page}/branches/main"),
        "name": (f"{model}: {last['words']}", "check the name: ORG/NAME"),
        "answer": (f"{endpoint} answers {code} for {model}", "try again later, or set HF_ENDPOINT"),
        "format": (
            f"{endpoint} does not answer as a hub: {last['words']}",
            "set HF_ENDPOINT to the address of a hub, in environment of the inventory or here",
        ),
        "unreachable": (
            f"cannot reach {endpoint}: {last['words']}",
            "set HF_ENDPOINT to a mirror, or check the network of this machine"
            if host == THIS_MACHINE
            else "use --via HOST with a host that reaches it, or --via local: this machine downloads it",
        ),
    }
    text, hint = texts[last["problem"]]
    # A login page of a network keeps the hub away, as a cut does: what the hosts have is as good then.
    if last["problem"] in ("unreachable", "format"):
        return Unreachable(host, f"pull: {text}", hint=hint)
    return PreflightFailed(f"{host}: pull: {text}", hint=hint)
