"""The program that asks the hub for a model, as it runs in a container."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.models.repositories import PullHub, pull_hub
from tests.support.pulls import MODEL, ask_program, model_files, plan_of, repository


@pytest.fixture
def hub() -> Iterator[PullHub]:
    with pull_hub("127.0.0.1", repositories={MODEL: repository(model_files(200_000))}) as made:
        yield made


def asked(hub: PullHub, **more: object) -> list[dict[str, Any]]:
    """What the hub has of a model."""
    question = {"model": MODEL, "revision": "", "token": None, "endpoint": hub.url}
    return ask_program("features.pull.on_host.hub_listing", {**question, **more})


def test_the_hub_names_the_commit_and_the_content_of_each_file(hub: PullHub) -> None:
    *files, last = asked(hub)
    plan = plan_of(hub, Path("/nowhere"))
    assert [(row["path"], row["size"], row["blob"]) for row in files] == [(f.path, f.size, f.blob) for f in plan.files]
    assert last["commit"] == plan.commit


@pytest.mark.parametrize(
    ("question", "problem"),
    [
        ({"model": "lab/none"}, "missing"),
        ({"revision": "nobranch"}, "revision"),
        ({"endpoint": "http://127.0.0.1:1"}, "unreachable"),
        ({"token": "hf_wrong"}, "gated"),
        ({}, "gated"),
        ({"token": "hf_right"}, ""),
    ],
)
@pytest.mark.slow
def test_what_is_wrong_is_known_before_anything_is_moved(hub: PullHub, question: dict[str, str], problem: str) -> None:
    hub.repositories[MODEL].gated = True
    assert asked(hub, **question)[-1].get("problem", "") == problem


@pytest.mark.slow
def test_a_hub_that_is_busy_is_asked_again(hub: PullHub) -> None:
    hub.busy = 1
    assert "commit" in asked(hub)[-1]
