"""The containers of a pull: one a host, made, started, watched and removed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal, get_args

from vllm_cluster.kernel.docker.container_body import host_config, node_body
from vllm_cluster.kernel.errors import CommandFailed
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.facts.values import mapping
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.models.cache import image_id
from vllm_cluster.kernel.node.program import importable
from vllm_cluster.kernel.plan.cached_model import REPOSITORY, pull_line
from vllm_cluster.kernel.plan.pull import (
    COMMIT,
    FOLDER,
    MAKER,
    PLAN,
    PULLED,
    STATUS,
    TOKEN,
    container_name,
    container_spec,
)
from vllm_cluster.kernel.plan.spec import CLUSTER
from vllm_cluster.kernel.text import end_of, printable
from vllm_cluster.wire.pull import HostPlan, PullPhase
from vllm_cluster.wire.reading import RefusedDocument, convert, document
from vllm_cluster.wire.values import MAX_SIZE, without_logins

CONFLICT = 409
# A program that ends so often right after its start will not run.
RESTARTS = 20
MAX_TEXT = 500
# What a status has of these becomes part of commands that are printed, to be pasted.
_FORMS = {
    "model": re.compile(rf"(\./)?{REPOSITORY.pattern}", re.ASCII),
    "commit": COMMIT,
    "reference": re.compile(r"\w[\w./+-]{0,200}"),
}


@dataclass(frozen=True)
class PullStatus:
    """How far a host's part is; sizes in bytes. `phase` ends with done, failed or gone."""

    phase: Literal[PullPhase, "gone"]
    id: str = ""
    model: str = ""
    commit: str = ""
    reference: str = ""
    bytes: int = 0
    total: int = 0
    source: bool = False
    upstream: str = ""
    # Its files come from a machine that sends none now.
    unfed: bool = False
    error: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        """The model and the revision that is pulled."""
        revision = self.reference or self.commit
        return f"{self.model}@{revision}" if revision not in ("", "main") else self.model

    @property
    def follow(self) -> str:
        """The command that follows it, or that shows it."""
        return pull_line(self.model, self.name.removeprefix(self.model)[1:]) or "vcluster models"

    @property
    def over(self) -> bool:
        """Whether nothing more happens there."""
        return self.phase in ("done", "failed", "gone")


def spread_program() -> dict[str, bytes]:
    """The files of the program, by their path below its folder."""
    files = importable("vllm_cluster.kernel.spread")
    return {"main.py": files["vllm_cluster/kernel/spread/main.py"], **files}


def create(
    connection: HostConnection, inventory: Inventory, facts: HostFacts, labels: Mapping[str, str], reads: str = ""
) -> bool:
    """Create the host's container with these labels and a folder that it `reads`; False where one is there.

    Raises:
        HostError: the image is not there, or Docker refuses.
    """
    image = image_id(inventory, facts)
    spec = container_spec(inventory, inventory.hosts[connection.name], reads)
    body = node_body(spec, image, "")
    body["Image"], body["Labels"] = image, dict(labels)
    # It comes back where it was killed, and not once it has ended by itself.
    body["HostConfig"] = {**host_config(spec), "RestartPolicy": {"Name": "on-failure", "MaximumRetryCount": RESTARTS}}
    try:
        connection.docker.create(container_name(inventory.cluster), body)
    except CommandFailed as error:
        if error.returncode == CONFLICT:
            return False
        raise
    return True


def begin(connection: HostConnection, cluster: str, plan: HostPlan, token: str | None) -> None:
    """Write the plan beside the program, with the token where it downloads, and start it.

    Raises:
        HostError: Docker refuses.
    """
    files = {f"{FOLDER}/{path}": (content, 0o644) for path, content in spread_program().items()}
    files[PLAN] = (json.dumps(asdict(plan)).encode(), 0o600)
    if token:
        files[TOKEN] = (token.encode(), 0o600)
    connection.docker.put_files(container_name(cluster), "/", files)
    connection.docker.start(container_name(cluster))


def status(connection: HostConnection, cluster: str) -> PullStatus:
    """How far the host's part is.

    Raises:
        HostError: the host does not answer.
    """
    name = container_name(cluster)
    found = connection.docker.container_info(name)
    if found is None:
        return PullStatus("gone")
    raw = connection.docker.read_file(name, STATUS)
    row = _row(raw)
    ended = found.status in ("exited", "dead")
    if ended and row.get("phase") not in ("done", "failed"):
        words = end_of(connection.docker.logs(name, tail=5).strip().split("\n")[-1], 300)
        why = "killed for lack of memory" if found.out_of_memory else words or f"exit code {found.exit_code}"
        return PullStatus("failed", error=f"its program ended: {why}")
    known = _typed({**_row(found.labels.get(PULLED, "").encode()), **row})
    # Created, and its plan is being written; or it is coming back.
    return convert(PullStatus, {"phase": "starting", **known}, name)


def _row(raw: bytes | None) -> dict[str, object]:
    try:
        row = mapping(document(raw or b"{}", ""))
    except RefusedDocument:
        return {}
    # Python takes true for 1.
    version = row.get("v", 1)
    return row if type(version) is int and version == 1 else {}


def _typed(row: Mapping[str, object]) -> dict[str, object]:
    """What a status may hold; the rest is left out: it comes from a host as it is."""
    known: dict[str, object] = {"phase": row["phase"]} if row.get("phase") in get_args(PullPhase) else {}
    for name, kind in PullStatus.__annotations__.items():
        value = row.get(name)
        if kind == "str" and isinstance(value, str):
            known[name] = printable(without_logins(value[:MAX_TEXT]))
        elif (kind == "bool" and type(value) is bool) or (
            kind == "int" and type(value) is int and 0 <= value <= MAX_SIZE
        ):
            known[name] = value
    return {name: value for name, value in known.items() if name not in _FORMS or _FORMS[name].fullmatch(str(value))}


def remove_pull_container(connection: HostConnection, cluster: str, made_by: str = "") -> None:
    """Remove the host's container, or only one of the pull `made_by`; no error where it is gone.

    Raises:
        HostError: Docker refuses.
    """
    name = container_name(cluster)
    found = connection.docker.container_info(name)
    # The plan and the key go with it.
    if found and found.labels.get(CLUSTER) == cluster and made_by in ("", found.labels.get(MAKER)):
        connection.docker.remove(found.id, grace=5)
