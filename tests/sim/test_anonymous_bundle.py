"""Nothing in an anonymous bundle shows whose machines these are: every field is marked, and no mark comes out."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.sim import lab, make
from tests.support.sim.world import Box, Machine, Picture, World, identity
from vllm_cluster.actions import bundle
from vllm_cluster.inventory.model import Host, HostSsh, Inventory, Ports, SshSettings

MARK = "zqx"
IMAGE = "registry.zqxlab.example:5000/zqxteam/zqxfork:zqxtag"
OTHER = "registry.zqxother.example/zqxgroup/zqxapp:9"
LOG = f"""\
[node] zqxhosta zqxhosta.zqxdomain.example ZqxHostB zqxdomain.example /srv/zqx müller/models
[vllm] by zqxlaptopuser@zqxlaptop as zqxuser through zqxbastion and zqxjump ZQXCORP_MODE=x
[vllm] {json.dumps("/srv/zqx müller/models/x")} NCCL WARN eth0 zqxmachineid1
"""
KEYS = {"version", "accelerator", "shm_size", "ports", "privileged", "ray", "hosts", "ssh", "user", "head"}


def written(folder: Path) -> dict[str, Any]:
    """An inventory with a mark in every field that holds text of a person's own."""
    return {
        "version": 1,
        "cluster": "zqxcluster",
        "image": IMAGE,
        "model_cache": "/srv/zqx müller/models",
        "volumes": ["/data/zqxproject:/zqxtarget:ro"],
        "environment": {"ZQXCORP_MODE": "zqxplain", "NCCL_DEBUG": "WARN", "PROXY": "http://zqxegress.example:3128"},
        "hf_token": f"file:{folder}/zqxtoken",
        "api_key": "env:ZQXKEY",
        "secrets": {"ZQXCORP_SECRET": "cmd:echo zqxsecretvalue"},
        "ssh": {
            "config": str(folder / "zqxconfig"),
            "user": "zqxuser",
            "identity": "~/zqxidentity",
            "jump": "zqxj@zqxbastion",
        },
        "hosts": {
            "zqxhosta": {
                "address": "10.0.0.1",
                "interface": "zqxnic",
                "gpus": 1,
                "ssh": {"host": "zqxalias", "user": "zqxlogin", "identity": "~/zqxother", "jump": "zqxjump.example:22"},
            },
            "ZQXhostB": {"address": "10.0.0.2", "hcas": [], "gpus": 1},
        },
    }


def ssh(argv: Sequence[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
    """An ssh_config with a mark in all that `ssh -G` shows."""
    shown = f"user zqxsshuser\nhostname {argv[-1].lower()}.zqxdomain.example\nport 22\nhostkeyalias zqxkeyalias\n"
    return subprocess.CompletedProcess(argv, 0, f"{shown}proxycommand nc -x 'zqxproxy:3128' %h %p\n".encode(), b"")


def marked_world() -> World:
    """Two hosts."""
    machines = [
        Machine("zqxhosta", "10.0.0.1", 1, "zqxmachineid1", nic="zqxnic"),
        Machine("ZQXhostB", "10.0.0.2", 1, "zqxmachineid2", nic="zqxnic"),
    ]
    image = make.base_image(have=make.WITH_RAY)
    for machine in machines:
        machine.images[image.id] = Picture(image.id, [IMAGE], dict(image.have))
    return World(machines, {IMAGE: image})


def add_neighbours(world: World) -> None:
    """On each host another team's cluster, with what that team wrote into it."""
    for machine in world.machines.values():
        other = Picture(f"sha256:{identity('other', machine.name)}", [OTHER], {})
        machine.images[other.id] = other
        labels = {"io.vcluster.cluster": "zqxcluster2", "com.example.zqxlabel": "zqxowner"}
        labels["io.vcluster.spec"] = json.dumps({"environment": [["PLAIN", "zqxtheirs"]], "cluster": "zqxcluster2"})
        body = {"Image": other.id, "Labels": labels, "Entrypoint": ["zqxprogram"], "Cmd": []}
        box = Box(identity("box", machine.name), "vcluster-zqxcluster2", other.id, body, state="running", born=-1)
        machine.boxes[box.id] = box


def packed(path: Path) -> dict[str, str]:
    """The files of a bundle."""
    with tarfile.open(path) as tar:
        streams = {member.name: tar.extractfile(member) for member in tar}
        return {name: stream.read().decode() for name, stream in streams.items() if stream}


def test_every_field_of_an_inventory_is_marked(tmp_path: Path) -> None:
    """A key that is added to the inventory is marked for the test below, or holds no text of a person's own."""
    content = written(tmp_path)
    own = {"name", "line", "lines", "path", "id"}
    assert Inventory.model_fields.keys() - own <= content.keys() | KEYS
    assert SshSettings.model_fields.keys() - own <= content["ssh"].keys() | {"port", "transport", "host_keys"}
    assert HostSsh.model_fields.keys() - own <= content["hosts"]["zqxhosta"]["ssh"].keys() | {"port"}
    assert Host.model_fields.keys() - own <= {key for host in content["hosts"].values() for key in host}
    assert {field.annotation for field in Ports.model_fields.values()} == {int}


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], dict[str, str]]:
    """A cluster with marks, up, of which one host does not answer any more; makes a bundle, anonymous or not."""
    monkeypatch.setenv("ZQXKEY", "zqxgivenkey")
    monkeypatch.setenv("HOME", str(tmp_path / "zqxhome"))
    monkeypatch.setenv("LOGNAME", "zqxlaptopuser")
    monkeypatch.setattr("socket.gethostname", lambda: "zqxlaptop")
    (tmp_path / "zqxtoken").write_text("zqxhftoken\n")
    inventory = Inventory.model_validate(written(tmp_path))
    inventory = inventory.model_copy(update={"path": tmp_path / "zqxinventory.yaml"})
    path = tmp_path / "report.tar.gz"

    def make_report(anonymous: bool) -> dict[str, str]:
        world = marked_world()
        with lab.inside(world):
            assert world.runtime
            world.runtime = replace(world.runtime, processes=ssh)
            assert lab.run(world, inventory, lab.do_up).error is None
            add_neighbours(world)
            for machine in world.machines.values():
                box = machine.box("vcluster-zqxcluster")
                assert box
                box.log = LOG
            world.machines["ZQXhostB"].reachable = False
            done = lab.run(world, inventory, lambda i, e, r: bundle.bundle(i, e, path, anonymous=anonymous, runtime=r))
            assert done.error is None
        return packed(path)

    return make_report


# fault: actions/bundle.py: _renamer(inventory, hosts, runtime) if anonymous else →
# fault: run/private_names.py: if folder + slash + last not in _PUBLIC: → if not folder:
@pytest.mark.promise("P13")
def test_no_mark_of_any_field_is_in_an_anonymous_bundle(report: Callable[[bool], dict[str, str]]) -> None:
    found = report(True)
    marks = [
        f"{name}: {line[max(0, at - 40) : at + 40]}"
        for name, text in found.items()
        for line in [name, *text.splitlines()]
        if (at := line.lower().find(MARK)) >= 0
    ]
    assert marks == []
    log = next(text for name, text in found.items() if name.endswith("docker.log"))
    assert "NCCL WARN eth0" in log


# fault: actions/bundle.py: [f"{entry.partition('=')[0]}={REDACTED}" for → [entry for
def test_no_value_of_environment_is_in_any_bundle_whosever_node_has_it(
    report: Callable[[bool], dict[str, str]],
) -> None:
    """Docker's labels hold what a node was made from."""
    whole = json.dumps(report(False))
    assert [value for value in ("zqxplain", "zqxtheirs", "zqxowner", "zqxsecretvalue") if value in whole] == []
    assert "ZQXCORP_MODE" in whole
