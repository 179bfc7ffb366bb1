"""Facts from what a host printed; what cannot be trusted is not half believed."""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress

import pytest

from tests.support import world
from tests.support.tree import FACTS
from vllm_cluster.kernel.checks.docker import engine_problem
from vllm_cluster.kernel.checks.registry import check_all
from vllm_cluster.kernel.facts.parse import facts
from vllm_cluster.kernel.facts.values import number

ANSWER = """
@@machine
3d12
@@hostname
node1
@@clock
1795214931
@@memory
25276502016
@@nics
[{"ifname":"lo","mtu":65536,"operstate":"UNKNOWN","addr_info":[{"local":"127.0.0.1","prefixlen":8}]},
 {"ifname":"eth0","mtu":9000,"operstate":"UP","addr_info":[{"local":"10.0.0.1","prefixlen":24},{"local":"fd00::1","prefixlen":64}]}]
@@routes
10.0.0.1 lo
10.0.0.2 eth0
10.9.9.9
@@listening
18EB
07E8
@@hcas
mlx5_0|1|4: ACTIVE|InfiniBand|400 Gb/sec (4X NDR)|/dev/infiniband/uverbs0,
@@gpus
0, GPU-a, NVIDIA H200, 143771
1, GPU-b, NVIDIA GB10, [N/A]
@@slots

@@missing
/srv/nothing here
@@cdi
"kind": "nvidia.com/gpu
kind: nvidia.com/gpu
@@docker
{"Version":"28.0.4","ApiVersion":"1.48","Arch":"amd64"}
@@dockerinfo
{"Root":"/var/lib/docker","Runtimes":{"nvidia":{},"runc":{}}}
@@disks
/var/lib/docker|83120623616
/models|
@@end
"""


# fault: kernel/facts/parse.py: unified_mib(number(part["memory"]) or 0) if unified else →
def test_every_section_is_read() -> None:
    host = facts("gpu1", ANSWER)
    assert (host.machine_id, host.hostname, host.clock, host.memory_bytes) == (
        "3d12",
        "node1",
        1795214931.0,
        25276502016,
    )
    nic = host.interface_of("fd00::1")
    assert nic is not None
    assert (nic.name, nic.mtu) == ("eth0", 9000)
    assert host.interface_of("10.0.0.2") is None
    assert host.routes == {"10.0.0.1": "lo", "10.0.0.2": "eth0", "10.9.9.9": None}
    assert host.listening == {6379, 2024}
    assert [(hca.device, hca.port, hca.active, hca.uverbs) for hca in host.hcas] == [
        ("mlx5_0", 1, True, ("/dev/infiniband/uverbs0",))
    ]
    assert [(gpu.index, gpu.name, gpu.memory_mib) for gpu in host.gpus] == [
        (0, "NVIDIA H200", 143771),
        (1, "NVIDIA GB10", (25276502016 - (8 << 30)) >> 20),
    ]
    assert [gpu.unified for gpu in host.gpus] == [False, True]
    assert host.logical_gpus is None
    assert host.missing_paths == {"/srv/nothing here"}
    assert (host.docker.version, host.docker.container_runtimes, host.docker.cdi_specs) == (
        "28.0.4",
        ("nvidia", "runc"),
        ("nvidia.com/gpu",),
    )
    assert host.free_bytes == {"/var/lib/docker": 83120623616}


# fault: kernel/facts/parse.py: if "end" not in part or (deep and "whole" not in part): → if deep and "whole" not in part:
def test_an_answer_that_breaks_off_is_an_error() -> None:
    with pytest.raises(ValueError, match="breaks off"):
        facts("gpu1", ANSWER.replace("@@end", ""))


def test_a_host_without_tools_is_still_described() -> None:
    bare = "".join(f"@@{name}\n\n" for name in _sections())
    host = facts("gpu1", bare)
    assert (host.nics, host.gpus, host.hcas, host.docker.problem) == ((), (), (), "no answer")


def test_docker_that_refuses_gives_the_reason() -> None:
    said = 'permission denied while trying to connect\n{"Root":"","Runtimes":null}'
    refused = ANSWER.replace('{"Version":"28.0.4","ApiVersion":"1.48","Arch":"amd64"}', "null").replace(
        '{"Root":"/var/lib/docker","Runtimes":{"nvidia":{},"runc":{}}}', said
    )
    assert facts("gpu1", refused).docker.problem == "permission denied while trying to connect"


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("nics", "[" * 50_000),
        ("nics", '{"ifname": "eth0"}'),
        ("nics", '[1, null, {"ifname": 1}, {"ifname": "e", "addr_info": 7, "mtu": [], "linkinfo": 3}]'),
        ("nics", '[{"ifname": "e", "addr_info": [1, {"local": "10.0.0.999", "prefixlen": 24}, {"local": "x"}]}]'),
        ("docker", "[" * 50_000),
        ("docker", '{"ApiVersion": "one.two"}'),
        ("docker", '{"ApiVersion": 1.45, "Version": [], "Arch": {}}'),
        ("dockerinfo", '{"Root": 5, "Runtimes": 5, "SecurityOptions": {"a": 1}}'),
        ("hcas", "mlx5_0|x\n|||||\nmlx5_0|one|ACTIVE|InfiniBand|x|y"),
        ("gpus", "0, a\n\u0663, GPU-a, x, 5\n0, GPU-a, x, -5, [N/A], , maybe, many"),
        ("listening", "zz FFFFF 18EB"),
        ("disks", "/|-1\n/|x\n||\n/a|" + "9" * 5000),
        ("memory", "9" * 5000),
        ("clock", "nan"),
        ("slots", "\u00b2"),
    ],
)
def test_garbage_in_one_section_gives_no_fact_and_harms_no_other(section: str, said: str) -> None:
    before, after = re.split(rf"(?<=@@{section}\n)(?s:.*?)(?=\n@@)", ANSWER, maxsplit=1)
    host = facts("gpu1", before + said + after)
    assert host.hostname == "node1"
    assert all(nic.interfaces() is not None for nic in host.nics)
    assert engine_problem(host) is None or section == "docker"
    assert check_all(world.inventory(1), {"gpu1": host})


def _sections() -> list[str]:
    return [line[2:] for line in ANSWER.splitlines() if line.startswith("@@")]


# fault: kernel/text.py: if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS → if text.isdecimal()
@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("12", 12), (" 12 MiB", 12), (7, 7), ("N/A", None), ("", None), (None, None), ("-1", None), ("1.5", None)),
        # Digits of another script, and more of them than Python turns into a number.
        *(("\u0661\u0662", None), ("\u00b2", None), ("9" * 5000, None)),
    ],
)
def test_a_value_without_a_number_is_none(text: object, value: int | None) -> None:
    assert number(text) == value


# fault: kernel/facts/parse.py: len(part[name]) > MAX_NAME or →
@pytest.mark.parametrize("name", ["machine", "boot", "hostname", "architecture"])
@pytest.mark.parametrize("value", ["x" * 257, "two\nlines", "\x1b[2J", "a\u202eb"], ids=repr)
def test_what_names_a_machine_is_one_bounded_line(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be one line of at most 256 printable characters$"):
        facts("gpu1", f"\n@@{name}\n{value}\n@@end\n")


# fault: kernel/facts/bounds.py: len(value) <= MAX_TEXT → len(value) <= 9 * MAX_TEXT
# fault: kernel/facts/bounds.py: 0 <= value <= MAX_NUMBER → True
# fault: kernel/facts/bounds.py: _ensure(number <= MAX_ROWS, → _ensure(True,
# fault: kernel/facts/bounds.py: _ensure(sum(map(section.count, _ENDS)) <= MAX_ROWS, → _ensure(section.count("\n") <= MAX_ROWS,
# fault: kernel/facts/values.py: if sum(map(text.count, ",[{")) > MAX_VALUES: → if False:
# fault: kernel/facts/parse.py: if len(found.gpus) > MAX_GPUS: → if False:
@pytest.mark.parametrize(
    ("section", "said", "why"),
    [
        ("missing", "/x" * 2049, "missing_paths must have at most 4096 characters"),
        ("routes", "10.0.0.1 " + "x" * 4097, "routes must have at most 4096 characters"),
        ("nics", '[{"ifname":"' + "e" * 4097 + '"}]', "nics.name must have at most 4096 characters"),
        ("gpus", "0, GPU-a, x, 5\n" * 65, "gpus must have at most 64 entries"),
        ("memory", "9" * 19, "memory_bytes must be from 0 to 9223372036854775808"),
        ("missing", "\n".join(map(str, range(8194))), "missing must have at most 8192 lines and words"),
        ("rdma", "\u2028x" * 8194, "rdma must have at most 8192 lines and words"),
        ("nics", str([{"ifname": ""}] * 8193).replace("'", '"'), "nics must have at most 8192 entries"),
        ("nics", "[" * 60_001, "a JSON document has more than 60000 values"),
        ("gids", "mlx5_0|9999999999999999999|0|::1|RoCE v2|ib0", "gids.port must be from 0 to 9223372036854775808"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_what_is_outside_its_bounds_is_refused_with_its_field(section: str, said: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"^{why}$"):
        facts("gpu1", f"\n@@{section}\n{said}\n@@end\n")


# fault: kernel/facts/parse.py: processes.pop(fields[1], ()) → processes.get(fields[1], ())
def test_rows_that_claim_one_gpu_do_not_multiply_its_processes() -> None:
    found = facts("gpu1", "\n@@gpus\n0, GPU-a, x, 5\n1, GPU-a, x, 5\n@@gpuprocesses\nGPU-a|7|||5, a\n@@end\n")
    assert [len(gpu.processes) for gpu in found.gpus] == [1, 0]


# fault: kernel/facts/bounds.py: return words(value) → return value
# fault: kernel/facts/bounds.py: \\\n!^", → \\\n",
def test_a_text_of_facts_may_be_shown() -> None:
    """Any user of a host names files and processes; its facts can be read all the same."""
    said = '[{"ifname":"e\\u001b[2J!th","operstate":"U\\u202eP"}]'
    found = facts("gpu1", f"\n@@nics\n{said}\n@@missing\n/a\x1b]0;b\n@@end\n")
    assert [(nic.name, nic.state) for nic in found.nics] == [("e\ufffd[2J\ufffdth", "U\ufffdP")]
    assert found.missing_paths == {"/a\ufffd]0;b"}


# fault: kernel/facts/parse.py: version=_word(server.get("Version")) → version=str(server.get("Version"))
@pytest.mark.parametrize("version", ["; touch RAN", "$(touch RAN)", "20.10 or so", "", 20, None])
def test_words_that_are_not_a_version_are_left_out(version: object) -> None:
    """It is shown in a line: the name of a program with a host's words behind it would be a command."""

    def engine(given: object) -> str:
        said = json.dumps({"ApiVersion": "1.45", "Version": given})
        return facts("gpu1", re.sub(r"(?<=@@docker\n)(?s:.*?)(?=\n@@)", lambda _: said, ANSWER)).docker.version

    assert engine(version) == ""
    assert engine("26.1.5+dfsg1") == "26.1.5+dfsg1"


# The recorded host has no Docker: the later of two sections counts.
WHOLE = (FACTS / "h200-x2-host.txt").read_text().replace("@@end\n", f"{ANSWER.strip()}\n", 1)
SECTIONS = sorted({*re.findall("^@@([a-z]+)$", WHOLE, re.MULTILINE)} - {"end", "whole"})


# fault: kernel/facts/parse.py: (_BEFORE_KIND.split(line)[-1] → (re.sub(r'.*[:\s"]', "", line)
@pytest.mark.parametrize("text", ["x", "0", "a=", "|", "[", '"', ",", "x:"])
@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.promise("P23", "P46")
def test_a_line_of_any_section_is_read_in_the_time_of_its_bytes(section: str, text: str) -> None:
    """In a section of the CDI folders 60 kB took 36 s, and 1 MB hours, in which no other thread ran."""
    line = text * (40_000 // len(text))
    began = time.process_time()
    with suppress(ValueError):
        facts("gpu1", re.sub(f"^@@{section}$", f"@@{section}\n{line}", WHOLE, flags=re.MULTILINE), deep=True)
    assert time.process_time() - began < 3
