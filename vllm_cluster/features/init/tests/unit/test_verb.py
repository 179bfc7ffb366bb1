"""`vcluster init` writes what loads, and refuses what would not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.in_process import Finished, run
from tests.support.inventories import load
from vllm_cluster.kernel.inventory.load import load_text


def init(folder: Path, *argv: str) -> Finished:
    """Run `vcluster init` in a folder that is also home."""
    return run("init", *argv, cwd=folder, HOME=str(folder))


def test_hosts_by_flags(tmp_path: Path) -> None:
    done = init(tmp_path, "--host", "gpu1=10.0.0.11", "--host", "gpu2=10.0.0.12", "--cluster", "lab")
    said = "Wrote inventory.yaml (2 hosts). Then run vcluster check\n"
    assert (done.returncode, done.stderr) == (0, said)
    words = load(tmp_path / "inventory.yaml", cwd=tmp_path)
    assert (words.cluster, words.head_name) == ("lab", "gpu1")
    assert {name: host.address for name, host in words.hosts.items()} == {"gpu1": "10.0.0.11", "gpu2": "10.0.0.12"}


# fault: features/init/action.py: return name or None → return "main"
@pytest.mark.parametrize(
    ("folder", "name"), [("lab", "lab"), ("My Cluster_2", "my-cluster-2"), ("x" * 40, "x" * 32), ("-a.b-", "a-b")]
)
def test_the_clusters_name_is_that_of_the_folder(tmp_path: Path, folder: str, name: str) -> None:
    (tmp_path / folder).mkdir()
    assert init(tmp_path / folder, "--host", "gpu1=10.0.0.11").returncode == 0
    assert load(tmp_path / folder / "inventory.yaml", cwd=tmp_path).cluster == name


def test_a_folder_that_gives_no_name_needs_the_option(tmp_path: Path) -> None:
    (tmp_path / "日本").mkdir()
    refused = init(tmp_path / "日本", "--host", "gpu1=10.0.0.11")
    assert (refused.returncode, "--cluster NAME" in refused.stderr) == (2, True)


def test_hosts_of_ssh_config(tmp_path: Path) -> None:
    (tmp_path / "more").write_text("Host gpu2\n  HostName 192.0.2.2\n")
    config = tmp_path / ".ssh" / "config"
    config.parent.mkdir()
    config.write_text(f"Include {tmp_path}/more\nHost gpu1 login\n  User ada\nHost *\n  Port 22\n")
    done = init(tmp_path, "--from-ssh-config", "gpu*", "-o", "-")
    assert done.returncode == 0, done.stderr
    assert "gpu1:" in done.stdout
    assert "gpu2:" in done.stdout
    assert "login:" not in done.stdout
    assert sorted(load_text(done.stdout.encode(), path=None, cwd=None).hosts) == ["gpu1", "gpu2"]


# fault: features/init/action.py: if output and output.is_symlink() and ( → if False and (
# fault: features/init/action.py: or not output.exists()): → ):
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_nothing_is_written_behind_a_link(tmp_path: Path, force: list[str], there: bool) -> None:
    """That of a cloned repository may lead to a file of a person's own, or make one in a place of its choice."""
    place = tmp_path / "bashrc"
    (tmp_path / "inventory.yaml").symlink_to(place)
    if there:
        place.write_text("mine")
    refused = init(tmp_path, "--host", "gpu1=10.0.0.11", *force)
    assert (refused.returncode, "is a link" in refused.stderr) == (2, True)
    assert (place.read_text() if there else place.exists()) == ("mine" if there else False)


# fault: features/init/action.py: again=("-o", "-"), hint=OTHER) → hint=f"rm {output}")
@pytest.mark.parametrize("number", [1, 3])
def test_a_link_that_other_programs_need_is_not_to_be_removed(tmp_path: Path, number: int) -> None:
    """A shell's `> FILE` makes /dev/stdout one that leads to a file: the remedy removed it for all programs."""
    with (tmp_path / "FILE").open("w") as file:
        path = f"/dev/fd/{file.fileno()}"
        if number == 1:
            path = str(tmp_path / "stdout")
            Path(path).symlink_to(tmp_path / "FILE")
        refused = init(tmp_path, "--host", "gpu1=10.0.0.11", "-o", path)
        assert (refused.returncode, "rm " in refused.stderr, "--force" in refused.stderr) == (2, False, False)
        assert "fix: vcluster init --host 'gpu1=10.0.0.11' -o -\n" in refused.stderr
        done = init(tmp_path, "--host", "gpu1=10.0.0.11", "-o", "-")
    assert [*load_text(done.stdout.encode(), path=None, cwd=None).hosts] == ["gpu1"]
    assert Path(path).is_symlink() == (number == 1)


# fault: features/init/action.py: if output and output.exists() and not force: → if output and output.is_dir() and not force:
def test_a_file_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text("mine")
    refused = init(tmp_path, "--host", "gpu1=10.0.0.11")
    assert (refused.returncode, "--force" in refused.stderr) == (2, True)
    assert (tmp_path / "inventory.yaml").read_text() == "mine"


# fault: kernel/laptop.py: os.O_TRUNC | os.O_NONBLOCK → os.O_TRUNC
def test_a_pipe_without_a_reader_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused = init(tmp_path, "--host", "gpu1=10.0.0.11", "--force", "-o", "pipe")
    assert (refused.returncode, "cannot use pipe" in refused.stderr) == (2, True)


@pytest.mark.parametrize("argv", [[], ["--host", "gpu1=10.0.0.1", "--cluster", "Bad Name"]])
def test_nothing_is_written_that_would_not_load(tmp_path: Path, argv: list[str]) -> None:
    refused = init(tmp_path, *argv)
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "inventory.yaml").exists()


# fault: features/init/verb.py: if str(output) == "inventory.yaml" else [Option("-i"), str(output)] → if output else []
def test_the_next_command_names_the_file(tmp_path: Path) -> None:
    done = init(tmp_path, "--host", "a", "--host", "b=10.0.0.2", "--host", "c", "-o", "my cluster.yaml")
    text = "Wrote my cluster.yaml (3 hosts). Then run vcluster check -i 'my cluster.yaml'\n"
    assert (done.returncode, done.stderr) == (0, text)


def test_addresses_for_hosts_of_ssh_config(tmp_path: Path) -> None:
    config = tmp_path / ".ssh" / "config"
    config.parent.mkdir()
    config.write_text("Host gpu1 gpu2\n  User ada\n")
    done = init(tmp_path, "--from-ssh-config", "gpu*", "--host", "gpu1=10.0.0.4", "--cluster", "lab")
    assert done.returncode == 0, done.stderr
    hosts = load(tmp_path / "inventory.yaml", cwd=tmp_path).hosts
    assert [(host.name, host.address) for host in hosts.values()] == [("gpu1", "10.0.0.4"), ("gpu2", "")]


@pytest.mark.parametrize(
    ("argv", "text", "fix"),
    [
        (["--host", "gpu1=10.0.0.1", "--host", "gpu1=10.0.0.2"], "host gpu1 is given twice", "give gpu1 once"),
    ],
)
def test_a_wrong_option_is_reported(tmp_path: Path, argv: list[str], text: str, fix: str) -> None:
    refused = init(tmp_path, *argv, "--cluster", "lab")
    assert (refused.returncode, text in refused.stderr, fix in refused.stderr) == (2, True, True), refused.stderr


# fault: features/init/presets.py: {"shm_size": "8g"} → {"shm_size": "16g"}
def test_a_preset_is_an_inventory_of_such_machines(tmp_path: Path) -> None:
    done = init(tmp_path, "--preset", "spark", "--cluster", "lab")
    assert done.returncode == 0, done.stderr
    made = load(tmp_path / "inventory.yaml", cwd=tmp_path)
    assert [(name, host.address, host.gpus) for name, host in made.hosts.items()] == [
        ("spark1", "192.168.100.1", 1),
        ("spark2", "192.168.100.2", 1),
    ]
    assert made.shm_size == 8 << 30
    text = (tmp_path / "inventory.yaml").read_text()
    assert "# vcluster serve MODEL --tp 2 --pp 1 --backend mp -- --enforce-eager --gpu-memory-utilization 0.8\n" in text
    assert "    # gpus: " not in text


def test_hosts_that_are_given_take_the_place_of_those_of_a_preset(tmp_path: Path) -> None:
    done = init(tmp_path, "--preset", "spark", "--host", "a=10.0.0.1", "-o", "-")
    made = load_text(done.stdout.encode(), path=None, cwd=None)
    assert [(name, host.gpus) for name, host in made.hosts.items()] == [("a", 1)]


@pytest.mark.parametrize("argv", [("--preset",), ("--preset", "list"), ("--preset", "--force")], ids=" ".join)
def test_presets_are_listed_where_none_is_named(tmp_path: Path, argv: tuple[str, ...]) -> None:
    done = init(tmp_path, *argv)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "spark   two DGX Spark (GB10), joined by their ConnectX-7 ports\n"
    assert not (tmp_path / "inventory.yaml").exists()


def test_a_preset_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    done = init(tmp_path, "--preset", "sparks")
    assert done.returncode == 2
    assert done.stderr == 'error: there is no preset "sparks"\nfix: vcluster init --preset list\n'


def test_what_the_options_make_wrong_is_reported_without_the_lines_of_a_file(tmp_path: Path) -> None:
    done = init(tmp_path, "--host", "gpu1=10.0.0.1", "--cluster", "Bad Name")
    assert done.returncode == 2
    assert "<stdin>" not in done.stderr and "problems" not in done.stderr
    assert done.stderr.splitlines()[-1] == "fix: correct --cluster"


@pytest.mark.parametrize(
    ("given", "ssh", "address"),
    [
        ("gpu1=10.0.0.1:2222", ("10.0.0.1", None, 2222), "10.0.0.1"),
        ("ada@gpu1=10.0.0.1", ("10.0.0.1", "ada", None), "10.0.0.1"),
        ("ada@gpu1=10.0.0.1:22", ("10.0.0.1", "ada", 22), "10.0.0.1"),
        ("ada@gpu1", ("gpu1", "ada", None), ""),
        ("gpu1=fd00::2", ("gpu1", None, None), "fd00::2"),
    ],
)
def test_a_user_or_a_port_is_of_ssh(
    tmp_path: Path, given: str, ssh: tuple[str, str | None, int | None], address: str
) -> None:
    done = init(tmp_path, "--host", given, "-o", "-")
    assert done.returncode == 0, done.stderr
    host = load_text(done.stdout.encode(), path=None, cwd=None).hosts["gpu1"]
    assert ((host.destination, host.ssh.user, host.ssh.port), host.address) == (ssh, address)
