"""A folder of an S3 bucket as the source of a pull: listed here, downloaded by one host with signed addresses."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping
from typing import Any

from vllm_cluster.actions.pull_folder import ensure_name, refuse_no_model
from vllm_cluster.actions.pull_hosts import PullHosts
from vllm_cluster.actions.pull_plan import WantedModel
from vllm_cluster.core.pull import HubFile, HubModel, PullPlan, unfit_path
from vllm_cluster.errors import CommandFailed, PreflightFailed, Unreachable, UsageError
from vllm_cluster.events import Event
from vllm_cluster.hub.bucket import MAX_LIFE, SCHEME, Bucket, BucketFolder
from vllm_cluster.run.connection import HostConnection
from vllm_cluster.run.model_cache import place
from vllm_cluster.run.program import python, run
from vllm_cluster.text import age

PROBE_SECONDS = 40.0
_NO_BYTE = 416
_EXPIRES_SOON = MAX_LIFE - 3600


def is_bucket(source: str) -> bool:
    """Whether these words name a folder of a bucket."""
    return source.startswith(SCHEME)


def wanted_bucket(source: str, name: str, via: str, *, detach: bool, here: bool) -> WantedModel:
    """A folder of a bucket as the source, to be ./NAME below the cache of each host.

    Raises:
        UsageError: it names no bucket, the name cannot be, or this machine is to download it.
    """
    folder = BucketFolder.named(source)
    if here:
        text = f"--via local: {SCHEME} is downloaded by a host"
        raise UsageError(text, hint=f"aws s3 cp --recursive {shlex.quote(str(folder))} ./{folder.name}")
    model = f"./{name.removeprefix('./') or folder.name}"
    ensure_name(source, model)
    return WantedModel(model, "", via, detach, folder)


def find_objects(hosts: PullHosts, wanted: WantedModel, folder: BucketFolder) -> HubModel:
    """The objects of the folder as this machine may list them.

    Raises:
        PreflightFailed: it cannot be listed, or is not a model.
        Unreachable: the endpoint cannot be reached from here.
    """
    hosts.emit(Event("phase", f"listing {folder}"))
    files = [HubFile(one.path, one.size, "", one.etag) for one in Bucket(folder).listed()]
    if not files:
        listing = f"aws s3 ls {shlex.quote(f'{SCHEME}{folder.bucket}/')}"
        raise PreflightFailed(f"pull: {folder} has no objects", hint=listing)
    if not any(file.path == "config.json" for file in files):
        refuse_no_model("pull", str(folder), str(folder), files)
    if (wrong := unfit_path(files)) is not None:
        raise PreflightFailed(f"pull: {folder}: an object's name cannot be on every host: {wrong[:80]!a}")
    return HubModel(wanted.model, "", "", tuple(files), origin=str(folder))


def signed(hosts: PullHosts, plan: PullPlan, folder: BucketFolder) -> str:
    """The addresses of the objects, as the host that downloads reads them; it is asked for one byte of the first.

    Raises:
        PreflightFailed: it is not given to that host.
        Unreachable: that host cannot reach the endpoint.
    """
    bucket = Bucket(folder)
    addresses, expires = bucket.signed([file.path for file in plan.model.files])
    left = expires - time.time()
    if left < _EXPIRES_SOON:
        text = f"the AWS credentials end in {age(max(0.0, left))}: a download that takes longer ends then"
        hosts.emit(Event("note", f"{text}, and the same command continues it", data={"code": "credentials-end"}))
    first = next(file for file in plan.model.files if file.path == "config.json")
    asked = {"address": addresses[first.path], "etag": first.etag}
    _ensure_given(hosts, plan.chain[0], bucket.endpoint, f"{folder}/{first.path}", asked)
    return json.dumps({"addresses": addresses, "expires": expires})


def _ensure_given(hosts: PullHosts, name: str, endpoint: str, what: str, asked: Mapping[str, Any]) -> None:
    connection: HostConnection = hosts.fleet.connections[name]
    program = python("image", "probe_object", seconds=PROBE_SECONDS)
    deadline = connection.runtime.after(PROBE_SECONDS + 10)
    ended = run(connection, program, place(hosts.inventory, hosts.facts[name]), deadline, asked)
    row = next((row for row in ended.messages if "status" in row), None)
    if row is None:
        text = f"pull: the test of {what} gave no answer: {ended.text[-300:]}"
        raise CommandFailed(name, text, exit_code=ended.code, stderr=ended.text[-300:])
    status, code = int(row["status"]), str(row["code"])
    if not status:
        hint = "use --via HOST with a host that reaches it"
        raise Unreachable(name, f"pull: cannot reach {endpoint}: {code}", hint=hint)
    # Of an empty one there is no first byte.
    if status >= 400 and status != _NO_BYTE:
        text = f"{name}: pull: {endpoint} answers {status} {code} for {what}"
        raise PreflightFailed(text, hint="allow the AWS credentials of this machine s3:GetObject there")
