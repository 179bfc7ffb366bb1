"""Names come from hosts, and nothing may lead out of the folder where a bundle is unpacked."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest

from tests.support.bounds import full_disk
from tests.support.json_schemas import validate
from tests.support.sim import lab, make
from vllm_cluster.features.explain import bundle, verb
from vllm_cluster.kernel.errors import Unreachable, UsageError
from vllm_cluster.kernel.events import Emit
from vllm_cluster.kernel.hosts.runtime import Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.terminal.session import Session


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("gpu1/serve.log", "gpu1/serve.log"),
        ("gpu1/../../etc/cron.d/x", "gpu1/etc/cron.d/x"),
        ("/etc/passwd", "etc/passwd"),
        ("gpu1/ray/\x1b[2Jx\n.err", "gpu1/ray/[2Jx.err"),
    ],
)
def test_a_name_stays_in_its_folder(tmp_path: Path, name: str, packed: str) -> None:
    path = tmp_path / "x.tar.gz"
    bundle._write(path, {name: b"content"})
    with tarfile.open(path) as tar:
        assert tar.getnames() == [f"vcluster-bundle/{packed}"]


def test_a_path_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        bundle._write(tmp_path / "none" / "x.tar.gz", {})


# fault: features/explain/bundle.py: path.unlink(missing_ok=True) → pass
def test_a_full_disk_leaves_no_part_of_it(tmp_path: Path) -> None:
    """The same command was refused then, because of the file."""
    path = tmp_path / "x.tar.gz"
    with full_disk(1 << 20), pytest.raises(UsageError, match="cannot be written: File too large"):
        bundle._write(path, {"noise": os.urandom(2 << 20)})
    assert not path.exists()


# fault: features/explain/verb.py: if failures: → if not packed:
@pytest.mark.parametrize("as_json", [False, True])
def test_a_host_that_gave_nothing_is_named_and_makes_the_exit_code(
    as_json: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lost = {"gpu2": Unreachable("gpu2", "no route to host", hint="ssh gpu2")}
    monkeypatch.setattr(Session, "load", lambda _: make.inventory(2))
    monkeypatch.setattr(bundle, "bundle", lambda *_, **__: ({"plan.json": 3}, lost))
    with pytest.raises(SystemExit) as end:
        verb.explain(bundle=tmp_path / "b.tar.gz", as_json=as_json)
    assert end.value.code == 4
    shown = capsys.readouterr()
    if as_json:
        validate(["explain", "--bundle", "--json"], shown.out)
        document, error = map(json.loads, shown.out.splitlines())
        assert (document["unreachable"], error["code"]) == ({"gpu2": "gpu2: no route to host"}, "unreachable")
    else:
        assert "Nothing of gpu2 is in it\nWrote " in shown.out
        assert shown.err.startswith("error: gpu2: no route to host\nfix: ")


# fault: features/explain/bundle.py: , _ = settled(desired(inventory, facts, inputs), facts → = desired(inventory, facts, inputs
@pytest.mark.parametrize("gpus", [1, 3])
def test_its_plan_is_that_of_the_verb(gpus: int, tmp_path: Path) -> None:
    """A node keeps what it was made with where a GPU is lost, and is recreated where one was added."""
    world, inventory, path = make.world((2, 2)), make.inventory(2), tmp_path / "b.tar.gz"

    def pack(inventory: Inventory, emit: Emit, runtime: Runtime) -> bundle.Packed:
        return bundle.bundle(inventory, emit, path, runtime=runtime)

    with lab.inside(world):
        lab.succeed(world, inventory, lab.do_up)
        world.machines["gpu2"].gpus = gpus
        planned = lab.succeed(world, inventory, lab.do_plan).value
        lab.succeed(world, inventory, pack)
    with tarfile.open(path) as tar:
        stream = tar.extractfile("vcluster-bundle/plan.json")
        assert stream
        found = json.load(stream)
    hosts = {one["host"] for one in found["operations"] if one["operation"] == "create"}
    assert hosts == {one.host for one in planned.operations() if one.verb == "create"}
    assert hosts == ({"gpu2"} if gpus == 3 else set())
