"""The sandbox's folder: what is written, how, and when it is left alone."""

from __future__ import annotations

import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from vcluster_sandbox import folder as files
from vcluster_sandbox.hosts import SandboxHost
from vcluster_sandbox.names import CPU_IMAGE
from vllm_cluster.kernel.errors import UsageError, VclusterError

HOSTS = [
    SandboxHost("gpu1", "10.1.2.11", 40001, "ssh-ed25519 AAAA"),
    SandboxHost("gpu2", "10.1.2.12", 40002, "ssh-ed25519 BBBB"),
]


# fault: vcluster_sandbox/folder.py: NoEncryption()).decode(), mode=0o600) → NoEncryption()).decode(), mode=0o644)
def test_key_is_made_once_and_private(tmp_path: Path) -> None:
    public = files.ensure_key(tmp_path)
    assert public.startswith("ssh-ed25519 ")
    assert stat.S_IMODE((tmp_path / "id_ed25519").stat().st_mode) == 0o600
    assert (tmp_path / "id_ed25519.pub").read_text() == f"{public} vcluster-sandbox\n"
    assert files.ensure_key(tmp_path) == public


# fault: vcluster_sandbox/folder.py: if not (hosts and private.exists()): → if not private.exists():
def test_a_key_that_came_with_the_folder_is_not_used(tmp_path: Path) -> None:
    """As in a repository: whoever wrote that has the private half, and could log in at hosts that have all rights."""
    planted = files.ensure_key(tmp_path)
    public = files.ensure_key(tmp_path, hosts=False)
    assert public != planted
    assert files.ensure_key(tmp_path) == public


# fault: vcluster_sandbox/folder.py: if folder.is_symlink(): → if not folder:
# fault: vcluster_sandbox/folder.py: return public.is_file() and → return
@pytest.mark.parametrize("name", ["sandbox", ".ssh"])
@pytest.mark.parametrize("there", ["id_ed25519 id_ed25519.pub known_hosts", "known_hosts", "config"])
def test_a_persons_own_keys_are_neither_changed_nor_removed(tmp_path: Path, name: str, there: str) -> None:
    """A cloned repository may have a link `sandbox` to ~/.ssh, or --dir names it."""
    own = tmp_path / ".ssh"
    own.mkdir()
    (tmp_path / "sandbox").symlink_to(own)
    for file in there.split():
        (own / file).write_text(f"my {file}\n")
    if (name, there) != (".ssh", "config"):
        with pytest.raises(UsageError, match="nothing is changed there"):
            files.ensure_key(tmp_path / name)
    files.remove_files(tmp_path / name)
    assert {file.name: file.read_text() for file in own.iterdir()} == {file: f"my {file}\n" for file in there.split()}


def test_broken_key_is_reported(tmp_path: Path) -> None:
    files.ensure_key(tmp_path)
    (tmp_path / "id_ed25519").write_text("nonsense")
    with pytest.raises(VclusterError, match="id_ed25519 is not a private key"):
        files.ensure_key(tmp_path)


def test_inventory_names_the_hosts(tmp_path: Path) -> None:
    content = YAML(typ="safe").load(files.write_files(tmp_path, HOSTS))
    assert content["hosts"] == {"gpu1": {"address": "10.1.2.11"}, "gpu2": {"address": "10.1.2.12"}}
    assert content["image"] == CPU_IMAGE
    assert content["ssh"] == {"config": "ssh_config"}
    assert content["environment"] == {"HF_HUB_OFFLINE": "1"}


# fault: vcluster_sandbox/folder.py: if _hosts_in(inventory) != {host.name: host.address for host in hosts}: → if hosts:
def test_inventory_is_kept_while_the_hosts_are_the_same(tmp_path: Path) -> None:
    inventory = files.write_files(tmp_path, HOSTS)
    changed = inventory.read_text() + "# mine\n"
    inventory.write_text(changed)
    files.write_files(tmp_path, HOSTS)
    assert inventory.read_text() == changed
    files.write_files(tmp_path, HOSTS[:1])
    assert "mine" not in inventory.read_text()
    inventory.write_text("hosts: [nonsense")
    files.write_files(tmp_path, HOSTS)
    assert inventory.read_text() == files.inventory_text(HOSTS)


# fault: vcluster_sandbox/folder.py: if not (inventory.is_symlink() or _changed(inventory)): → if True:
def test_an_inventory_that_came_with_the_folder_is_not_used(tmp_path: Path) -> None:
    """As in a repository: with the same hosts it was kept, and the next `vcluster up` ran its commands."""
    assert files.set_aside(tmp_path) is None
    inventory = files.write_files(tmp_path, HOSTS)
    assert files.set_aside(tmp_path) is None
    planted = inventory.read_text() + "secrets: {A: {cmd: touch RAN}}\n"
    inventory.write_text(planted)
    aside = files.set_aside(tmp_path)
    assert aside == tmp_path / "inventory.yaml.before"
    assert aside.read_text() == planted
    assert files.write_files(tmp_path, HOSTS).read_text() == files.inventory_text(HOSTS)


# fault: vcluster_sandbox/folder.py: str(path).replace("%", "%%") → str(path)
@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs the ssh client")
def test_ssh_reads_what_was_written(tmp_path: Path) -> None:
    home = tmp_path / "a folder, 100%"
    home.mkdir()
    files.write_files(home, HOSTS)
    command = ["ssh", "-G", "-F", str(home / "ssh_config"), "gpu2"]
    read = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {"hostname 127.0.0.1", "port 40002", "user vcluster", "identitiesonly yes"} <= set(read)
    assert f"identityfile {home}/id_ed25519".replace("%", "%%") in read or f"identityfile {home}/id_ed25519" in read
    assert "stricthostkeychecking true" in read
    lookup = ["ssh-keygen", "-F", "[127.0.0.1]:40002", "-f", str(home / "known_hosts")]
    assert "BBBB" in subprocess.run(lookup, capture_output=True, text=True, check=True).stdout


def test_what_was_written_is_removed_and_nothing_else(tmp_path: Path) -> None:
    home = tmp_path / "sandbox"
    home.mkdir()
    files.ensure_key(home)
    files.write_files(home, HOSTS)
    (home / "notes").write_text("mine")
    files.remove_files(home)
    assert [file.name for file in home.iterdir()] == ["notes"]
    (home / "notes").unlink()
    files.remove_files(home)
    assert not home.exists()
    files.remove_files(home)


# fault: vcluster_sandbox/folder.py: any(file.name != _INVENTORY or not _changed(file) for file in there) → any(there)
# fault: vcluster_sandbox/folder.py: any(file.name != _INVENTORY or not _changed(file) for file in there) → False
def test_an_inventory_that_a_person_changed_stays(tmp_path: Path) -> None:
    files.ensure_key(tmp_path)
    inventory = files.write_files(tmp_path, HOSTS)
    for changed in (inventory.read_text() + "hf_token: env:HF_TOKEN\n", "hosts: [nonsense"):
        inventory.write_text(changed)
        assert files.has_files(tmp_path) == (tmp_path / "id_ed25519").exists()
        assert files.remove_files(tmp_path) == inventory
        assert [file.name for file in tmp_path.iterdir()] == ["inventory.yaml"]
        assert inventory.read_text() == changed
        assert not files.has_files(tmp_path)  # a second `sandbox down` names nothing of it
    inventory.unlink()
    assert not files.has_files(tmp_path)
    assert files.remove_files(files.write_files(tmp_path, HOSTS).parent) is None
