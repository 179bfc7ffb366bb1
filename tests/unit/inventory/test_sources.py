"""Hosts that are not in the file: of a job, of a command; what is wrong is named at the line that asks for them."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest

from tests.support.bounds import within
from vllm_cluster.kernel.errors import InventoryError
from vllm_cluster.kernel.inventory.load import load_text
from vllm_cluster.kernel.inventory.model import Inventory

TOP = "version: 1\ncluster: lab\nimage: vllm/vllm-openai:latest\nmodel_cache: /srv/models\n"
# As Slurm 22.05 prints a job with two kinds of nodes, in one line.
SCONTROL = """#!/bin/sh
case "$*" in
  *hostnames*) echo "$3" | sed 's/n\\[1-2\\]/n1 n2/' | tr ' ' '\\n' ;;
  *4711) echo "JobId=4711 EndTime=2026-11-27T12:00:00 NumNodes=3 JOB_GRES=gpu:5" \
    "Nodes=n[1-2] CPU_IDs=0-1 Mem=0 GRES=gpu:h100:2(IDX:0-1)" \
    "Nodes=n7 CPU_IDs=0 Mem=0 GRES=gpu:a100:1(IDX:3),gpu:h100:1(IDX:5) MinCPUsNode=1" ;;
  *4712) echo "JobId=4712 EndTime=Unknown Nodes=n9 CPU_IDs=0 Mem=0 GRES= MinCPUsNode=1" ;;
  *4713) echo "JobId=4713 JobState=PENDING NodeList=" ;;
  *) echo "Invalid job id specified" >&2; exit 1 ;;
esac
"""


@pytest.fixture(autouse=True)
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Slurm's client first in PATH."""
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "4712")


def inventory(source: str, folder: Path) -> Inventory:
    """The inventory with hosts from there."""
    return load_text(f"{TOP}hosts_from: {source}\n".encode(), path=None, cwd=folder)


# fault: kernel/inventory/sources.py: int(found[2] or found[1]) + 1) → int(found[2] or found[1]))
@pytest.mark.parametrize(
    ("source", "hosts"),
    [
        ("slurm:4711", {"n1": (0, 1), "n2": (0, 1), "n7": (3, 5)}),
        ('"slurm:"', {"n9": None}),
        ("""command:echo '{"gpu1":{"gpus":2},"gpu2":{}}'""", {"gpu1": 2, "gpu2": None}),
        ("command:cat hosts.json", {"gpu3": None}),
    ],
)
def test_hosts_of_a_source(source: str, hosts: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "hosts.json").write_text('{"gpu3": {"address": "10.0.0.3"}}')
    found = inventory(source, tmp_path)
    assert {name: host.gpus for name, host in found.hosts.items()} == hosts
    assert {host.line for host in found.hosts.values()} == {5}


def test_until_when_a_job_lends_its_hosts(tmp_path: Path) -> None:
    assert inventory("slurm:4711", tmp_path).lent_until == datetime(2026, 11, 27, 12).timestamp()
    assert inventory("slurm:4712", tmp_path).lent_until is None


# fault: kernel/inventory/sources.py: if document.problems or not _is_sound( → if document.problems or not bool(
@pytest.mark.parametrize(
    "more",
    [
        "id: batch_req_1_0123abcd\n",
        "custom_id: a\nresponse: {}\n",
        "version: 2\n",
        "head: [gpu1]\n",
        "ports: {api: 8000, gcs: 8000}\n",
        "api_key: word\n",
    ],
)
def test_a_file_that_is_otherwise_no_inventory_runs_no_command(more: str, tmp_path: Path) -> None:
    text = TOP.replace("version: 1\n", "" if more.startswith("version") else "version: 1\n")
    with pytest.raises(InventoryError):
        load_text(f"{text}hosts_from: command:touch ran\n{more}".encode(), path=None, cwd=tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_head_that_the_source_has_is_not_missed_before_it_is_asked(tmp_path: Path) -> None:
    assert inventory("slurm:4711\nhead: n2", tmp_path).head == "n2"


# fault: kernel/inventory/sources.py: error.message.removeprefix("cmd:") → error.message
# fault: kernel/inventory/sources.py: grammar.command(words, "command") → pass
@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("slurm:4713", "hosts_from: job 4713 has no nodes now: it waits, or has ended"),
        ("slurm:99", "hosts_from: scontrol show job -d -o 99: the command failed with exit code 1"),
        ("command:./no-such", "hosts_from: ./no-such: the command cannot be started: No such file or directory"),
        ("slurm:$(id)", "hosts_from: must be slurm:JOB, with the number of a job"),
        ("consul:x", "hosts_from: must be slurm:… or command:…"),
        ("command:echo []", "hosts_from: the command must print an object: a key for each host"),
        ('"command:echo \'x"', "hosts_from: the command after command: has a quote that does not end"),
        ("'command:'", "hosts_from: nothing readable after command:"),
        ("'command:  '", "hosts_from: nothing readable after command:"),
        ("\"command:''\"", "hosts_from: empty command after command:"),
        ("command:echo gpu1", "hosts_from: the command must print JSON: an object of hosts, as hosts has them"),
        ("""command:echo '{"gpu1":{"adress":"x"}}'""", "hosts.gpu1.adress: unknown key, did you mean address?"),
        ("slurm:4711\nhosts: {gpu1: {}}", "hosts_from: stays alone: remove hosts"),
    ],
)
def test_what_gives_no_hosts(source: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(InventoryError) as caught:
        inventory(source, tmp_path)
    assert caught.value.message == f"<stdin>:5: {problem}"


# fault: kernel/inventory/sources.py: if len(found) > MAX_BYTES: → if not found:
@pytest.mark.parametrize(
    "printed", ['{"gpu1": {}' + " " * 70_000 + "}", "Nodes=n1 GRES=gpu:1(IDX:0) " + "x" * 70_000 + " Nodes=n2 GRES="]
)
def test_hosts_that_are_cut_off_are_refused(printed: str, tmp_path: Path) -> None:
    """Two nodes of which one was printed behind 64 kB became a cluster of one: `up` would have removed the other."""
    (tmp_path / "long").write_text(printed)
    (tmp_path / "scontrol").write_text("#!/bin/sh\ncase $2 in job) cat long ;; *) echo $3 ;; esac\n")
    for source in ("slurm:1", "command:cat long"):
        with pytest.raises(InventoryError, match="the command prints more than 64 kB"):
            inventory(source, tmp_path)


# fault: kernel/inventory/sources.py: gpu[^(]{0,100} → gpu[^(]*
@pytest.mark.parametrize(
    "printed",
    ["Nodes=n1 " * 7_000, "Nodes=n1 GRES=" + "gpu" * 20_000, "Nodes=n1 GRES=gpu(IDX:0-" + "9" * 5_000 + ")"],
)
def test_what_a_job_may_print_is_read_in_a_moment(printed: str, tmp_path: Path) -> None:
    """The first took 30 s, the last was a traceback."""
    (tmp_path / "long").write_text(printed)
    (tmp_path / "scontrol").write_text("#!/bin/sh\ncase $2 in job) cat long ;; *) echo $3 ;; esac\n")
    with within(3), suppress(InventoryError):
        assert list(inventory("slurm:1", tmp_path).hosts) == ["n1"]


# fault: kernel/inventory/sources.py: if len(hosts) > MAX_NODES: → if False:
def test_a_job_of_any_number_of_nodes_is_refused(tmp_path: Path) -> None:
    """1,500 lists of 9,000 nodes each would take gigabytes."""
    (tmp_path / "scontrol").write_text("""#!/bin/sh
case "$*" in
  *hostnames*) seq -f "$3-%.0f" 3000; echo >>calls ;;
  *) seq -f "Nodes=n%.0f GRES=gpu:1(IDX:0)" 300 | tr '\\n' ' ' ;;
esac
""")
    with pytest.raises(InventoryError, match="has more than 4096 nodes"):
        inventory("slurm:1", tmp_path)
    assert len((tmp_path / "calls").read_text()) == 2
