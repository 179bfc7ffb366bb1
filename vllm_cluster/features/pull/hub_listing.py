"""Asks the hub what a repository holds, from the host that would download it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_cluster.kernel.errors import CommandFailed, PreflightFailed, Unreachable, VclusterError
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.hosts.program import MAX_BYTES, MAX_LINE, Place, python, run_program
from vllm_cluster.kernel.plan.cached_model import REPOSITORY
from vllm_cluster.kernel.plan.pull import COMMIT, HubModel, through_folder, unfit_path
from vllm_cluster.kernel.text import end_of
from vllm_cluster.wire.pull import HubAnswer, ModelFile
from vllm_cluster.wire.reading import RefusedDocument, convert
from vllm_cluster.wire.values import Url

# Four tries of two requests, and a start of Python with the hub's library.
ASK_SECONDS = 150.0
# What the hub has of that, and of what a program may print: the program itself reports a hub that is too slow, or sends
# too much, before it is ended.
HUB_SECONDS, HUB_BYTES = 120.0, MAX_BYTES - MAX_LINE


class NoSuchModel(PreflightFailed):
    """The hub has no model of that name."""

    code = "no-such-model"


def ask_hub(connection: HostConnection, place: Place, question: Mapping[str, Any]) -> HubModel:
    """The repository at the commit behind the revision; the question has model, revision, token and endpoint.

    Raises:
        PreflightFailed: it is not there, not given to us, or what the hub answers cannot be.
        Unreachable: the hub cannot be reached from that host, or is too slow.
        HostError: the program gave no answer.
    """
    first = {**question, "seconds": HUB_SECONDS, "most": HUB_BYTES}
    program = python("features.pull.on_host", "hub_listing", seconds=ASK_SECONDS)
    ended = run_program(connection, program, place, connection.runtime.after(ASK_SECONDS + 10), first)
    rows, host, model = ended.messages, connection.name, question["model"]
    last = next((row for row in rows if "commit" in row or "problem" in row), None)
    if last is None:
        end = end_of(ended.text, 300)
        what = f"the image's huggingface_hub gave no answer: {end}"
        raise CommandFailed(host, f"pull: {what}", exit_code=ended.code, stderr=end, again=())
    try:
        answer = convert(HubAnswer, last, model)
        files = tuple(convert(ModelFile, row, model) for row in rows if "path" in row)
    except RefusedDocument as refused:
        fix = "set HF_ENDPOINT to https://HOST" if refused.field == "endpoint" else "vcluster pull ORG/NAME@REVISION"
        text = f"{host}: pull: {model} lists what cannot be: {refused.field} {refused.why}"
        raise PreflightFailed(text, hint=fix) from None
    if answer.problem:
        raise _refusal(host, question, answer)
    if not files:
        raise PreflightFailed(f"{host}: pull: {model} has no files", hint="check the name: ORG/NAME")
    wrong = next((file.path for file in files if not file.blob), unfit_path(files))
    if wrong is not None:
        raise PreflightFailed(
            f"{host}: pull: {model} lists a file that cannot be: {wrong[:80]!a}", hint="vcluster pull ORG/NAME@REVISION"
        )
    if not (answer.commit and REPOSITORY.fullmatch(answer.name)):
        raise PreflightFailed(
            f"{host}: pull: {model} is listed as {answer.name[:80]!a}, or at no commit",
            hint="vcluster pull ORG/NAME@REVISION",
        )
    ensure_asked(question["revision"], answer.commit, f"{host}: pull: {Url(answer.endpoint)}")
    return HubModel(answer.name, answer.commit, Url(answer.endpoint), files)


def ensure_asked(revision: str, commit: str, who: str) -> None:
    """Refuse another commit than the one that a person named by its digits.

    Raises:
        PreflightFailed: it is another one, with `who` answered so.
    """
    asked = revision.lower()
    if COMMIT.fullmatch(asked) and commit != asked:
        text = f"{who} answers with commit {commit} where {asked} was asked for"
        raise PreflightFailed(text, hint="use another --via HOST, or set HF_ENDPOINT to another hub")


def _refusal(host: str, question: Mapping[str, Any], answer: HubAnswer) -> VclusterError:
    endpoint, code, model, revision = Url(answer.endpoint), answer.code, question["model"], question["revision"]
    how = "with the token that is set" if question["token"] else "without a token"
    page = f"{endpoint}/{model}"
    elsewhere = "use --via HOST with a host that reaches it, or set HF_ENDPOINT to a mirror"
    elsewhere += f"\nor through a folder here:\n{through_folder(model)}"
    access = f"open {page} and accept its terms\nset hf_token in the inventory to a token of that account"
    texts = {
        "gated": (f"{model} is gated: {endpoint} answers {code} {how}", access),
        "missing": (
            f"{endpoint} has no {model}, or it is private ({how})",
            "check the name: ORG/NAME\nor, if it is private, set hf_token in the inventory",
        ),
        "revision": (f"{model} has no revision {revision}", f"open {page}/branches/main"),
        "name": (f"{model}: {answer.words}", "check the name: ORG/NAME"),
        "answer": (f"{endpoint} answers {code} for {model}", "try again later, or set HF_ENDPOINT"),
        "wrong": (
            f"what {endpoint} answers for {model} is not the list of a model's files",
            f"open {endpoint}/api/models/{model}\nor set HF_ENDPOINT to another hub",
        ),
        "many": (
            f"{endpoint} lists {answer.words} for {model}, more than a pull can have",
            "vcluster pull ORG/NAME@REVISION\nor set HF_ENDPOINT to another hub",
        ),
        "unreachable": (f"cannot reach {endpoint}: {answer.words}", elsewhere),
        "slow": (f"{endpoint} is too slow: no list of {model} in {HUB_SECONDS:.0f} s", elsewhere),
    }
    text, hint = texts[answer.problem]
    if answer.problem in ("unreachable", "slow"):
        return Unreachable(host, f"pull: {text}", hint=hint)
    # A name that is none may be misspelt; of any other the hub has this model.
    kind = NoSuchModel if answer.problem in ("missing", "name") else PreflightFailed
    return kind(f"{host}: pull: {text}", hint=hint)
