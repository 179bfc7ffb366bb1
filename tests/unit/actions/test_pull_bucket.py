"""A folder of a bucket as the source of a pull: what it is called, what is listed, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support import world
from tests.support.buckets import Bucket, bucket
from tests.support.ports import free_port
from tests.support.pulls import ask_program, model_files
from vllm_cluster.actions import pull_bucket
from vllm_cluster.actions.pull_bucket import find_objects, signed, wanted_bucket
from vllm_cluster.actions.pull_hosts import PullHosts
from vllm_cluster.core.pull import Held, HubModel, make
from vllm_cluster.errors import PreflightFailed, Unreachable, UsageError, VclusterError
from vllm_cluster.events import Event
from vllm_cluster.hub.bucket import MAX_LIFE, BucketFolder
from vllm_cluster.hub.bucket import Bucket as OwnBucket
from vllm_cluster.run.runtime import SYSTEM

# A real server; boto3 and it take seconds to load.
pytestmark = pytest.mark.slow

FILES = model_files(1000)
INVENTORY = world.inventory(1)


@pytest.fixture(scope="module")
def served() -> Iterator[Bucket]:
    with bucket(files=FILES) as made:
        yield made


@pytest.fixture
def lab(served: Bucket, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket, and a laptop that may use it."""
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**served.environment, "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)
    served.refused = False
    return served


def hosts_of(events: list[Event] | None = None) -> PullHosts:
    """One host that is asked nothing."""
    fleet: Any = SimpleNamespace(
        connections={"gpu1": SimpleNamespace(name="gpu1", runtime=SYSTEM)}, runtime=SYSTEM, all=None
    )
    return PullHosts(INVENTORY, fleet, world.hosts(1), (events if events is not None else []).append)


def found(folder: str) -> HubModel:
    """What is found there."""
    wanted = wanted_bucket(folder, "x", "", detach=False, here=False)
    return find_objects(hosts_of(), wanted, BucketFolder.named(folder))


@pytest.mark.parametrize(
    ("source", "name", "model", "shown"),
    [
        ("s3://lab/mine", "", "./mine", "s3://lab/mine"),
        ("s3://lab/a/b c/", "other", "./other", "s3://lab/a/b c"),
        ("s3://lab", "", "./lab", "s3://lab"),
        ("s3://lab/", "./own", "./own", "s3://lab"),
    ],
)
def test_a_folder_of_a_bucket_gets_its_own_name_or_the_one_that_is_given(
    source: str, name: str, model: str, shown: str
) -> None:
    wanted = wanted_bucket(source, name, "gpu1", detach=True, here=False)
    assert (wanted.model, str(wanted.source), wanted.via, wanted.sent_from_here) == (model, shown, "gpu1", False)


def test_what_cannot_be_is_refused_with_what_can() -> None:
    with pytest.raises(UsageError, match=r"must be s3://BUCKET/FOLDER"):
        wanted_bucket("s3://", "", "", detach=False, here=False)
    with pytest.raises(UsageError, match="cannot be the name of a folder") as named:
        wanted_bucket("s3://lab/my model", "", "", detach=False, here=False)
    assert named.value.hint == "vcluster pull 's3://lab/my model' --as my-model"
    with pytest.raises(UsageError, match="s3:// is downloaded by a host") as here:
        wanted_bucket("s3://lab/mine", "", "", detach=False, here=True)
    assert here.value.hint == "aws s3 cp --recursive s3://lab/mine ./mine"


def test_objects_are_listed_with_their_etags_but_for_hidden_ones(lab: Bucket) -> None:
    lab.put({".git/config": b"x", ".cache": b"x", "README.md": b"x", "sub/": b""})
    model = found("s3://lab/mine/")
    assert {file.path: file.size for file in model.files} == {
        **{name: len(content) for name, content in FILES.items()},
        "README.md": 1,
    }
    assert all(file.etag.strip('"') and not file.blob for file in model.files)
    assert (model.name, model.origin, model.commit) == ("./x", "s3://lab/mine", "")
    plan = make(INVENTORY, model, "", {"gpu1": Held()}, "gpu1")
    assert [file.path for file in plan.skipped] == ["README.md"]
    document = plan.document("1", "key", "gpu1")
    assert (document["origin"], document["endpoint"]) == ("s3://lab/mine", "")
    assert {row["path"] for row in document["files"]} == set(FILES)


def refused(folder: str, kind: type[VclusterError]) -> VclusterError:
    """The error with which it is refused."""
    with pytest.raises(kind) as error:
        found(folder)
    assert error.value.exit_code == (4 if kind is Unreachable else 3)
    return error.value


def test_each_way_in_which_a_bucket_cannot_be_listed_has_its_remedy(
    lab: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = refused("s3://nothing-there/mine", PreflightFailed)
    assert missing.message == f"this machine: pull: {lab.url} has no bucket nothing-there"
    empty = refused("s3://lab/nothing", PreflightFailed)
    assert (empty.message, empty.hint) == ("pull: s3://lab/nothing has no objects", "aws s3 ls s3://lab/")
    above = refused("s3://lab", PreflightFailed)
    assert above.message == "pull: s3://lab has no config.json: not a model"
    assert above.hint == "vcluster pull s3://lab/mine"
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr("vllm_cluster.hub.bucket.TRIES", 1)
    gone = refused("s3://lab/mine", Unreachable)
    assert gone.message.endswith("Connection refused") and "AWS_ENDPOINT_URL" in str(gone.hint)
    monkeypatch.setenv("AWS_ENDPOINT_URL", lab.url)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert refused("s3://lab/mine", PreflightFailed).message == "this machine: pull: no AWS credentials"
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert "The config profile (nobody) could not be found" in refused("s3://lab/mine", PreflightFailed).message


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (403, "InvalidAccessKeyId", "refuses the AWS credentials of this machine: InvalidAccessKeyId"),
        (400, "ExpiredToken", "refuses the AWS credentials of this machine: ExpiredToken"),
        (403, "AccessDenied", "the AWS credentials of this machine may not list s3://lab/mine: AccessDenied"),
        (418, "Teapot", "answers 418 Teapot for s3://lab/mine"),
    ],
)
def test_what_the_endpoint_refuses_is_reported(lab: Bucket, status: int, code: str, text: str) -> None:
    lab.listing = (status, code)
    try:
        assert text in refused("s3://lab/mine", PreflightFailed).message
    finally:
        lab.listing = None


def test_an_archived_object_and_a_whole_bucket_are_refused(lab: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.client.put_object(Bucket="lab", Key="cold/config.json", Body=b"{}", StorageClass="GLACIER")
    cold = refused("s3://lab/cold", PreflightFailed)
    assert cold.message == "pull: s3://lab/cold/config.json is archived (GLACIER): restore it first"
    assert str(cold.hint).startswith("aws s3api restore-object --bucket lab --key cold/config.json ")
    monkeypatch.setattr("vllm_cluster.hub.bucket.MAX_OBJECTS", 3)
    assert "has more than 3 objects" in refused("s3://lab/mine", PreflightFailed).message


def test_without_boto3_the_command_that_installs_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    error = refused("s3://lab/mine", PreflightFailed)
    assert error.message == "this machine: pull: boto3 is not installed beside vcluster"
    assert str(error.hint).endswith("-m pip install 'boto3>=1.34'")


def probed(
    monkeypatch: pytest.MonkeyPatch, events: list[Event] | None = None, model: HubModel | None = None
) -> dict[str, Any]:
    """What the host that downloads gets; it is asked with the program that runs there."""

    def run(_connection: object, _program: object, _place: object, _deadline: object, asked: Any) -> Any:
        return SimpleNamespace(messages=ask_program("probe_object", asked), code=0, text="")

    monkeypatch.setattr(pull_bucket, "run", run)
    monkeypatch.setattr(pull_bucket, "place", lambda *_: None)
    plan = make(INVENTORY, model or found("s3://lab/mine"), "", {"gpu1": Held()}, "gpu1")
    given: dict[str, Any] = json.loads(signed(hosts_of(events), plan, BucketFolder("lab", "mine")))
    return given


def test_addresses_are_signed_for_a_week_and_hold_no_secret(lab: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    given = probed(monkeypatch)
    assert set(given["addresses"]) == set(FILES)
    assert abs(given["expires"] - time.time() - MAX_LIFE) < 60
    for path, address in given["addresses"].items():
        asked = urlsplit(address)
        assert asked.path == f"/lab/mine/{path}" and parse_qs(asked.query)["X-Amz-Expires"] == [str(MAX_LIFE)]
        assert lab.environment["AWS_SECRET_ACCESS_KEY"] not in address


# fault: hub/bucket.py: self._move_to_its_region() →
def test_addresses_are_of_the_region_that_the_bucket_is_in(lab: Bucket) -> None:
    lab.client.create_bucket(Bucket="far", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    addresses, _ = OwnBucket(BucketFolder("far", "")).signed(["config.json"])
    (scope,) = parse_qs(urlsplit(addresses["config.json"]).query)["X-Amz-Credential"]
    assert scope.split("/")[2] == "eu-central-1"


def test_lent_credentials_shorten_the_life_and_that_is_reported(lab: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    lent = SimpleNamespace(_expiry_time=datetime.now(UTC) + timedelta(hours=2, minutes=1))
    made = OwnBucket(BucketFolder("lab", "mine"))
    monkeypatch.setattr(made._session, "get_credentials", lambda: lent)
    monkeypatch.setattr(pull_bucket, "Bucket", lambda _: made)
    events: list[Event] = []
    given = probed(monkeypatch, events)
    assert 7000 < given["expires"] - time.time() < 7300
    assert "the AWS credentials end in 2 h" in next(event.text for event in events if event.kind == "note")


def test_a_host_that_is_not_given_the_objects_is_reported(lab: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.refused = True
    with pytest.raises(PreflightFailed, match=r"gpu1: pull: http.* answers 403 AccessDenied for s3://lab/mine/config"):
        probed(monkeypatch)


def test_a_host_that_does_not_reach_the_endpoint_is_reported(lab: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}/?X-Amz-Signature=secret"
    made = OwnBucket(BucketFolder("lab", "mine"))
    monkeypatch.setattr(made, "signed", lambda paths: (dict.fromkeys(paths, nowhere), time.time() + MAX_LIFE))
    model = found("s3://lab/mine")
    monkeypatch.setattr(pull_bucket, "Bucket", lambda _: made)
    with pytest.raises(Unreachable, match=r"pull: cannot reach http://127.*Connection refused") as error:
        probed(monkeypatch, model=model)
    assert "--via HOST" in str(error.value.hint) and "Amz" not in error.value.message
