"""Each problem that can be known before a start is found, with its host and its fix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support import world
from tests.support.sim import lab, make
from tests.support.sim.carrier import FakeTransport
from vllm_cluster.kernel.backends import mp
from vllm_cluster.kernel.checks.docker import engine_problem
from vllm_cluster.kernel.checks.finding import merged
from vllm_cluster.kernel.checks.host import hostnames
from vllm_cluster.kernel.checks.network import endpoint
from vllm_cluster.kernel.checks.registry import check_all, preflight
from vllm_cluster.kernel.facts.host_facts import DockerFacts, Hca, HostFacts, Nic
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.hosts.observe import run_fact_script
from vllm_cluster.kernel.inventory.model import Ports
from vllm_cluster.kernel.terminal.paste import pasteable
from vllm_cluster.kernel.transport.base import Result, Target

NO_NIC = (Nic("lo", ("127.0.0.1/8",), 65536, "UNKNOWN"),)
DOWN = Hca("mlx5_1", 1, "1: DOWN", "InfiniBand", "10 Gb/sec", ("/dev/infiniband/uverbs1",))
ROUTES = {"10.0.0.1": None, "10.0.0.2": "lo"}
OTHER = {"io.vcluster.cluster": "prod", "io.vcluster.head-address": "10.0.0.1"}
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch"
NAMESAKE = {"io.vcluster.cluster": "lab", "io.vcluster.head-address": "192.168.1.1"}


def test_good_hosts_have_no_findings() -> None:
    assert preflight(world.inventory(), world.hosts()) == ()


# fault: kernel/checks/gpus.py: > found: → > max(8, found):
@pytest.mark.parametrize(
    ("words", "facts", "code", "error"),
    [
        ({"entries": {"gpu2": {"gpus": 8}}}, {}, "gpus-missing", True),
        ({}, {"gpus": ()}, "no-gpus", True),
        ({}, {"gpus": (), "gpu_problem": MISMATCH}, "driver-not-reloaded", True),
        ({"entries": {"gpu2": {"gpus": 4}}}, {"gpus": (), "gpu_problem": MISMATCH}, "driver-not-reloaded", True),
        ({}, {"nics": NO_NIC}, "address-not-found", True),
        ({"entries": {"gpu2": {"interface": "bond0"}}}, {}, "interface-not-found", True),
        ({}, {"routes": ROUTES}, "no-route", True),
        ({}, {"routes": {"10.0.0.1": "lo", "10.0.0.2": "lo"}}, "address-not-found", True),
        ({"entries": {"gpu2": {"hcas": ["mlx5_1"]}}}, {"hcas": (DOWN,)}, "hca-inactive", True),
        ({}, {"listening": frozenset({6380})}, "port-in-use", True),
        ({"volumes": ["/srv/x:/x"]}, {"missing_paths": frozenset({"/srv/x"})}, "volume-missing", True),
        ({}, {"missing_paths": frozenset({"/models"})}, "model-cache-missing", False),
        ({}, {"images": (), "free_bytes": {"/var/lib/docker": 3 << 30}}, "image-space", True),
        ({}, {"images": (), "free_bytes": {"/var/lib/docker": 30 << 30}}, "image-space", False),
        ({}, {"images": (replace(world.BASE, id="sha256:" + "00" * 32),)}, "image-differs", False),
    ],
)
def test_each_finding(words: dict[str, Any], facts: dict[str, Any], code: str, error: bool) -> None:
    found = preflight(world.inventory(**words), world.hosts(gpu2=facts))
    assert [(f.code, f.host, f.error) for f in found] == [(code, "gpu2", error)]
    assert found[0].fix


# fault: kernel/checks/host.py: one gives the id of another", fix) for name in names) → one gives the id of another", fix) for name in names[1:])
# fault: kernel/checks/host.py: _ONE_MACHINE + _LOOK) for name in hosts) → _ONE_MACHINE + _LOOK) for name in hosts[1:])
# fault: kernel/checks/host.py: _CLONES if _differ([facts[name] for name in names]) else _LOOK → _CLONES
# fault: kernel/checks/host.py: _CLONES if _differ([facts[name] for name in names]) else _LOOK → _LOOK
@pytest.mark.parametrize("liar", ["gpu1", "gpu2"])
@pytest.mark.parametrize(
    ("copied", "code", "clones"),
    [
        (("machine_id",), "same-machine", True),
        (("machine_id", "gpus"), "same-machine", False),
        (("machine_id", "boot_id"), "same-machine", False),
        (("gpus",), "same-gpus", False),
    ],
)
def test_of_two_hosts_that_look_like_one_none_is_accused_alone(
    copied: tuple[str, ...], code: str, clones: bool, liar: str
) -> None:
    """The later one was to remove its machine id, though the other one had given that as its own."""
    facts = world.hosts()
    facts = {name: replace(one, boot_id=f"boot-{name}") for name, one in facts.items()}
    victim = facts["gpu1" if liar == "gpu2" else "gpu2"]
    facts[liar] = replace(facts[liar], **{field: getattr(victim, field) for field in copied})
    found = preflight(world.inventory(), facts)
    assert [(one.code, one.host, one.error) for one in found] == [(code, "gpu1", True), (code, "gpu2", True)]
    assert len({(one.message, one.fix) for one in found}) == 1
    assert "gpu1 and gpu2" in found[0].message
    assert "gpu" not in found[0].fix
    assert ("systemd-machine-id-setup" in found[0].fix) == clones
    assert "rm " not in found[0].fix


# fault: kernel/checks/host.py: for name in names if len(names) > 1 else (): → for name in names[1:]:
@pytest.mark.parametrize("liar", ["gpu1", "gpu2"])
def test_of_hosts_with_one_hostname_none_is_renamed(liar: str) -> None:
    """The second one was to change its name, though the first had given that as its own."""
    facts = world.hosts(3)
    facts[liar] = replace(facts[liar], hostname=facts["gpu1" if liar == "gpu2" else "gpu2"].hostname)
    found = list(hostnames(world.inventory(3), facts))
    assert [(one.code, one.host, one.error) for one in found] == [
        ("same-hostname", name, False) for name in ("gpu1", "gpu2")
    ]
    assert [one.fix.split(";")[0] for one in found] == [f"on {name}: hostnamectl" for name in ("gpu1", "gpu2")]
    assert all("gpu1 and gpu2 give one hostname" in one.message for one in found)
    (both,) = merged(found)
    fix = pasteable(both.fix, {"gpu1": ["gpu1"], "gpu2": ["gpu2"]}).splitlines()
    assert fix[:2] == ["ssh gpu1 hostnamectl", "ssh gpu2 hostnamectl"] and len(fix) == 3
    assert "sudo" not in both.fix


# fault: kernel/checks/network.py: if ip_address(host.address).is_global: → if False:
@pytest.mark.parametrize(("address", "warned"), [("203.0.113.7", False), ("8.8.4.4", True), ("100.64.0.9", False)])
def test_an_address_that_the_internet_may_reach_is_warned_of(address: str, warned: bool) -> None:
    nic = Nic("eth0", (f"{address}/24",), 1500, "UP")
    facts = world.hosts(1)
    facts["gpu1"] = replace(facts["gpu1"], nics=(nic,))
    found = preflight(world.inventory(1, entries={"gpu1": {"address": address}}), facts)
    assert [(one.code, one.error) for one in found] == ([("address-public", False)] if warned else [])


# fault: kernel/checks/network.py: and not nic.inner] → ]
@pytest.mark.parametrize(
    ("backend", "nic", "where"),
    [
        ("mp", Nic("eth2", ("192.168.7.4/24", "fe80::1/64"), 1500, "UP"), "192.168.7.4 (eth2)"),
        ("ray", Nic("eth2", ("192.168.7.4/24",), 1500, "UP"), ""),
        ("mp", Nic("docker0", ("172.17.0.1/16",), 1500, "UP"), ""),
        ("mp", Nic("eth2", (), 1500, "DOWN"), ""),
    ],
)
def test_the_port_without_a_token_is_named_where_another_network_reaches_it(backend: str, nic: Nic, where: str) -> None:
    facts = world.hosts()
    facts["gpu1"] = replace(facts["gpu1"], nics=(*facts["gpu1"].nics, nic))
    found = [one for one in check_all(world.inventory(backend=backend), facts) if one.code == "master-port-open"]
    assert [one.host for one in found] == (["gpu1"] if where else [])
    assert where in "".join(one.message for one in found)


# fault: kernel/checks/registry.py: if finding.host not in taken or finding.code not in _FOLLOWS] → if finding.host]
# fault: kernel/checks/docker.py: found = number(label) → found = int(label) if label else None
@pytest.mark.parametrize(
    "labels",
    [OTHER, NAMESAKE, *({"io.vcluster.cluster": "lab", "io.vcluster.format": one} for one in ("4", "9" * 5000, "x"))],
)
def test_containers_of_others_stop_everything(labels: dict[str, str]) -> None:
    specs, facts = world.converged(world.inventory())
    stranger = replace(world.running(specs[1]), name=f"vcluster-{labels['io.vcluster.cluster']}", labels=labels)
    # Its ports and GPUs are taken by that cluster: remedies for these would stop it.
    facts["gpu2"] = replace(facts["gpu2"], containers=(stranger,), listening=frozenset({6379, 6380}))
    assert [f.code for f in preflight(world.inventory(), facts)] in (["other-cluster"], ["newer-format"])


# fault: kernel/checks/network.py: facts, "running", "paused") → facts, "exited")
def test_the_ports_of_a_running_node_are_its_own() -> None:
    _, facts = world.converged(world.inventory())
    facts["gpu1"] = replace(facts["gpu1"], listening=frozenset({6379, 6380, 8265}))
    assert preflight(world.inventory(), facts) == ()


# fault: kernel/checks/network.py: *way.NODE_PORTS, *of_head → {*way.NODE_PORTS, *of_head} - {'dashboard_agent_grpc'}
# Those of replicas are of other hosts than the head.
@pytest.mark.parametrize("key", sorted({*Ports.model_fields} - {"worker_min", "worker_max", "replicas"}))
def test_no_port_of_the_head_may_be_in_use(key: str) -> None:
    """A key that is added to `ports` is looked at too."""
    inventory = world.inventory(backend="mp" if key in mp.HEAD_PORTS else "ray")
    port = getattr(inventory.ports, key)
    (found,) = preflight(inventory, world.hosts(gpu1={"listening": frozenset({port})}))
    assert (found.code, found.host, found.message) == (
        "port-in-use",
        "gpu1",
        f"port {port} is already in use (ports.{key})",
    )


# fault: kernel/checks/network.py: for number in range(host.gpu_number or len(facts.gpus) or 1): → for number in range(1):
@pytest.mark.parametrize(
    ("host", "port", "key"),
    [
        *(("gpu2", 8100, "replicas"), ("gpu2", 8101, "replicas + 1"), ("gpu2", 8102, "")),
        # The front asks a replica of the head on its loopback.
        ("gpu1", 8100, ""),
    ],
)
def test_the_ports_of_replicas_are_looked_at_on_other_hosts_than_the_head(host: str, port: int, key: str) -> None:
    changed: dict[str, Any] = {host: {"listening": frozenset({port})}}
    found = preflight(world.inventory(), world.hosts(**changed))
    assert [(one.code, one.host, one.error, one.message) for one in found] == (
        [("port-in-use", host, False, f"port {port} is already in use (ports.{key})")] if key else []
    )


def test_the_port_of_a_pull_is_looked_at_while_none_runs() -> None:
    specs, facts = world.converged(world.inventory(ports={"pull": 7000}))
    facts["gpu2"] = replace(facts["gpu2"], listening=frozenset({6384, 7000}))
    (found,) = preflight(world.inventory(ports={"pull": 7000}), facts)
    assert (found.code, found.host, found.error) == ("port-in-use", "gpu2", False)
    assert found.message == "port 7000 is already in use (ports.pull)"
    pulling = replace(world.running(specs[1]), name="vcluster-lab-pull")
    facts["gpu2"] = replace(facts["gpu2"], containers=(*facts["gpu2"].containers, pulling))
    assert preflight(world.inventory(ports={"pull": 7000}), facts) == ()


# fault: kernel/checks/network.py: if facts.docker.problem: → if facts.docker.problem == "":
def test_no_port_is_called_taken_where_docker_does_not_show_whose_it_is() -> None:
    """Each of them was the node's own, which ran on while Docker was away."""
    hosts = world.hosts(gpu2={"docker": DockerFacts(problem="no answer"), "listening": frozenset({6380, 6384})})
    assert preflight(world.inventory(), hosts) == ()


def test_the_port_of_the_endpoint_is_looked_at_while_nodes_run_and_serve_nothing() -> None:
    _, facts = world.converged(world.inventory())
    assert list(endpoint(world.inventory(), facts)) == []
    facts["gpu1"] = replace(facts["gpu1"], listening=frozenset({6379, 8000}))
    (found,) = endpoint(world.inventory(), facts)
    assert (found.code, found.host, found.error, found.message) == (
        "port-in-use",
        "gpu1",
        False,
        "port 8000 is already in use (ports.api)",
    )
    # Where no node runs, the check of all ports has it.
    assert list(endpoint(world.inventory(), world.hosts(gpu1={"listening": frozenset({8000})}))) == []


NOW = 1_700_000_000.0


def skewed(*seconds: float) -> list[tuple[str, bool]]:
    """The hosts that are named where their clocks are so far ahead of this machine's, and whether one is to be set."""
    clocks = {f"gpu{number}": {"clock": NOW + ahead} for number, ahead in enumerate(seconds, 1)}
    found = preflight(world.inventory(len(seconds)), world.hosts(len(seconds), **clocks))
    assert all((one.code, one.error) == ("clock-skew", False) for one in found)
    return [(one.host, "chronyc" in one.fix) for one in found]


# fault: kernel/checks/host.py: every = [*ahead.values(), _Ahead(0.0, 0.0)] → every = [*ahead.values()]
# fault: kernel/checks/host.py: 2 * sum(_apart(every)) < len(every) → True
# fault: kernel/checks/host.py: if not ahead or not any(_apart(ahead.values())): → if not ahead:
@pytest.mark.parametrize(
    ("ahead", "named"),
    [
        ((0, 3600), [("gpu2", True)]),
        ((-3600, 0), [("gpu1", True)]),
        ((0, -1e8), [("gpu2", True)]),
        ((-1e8, 0), [("gpu1", True)]),
        ((0, -3600, 0), [("gpu2", True)]),
        ((0, 0, 3600), [("gpu3", True)]),
        # This machine's own clock is the wrong one.
        ((3600,), []),
        ((3600, 3610), []),
        ((3600, 3600, 3600, 0), [("gpu4", True)]),
        # Of three clocks none is near another, or of four two and two are.
        ((3600, -1e8), [("gpu1", False), ("gpu2", False)]),
        ((0, 3600, 3600), [("gpu1", False), ("gpu2", False), ("gpu3", False)]),
    ],
)
def test_a_clock_is_wrong_where_most_differ_from_it(ahead: tuple[float, ...], named: list[tuple[str, bool]]) -> None:
    """Of two hosts the one with the right time was to set its clock to that of the other, of the year 2020."""
    assert skewed(*ahead) == named


def test_the_wrong_clock_is_measured_from_the_others() -> None:
    (found,) = preflight(world.inventory(), world.hosts(gpu2={"clock": NOW + 3600}))
    assert found.message == "its clock is +3600 s from the other machines'"
    found, _ = preflight(world.inventory(), world.hosts(gpu1={"clock": NOW - 50}, gpu2={"clock": NOW + 50}))
    assert found.message.startswith("its clock is -50 s from this machine's, and too few clocks agree")
    assert found.fix.startswith("on gpu1: timedatectl; ")


def test_a_host_that_was_asked_later_has_no_clock_offset() -> None:
    facts = world.hosts(gpu2={"clock": NOW + 60, "observed_at": NOW + 60})
    assert preflight(world.inventory(), facts) == ()
    found = preflight(world.inventory(), world.hosts(gpu2={"observed_at": NOW + 60}))
    assert [(one.code, one.host) for one in found] == [("clock-skew", "gpu2")]


# fault: kernel/checks/host.py: _Ahead(most, most - within) → _Ahead(most, most)
def test_a_host_whose_answer_took_long_has_no_clock_offset() -> None:
    facts = world.hosts(gpu2={"clock": NOW + 60, "observed_within": 61.0})
    assert preflight(world.inventory(), facts) == ()


# fault: kernel/hosts/observe.py: observed_at=asked, observed_within=took → observed_at=0.0, observed_within=took
# fault: kernel/hosts/observe.py: observed_at=asked, observed_within=took → observed_at=asked
def test_when_a_host_was_asked_is_noted() -> None:
    lasted = 5.0
    world_, words = make.world((1,)), make.inventory(1)
    transport, clock = FakeTransport(world_, Target("gpu1", "gpu1")), world_.clock
    run = transport.run

    def slowly(*argv: Any, **more: Any) -> Result:
        result = run(*argv, **more)
        clock.sleep(lasted)
        return result

    transport.run = slowly  # type: ignore[method-assign]
    asked = clock.time()
    found = run_fact_script(words, HostConnection("gpu1", transport, lab.runtime(world_)))
    assert found.observed_at == asked
    assert lasted <= found.observed_within < lasted + 5


@pytest.mark.parametrize(
    ("engine", "code"),
    [
        (DockerFacts(problem="sh: 1: docker: not found"), "docker-missing"),
        (DockerFacts(problem="timeout: failed to run command 'docker': No such file or directory"), "docker-missing"),
        (
            DockerFacts(problem="permission denied while trying to connect to the Docker daemon socket"),
            "docker-forbidden",
        ),
        (DockerFacts(problem="permission denied while trying to connect\nsudo docker answers"), "docker-forbidden"),
        (DockerFacts(problem="Cannot connect to the Docker daemon. Is the docker daemon running?"), "docker-stopped"),
        (DockerFacts(version="19.03.8", api_version="1.40"), "docker-old"),
    ],
)
def test_docker_that_cannot_be_used_has_one_finding(engine: DockerFacts, code: str) -> None:
    facts: HostFacts = world.host(1, docker=engine)
    found = engine_problem(facts)
    assert found is not None
    assert (found.code, found.host) == (code, "gpu1")
