"""The files of a pull on the disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.models.repositories import pull_hub
from tests.support.pulls import MODEL, model_files, plan_of, repository, snapshot
from tests.support.spread import partial_of
from vllm_cluster.kernel.spread.store import Store
from vllm_cluster.wire.pull import HostPlan, ModelFile, digest_of

FILES = model_files(200_000)


@pytest.fixture
def plan(tmp_path: Path) -> Iterator[HostPlan]:
    with pull_hub("127.0.0.1", repositories={MODEL: repository(FILES)}) as hub:
        yield plan_of(hub, tmp_path)


def bring(store: Store, plan: HostPlan) -> None:
    """Put every file in its place."""
    for file in plan.files:
        partial_of(store, file).write_bytes(FILES[file.path])
        store.finish(file)


def test_no_name_that_vllm_reads_is_made_before_the_file_is_whole(plan: HostPlan) -> None:
    store, file = Store(plan), max(plan.files, key=lambda one: one.size)
    partial_of(store, file).write_bytes(FILES[file.path][:1000])
    assert (store.have(file), store.complete(file)) == (1000, False)
    assert not snapshot(plan).exists()
    assert not list((store.root / "blobs").glob("[!.]*"))


def test_to_look_at_a_cache_writes_nothing_there(plan: HostPlan) -> None:
    """The program looks every second: a disk that takes nothing must not end that."""
    store = Store(plan)
    assert [store.have(file) for file in plan.files] == [0] * len(FILES)
    assert not store.root.exists()


def test_what_no_manifest_vouches_for_is_hashed_and_dropped_where_it_is_wrong(plan: HostPlan) -> None:
    store = Store(plan)
    bring(store, plan)
    file = max(plan.files, key=lambda one: one.size)
    blob = store.root / "blobs" / file.blob
    content = bytearray(blob.read_bytes())
    content[1000] ^= 1
    blob.write_bytes(content)
    store.prove()
    assert not store.complete(file) and not blob.exists()
    assert all(store.complete(other) for other in plan.files if other != file)


def test_a_wrong_content_of_two_files_is_dropped_once(plan: HostPlan) -> None:
    """Of one the link is there, of the other the content alone."""
    file = max(plan.files, key=lambda one: one.size)
    two = replace(plan, files=(file, replace(file, path="again.safetensors")))
    store = Store(two)
    partial_of(store, file).write_bytes(b"x" * file.size)
    store.finish(file)
    store.prove()
    assert [store.have(one) for one in two.files] == [0, 0]


def test_no_content_is_dropped_while_another_file_of_it_is_read(
    plan: HostPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slowest second reader there can be: it begins once the first one's answer was used."""
    file = max(plan.files, key=lambda one: one.size)
    two = replace(plan, files=(file, replace(file, path="again.safetensors")))
    store, read = Store(two), []
    partial_of(store, file).write_bytes(b"x" * file.size)
    store.finish(file)

    def looked_at(_self: Store, path: Path, _: ModelFile) -> str:
        read.append(path.exists())
        return "wrong"

    monkeypatch.setattr(Store, "content_hash", looked_at)
    monkeypatch.setattr(ThreadPoolExecutor, "map", lambda _, look, *of: map(look, *of))
    store.prove()
    assert read == [True, True]
    assert [store.have(one) for one in two.files] == [0, 0]


def test_what_a_manifest_vouches_for_is_not_read_again(plan: HostPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(plan)
    bring(store, plan)
    store.conclude()
    monkeypatch.setattr(Store, "content_hash", lambda *_: "read")
    store.prove()
    assert all(map(store.complete, plan.files))


def test_a_blob_that_another_revision_brought_is_put_in_its_place(plan: HostPlan) -> None:
    store = Store(plan)
    bring(store, plan)
    other = HostPlan(**{**vars(plan), "commit": "c" * 40})
    Store(other).prove()
    assert all(map(Store(other).complete, other.files))


def test_the_branch_moves_once_all_is_there(plan: HostPlan) -> None:
    store = Store(plan)
    bring(store, plan)
    assert not (store.root / "refs").exists()
    store.conclude()
    assert (store.root / "refs" / "main").read_text() == plan.commit
    manifest = json.loads((store.root / ".vcluster" / f"{plan.commit}.json").read_text())
    assert {row[0] for row in manifest["files"]} == set(FILES)
    assert manifest["digest"] == digest_of(plan.files)


def test_a_link_that_led_nowhere_is_replaced(plan: HostPlan) -> None:
    store, file = Store(plan), plan.files[0]
    place = snapshot(plan) / file.path
    place.parent.mkdir(parents=True)
    place.symlink_to("../../blobs/missing")
    assert not store.complete(file)
    partial_of(store, file).write_bytes(FILES[file.path])
    store.finish(file)
    assert place.read_bytes() == FILES[file.path]


def test_two_hosts_compare_names_sizes_and_contents(plan: HostPlan) -> None:
    other = HostPlan(**{**vars(plan), "files": tuple(reversed(plan.files))})
    assert digest_of(other.files) == digest_of(plan.files)
    less = HostPlan(**{**vars(plan), "files": plan.files[1:]})
    assert digest_of(less.files) != digest_of(plan.files)
