"""Objects of a bucket as the source of a pull: downloaded by one host and spread, as it runs in the containers."""

from __future__ import annotations

import io
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config

from tests.support.buckets import Bucket, bucket
from tests.support.ports import free_port
from tests.support.pulls import Part, model_files
from tests.support.spread import folder_plan
from tests.support.waiting import until
from vllm_cluster.remote.pull import fetching
from vllm_cluster.remote.pull.objects import Objects
from vllm_cluster.remote.pull.plan import ChainHost, HostPlan, PulledFile, PullError
from vllm_cluster.remote.pull.store import Store

# Real connections, kills and pauses: seconds each.
pytestmark = pytest.mark.slow

FILES = model_files(2 << 20)
SIZE = sum(map(len, FILES.values()))
SHARD = "model-00002-of-00002.safetensors"


@pytest.fixture
def lab() -> Iterator[Bucket]:
    with bucket(files=FILES) as made:
        yield made


@pytest.fixture
def here(lab: Bucket, tmp_path: Path) -> HostPlan:
    """The plan of one host."""
    return plan_of(lab, tmp_path)


def plan_of(lab: Bucket, cache: Path, me: str = "a", hosts: tuple[ChainHost, ...] = ()) -> HostPlan:
    """The plan for what the bucket lists now."""
    rows = lab.client.list_objects_v2(Bucket=lab.name, Prefix="mine/")["Contents"]
    files = [PulledFile(row["Key"].removeprefix("mine/"), row["Size"], "", row["ETag"]) for row in rows]
    return folder_plan(cache, files, me=me, hosts=hosts, origin=f"s3://{lab.name}/mine")


def signed(lab: Bucket, plan: HostPlan, seconds: int = 600) -> dict[str, Any]:
    """What the host that downloads gets beside its plan."""
    client = lab.signing(Config(signature_version="s3v4"))
    addresses = {
        file.path: client.generate_presigned_url(
            "get_object", Params={"Bucket": lab.name, "Key": f"mine/{file.path}"}, ExpiresIn=seconds
        )
        for file in plan.files
    }
    return {"addresses": addresses, "expires": time.time() + seconds}


def fetch(lab: Bucket, plan: HostPlan) -> Store:
    """Download all of a plan, as the program of a host does."""
    store = Store(plan)
    store.prove()
    Objects(plan, store, **signed(lab, plan)).run()
    store.conclude()
    return store


def there(plan: HostPlan) -> dict[str, bytes]:
    """What vLLM would read."""
    root = Path(plan.cache) / "mine"
    return {path.name: path.read_bytes() for path in root.iterdir() if path.is_file() and path.name[0] != "."}


@contextmanager
def parts(lab: Bucket, tmp_path: Path) -> Iterator[dict[str, Part]]:
    """Two hosts; only the first one has the addresses."""
    port = free_port()
    hosts = tuple(ChainHost(name, f"127.0.0.{number}", port) for number, name in enumerate("ab", 11))
    with ExitStack() as ends:
        made = {}
        for name in "ab":
            plan = plan_of(lab, tmp_path / name / "cache", name, hosts)
            token = json.dumps(signed(lab, plan)) if name == "a" else ""
            made[name] = Part(tmp_path / name / "own", plan, token)
            ends.callback(made[name].end)
        yield made


def finished(made: dict[str, Part]) -> bool:
    """Whether all have all."""
    return all(part.status().get("phase") in ("serving", "done") for part in made.values())


def test_objects_are_downloaded_once_and_spread_with_one_manifest(lab: Bucket, tmp_path: Path) -> None:
    with parts(lab, tmp_path) as made:
        until(lambda: finished(made), 60)
        assert there(made["a"].plan) == there(made["b"].plan) == FILES and lab.sent == SIZE
        digests = {part.status()["digest"] for part in made.values()}
        assert len(digests) == 1
        manifests = [
            json.loads((Path(part.plan.cache) / "mine/.vcluster/manifest.json").read_text()) for part in made.values()
        ]
        assert all(len(row[2]) == 64 for manifest in manifests for row in manifest["files"])


def test_others_receive_while_the_first_one_downloads(lab: Bucket, tmp_path: Path) -> None:
    lab.rate = 4e5
    with parts(lab, tmp_path) as made:
        until(lambda: bool(made["a"].status()) and made["b"].status().get("bytes", 0) > 1 << 19, 60)
        assert made["a"].status()["phase"] == "downloading" and lab.sent < SIZE
        lab.rate = 0.0
        until(lambda: finished(made), 60)
        assert there(made["b"].plan) == FILES


def test_a_part_that_is_killed_continues_with_what_is_there(lab: Bucket, tmp_path: Path) -> None:
    lab.rate = 1e6
    with parts(lab, tmp_path) as made:
        until(lambda: made["a"].status().get("bytes", 0) > 1 << 20, 60)
        made["a"].end()
        lab.rate = 0.0
        made["a"].start()
        until(lambda: finished(made), 60)
        assert there(made["a"].plan) == there(made["b"].plan) == FILES
        assert lab.sent < SIZE + 2 * fetching.STREAMS * fetching.CHUNK


# fault: remote/pull/spread_receive.py: blob) → arriving._hash.hexdigest())
def test_an_object_that_comes_wrong_from_a_host_is_not_kept(lab: Bucket, tmp_path: Path) -> None:
    with parts(lab, tmp_path) as made:
        made["b"].end()
        until(lambda: made["a"].status().get("phase") == "serving", 60)
        shutil.rmtree(Path(made["b"].plan.cache), ignore_errors=True)
        with (Path(made["a"].plan.cache) / "mine" / SHARD).open("rb+") as stream:
            stream.write(bytes(100))
        made["b"].start()
        assert made["b"].process.wait(60) == 0
        assert f"{SHARD}: wrong hash (from a)" in made["b"].status()["error"]
        assert SHARD not in there(made["b"].plan)


def test_a_cut_in_the_middle_continues_there(lab: Bucket, here: HostPlan) -> None:
    lab.cut = (1 << 20) + 1000
    fetch(lab, here)
    assert there(here) == FILES and lab.sent < SIZE + 2 * fetching.CHUNK
    assert any(headers.get("RANGE", "").startswith("bytes=") for _, _, headers in lab.asked)


def test_a_busy_bucket_is_waited_for(lab: Bucket, here: HostPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "FIRST_PAUSE", 0.01)
    lab.busy = 3
    fetch(lab, here)
    assert there(here) == FILES


# fault: remote/pull/objects.py: {"If-Match": file.etag, "User-Agent": "vcluster"} → {"User-Agent": "vcluster"}
def test_an_object_that_changes_in_the_middle_is_reported_and_not_mixed(lab: Bucket, here: HostPlan) -> None:
    lab.put({SHARD: bytes(len(FILES[SHARD]))})
    with pytest.raises(PullError, match=f"{SHARD} has changed in the bucket since it was listed"):
        fetch(lab, here)
    assert SHARD not in there(here)
    again = plan_of(lab, Path(here.cache))
    fetch(lab, again)
    assert there(again) == {**FILES, SHARD: bytes(len(FILES[SHARD]))}


# fault: remote/pull/learned.py: if not same: → if not partial:
def test_a_partial_file_of_another_object_is_dropped(lab: Bucket, here: HostPlan) -> None:
    store, file = Store(here), next(file for file in here.files if file.path == SHARD)
    store.prove()
    store.writable(file).write_bytes(FILES[SHARD][: 1 << 20])
    lab.put({SHARD: bytes(len(FILES[SHARD]))})
    again = plan_of(lab, Path(here.cache))
    fetch(lab, again)
    assert there(again)[SHARD] == bytes(len(FILES[SHARD]))


def test_an_object_that_is_gone_is_reported(lab: Bucket, here: HostPlan) -> None:
    lab.client.delete_object(Bucket=lab.name, Key=f"mine/{SHARD}")
    with pytest.raises(PullError, match=f"{SHARD} is not in the bucket any more"):
        fetch(lab, here)


def test_addresses_that_have_expired_are_reported_and_what_arrived_is_kept(lab: Bucket, here: HostPlan) -> None:
    store = Store(here)
    store.prove()
    expired = signed(lab, here)
    lab.older = timedelta(days=8)
    with pytest.raises(PullError, match="the credentials of this pull have expired: run the same command again"):
        Objects(here, store, **expired).run()
    lab.older = timedelta()
    lab.refused = True
    with pytest.raises(PullError, match="the bucket answers 403 AccessDenied"):
        Objects(here, store, **expired).run()


def test_what_is_here_by_its_etag_is_not_downloaded_again(lab: Bucket, here: HostPlan) -> None:
    digest = fetch(lab, here).digest()
    before = lab.sent
    assert fetch(lab, here).digest() == digest and lab.sent == before
    place = Path(here.cache) / "mine" / SHARD
    place.write_bytes(bytes(len(FILES[SHARD])))
    fetch(lab, here)
    assert there(here) == FILES and lab.sent == before + len(FILES[SHARD])


def test_a_proxy_without_ranges_gives_each_byte_once(lab: Bucket, here: HostPlan, tmp_path: Path) -> None:
    """It sends the object from its beginning."""
    lab.ranges = False
    store, file = Store(here), next(file for file in here.files if file.path == SHARD)
    store.prove()
    store.writable(file).write_bytes(FILES[SHARD][: 1 << 20])
    fetch(lab, here)
    assert there(here) == FILES


def test_no_address_is_in_what_a_person_sees(lab: Bucket, tmp_path: Path) -> None:
    lab.refused = True
    plan = plan_of(lab, tmp_path / "cache")
    one = Part(tmp_path / "own", plan, json.dumps(signed(lab, plan)))
    assert one.process.wait(60) == 0
    assert "X-Amz" not in json.dumps(one.status()) and one.status()["phase"] == "failed"
    assert not (one.folder / "vcluster-token").exists()
    lab.refused = False
    nowhere = replace(plan, files=plan.files)
    gone = dict.fromkeys(signed(lab, plan)["addresses"], "http://127.0.0.1:1/?X-Amz-Signature=x")
    waits = Objects(nowhere, Store(nowhere), gone, time.time() + 60)
    with pytest.raises(OSError) as lost:
        waits.get(plan.files[0], io.BytesIO(), 0)
    assert "X-Amz" not in waits.words(lost.value)
