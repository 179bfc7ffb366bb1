"""What a host's huggingface_hub prints of a repository, and what is believed of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vllm_cluster.features.pull import hub_listing
from vllm_cluster.kernel.errors import CommandFailed, PreflightFailed, Unreachable
from vllm_cluster.kernel.hosts.runtime import SYSTEM
from vllm_cluster.kernel.plan.pull import HubModel

QUESTION = {"model": "lab/model", "revision": "", "token": "", "endpoint": ""}
FILE = {"path": "config.json", "size": 2, "blob": "a" * 40}
END = {"commit": "c" * 40, "name": "lab/model", "endpoint": "http://hub"}


def asked(monkeypatch: pytest.MonkeyPatch, *rows: dict[str, Any]) -> HubModel:
    """What is found where the program prints these rows."""
    ended = SimpleNamespace(messages=rows, text="no module", code=1)
    monkeypatch.setattr(hub_listing, "run_program", lambda *_: ended)
    connection: Any = SimpleNamespace(name="gpu1", runtime=SYSTEM)
    place: Any = None
    return hub_listing.ask_hub(connection, place, QUESTION)


def test_a_program_without_an_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [file.path for file in asked(monkeypatch, FILE, END).files] == ["config.json"]
    with pytest.raises(CommandFailed, match="gave no answer: no module"):
        asked(monkeypatch, FILE)


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
@pytest.mark.parametrize("problem", ["gated", "missing", "revision", "name", "answer", "unreachable"])
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
