"""Which words name a folder as the source of a pull, and what it is called on the hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_cluster.actions.pull_folder import is_folder, wanted_folder
from vllm_cluster.core.pull import HubModel, place_of
from vllm_cluster.errors import UsageError


@pytest.mark.parametrize("source", ["./a", "../a", "/a", "~/a", ".", "gpu1:/data/a"])
def test_a_folder_is_known_by_its_form(source: str) -> None:
    assert is_folder(source)


@pytest.mark.parametrize("source", ["org/name", "name", "org/name@main", "gpu1:relative"])
def test_a_repository_is_not_a_folder(source: str) -> None:
    assert not is_folder(source)


def test_a_folder_here_gets_its_own_name_or_the_one_that_is_given(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    found = wanted_folder(str(folder), "", "gpu2", detach=False)
    assert (found.model, found.source, found.sent_from_here, found.via) == ("./mine", folder, True, "gpu2")
    assert wanted_folder(str(folder), "./other", "", detach=False).model == "./other"


def test_a_folder_of_a_host_is_read_there() -> None:
    found = wanted_folder("gpu2:/data/mine", "", "", detach=True)
    assert (found.model, found.source, found.via, found.sent_from_here) == ("./mine", Path("/data/mine"), "gpu2", False)


@pytest.mark.parametrize(
    ("source", "name", "via", "detach", "text"),
    [
        ("./nothing-there", "", "", False, "no such folder here"),
        (".", "..", "", False, "must be ORG/NAME, or ./NAME"),
        (".", "hub/x", "", False, "must be ORG/NAME, or ./NAME"),
        (".", "x", "", True, "this machine sends the files"),
        ("gpu1:/data/x", "", "gpu2", False, "the files are on gpu1"),
    ],
)
def test_what_cannot_be_is_refused(source: str, name: str, via: str, detach: bool, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        wanted_folder(source, name, via, detach=detach)


def test_a_name_of_the_cache_and_one_of_the_hub_have_places_of_their_own() -> None:
    assert place_of("./mine") == {"folder": "mine", "kind": "folder"}
    assert place_of("org/name") == {"folder": "hub/models--org--name", "kind": "hub"}
    assert HubModel("./mine", "", "", ()).size == 0
