"""What a host's huggingface_hub prints of a repository, and what is believed of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vllm_cluster.features.pull import hub_listing
from vllm_cluster.kernel.errors import CommandFailed, PreflightFailed, Unreachable, VclusterError
from vllm_cluster.kernel.hosts.program import BEGIN_SECONDS, RemoteProgram
from vllm_cluster.kernel.hosts.runtime import SYSTEM
from vllm_cluster.kernel.plan.pull import HubModel

QUESTION = {"model": "lab/model", "revision": "", "token": "", "endpoint": ""}
FILE = {"path": "config.json", "size": 2, "blob": "a" * 40}
END = {"commit": "c" * 40, "name": "lab/model", "endpoint": "http://hub"}


PROBLEMS = ["gated", "missing", "revision", "name", "answer", "unreachable", "wrong", "many", "slow"]


def asked(monkeypatch: pytest.MonkeyPatch, *rows: dict[str, Any], revision: str = "") -> HubModel:
    """What is found where the program prints these rows."""
    ended = SimpleNamespace(messages=rows, text="no module", code=1)

    def run(_: object, program: RemoteProgram, _place: object, _deadline: object, first: dict[str, Any]) -> Any:
        # It reports what is wrong with the hub before it is ended.
        assert first["most"] < program.max_bytes and first["seconds"] + 20 < program.seconds - BEGIN_SECONDS
        return ended

    monkeypatch.setattr(hub_listing, "run_program", run)
    connection: Any = SimpleNamespace(name="gpu1", runtime=SYSTEM)
    place: Any = None
    return hub_listing.ask_hub(connection, place, {**QUESTION, "revision": revision})


def test_a_program_without_an_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [file.path for file in asked(monkeypatch, FILE, END).files] == ["config.json"]
    with pytest.raises(CommandFailed, match="gave no answer: no module"):
        asked(monkeypatch, FILE)


# fault: features/pull/hub_listing.py: if COMMIT.fullmatch(asked) and commit != asked: → if False:
def test_another_commit_than_the_one_that_was_named_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was pulled, and the one that was named became a branch that pointed to it."""
    for revision in ("", "main", "c" * 40, "C" * 40, "d" * 39):
        assert asked(monkeypatch, FILE, END, revision=revision).commit == "c" * 40
    with pytest.raises(PreflightFailed) as refused:
        asked(monkeypatch, FILE, END, revision="d" * 40)
    text = f"gpu1: pull: http://hub answers with commit {'c' * 40} where {'d' * 40} was asked for"
    assert (refused.value.message, refused.value.hint) == (
        text,
        "use another --via HOST, or set HF_ENDPOINT to another hub",
    )


@pytest.mark.parametrize(
    ("problem", "kind", "text"),
    [
        ("wrong", PreflightFailed, "what http://hub answers for lab/model is not the list of a model's files"),
        ("many", PreflightFailed, "http://hub lists 60000 files for lab/model, more than a pull can have"),
        # As where it cannot be reached, the files may be those of a manifest.
        ("slow", Unreachable, "http://hub is too slow: no list of lab/model in 120 s"),
    ],
)
def test_what_the_hub_does_is_not_charged_to_the_host(
    monkeypatch: pytest.MonkeyPatch, problem: str, kind: type[VclusterError], text: str
) -> None:
    with pytest.raises(kind) as refused:
        asked(monkeypatch, {"endpoint": "http://hub", "problem": problem, "words": "60000 files"})
    assert text in refused.value.message
    assert "HF_ENDPOINT" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("row", "end"),
    [
        ({"size": -1}, {}),
        ({"size": 10**30}, {}),
        ({"size": None}, {}),
        ({"blob": ""}, {}),
        ({"blob": "../../x"}, {}),
        ({"path": "../x"}, {}),
        ({}, {"commit": "../../models--victim--model/snapshots/b"}),
        ({}, {"commit": "/etc"}),
        ({}, {"name": "lab/model; touch X #"}),
    ],
)
def test_what_no_hub_can_list_is_refused(
    monkeypatch: pytest.MonkeyPatch, row: dict[str, Any], end: dict[str, Any]
) -> None:
    with pytest.raises(PreflightFailed, match=r"lab/model (lists|is listed as)"):
        asked(monkeypatch, {**FILE, **row}, {**END, **end})


# fault: wire/values.py: return _LOGIN.sub("://", text) → return text
@pytest.mark.parametrize("problem", PROBLEMS)
def test_no_login_of_the_hubs_address_is_shown(monkeypatch: pytest.MonkeyPatch, problem: str) -> None:
    url = "https://bob:ge@heim@hub.lab/x"
    row = {"endpoint": url, "problem": problem, "code": 401, "words": f"401 for url: {url}\x1b[2J"}
    with pytest.raises((PreflightFailed, Unreachable)) as refused:
        asked(monkeypatch, row)
    text = f"{refused.value} {refused.value.hint}"
    assert "heim" not in text and "bob" not in text and "\x1b" not in text
    model = asked(monkeypatch, FILE, {**END, "endpoint": url})
    assert (str(model.endpoint), model.endpoint.whole) == ("https://hub.lab/x", url)
    assert "heim" not in repr(model)


# fault: wire/pull.py: endpoint: HubUrl → endpoint: Text
@pytest.mark.parametrize(
    "row",
    [
        *({"problem": "other"}, {"problem": {}}, {"problem": "gated", "code": "x"}, {"commit": 1}),
        # What follows is shown behind "fix: open".
        *({"problem": "gated", "endpoint": f"{one}touch FILE #"} for one in ("x; ", "http://a\u2028", "http://a/ ")),
        *({"problem": "gated", "endpoint": one} for one in ("file:///etc", "http://a/?a=$(x)", "http://a\u202e")),
    ],
)
def test_what_no_program_prints_is_refused(monkeypatch: pytest.MonkeyPatch, row: dict[str, Any]) -> None:
    with pytest.raises(PreflightFailed, match="lists what cannot be"):
        asked(monkeypatch, FILE, {"endpoint": "http://hub", **row})
