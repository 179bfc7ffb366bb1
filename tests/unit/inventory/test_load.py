"""What a good inventory becomes, and where it is found."""

from __future__ import annotations

import io
import os
from contextlib import nullcontext
from ipaddress import ip_address
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.support.inventories import load
from tests.unit.inventory.texts import SMALLEST, TOP, read
from vllm_cluster.kernel.errors import InventoryError
from vllm_cluster.kernel.inventory.beside import MAX_FOLDERS, others_change_command
from vllm_cluster.kernel.inventory.load import duplicates_by_resolution, load_text
from vllm_cluster.kernel.inventory.local_files import ensure_ssh_config, missing_identities
from vllm_cluster.kernel.inventory.model import Host, HostSsh, Inventory
from vllm_cluster.kernel.terminal.session import Session


def _host(keys: str) -> Host:
    return read(f"{TOP}hosts:\n  gpu1: {keys}\n").hosts["gpu1"]


def test_the_smallest_inventory_has_every_default() -> None:
    inventory = read(SMALLEST)
    assert inventory.head_name == "gpu1"
    assert inventory.shm_size == 16 * 1024**3
    assert inventory.ports.api == 8000
    assert inventory.ssh.transport == "fabric"
    assert inventory.path == Path("/srv/repo/inventory.yaml")
    assert [(host.name, host.line, host.destination) for host in inventory.hosts.values()] == [
        ("gpu1", 6, "gpu1"),
        ("gpu2", 8, "gpu2"),
    ]


def test_an_inventory_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        read(SMALLEST).cluster = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("ssh", "expected"),
    [
        ("gpu1.lab", HostSsh(host="gpu1.lab")),
        ("me@gpu1.lab", HostSsh(host="gpu1.lab", user="me")),
        ("me@gpu1.lab:2222", HostSsh(host="gpu1.lab", user="me", port=2222)),
        ("me@corp.com@bastion", HostSsh(host="bastion", user="me@corp.com")),
        ("'2001:db8::1'", HostSsh(host="2001:db8::1")),
        ("'me@[2001:db8::1]:22'", HostSsh(host="2001:db8::1", user="me", port=22)),
        ("local", HostSsh(host="local")),
        ("{port: 2222, jump: 'a@b:1,c'}", HostSsh(port=2222, jump="a@b:1,c")),
        ("{}", HostSsh()),
    ],
)
def test_ways_to_write_an_ssh_target(ssh: str, expected: HostSsh) -> None:
    assert _host(f"{{address: 10.0.0.1, ssh: {ssh}}}").ssh == expected


@pytest.mark.parametrize(
    ("text", "size"),
    [("16g", 16 << 30), ("16GiB", 16 << 30), ("16 GB", 16 << 30), ("1.5g", 3 << 29), ("64m", 64 << 20)],
)
def test_sizes_as_docker_writes_them(text: str, size: int) -> None:
    assert read(f"{SMALLEST}shm_size: {text}\n").shm_size == size


def test_addresses_take_their_canonical_form() -> None:
    assert _host("{address: 'FD00:0:0::01'}").address == str(ip_address("fd00::1"))


def test_no_hcas_is_not_the_same_as_unsaid() -> None:
    assert _host("{address: 10.0.0.1, hcas: []}").hcas == ()
    assert _host("{address: 10.0.0.1}").hcas is None


def test_anchors_and_merges_share_keys() -> None:
    inventory = read(
        f"{TOP}hosts:\n"
        "  gpu1: &node {address: 10.0.0.1, gpus: 8, ssh: &way {user: me}}\n"
        "  gpu2: {<<: *node, address: 10.0.0.2}\n"
        "  gpu3: {<<: [{gpus: 4}, *node], address: 10.0.0.3, ssh: *way}\n"
    )
    assert [host.gpus for host in inventory.hosts.values()] == [8, 8, 4]
    assert {host.ssh.user for host in inventory.hosts.values()} == {"me"}


def test_environment_values_arrive_as_written() -> None:
    values = {"A": "", "B": " x ", "C": "a\nb", "D": "$(rm) 'q' \"w\" ü ☃", "E": "-v", "F": "1", "G": "a=b"}
    written = '  A: ""\n  B: " x "\n  C: "a\\nb"\n  D: "$(rm) \'q\' \\"w\\" ü ☃"\n  E: "-v"\n  F: "1"\n  G: a=b\n'
    assert dict(read(f"{SMALLEST}environment:\n{written}").environment) == values


def test_volumes_are_read_write_unless_they_end_with_ro() -> None:
    volumes = read(f"{SMALLEST}volumes: ['/a:/b', '/c:/d:ro', '/e/:/f:rw']\n").volumes
    assert [(v.source, v.target, v.read_only) for v in volumes] == [
        ("/a", "/b", False),
        ("/c", "/d", True),
        ("/e", "/f", False),
    ]


@pytest.mark.parametrize(
    "image",
    [
        "vllm/vllm-openai",
        "localhost/x:1",
        "localhost:5000/x/y:tag",
        "Registry.Example.com/team/x_y__z:V1",
        "10.0.0.1:5000/x@sha256:" + "a" * 64,
        "[fd00::1]:5000/x",
    ],
)
def test_image_references_that_docker_understands(image: str) -> None:
    assert read(SMALLEST.replace("vllm/vllm-openai:v0.19.0", f"'{image}'")).image == image


def test_local_paths_resolve_against_the_files_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    text = (
        f"{SMALLEST.replace('10.0.0.2', '10.0.0.2' + chr(10) + '    ssh: {identity: keys/gpu2}')}"
        "ssh: {config: ./ssh_config, identity: ~/.ssh/lab}\nhf_token: file:tokens/hf\napi_key: cmd:pass show key\n"
    )
    inventory = read(text, tmp_path)
    assert inventory.ssh.config == tmp_path / "ssh_config"
    assert inventory.ssh.identity == Path("/home/me/.ssh/lab")
    assert inventory.hosts["gpu2"].ssh.identity == tmp_path / "keys/gpu2"
    assert str(inventory.hf_token) == f"file:{tmp_path}/tokens/hf"
    assert repr(inventory.api_key) == "SecretRef('cmd:pass show key')"


# fault: kernel/inventory/local_files.py: if config and (text := _missing(config)): → if False:
# fault: kernel/inventory/local_files.py: return nearest(path.name, → return nearest("",
def test_an_ssh_config_that_is_not_there_is_a_problem_of_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It was an error of ssh, without the line that names it."""
    monkeypatch.chdir(tmp_path)
    for name in ("ssh_config", "id_lab"):
        (tmp_path / name).touch()

    def problem(name: str) -> str:
        with pytest.raises(InventoryError) as refused:
            ensure_ssh_config(read(f"{SMALLEST}ssh:\n  config: {name}\n", tmp_path))
        return refused.value.message

    where = "inventory.yaml:11: ssh.config: "
    assert problem("ssh_confg") == f"{where}ssh_confg is not there, did you mean ssh_config?"
    assert problem("/nowhere/other") == f"{where}/nowhere/other is not there"
    assert problem("ssh_config/x") == f"{where}ssh_config/x is not there"
    for there in ("ssh_config", "/dev/null"):
        ensure_ssh_config(read(f"{SMALLEST}ssh: {{config: {there}}}\n", tmp_path))


# fault: kernel/inventory/local_files.py: or "%" in str(path) or → or
# fault: kernel/inventory/local_files.py: or not _missing(Path(f"{path}.pub")) → or False
# fault: kernel/inventory/local_files.py: Path(f"{path}.pub") → path.with_name(f"{path.name}.pub")
# fault: kernel/inventory/load.py: *(("hosts", name, "ssh", "identity") for name in hosts)] → ]
def test_a_private_key_that_is_not_there_is_named_with_its_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """ssh passes it over: the key of ssh_config let in, and nothing named the slip."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "held.pub").touch()  # its other half is in an agent
    for own, found in (
        ("~/key", ["inventory.yaml:10: hosts.gpu2.ssh.identity: key is not there"]),
        ("./held", []),
        ("keys/%h", []),
        # A folder is for ssh to refuse.
        *((folder, []) for folder in ("/", "..", "~")),
    ):
        host = f"10.0.0.2\n    ssh: {{identity: {own}}}"
        assert [*missing_identities(read(SMALLEST.replace("10.0.0.2", host), tmp_path))] == found
    of_all = [*missing_identities(read(f"{SMALLEST}ssh: {{identity: helt.pub}}\n", tmp_path))]
    assert of_all == ["inventory.yaml:10: ssh.identity: helt.pub is not there, did you mean held.pub?"]


def test_a_dumped_inventory_reads_back_the_same() -> None:
    inventory = read(f"{SMALLEST}hf_token: env:HF\nvolumes: ['/a:/b']\nssh: {{user: me}}\n")
    again = Inventory.model_validate(inventory.model_dump())
    assert again.model_dump() == inventory.model_dump()
    assert Inventory.model_validate_json(inventory.model_dump_json()).model_dump() == inventory.model_dump()


def test_one_private_address_behind_two_bastions_is_two_machines() -> None:
    hosts = "".join(
        f"  gpu{n}:\n    address: 10.0.0.{n}\n    ssh: {{host: 192.168.0.1, jump: bastion{n}}}\n" for n in (1, 2)
    )
    assert len(read(f"{TOP}hosts:\n{hosts}").hosts) == 2


def be_of_another_user(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a file to another user; where this one may not, be another one."""
    me = os.geteuid()
    if me == 0:
        os.chown(path, 65534, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: me + 1)


@pytest.fixture
def home_of_all(tmp_path: Path) -> Path:
    """An own inventory in an own folder."""
    path = tmp_path / "inventory.yaml"
    path.write_text(SMALLEST)
    return path


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An inventory that another user has written into a repository."""
    (tmp_path / "project" / "deep").mkdir(parents=True)
    (tmp_path / "project" / ".git").mkdir()
    path = tmp_path / "project" / "inventory.yaml"
    path.write_text(SMALLEST)
    be_of_another_user(path, monkeypatch)
    return path


# fault: kernel/inventory/find.py: {0, os.geteuid(), owner} → {0, os.geteuid(), owner, about.st_uid}
@pytest.mark.parametrize("below", ["deep", "."])
def test_an_inventory_of_another_user_must_be_named(below: str, foreign: Path) -> None:
    with pytest.raises(InventoryError, match=r"project/inventory.yaml belongs to another user") as caught:
        load(None, cwd=foreign.parent / below)
    assert (caught.value.again, caught.value.hint) == (None, f"stat {foreign}")
    assert load(foreign, cwd=foreign.parent / "deep").path == foreign


# fault: kernel/inventory/find.py: if owner is None and others_write( → if False and others_write(
def test_an_inventory_that_others_may_write_must_be_named(home_of_all: Path) -> None:
    home_of_all.chmod(0o666)
    with pytest.raises(InventoryError, match=r"others may write .*inventory\.yaml") as caught:
        load(None, cwd=home_of_all.parent)
    assert caught.value.hint == f"chmod go-w {home_of_all}"
    assert load(home_of_all).path == home_of_all


# fault: kernel/inventory/find.py:             _ensure_kept(folder, start) →             pass
# fault: kernel/inventory/find.py: if folder != start and (by := changed_by_others(folder)): → if False:
# fault: kernel/inventory/find.py: if folder != start and (by := → if (by :=
def test_an_own_inventory_above_where_others_may_write_must_be_named(tmp_path: Path) -> None:
    """They may replace what it names, as the ssh_config beside it."""
    group = tmp_path / "group"
    (group / "me").mkdir(parents=True)
    (group / ".git").mkdir()
    (group / "inventory.yaml").write_text(SMALLEST)
    group.chmod(0o777)
    with pytest.raises(InventoryError, match=r"others may change .*group: it may have commands run here") as caught:
        load(None, cwd=group / "me")
    assert (caught.value.again, caught.value.hint) == (None, f"stat {group}")
    assert load(None, cwd=group).path == group / "inventory.yaml"
    group.chmod(0o755)
    assert load(None, cwd=group / "me").path == group / "inventory.yaml"


# fault: kernel/inventory/load.py: if self.found and ref.kind == "cmd" and → if False and
# fault: kernel/inventory/load.py: if self.found and (why := others_change(whole)): → if False:
# fault: kernel/inventory/sources.py: if found and kind == "command" and → if False and
# fault: kernel/terminal/session.py: found or inventory is None → found
@pytest.mark.parametrize(
    ("key", "more"),
    [
        ("ssh.config", "ssh: {config: ssh_config}"),
        ("ssh.identity", "ssh: {identity: ./key}"),
        ("hosts.gpu1.ssh.identity", "hosts: {gpu1: {address: 10.0.0.1, ssh: {identity: key}}}"),
        ("hf_token", "hf_token: file:token"),
        ("api_key", "api_key: cmd:./print-key"),
        ("secrets.x", "secrets: {x: 'cmd:pass show x'}"),
        ("hosts_from", "hosts_from: command:touch ran"),
    ],
)
def test_what_others_may_put_beside_an_inventory_is_used_where_that_is_named(
    key: str, more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder, or one above, is a group's: while it is own, they may exchange that, or the ssh_config in it."""
    (here := tmp_path / "group" / "me").mkdir(parents=True)
    monkeypatch.chdir(here)
    path = here / "inventory.yaml"
    path.write_text(
        "\n".join([TOP.strip(), *([] if "hosts" in more else ["hosts: {gpu1: {address: 10.0.0.1}}"]), more])
    )
    here.parent.chmod(0o777)
    with pytest.raises(InventoryError) as caught:
        Session(None, as_json=False).load()
    line = len(path.read_text().splitlines())
    assert f"inventory.yaml:{line}: {key}: others may change {here.parent}" in str(caught.value)
    assert caught.value.again is None, "pasted, a line that names it would run what others have put there"
    assert not (here / "ran").exists()
    here.parent.chmod(0o755)
    if "ran" not in more:
        assert load(None, cwd=here).found
    here.parent.chmod(0o777)
    path.write_text(SMALLEST + "ssh: {config: /etc/ssh/ssh_config, identity: ~/.ssh/key}\n")
    assert load(None, cwd=here).path == path


BESIDE = '#!/bin/sh\ntouch ran; echo \'{"gpu1": {"address": "10.0.0.1"}}\'\n'


# fault: kernel/laptop.py: kept and added → stat.S_ISDIR(about.st_mode) and added
# fault: kernel/inventory/beside.py: (base, *files) → (base,)
# fault: kernel/inventory/beside.py: piece[2:] if piece.startswith("-") → "" if piece.startswith("-")
# fault: kernel/inventory/beside.py: for found in (name, *_matching(name, folder))) → for found in (name,))
# fault: kernel/inventory/beside.py: return os.path.expandvars(expanded(name)) → return str(expanded(name))
# fault: kernel/inventory/beside.py: return os.path.expandvars(expanded(name)) → return os.path.expandvars(name)
@pytest.mark.parametrize("open_to", ["nothing", "the file", "its folder", "another's"])
@pytest.mark.parametrize(
    "more",
    [
        "ssh: {config: at/file}",
        "api_key: file:at/file",
        "api_key: 'cmd:sh -c \"./at/file --x\"'",
        "hosts_from: command:env X=1 at/file",
        "hosts_from: 'command:sh -c \". at/file\"'",
        "hosts_from: 'command:sh -c \"cd at && ./file\"'",
        "hosts_from: command:env -C at ./fi\\le",
        "hosts_from: 'command:sh -c ./at/f*'",
        "hosts_from: 'command:sh -c \"exec $HOME/at/file\"'",
        "hosts_from: 'command:sh -c ~/at/file'",
        "hosts_from: 'command:env -S./at/file'",
        "hosts_from: 'command:env -Cat ./file'",
        "hosts_from: 'command:env PATH=at:/usr/bin:/bin file'",
        "hosts_from: 'command:sh -c \"exec $PWD/at/file\"'",
        'hosts_from: \'command:sh -c "exec \\"./at/file\\""\'',
    ],
)
def test_a_file_that_others_may_change_is_used_where_its_inventory_is_named(
    more: str, open_to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inventory and its folder are own, and what it names is a group's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    path, file = tmp_path / "inventory.yaml", tmp_path / "at" / "file"
    file.parent.mkdir()
    file.write_text(BESIDE)
    file.chmod(0o777 if open_to == "the file" else 0o755)
    file.parent.chmod(0o777 if open_to == "its folder" else 0o755)
    hosts = [] if "hosts" in more else ["hosts: {gpu1: {address: 10.0.0.1}}"]
    path.write_text("\n".join([TOP.strip(), *hosts, more]))
    if open_to == "another's":
        be_of_another_user(file, monkeypatch)
    refused = open_to != "nothing"
    with pytest.raises(InventoryError, match="others may change") if refused else nullcontext():
        load(None, cwd=tmp_path)
    assert bool([*tmp_path.rglob("ran")]) is (not refused and "hosts_from" in more)


# fault: kernel/inventory/beside.py: for piece in (word, *_DIVIDES.split(word)): → for piece in _DIVIDES.split(word):
# fault: kernel/inventory/beside.py: if len(folders) > MAX_FOLDERS: → if False:
def test_a_name_with_a_blank_and_a_command_of_many_folders_are_seen(tmp_path: Path) -> None:
    (file := tmp_path / "my, hosts.sh").touch()
    file.chmod(0o777)
    assert str(file) in others_change_command("'./my, hosts.sh' --x", tmp_path)
    folders = [tmp_path / str(number) for number in range(MAX_FOLDERS)]
    for folder in folders:
        folder.mkdir()
    assert "more than" in others_change_command(f"ls {' '.join(map(str, folders))}", tmp_path)


# fault: kernel/inventory/beside.py: except ValueError:  # a quote → except OSError:  # a quote
# fault: kernel/inventory/beside.py: except (OSError, ValueError):  # no name of a file, or → except OSError:  # no name of a file, or
@pytest.mark.parametrize("command", ["command:jq 'x", '"command:cat a\\0b"', '"command:\\ud800"'])
def test_a_command_that_cannot_be_read_is_named(command: str, tmp_path: Path) -> None:
    """Any verb ended in an internal error, and so did an open tunnel while a person was writing."""
    (tmp_path / "inventory.yaml").write_text(f"{TOP}hosts_from: {command}\n")
    with pytest.raises(InventoryError, match=r"inventory\.yaml:[0-9]+: hosts_from"):
        load(None, cwd=tmp_path)


# fault: kernel/inventory/find.py: there = _is_own(start / sandbox) → there = _seen(start / sandbox)
# fault: kernel/inventory/find.py: if _is_own(up / path)), None) → if _seen(up / path)), None)
# fault: kernel/inventory/find.py: and not _is_own(inside): → and False:
# fault: kernel/inventory/find.py: path.is_file() and not changed_by_others(path) → path.is_file()
@pytest.mark.parametrize("own", ["nothing", "all but its folder", "all but its mode", "all"])
def test_no_remedy_names_an_inventory_of_another_user(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pasted, it had their ProxyCommand run; it was named without the reason."""
    here = tmp_path / "scratch" / "project"
    (here / "sandbox").mkdir(parents=True)
    (here / "folder").mkdir()
    made = here / "sandbox" / "inventory.yaml", tmp_path / "scratch" / "lab" / "x.yaml", here / "folder/inventory.yaml"
    for path in made:
        path.parent.mkdir(exist_ok=True)
        path.write_text(SMALLEST)
        if own == "nothing":
            be_of_another_user(path, monkeypatch)
        elif own == "all but its folder":
            path.parent.chmod(0o777)
        elif own == "all but its mode":
            path.chmod(0o666)
    offered = list[bool]()
    for given in (None, Path("lab/x.yaml"), Path("folder")):
        with pytest.raises(InventoryError) as caught:
            load(given, cwd=here)
        offered.append(bool(caught.value.again or caught.value.instead))
    assert offered == [own == "all"] * 3


class TestFinding:
    @pytest.fixture
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        home = tmp_path / "home"
        (home / "project" / "deep" / "er").mkdir(parents=True)
        monkeypatch.setenv("HOME", str(home))
        return home

    def test_upwards_to_the_root_of_the_repository(self, home: Path) -> None:
        (home / "project" / ".git").mkdir()
        (home / "project" / "inventory.yaml").write_text(SMALLEST)
        found = load(None, cwd=home / "project" / "deep" / "er")
        assert found.path == home / "project" / "inventory.yaml"

    def test_not_above_the_repository(self, home: Path) -> None:
        (home / "project" / "deep" / ".git").mkdir()
        (home / "project" / "inventory.yaml").write_text(SMALLEST)
        with pytest.raises(InventoryError, match=r"no inventory.yaml in .*er or above it, up to .*deep$") as caught:
            load(None, cwd=home / "project" / "deep" / "er")
        assert caught.value.hint is not None
        assert "vcluster init" in caught.value.hint

    def test_a_sandbox_beside_it_is_offered(self, home: Path) -> None:
        (home / "project" / "sandbox").mkdir()
        (home / "project" / "sandbox" / "inventory.yaml").write_text(SMALLEST)
        with pytest.raises(InventoryError) as caught:
            load(None, cwd=home / "project")
        assert (caught.value.again, caught.value.hint) == (("-i", "sandbox/inventory.yaml"), None)

    def test_a_sandbox_that_is_elsewhere_or_removed_has_its_own_remedy(self, home: Path) -> None:
        file = home / "project" / "sandbox" / "inventory.yaml"
        with pytest.raises(InventoryError) as removed:
            load(Path("sandbox/inventory.yaml"), cwd=home / "project" / "deep")
        assert removed.value.hint == "vcluster sandbox up"
        file.parent.mkdir()
        file.write_text(SMALLEST)
        with pytest.raises(InventoryError) as elsewhere:
            load(Path("sandbox/inventory.yaml"), cwd=home / "project" / "deep")
        assert elsewhere.value.instead["sandbox/inventory.yaml"] == str(file)

    def test_without_a_repository_only_here(self, home: Path) -> None:
        (home / "project" / "inventory.yaml").write_text(SMALLEST)
        with pytest.raises(InventoryError, match=r"no inventory.yaml in .*deep$"):
            load(None, cwd=home / "project" / "deep")
        assert load(None, cwd=home / "project").cluster == "lab"

    def test_never_in_the_home_folder_of_another_project(self, home: Path) -> None:
        (home / ".git").mkdir()
        (home / "inventory.yaml").write_text(SMALLEST)
        with pytest.raises(InventoryError, match=r"no inventory\.yaml"):
            load(None, cwd=home / "project")

    def test_errors_show_a_file_as_the_user_wrote_it(self, home: Path) -> None:
        (home / "project" / "deep" / "lab.yaml").write_text("a: 1\n")
        with pytest.raises(InventoryError, match=r"^deep/lab\.yaml: 6 problems\ndeep/lab\.yaml:1: "):
            load(Path("deep/lab.yaml"), cwd=home / "project")
        with pytest.raises(InventoryError, match=rf"^{home}/project/deep/lab\.yaml: 6 problems\n"):
            load(home / "project/deep/lab.yaml", cwd=Path("/usr"))

    def test_what_cannot_be_read(self, home: Path) -> None:
        with pytest.raises(InventoryError, match=r"^nowhere\.yaml: no such file$"):
            load(Path("nowhere.yaml"), cwd=home)
        with pytest.raises(InventoryError) as caught:
            load(Path("no/where.yaml"), cwd=home)
        assert caught.value.hint is not None
        assert caught.value.hint.splitlines()[0] == "mkdir -p no", "init writes into no folder that is not there"
        with pytest.raises(InventoryError, match=r"^project: cannot be read: Is a directory$"):
            load(Path("project"), cwd=home)
        with pytest.raises(InventoryError, match=r"cannot be read"):
            load(Path("a\0b"), cwd=home)

    def test_bytes_without_an_inventory_are_refused(self, home: Path) -> None:
        file = home / "inventory.yaml"
        file.write_bytes(b"version: 1\ncluster: \xff\n")
        with pytest.raises(InventoryError, match=r"^inventory\.yaml:2: is not UTF-8 text"):
            load(file, cwd=home)
        file.write_bytes(b"#" * 256_001)
        with pytest.raises(InventoryError, match=r"^inventory\.yaml:1: larger than 256 kB"):
            load(file, cwd=home)
        file.write_bytes(b"\xef\xbb\xbf" + SMALLEST.replace("\n", "\r\n").encode())
        assert load(file, cwd=home).cluster == "lab"


class TestStandardInput:
    def test_a_dash_reads_it(self, tmp_path: Path) -> None:
        text = SMALLEST + "ssh: {config: x}\n"
        inventory = load(Path("-"), stdin=io.StringIO(text), cwd=tmp_path)
        assert inventory.path is None
        assert inventory.ssh.config == tmp_path / "x"

    def test_its_errors_name_it(self, tmp_path: Path) -> None:
        with pytest.raises(InventoryError, match=r"^<stdin>:10: foo: unknown key"):
            load(Path("-"), stdin=io.StringIO(SMALLEST + "foo: 1\n"), cwd=tmp_path)

    def test_bytes_that_are_not_utf8(self, tmp_path: Path) -> None:
        for errors in ("strict", "surrogateescape"):
            stdin = io.TextIOWrapper(io.BytesIO(b"a: \xff\n"), encoding="utf-8", errors=errors)
            with pytest.raises(InventoryError, match=r"^<stdin>:1: is not UTF-8 text"):
                load(Path("-"), stdin=stdin, cwd=tmp_path)

    def test_none_there(self, tmp_path: Path) -> None:
        with pytest.raises(InventoryError, match=r"reads standard input, and there is none"):
            load(Path("-"), cwd=tmp_path)


class TestResolution:
    def test_two_aliases_of_one_machine_are_refused_with_both_lines(self) -> None:
        inventory = read(SMALLEST)
        with pytest.raises(InventoryError) as caught:
            duplicates_by_resolution(inventory, lambda _: ("192.168.0.1", 22))
        assert caught.value.message == (
            "/srv/repo/inventory.yaml:8: hosts.gpu2: reaches 192.168.0.1 port 22, "
            "as hosts.gpu1 on line 6 does: list each host once"
        )

    def test_ports_and_jumps_distinguish_machines(self) -> None:
        inventory = read(SMALLEST)
        duplicates_by_resolution(inventory, lambda host: ("127.0.0.1", 2200 + int(host.name[-1])))
        duplicates_by_resolution(inventory, lambda host: ("10.0.0.1", 22, f"bastion-{host.name}"))


def test_a_named_pipe_can_be_the_inventory(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, SMALLEST.encode())
    os.close(writer)
    try:
        assert load(Path(f"/dev/fd/{reader}"), cwd=tmp_path).cluster == "lab"
    finally:
        os.close(reader)


# fault: kernel/inventory/find.py: MAX_BYTES = 256_000 → MAX_BYTES = 256_000_000
@pytest.mark.parametrize(
    "text", ["hosts:\n" + "".join(f"  g{n}: {{address: 10.0.0.1}}\n" for n in range(20_000)), "[" * 100_000]
)
def test_what_is_far_too_large_is_never_parsed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The YAML parser would take seconds for it."""
    monkeypatch.setattr("vllm_cluster.kernel.inventory.load.read_document", lambda _: pytest.fail("it was parsed"))
    with pytest.raises(InventoryError, match=r"larger than 256 kB|nested too deep"):
        load_text(text.encode(), path=None, cwd=Path("/"))
