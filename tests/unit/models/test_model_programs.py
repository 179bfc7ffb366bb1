"""The programs that look at a model in a cache, as they run in a container."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.models.repositories import PullHub, pull_hub
from tests.support.pulls import MODEL, ask_program, contents, model_files, plan_of, repository
from vllm_cluster.kernel.hosts.program import source
from vllm_cluster.kernel.spread.download import Download
from vllm_cluster.kernel.spread.store import Store
from vllm_cluster.serving.node.model_files import find_model
from vllm_cluster.wire.pull import HostPlan, digest_of

FILES = model_files(200_000)
SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture
def hub() -> Iterator[PullHub]:
    with pull_hub("127.0.0.1", repositories={MODEL: repository(FILES)}) as made:
        yield made


@pytest.fixture
def plan(hub: PullHub, tmp_path: Path) -> HostPlan:
    """A model that was pulled."""
    made = plan_of(hub, tmp_path)
    Download(made, Store(made), None).run()
    Store(made).conclude()
    return made


def ask(plan: HostPlan, do: str, **more: Any) -> list[dict[str, Any]]:
    """What the program answers about the model."""
    question = {"do": do, "cache": plan.cache, "folder": plan.folder, "kind": "hub", **more}
    return ask_program(
        "kernel.models.on_host.remove_model" if do in ("size", "remove") else "kernel.models.on_host.model_cache",
        question,
    )


def of_kind(rows: list[dict[str, Any]], kind: str) -> list[Any]:
    """The rows of one kind."""
    return [row[kind] for row in rows if kind in row]


def test_a_whole_model_agrees_with_its_manifest(plan: HostPlan) -> None:
    files = [vars(file) for file in plan.files]
    (row,) = ask(plan, "look", commit=plan.commit, files=files)
    assert (row["whole"], row["bytes"], row["changed"]) == (len(FILES), plan.total, "")
    assert row["digest"] == digest_of(plan.files)
    named = [ask(plan, "look", commit=plan.commit, reference=name)[0]["named"] for name in ("main", "v2", "")]
    assert named == [True, False, True]
    (by_branch,) = ask(plan, "look", revision="main")
    assert (by_branch["commit"], by_branch["digest"]) == (plan.commit, row["digest"])


@pytest.mark.parametrize("change", ["removed", "longer", "written"])
def test_a_file_that_is_not_as_it_was_is_reported(plan: HostPlan, change: str) -> None:
    path = Store(plan).root / "blobs" / next(file.blob for file in plan.files if file.path == SHARD)
    content = path.read_bytes()
    path.unlink()
    if change != "removed":
        path.write_bytes(content + b"x" * (change == "longer"))
    (row,) = ask(plan, "look", revision="main")
    assert (row["changed"], row["digest"]) == (SHARD, "")


def test_a_flipped_byte_is_found_and_taken_out_of_the_way_once_that_is_asked(plan: HostPlan) -> None:
    path = Store(plan).root / "blobs" / next(file.blob for file in plan.files if file.path == SHARD)
    content = bytearray(path.read_bytes())
    content[12345] ^= 1
    when = path.stat().st_mtime_ns
    path.write_bytes(content)
    # As a disk changes it, and no program.
    os.utime(path, ns=(when, when))
    rows = ask(plan, "verify", revision="main")
    assert [(row["path"], row["why"]) for row in of_kind(rows, "damaged")] == [(SHARD, "content differs")]
    assert {row["path"] for row in of_kind(rows, "file")} == set(FILES)
    assert contents(plan)[SHARD] == content
    damaged = tuple(row["path"] for row in of_kind(rows, "damaged"))
    Store(replace(plan, damaged=damaged)).prove()
    assert SHARD not in contents(plan) and not path.exists()
    assert set(contents(plan)) == set(FILES) - {SHARD}


def test_the_manifest_lists_the_files_while_they_are_as_they_were(plan: HostPlan) -> None:
    *rows, end = ask(plan, "manifest", revision="main")
    assert {(row["path"], row["size"], row["blob"]) for row in of_kind(rows, "file")} == {
        (file.path, file.size, file.blob) for file in plan.files
    }
    assert (end["commit"], end["digest"]) == (plan.commit, digest_of(plan.files))
    (Store(plan).root / "snapshots" / plan.commit / SHARD).unlink()
    (end,) = ask(plan, "manifest", revision="main")
    assert (end["changed"], end["digest"]) == (SHARD, "")


def test_an_undamaged_model_is_left_as_it_is(plan: HostPlan) -> None:
    rows = ask(plan, "verify", revision="main")
    assert of_kind(rows, "damaged") == []
    assert (rows[-1]["commit"], rows[-1]["bytes"]) == (plan.commit, plan.total)
    assert contents(plan) == FILES


def test_a_model_without_a_manifest_cannot_be_verified(plan: HostPlan) -> None:
    assert ask(plan, "verify", revision="other")[-1]["manifest"] is False


def test_a_removed_model_leaves_nothing(plan: HostPlan) -> None:
    (row,) = ask(plan, "remove")
    assert row["size"] >= plan.total
    assert list(Store(plan).root.parent.iterdir()) == []
    assert ask(plan, "remove")[0]["size"] == 0


def test_hosts_with_one_cache_see_the_marks_of_each_other(tmp_path: Path) -> None:
    """Two that share a folder and one that has its own; no mark is left."""
    argv = [sys.executable, "-c", source("kernel.models.on_host", "model_cache")]
    caches = {"a": tmp_path / "shared", "b": tmp_path / "shared", "c": tmp_path / "own"}
    running = {}
    (tmp_path / "own").mkdir()
    # Of programs that were killed: one of days ago, and one that may still be asked for.
    for mark, age in (("old", 3 * 86400), ("new", 60)):
        path_of_mark = tmp_path / "own" / f".vcluster-mark-{mark}"
        path_of_mark.touch()
        os.utime(path_of_mark, (time.time() - age, time.time() - age))
    for mark, cache in caches.items():
        cache.mkdir(exist_ok=True)
        question = {"do": "seek", "cache": str(cache), "folder": "hub/x", "kind": "hub", "mark": mark}
        one = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        running[mark] = one
        assert one.stdin and one.stdout
        one.stdin.write(json.dumps(question) + "\n")
        one.stdin.flush()
        assert json.loads(one.stdout.readline()) == {"marked": mark}
    seen = {}
    for mark, one in running.items():
        assert one.stdin and one.stdout
        one.stdin.write(json.dumps({"others": list(caches)}) + "\n")
        one.stdin.flush()
        seen[mark] = json.loads(one.stdout.readline())["seen"]
    for one in running.values():
        # On a host it is killed with its channel: it clears before.
        assert one.stdin and one.stdout
        one.stdin.write("{}\n")
        one.stdin.flush()
        assert json.loads(one.stdout.readline()) == {"end": True}
        one.kill()
        one.communicate(timeout=30)
    assert seen == {"a": ["a", "b"], "b": ["a", "b"], "c": ["c"]}
    assert [path.name for cache in set(caches.values()) for path in cache.iterdir()] == [".vcluster-mark-new"]


def test_an_interrupted_removal_is_found_and_ended(plan: HostPlan) -> None:
    root = Store(plan).root
    root.rename(root.with_name(f".{root.name}.vcluster-removed"))
    (row,) = ask(plan, "size")
    assert row["there"] and row["size"] > 0
    (removed,) = ask(plan, "remove")
    assert removed["size"] == row["size"] and list(root.parent.iterdir()) == []


# fault: kernel/models/on_host/remove_model.py: if not free: → if not root:
def test_a_model_that_any_pull_writes_stays(plan: HostPlan) -> None:
    store = Store(plan)
    store.claim()
    for do in ("size", "remove"):
        (row,) = ask(plan, do)
        assert row["locked"] and contents(plan) == FILES
    os.close(store._lock)
    assert "locked" not in ask(plan, "remove")[0] and not store.root.exists()


def test_what_a_symlink_leads_to_stays(plan: HostPlan, tmp_path: Path) -> None:
    root, elsewhere = Store(plan).root, tmp_path / "elsewhere"
    root.rename(elsewhere)
    root.symlink_to(elsewhere)
    for do in ("size", "remove"):
        (row,) = ask(plan, do)
        assert row["error"].startswith(f"nothing was removed: a symlink leads to {elsewhere}")
    assert root.is_symlink() and (elsewhere / "snapshots").is_dir()


# fault: kernel/models/on_host/remove_model.py: if not parts or ".." in parts or → if
@pytest.mark.parametrize(
    ("folder", "kind"),
    [("", "hub"), (".", "folder"), ("hub", "hub"), ("hub/models--a--b/snapshots", "hub"), ("..", "hub")],
)
def test_no_removal_takes_more_or_less_than_a_model(tmp_path: Path, folder: str, kind: str) -> None:
    cache = tmp_path / "cache"
    (cache / "hub" / "models--a--b" / "snapshots").mkdir(parents=True)
    (cache / "config.json").touch()
    question = {"cache": str(cache), "folder": folder, "kind": kind}
    (row,) = ask_program("kernel.models.on_host.remove_model", {"do": "remove", **question})
    assert "no model has this place" in row["error"]
    assert (cache / "hub" / "models--a--b" / "snapshots").is_dir()


# fault: kernel/models/on_host/remove_model.py: with parent_folder(root, cache) as place, → with nullcontext(root) as place,
# fault: kernel/models/on_host/remove_model.py: if not os.path.samestat(os.fstat(number), aside(root).lstat()): → if False:
@pytest.mark.parametrize("before", ["claimed", "_opened"])
def test_what_another_user_puts_in_the_way_meanwhile_stays(tmp_path: Path, before: str) -> None:
    """Between look and removal: a link in the place of the folder above, another folder in that of the model."""
    cache, name = tmp_path / "cache", "models--a--b"
    model, theirs = cache / "hub" / name, tmp_path / "theirs" / name
    for folder in (model, theirs):
        folder.mkdir(parents=True)
        (folder / "weights").write_text(folder.parent.name)
    program: dict[str, Any] = {"__name__": "program", "nullcontext": nullcontext}
    exec(source("kernel.models.on_host", "remove_model"), program)
    held = program[before]

    @contextmanager
    def swapped(root: Path) -> Iterator[Any]:
        with held(root) as given:
            if before == "claimed":
                (cache / "hub").rename(cache / "moved")
                (cache / "hub").symlink_to(theirs.parent)
            else:
                model.rename(cache / "moved")
                theirs.rename(model)
            yield given

    program[before] = swapped
    with suppress(OSError):
        program["_answer"]("remove", cache, f"hub/{name}", "hub")
    assert (model / "weights").read_text() == "theirs"


# fault: kernel/models/on_host/model_cache.py: with open_plain(place) as → with place.open("rb") as
@pytest.mark.timeout(20)
def test_no_named_pipe_is_waited_for(plan: HostPlan) -> None:
    """In a cache that others may write too, such as one on NFS: the rest is hashed."""
    root = Store(plan).root
    manifest = root / ".vcluster" / f"{plan.commit}.json"
    content = json.loads(manifest.read_text())
    content["files"].append(["pipe", 0, hashlib.sha256().hexdigest(), 0])
    manifest.write_text(json.dumps(content))
    os.mkfifo(root / "snapshots" / plan.commit / "pipe")
    assert [row["path"] for row in of_kind(ask(plan, "verify", commit=plan.commit), "damaged")] == ["pipe"]


# fault: serving/node/model_files.py: with open_plain(path) as → with path.open("rb") as
@pytest.mark.timeout(20)
def test_no_named_pipe_in_the_place_of_weights_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    os.mkfifo(tmp_path / "model.safetensors")
    assert find_model(str(tmp_path), ask_hub=False)["tensors"] is None


def test_a_folder_without_a_model_stays(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    question = {"cache": str(tmp_path), "folder": "mine", "kind": "folder"}
    (row,) = ask_program("kernel.models.on_host.remove_model", {"do": "remove", **question})
    assert "it has no config.json" in row["error"] and (tmp_path / "mine").is_dir()
    (tmp_path / "mine" / "config.json").touch()
    (row,) = ask_program("kernel.models.on_host.remove_model", {"do": "remove", **question})
    assert "error" not in row and list(tmp_path.iterdir()) == []


def test_weights_of_an_earlier_folder_of_a_name_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    (folder / ".vcluster").mkdir(parents=True)
    for name in ("config.json", "b.safetensors", "a.safetensors", ".vcluster/x.bin"):
        (folder / name).write_text("{}")
    files = [{"path": name, "size": 2, "blob": "a" * 64} for name in ("config.json", "a.safetensors")]
    question = {"do": "look", "cache": str(tmp_path), "folder": "mine", "files": files}
    assert ask_program("kernel.models.on_host.model_cache", {**question, "kind": "folder"})[0]["stale"] == [
        "b.safetensors"
    ]
    assert ask_program("kernel.models.on_host.model_cache", {**question, "kind": "hub"})[0]["stale"] == []


# fault: kernel/models/on_host/model_cache.py: and before.get(file.path, file.blob) == file.blob →
def test_a_folder_that_was_trained_again_is_pulled_again(tmp_path: Path) -> None:
    """Its weights have the sizes that they had before."""
    folder = tmp_path / "mine"
    (folder / ".vcluster").mkdir(parents=True)
    rows, files = [], []
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes(b"old")
        blob = hashlib.sha256(b"old").hexdigest()
        rows.append([name, 3, blob, (folder / name).stat().st_mtime_ns])
        files.append({"path": name, "size": 3, "blob": blob})
    manifest = {"v": 1, "commit": "", "digest": "d", "files": rows}
    (folder / ".vcluster" / "manifest.json").write_text(json.dumps(manifest))
    question = {"do": "look", "cache": str(tmp_path), "folder": "mine", "kind": "folder"}

    def look() -> tuple[int, int, str]:
        (row,) = ask_program("kernel.models.on_host.model_cache", {**question, "files": files})
        return row["whole"], row["bytes"], row["digest"]

    assert look() == (2, 6, "d")
    files[1]["blob"] = hashlib.sha256(b"new").hexdigest()
    assert look() == (1, 3, "")
    # A file that the folder has no longer: all that is wanted is there, and the manifest is of another folder.
    del files[1]
    assert look() == (1, 3, "")


# fault: wire/inside.py: in (root, cache / "hub") → in (root, cache)
def test_a_link_to_a_model_of_the_hub_is_followed_and_any_other_is_not(tmp_path: Path) -> None:
    """Elsewhere are files of the program's own container, and what hub clients keep beside the models: a token."""
    folder, cache = tmp_path / "mine", tmp_path / "cache"
    folder.mkdir()
    (cache / "hub").mkdir(parents=True)
    (cache / "hub" / "blob").write_text("{}")
    (cache / "token").write_text("hf_token of the host")
    (folder / "config.json").symlink_to("../cache/hub/blob")
    question = {"do": "list", "cache": str(cache), "folder": "", "kind": "folder", "root": str(folder)}
    (folder / "a.json").symlink_to("/etc/passwd")
    (folder / "b.safetensors").symlink_to("/nothing/there")
    (folder / "c.bin").symlink_to("c.bin")
    (folder / "tokenizer.json").symlink_to("../cache/token")
    rows = ask_program("kernel.models.on_host.model_cache", question)
    assert sorted(of_kind(rows, "lost")) == ["a.json", "b.safetensors", "c.bin", "tokenizer.json"]
    assert [row["path"] for row in of_kind(rows, "file")] == ["config.json"]


# fault: wire/inside.py: not stat.S_ISREG(os.fstat(number).st_mode) or not → not
# fault: wire/inside.py: or not is_inside(real, root, cache) → or not real
@pytest.mark.parametrize("what", ["link", "pipe", "folder"])
def test_what_takes_the_place_of_a_listed_file_is_not_read(what: str, tmp_path: Path) -> None:
    folder, cache = tmp_path / "mine", tmp_path / "cache"
    folder.mkdir()
    cache.mkdir()
    (cache / "token").write_text("hf_token of the host")
    file = {"path": "config.json", "size": 20, "blob": ""}
    match what:
        case "link":
            (folder / "config.json").symlink_to("../cache/token")
        case "pipe":
            os.mkfifo(folder / "config.json")
        case _:
            (folder / "config.json").mkdir()
    question = {"do": "hash", "cache": str(cache), "folder": "", "kind": "folder", "root": str(folder)}
    rows = ask_program("kernel.models.on_host.model_cache", {**question, "files": [file]})
    assert of_kind(rows, "file") == []
    assert "is not a file of the folder any more" in rows[-1]["error"]


# fault: kernel/models/on_host/model_cache.py: (path.is_dir() or not is_here) → not is_here
def test_a_link_to_a_folder_is_reported_and_a_pipe_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    for name in ("real", ".hidden"):
        (folder / name).mkdir(parents=True)
        (folder / name / "again").symlink_to(folder / "real")
    (folder / "config.json").write_text("{}")
    os.mkfifo(folder / "pipe")
    question = {"do": "list", "cache": str(tmp_path), "folder": "", "kind": "folder", "root": str(folder)}
    rows = ask_program("kernel.models.on_host.model_cache", question)
    assert of_kind(rows, "lost") == ["real/again"]
    assert [row["path"] for row in of_kind(rows, "file")] == ["config.json"]


# fault: wire/inside.py: os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC) → os.open(path, os.O_RDONLY)
@pytest.mark.parametrize("where", ["refs/main", ".vcluster/COMMIT.json"])
def test_a_pipe_in_the_cache_is_not_waited_for(plan: HostPlan, where: str) -> None:
    """Whoever may write to a shared cache can put one there: no byte and no end comes of it."""
    place = Path(plan.cache, plan.folder, where.replace("COMMIT", plan.commit))
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    os.mkfifo(place)
    begun = time.monotonic()
    (row,) = ask(plan, "manifest")[-1:]
    assert row["end"]
    assert find(plan)["where"] in ("cache", "hub")
    assert time.monotonic() - begun < 30


def find(plan: HostPlan) -> dict[str, object]:
    """What the program of a node finds of the model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_CACHE", str(Path(plan.cache, plan.folder).parent))
        return find_model(MODEL, ask_hub=False)
