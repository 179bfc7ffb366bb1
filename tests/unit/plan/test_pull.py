"""What a pull brings to which hosts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import world
from tests.support.bounds import within
from vllm_cluster.kernel.plan.pull import (
    Held,
    HubModel,
    PullPlan,
    choose_files,
    container_spec,
    has_weights,
    plan_pull,
    share_writers,
    unfit_path,
)
from vllm_cluster.wire.pull import ModelFile
from vllm_cluster.wire.values import Url

BLOB = "a" * 64


def names(*paths: str) -> set[str]:
    """The files that are read of these."""
    return {file.path for file in choose_files([ModelFile(path, 1, BLOB) for path in paths])[0]}


@pytest.mark.parametrize(
    ("there", "read"),
    [
        ({"model.safetensors", "pytorch_model.bin", "config.json"}, {"model.safetensors", "config.json"}),
        ({"pytorch_model.bin", "config.json"}, {"pytorch_model.bin", "config.json"}),
        ({"model.safetensors", "original/consolidated.00.pth", "original/params.json"}, {"model.safetensors"}),
        ({"model.safetensors", "onnx/model.onnx", "README.md", ".gitattributes"}, {"model.safetensors"}),
        ({"a.safetensors", "tokenizer.model", "modeling_x.py", "chat_template.jinja"}, None),
        # Mistral's own format comes first, as vLLM takes it.
        ({"consolidated.safetensors", "params.json", "model.safetensors"}, {"consolidated.safetensors", "params.json"}),
        ({"consolidated.safetensors", "model.safetensors"}, None),
        # A part of an embedding model, in a folder of its own.
        ({"model.safetensors", "2_Dense/pytorch_model.bin", "1_Pooling/config.json"}, None),
        ({"2_Dense/pytorch_model.bin", "2_Dense/model.safetensors"}, {"2_Dense/model.safetensors"}),
    ],
)
def test_no_format_comes_twice(there: set[str], read: set[str] | None) -> None:
    assert names(*there) == (there if read is None else read)


# fault: kernel/plan/pull.py: f"{path}/".startswith(f"{before}/") → path.startswith(f"{before}/")
@pytest.mark.parametrize(
    ("paths", "unfit"),
    [
        (["config.json", "a/b.json", "ünï c.txt"], None),
        (["a", "a/b.json"], "a/b.json"),
        (["../a"], "../a"),
        (["/etc/passwd"], "/etc/passwd"),
        (["a//b"], "a//b"),
        (["a\nb"], "a\nb"),
        (["a\0"], "a\0"),
        (["\udcff.json"], "\udcff.json"),
        (["a", "a-b", "a/b/c", "a.json"], "a/b/c"),
        (["a", "b/c", "a.json", "b/c"], "b/c"),
    ],
)
def test_a_path_that_no_host_may_have_is_found(paths: list[str], unfit: str | None) -> None:
    assert unfit_path(ModelFile(path, 1, BLOB) for path in paths) == unfit


def test_paths_of_thousands_of_parts_are_looked_at_at_once() -> None:
    """A hub may name as many files: 1,000 of them took 36 s."""
    deep = "/".join(["ab"] * 1300)
    with within(10, megabytes=20):
        assert unfit_path([ModelFile(f"{deep}/{number}", 1, BLOB) for number in range(1000)]) is None


def test_weights_are_files_that_hold_something() -> None:
    assert has_weights([ModelFile("config.json", 9, BLOB), ModelFile("x/model.safetensors", 1, BLOB)])
    assert not has_weights([ModelFile("config.json", 9, BLOB), ModelFile("model.safetensors", 0, BLOB)])


FILES = (ModelFile("config.json", 10, "b" * 40), ModelFile("model.safetensors", 10**9, BLOB))
MODEL = HubModel("lab/model", "c" * 40, Url("http://hub"), FILES)
INVENTORY = world.inventory(3)
WHOLE = Held(whole=2, bytes=MODEL.size, digest="d")


def plan(**held: Held) -> PullPlan:
    """The plan for hosts with this in their caches."""
    return plan_pull(INVENTORY, MODEL, "main", {name: held.get(name, Held()) for name in INVENTORY.hosts}, "gpu2")


def test_the_named_host_downloads_and_comes_first() -> None:
    found = plan()
    assert (found.chain, found.downloads) == (("gpu2", "gpu1", "gpu3"), True)


def test_a_host_that_has_all_is_the_source_and_nothing_is_downloaded() -> None:
    found = plan(gpu3=WHOLE)
    assert (found.chain, found.downloads) == (("gpu3", "gpu1", "gpu2"), False)


def test_where_all_is_in_place_nothing_is_done() -> None:
    found = plan(gpu1=WHOLE, gpu2=WHOLE, gpu3=WHOLE)
    assert (found.chain, found.idle) == ((), ("gpu1", "gpu2", "gpu3"))


def test_files_without_a_manifest_are_proved_first() -> None:
    found = plan(gpu1=WHOLE, gpu2=Held(whole=2, bytes=MODEL.size), gpu3=WHOLE)
    assert (found.chain, found.idle) == (("gpu1", "gpu2"), ("gpu3",))


def test_a_source_with_a_manifest_comes_before_one_that_may_be_damaged() -> None:
    found = plan(gpu1=Held(whole=2, bytes=MODEL.size), gpu2=WHOLE, gpu3=WHOLE)
    assert (found.chain, found.downloads) == (("gpu2", "gpu1"), False)
    assert found.for_host("id", "key", "gpu2").endpoint == ""


def test_a_source_without_a_manifest_may_have_to_download() -> None:
    found = plan(gpu1=Held(whole=2, bytes=MODEL.size))
    assert (found.chain[0], found.downloads) == ("gpu1", True)
    assert found.for_host("id", "key", "gpu1").endpoint == MODEL.endpoint.whole


def test_a_branch_that_does_not_point_there_yet_is_written_and_nothing_is_downloaded() -> None:
    found = plan(gpu1=WHOLE, gpu2=replace(WHOLE, named=False), gpu3=WHOLE)
    assert (found.chain, found.idle, found.downloads) == (("gpu1", "gpu2"), ("gpu3",), False)
    everywhere = replace(WHOLE, named=False)
    found = plan(gpu1=everywhere, gpu2=everywhere, gpu3=everywhere)
    assert (found.chain, found.downloads) == (("gpu1", "gpu2", "gpu3"), False)


def test_a_shared_cache_is_written_by_one() -> None:
    seen = {"gpu1": ["gpu1", "gpu3"], "gpu2": ["gpu2"], "gpu3": ["gpu1", "gpu3"]}
    assert share_writers(seen, "gpu2") == {"gpu3": "gpu1"}
    assert share_writers(seen, "gpu3") == {"gpu1": "gpu3"}
    assert plan(gpu3=Held(shares="gpu1")).chain == ("gpu2", "gpu1")


def test_a_cache_that_all_share_is_written_by_the_one_that_downloads() -> None:
    assert share_writers({name: [*INVENTORY.hosts] for name in INVENTORY.hosts}, "gpu2") == {
        "gpu1": "gpu2",
        "gpu3": "gpu2",
    }


def test_what_a_host_has_already_is_not_brought() -> None:
    assert plan(gpu1=Held(bytes=400)).missing == {"gpu2": MODEL.size, "gpu1": MODEL.size - 400, "gpu3": MODEL.size}


@pytest.mark.parametrize(("origin", "source"), [("laptop", "gpu1"), ("/data/mine", "gpu2")])
def test_only_the_host_with_the_folder_copies_it(origin: str, source: str) -> None:
    """One that has files of the right sizes may find them damaged, and could not have them from a folder of another."""
    model = replace(MODEL, name="./mine", commit="", endpoint=Url(""), origin=origin)
    held = {name: Held(whole=2 * (name == "gpu1"), bytes=MODEL.size) for name in INVENTORY.hosts}
    found = plan_pull(INVENTORY, model, "", held, "gpu2")
    assert (found.chain[0], found.downloads) == (source, True)
    document = found.for_host("id", "key", source)
    assert (document.origin, document.kind, document.folder) == (origin, "folder", "mine")


# fault: kernel/plan/pull.py: "HF_HUB_DISABLE_XET": "1", "HF_HUB_ENABLE_HF_TRANSFER": "0" → "HF_HUB_DISABLE_XET": "1"
def test_a_pull_needs_downloads_in_order() -> None:
    """The other hosts get a file while it arrives, and hf_transfer fails where it gets no file of a path."""
    environment = {"HF_HUB_ENABLE_HF_TRANSFER": "1", "HF_HUB_DISABLE_XET": "0", "OTHER": "1"}
    inventory = world.inventory(1).model_copy(update={"environment": environment})
    spec = dict(container_spec(inventory, inventory.hosts["gpu1"]).environment)
    assert (spec["HF_HUB_ENABLE_HF_TRANSFER"], spec["HF_HUB_DISABLE_XET"], spec["OTHER"]) == ("0", "1", "1")
