"""Ids change with the value and give nothing away; what the cluster has is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import world
from vllm_cluster.kernel.backends import vllm
from vllm_cluster.kernel.errors import InventoryError
from vllm_cluster.kernel.facts.host_facts import Hca
from vllm_cluster.kernel.hosts.runtime import SYSTEM
from vllm_cluster.kernel.hosts.secrets import UNREAD, Secrets, collect_secrets, secret_id
from vllm_cluster.kernel.inventory.load import load_text
from vllm_cluster.kernel.plan.desired import SECRETS_FOLDER, Inputs, desired

ACTIVE = Hca("mlx5_0", 1, "4: ACTIVE", "InfiniBand", "400 Gb/sec", ("/dev/infiniband/uverbs0",))


def test_an_id_is_stable_and_belongs_to_one_cluster_and_name() -> None:
    same = secret_id("lab", "api-key", "secret")
    assert same == secret_id("lab", "api-key", "secret")
    others = {
        secret_id("lab", "api-key", "Secret"),
        secret_id("prod", "api-key", "secret"),
        secret_id("lab", "x", "secret"),
    }
    assert same not in others
    assert len(others) == 3


def test_a_secret_that_was_not_given_is_made_and_then_kept() -> None:
    words = world.inventory()
    first = collect_secrets(words, {}, SYSTEM)
    assert first.ids.keys() == first.values.keys() == {"ray-token", "api-key"}
    again = collect_secrets(words, first.ids, SYSTEM)
    assert again.ids == first.ids
    assert again.values == {}


def test_what_is_given_wins_over_what_was_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KEY", "given")
    token = tmp_path / "token"
    token.write_text("hf_x\n")
    words = world.inventory(api_key="env:KEY", hf_token=f"file:{token}")
    found = collect_secrets(words, {"ray-token": "11", "api-key": "22"}, SYSTEM)
    assert found.values == {"api-key": "given", "hf-token": "hf_x"}
    assert found.ids["ray-token"] == "11"
    assert found.ids["api-key"] == secret_id("lab", "api-key", "given")


# fault: kernel/hosts/secrets.py: values: dict[str, str] = field(repr=False) → values: dict[str, str]
def test_values_do_not_show() -> None:
    assert "hunter2" not in repr(Secrets({"api-key": "11"}, {"api-key": "hunter2"}))


# fault: kernel/hosts/secrets.py: (self.values[name].encode(), 0o600) → (self.values[name].encode(), 0o644)
def test_files_of_secrets_are_for_their_owner_alone() -> None:
    made = Secrets({"api-key": "11"}, {"api-key": "hunter2"})
    assert made.files({"api-key": "11"}) == {"api-key-11": (b"hunter2", 0o600)}


REFERENCES: dict[str, Any] = {
    "hf_token": "env:NOWHERE_HF",
    "secrets": {"AWS_SECRET_ACCESS_KEY": "cmd:sh -c 'echo ran >&2; exit 3'"},
}
KEPT = {"ray-token": "11", "api-key": "22", "hf-token": "33", "env-AWS_SECRET_ACCESS_KEY": "44"}


def test_up_needs_every_reference() -> None:
    with pytest.raises(InventoryError, match="env:NOWHERE_HF"):
        collect_secrets(world.inventory(**REFERENCES), KEPT, SYSTEM)


def test_a_reference_that_leads_nowhere_is_reported_with_its_file_line_and_key(tmp_path: Path) -> None:
    file = tmp_path / "inventory.yaml"
    file.write_text(
        "version: 1\ncluster: lab\nimage: vllm/vllm-openai:v0.19.0\nmodel_cache: /data\n"
        "secrets:\n  S3: env:NOWHERE_S3\nhosts:\n  gpu1: {address: 10.0.0.1}\n"
    )
    with pytest.raises(InventoryError) as caught:
        collect_secrets(load_text(file.read_bytes(), path=file, cwd=None), KEPT, SYSTEM)
    assert str(caught.value) == f"{file}:6: secrets.S3: env:NOWHERE_S3: this variable is not set"
    assert caught.value.hint == "set NOWHERE_S3 in the shell that runs vcluster"


def test_serve_reads_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    found = collect_secrets(world.inventory(**REFERENCES), KEPT, SYSTEM, read=False)
    assert (found.ids, found.values) == (KEPT, {})
    assert collect_secrets(world.inventory(**REFERENCES), {}, SYSTEM, read=False).ids["hf-token"] == UNREAD
    assert capfd.readouterr().err == ""


def test_secret_variables_are_on_every_node_as_files_and_nowhere_as_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3", "canary-0123456789")
    words = world.inventory(secrets={"AWS_SECRET_ACCESS_KEY": "env:S3"})
    found = collect_secrets(words, {}, SYSTEM)
    for spec in desired(words, world.hosts(), Inputs("program", found.ids)):
        identity = found.ids["env-AWS_SECRET_ACCESS_KEY"]
        file = f"env-AWS_SECRET_ACCESS_KEY-{identity}"
        hidden = json.loads(dict(spec.environment)["VCLUSTER_SECRET_ENVIRONMENT"])
        assert hidden == {"AWS_SECRET_ACCESS_KEY": f"{SECRETS_FOLDER}/{file}"}
        assert found.files(dict(spec.secrets))[file] == (b"canary-0123456789", 0o600)
        assert "canary" not in spec.document + json.dumps(spec.labels()) + repr(found)


def test_no_secret_variable_is_one_that_is_set_anyway() -> None:
    """What a node or vLLM gets from vcluster cannot be given as a secret."""
    words = world.inventory(hf_token="env:X")
    ids = {"ray-token": "1", "api-key": "2", "hf-token": "3", "env-A": "4"}
    specs = desired(words, world.hosts(gpu1={"hcas": (ACTIVE,)}), Inputs("p", ids))
    ours = {name for spec in specs for name, _ in spec.environment}
    assert {"NCCL_IB_HCA", "RAY_AUTH_MODE", "HF_TOKEN_PATH"} <= ours
    for name in ours | set(vllm.vllm_environment()) | {"PYTHONPATH", "PATH", "VLLM_API_KEY", "HF_TOKEN"}:
        with pytest.raises(ValueError, match="is set by vcluster"):
            world.inventory(secrets={name: "env:X"})
