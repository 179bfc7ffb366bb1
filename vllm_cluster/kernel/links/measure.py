"""Has every host visit every other, all at once, and gathers what they saw."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from secrets import token_hex

from vllm_cluster.kernel.checks.finding import Finding
from vllm_cluster.kernel.checks.links import (
    EPHEMERAL,
    HostAddress,
    LinkResult,
    link_findings,
    parse_link_result,
    ports_of,
)
from vllm_cluster.kernel.checks.registry import NotChecked
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.docker.temporary import TemporaryContainer
from vllm_cluster.kernel.errors import HostError, VclusterError
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.hosts.program import SEND_SECONDS, OnHost, RunningProgram, python, read_message
from vllm_cluster.kernel.hosts.program import start as start_program
from vllm_cluster.kernel.hosts.runtime import Runtime
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.desired import choose_interface
from vllm_cluster.kernel.plan.identity import without_lease
from vllm_cluster.kernel.plan.images import find_image
from vllm_cluster.kernel.text import count
from vllm_cluster.wire.programs import LinkPorts
from vllm_cluster.wire.values import words

# A cold container on a busy host takes its time; then a closed port takes 4 s, and a large block as much again.
OPEN_SECONDS = 30.0
VISIT_SECONDS = 30.0
GONE_SECONDS = 10.0
CHOSEN_PORTS = 2
# Nothing of this stays on a host for longer, whoever forgot it.
LIFE_SECONDS = 180.0
NOT_FOUND = 127


def run_link_test(
    fleet: Fleet, inventory: Inventory, facts: Mapping[str, HostFacts], emit: Emit
) -> tuple[list[Finding], list[NotChecked]]:
    """What is wrong with the links between the hosts, and whose could not be seen. Changes nothing, leaves nothing."""
    if len(facts) < 2:
        return [], []
    runtime = fleet.runtime
    began, run = runtime.clock.monotonic(), token_hex(8)
    number = len(facts) * (len(facts) - 1)
    emit(Event("progress", f"testing {number} links between {len(facts)} hosts", data={"links": number}))
    program, probes = python("kernel.links.on_host", "link_test", seconds=LIFE_SECONDS), dict[str, RunningProgram]()

    def start(connection: HostConnection) -> LinkPorts:
        place = _place(inventory, facts[connection.name])
        probes[connection.name] = start_program(connection, program, place, runtime.after(OPEN_SECONDS))
        return _open(probes[connection.name], inventory, run, runtime.after(OPEN_SECONDS))

    # Its containers touch no node.
    fleet.without_lease()
    try:
        opened, failures = fleet.each(start, facts)
        peers = {name: {"address": inventory.hosts[name].address, **asdict(ports)} for name, ports in opened.items()}
        # Written once: a line of its own for each of 256 hosts would be 65,280 rows.
        line = json.dumps(peers).encode() + b"\n"
        for name in opened:
            _send_peers(probes[name], line, failures)
        names = {
            name: {**ports_of(inventory, name), **dict.fromkeys(ports.chosen, EPHEMERAL)}
            for name, ports in opened.items()
        }
        ways, more = fleet.each(
            lambda connection: _receive_results(probes[connection.name], names, runtime), set(opened) - set(failures)
        )
        gone = runtime.after(GONE_SECONDS)
        fleet.each(lambda connection: probes[connection.name].end(gone), ways)
    finally:
        fleet.each(lambda connection: probes[connection.name].close(), probes)
    failures |= more
    # A probe that broke off answers none of the others: what they saw of it does not show their links.
    every = [each for host in ways.values() for each in host if each.target not in failures]
    found = link_findings(every, {name: _address(inventory, facts[name]) for name in facts})
    seconds = round(runtime.clock.monotonic() - began, 1)
    text = (
        f"tested {count(len(every), 'link')} in {seconds} s: {count(len(found), 'problem') if found else 'no problems'}"
    )
    if every:
        emit(Event("progress", text, data={"links": len(every), "seconds": seconds}))
    return found, [_unseen(name, error) for name, error in failures.items()]


def _place(inventory: Inventory, facts: HostFacts) -> OnHost | TemporaryContainer:
    """In the image that will serve, for it has Python; where it is not there, the host may have one."""
    image = None if facts.docker.problem else find_image(inventory.image, facts.images)
    if image is None:
        return OnHost()
    owner = without_lease(inventory.cluster)
    return TemporaryContainer(owner, "links", image.id, network="host", drop=("ALL",))


def _open(probe: RunningProgram, inventory: Inventory, run: str, deadline: Deadline) -> LinkPorts:
    """Where a host listens for the others."""
    host = inventory.hosts[probe.host]
    asked = list(ports_of(inventory, host.name))
    try:
        probe.send({"me": host.name, "address": host.address, "run": run, "ports": asked, "more": CHOSEN_PORTS})
        ready = probe.next(deadline)
    except HostError:
        if probe.code == NOT_FOUND:
            hint = "vcluster up brings the image, which has Python in it\nor install python3"
            raise HostError(host.name, "no python3", hint=hint) from None
        raise
    if "error" in ready:
        raise HostError(host.name, words(str(ready["error"]))[:200], again=())
    ports = read_message(LinkPorts, host.name, "link test", ready)
    if (len(ports.open) + len(ports.taken), len(ports.chosen)) != (len(asked), CHOSEN_PORTS):
        raise _unclear(host.name, ValueError("other ports than asked for"))
    return ports


def _unclear(host: str, error: ValueError) -> HostError:
    return HostError(host, f"link test: unreadable output: {error}", again=())


def _send_peers(probe: RunningProgram, line: bytes, failures: dict[str, VclusterError]) -> None:
    try:
        probe.send_bytes(line, SEND_SECONDS)
    except VclusterError as error:
        failures[probe.host] = error


def _receive_results(
    probe: RunningProgram, names: Mapping[str, Mapping[int, str]], runtime: Runtime
) -> list[LinkResult]:
    """What a host saw of every other; `names` are those of the ports of each."""
    deadline, seen = runtime.after(VISIT_SECONDS + len(names) / 8), dict[str, LinkResult]()
    while "done" not in (row := probe.next(deadline)):
        target = row.get("to")
        if not isinstance(target, str) or target not in names or target == probe.host:
            raise HostError(probe.host, "link test: unreadable output: a result for another host", again=())
        try:
            seen[target] = parse_link_result(probe.host, target, names[target], row)
        except ValueError as error:
            raise _unclear(probe.host, error) from None
    return list(seen.values())


def _unseen(host: str, error: VclusterError) -> NotChecked:
    why = getattr(error, "detail", error.message)
    return NotChecked(host, "its links to the other hosts", f"{why}; {error.hint}" if error.hint else why)


def _address(inventory: Inventory, facts: HostFacts) -> HostAddress:
    host = inventory.hosts[facts.host]
    return HostAddress(host.address, choose_interface(host, facts) or "eth0")
