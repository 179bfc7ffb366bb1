"""Starts one container on every host, in the image that will serve and as a node's would be, and looks around in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from vllm_cluster.kernel.backends import TOKEN
from vllm_cluster.kernel.checks.finding import Finding
from vllm_cluster.kernel.docker.temporary import TemporaryContainer
from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.hosts.program import python, run_program
from vllm_cluster.kernel.images import contents
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.desired import Inputs, desired
from vllm_cluster.kernel.plan.identity import decide_cluster_id, without_lease
from vllm_cluster.kernel.plan.images import find_image, node_image_name
from vllm_cluster.kernel.plan.spec import ContainerSpec
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.text import count, end_of
from vllm_cluster.wire.reading import RefusedDocument

SECONDS = 90.0
# Longer than any caller waits for the answer: a driver that hangs must not keep the container without end.
LIFE_SECONDS = 150.0


def look_inside(
    fleet: Fleet, inventory: Inventory, facts: Mapping[str, HostFacts], emit: Emit, *, leave: Collection[str] = ()
) -> list[Finding]:
    """What is wrong in a container on each host that has the image, but for those to `leave`; nothing of it stays."""
    inputs = Inputs("", {TOKEN: "none"}, decide_cluster_id(inventory, facts) or "")
    wanted = {spec.host: spec for spec in desired(inventory, facts, inputs)}
    there = [
        name for name, host in facts.items() if not host.docker.problem and find_image(inventory.image, host.images)
    ]
    ready = [name for name in there if name not in leave]
    if ready:
        emit(Event("progress", f"looking around in a container on {count(len(ready), 'host')}"))

    def look(connection: HostConnection) -> list[Finding]:
        spec = _without_volumes(wanted[connection.name], facts[connection.name])
        try:
            return _look(connection, inventory, facts[connection.name], spec)
        except HostError as error:
            text = f"no container can be started: {error.detail}"
            return [
                Finding(
                    "container-failed",
                    connection.name,
                    text,
                    command_line(
                        "docker", "run", Option("--rm"), inventory.image, Option("--help"), on=connection.name
                    ),
                )
            ]

    answers, failures = fleet.each(look, ready)
    lost = [
        Finding("container-failed", name, error.message, "vcluster check again") for name, error in failures.items()
    ]
    return [*(finding for found in answers.values() for finding in found), *lost]


def _without_volumes(spec: ContainerSpec, facts: HostFacts) -> ContainerSpec:
    """Without our volumes, and without folders that are not there: Docker would make them."""
    there = [mount for mount in spec.mounts if mount.source.startswith("/") and mount.source not in facts.missing_paths]
    return replace(spec, mounts=tuple(there))


def _look(connection: HostConnection, inventory: Inventory, facts: HostFacts, spec: ContainerSpec) -> list[Finding]:
    base = find_image(inventory.image, facts.images)
    if base is None:
        return []
    image = find_image(node_image_name(base.id, spec.requirements), facts.images) or base
    cache = inventory.model_cache
    folder = cache if any(mount.target == cache for mount in spec.mounts) else "/tmp"  # noqa: S108 (in the container)
    place = TemporaryContainer(without_lease(inventory.cluster), "probe", image.id, like=spec)
    spans = contents.SPANNING if inventory.backend == "mp" and len(inventory.hosts) > 1 else ()
    program = python("kernel.images.on_host", "inspect_image", folder, *contents.OPTIONS, *spans, seconds=LIFE_SECONDS)
    ended = run_program(connection, program, place, connection.runtime.after(SECONDS))
    try:
        found, reach = contents.read_contents(ended.messages)
    except RefusedDocument as refused:
        text = f"{inventory.image} describes itself by what cannot be: {refused.field} {refused.why}"
        return [Finding("image-unfit", connection.name, text, "name an image of vLLM")]
    except ValueError:
        text = f"{inventory.image} does not run Python (exit {ended.code}): {end_of(ended.text, 300)}"
        return [Finding("image-unfit", connection.name, text, "name an image of vLLM")]
    given = spec.gpu_count if spec.gpus else 0
    offline = inventory.environment.get("HF_HUB_OFFLINE") == "1"
    return list(
        contents.judge_contents(
            inventory.image, connection.name, found, reach, gpus=given, cache=cache, offline=offline
        )
    )
