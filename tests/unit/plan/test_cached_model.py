"""Which names of models lead to a folder of the cache, and which words name it."""

from __future__ import annotations

import pytest

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.plan.cached_model import as_asked, cache_place


@pytest.mark.parametrize(
    ("model", "folder"),
    [
        ("org/name", "hub/models--org--name"),
        ("gpt2", "hub/models--gpt2"),
        ("./mine", "mine"),
        ("./org/mine-1.5", "org/mine-1.5"),
    ],
)
def test_a_name_is_a_folder_of_the_cache(model: str, folder: str) -> None:
    assert cache_place(model).folder == folder


OUTSIDE = (
    "",
    "..",
    "../etc",
    "org/..",
    "./..",
    "./../x",
    "./a/../../x",
    "./a/..",
    "./",
    "./.",
    "/etc",
    "./a//b",
    "./a/",
)
NO_MODELS = (
    "./hub",
    "./hub/models--org--name",
    "./xet",
    "./.vcluster",
    "./a b",
    "org/na\nme",
    "org/name/more",
    "./a\x1b",
)


@pytest.mark.parametrize("model", [*OUTSIDE, *NO_MODELS])
def test_a_name_that_leads_elsewhere_is_refused(model: str) -> None:
    with pytest.raises(UsageError) as caught:
        cache_place(model)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("model", "word"),
    [
        ("org/name", "org/name"),
        ("org/name", "--tokenizer=org/name"),
        ("org/name", '--speculative-config={"model": "org/name"}'),
        ("org/name", "--lora-modules=one=org/name"),
        ("org/name", "/models/hub/models--org--name/snapshots/abc"),
        ("./mine", "./mine"),
        ("./mine", "/models/mine"),
        ("./mine", "./mine/below"),
    ],
)
def test_what_reads_it_names_it(model: str, word: str) -> None:
    assert cache_place(model).is_named_in(["serve", word], "/models")


@pytest.mark.parametrize(
    ("model", "word"),
    [
        ("org/name", "org/name-2"),
        ("org/name", "org/name.v2"),
        ("org/name", "my-org/name"),
        ("org/name", "/models/hub/models--org--name2"),
        ("./mine", "./mine2"),
        ("./mine", "org/mine"),
    ],
)
def test_a_longer_name_is_another_one(model: str, word: str) -> None:
    assert not cache_place(model).is_named_in([word], "/models")


# fault: kernel/plan/cached_model.py: return named if _path(named) else model → return model
@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/models/mine", "./mine"),
        ("/models/org/mine", "./org/mine"),
        ("/models2/mine", "/models2/mine"),
        ("/models/hub/models--org--name/snapshots/a", "/models/hub/models--org--name/snapshots/a"),
        ("/models/..", "/models/.."),
        ("org/name", "org/name"),
    ],
)
def test_a_folder_of_the_cache_is_named_as_every_verb_takes_it(path: str, named: str) -> None:
    assert as_asked(path, "/models") == named
