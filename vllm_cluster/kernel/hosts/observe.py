"""Looks at the hosts: one script each, and what their Docker engines hold."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files

from vllm_cluster.kernel.checks.docker import engine_problem
from vllm_cluster.kernel.docker.calls import MAX_ANSWER, TooLong
from vllm_cluster.kernel.docker.client import DockerApi
from vllm_cluster.kernel.errors import CommandFailed, DockerError
from vllm_cluster.kernel.facts import parse
from vllm_cluster.kernel.facts.details import ImageDetails
from vllm_cluster.kernel.facts.docker_objects import Container, ImageInfo
from vllm_cluster.kernel.facts.heads import KnownHeads
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.held import ALL_HOSTS, TooMuch, one_at_a_time, share
from vllm_cluster.kernel.hosts.connection import WORKERS, HostConnection
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.desired import STATE_FOLDER
from vllm_cluster.kernel.plan.identity import node_of, without_copies
from vllm_cluster.kernel.plan.members import way_to
from vllm_cluster.kernel.plan.spec import CLUSTER, ID, ROLE, node_name, user_numbers
from vllm_cluster.kernel.shell_line import command_line
from vllm_cluster.kernel.text import end_of, size
from vllm_cluster.kernel.transport.base import MAX_OUTPUT
from vllm_cluster.wire.parts import RECORD_FILE

OBSERVE_SECONDS = 60.0
# A member has 300 bytes.
MAX_RECORD = 256 << 10
# What the scripts of those hosts print that are asked at once. Of a host with 16 GPUs and 300 interfaces 0.4 MB.
ALL_SCRIPTS = 20 << 20


def observe(
    inventory: Inventory, connection: HostConnection, *, deep: bool = False, volumes: bool = False
) -> HostFacts:
    """The facts of one host; where its Docker cannot be used, the facts hold the reason and list nothing.

    `volumes` lists those of the cluster also where its node is.
    A deep look takes a second longer, still with one script: it adds the details, and whose containers else there are.

    Raises:
        HostError: the host did not answer, or not to the end, or with more than there is room for.
    """
    facts = run_fact_script(inventory, connection, deep=deep)
    try:
        usable(facts)
    except DockerError as error:
        connection.no_docker = error
        return facts
    docker = connection.open_docker(facts.docker.api_version, facts.docker.id)
    docker.owner = user_numbers(inventory.user or "")
    at_once = min(len(inventory.hosts), WORKERS)
    try:
        with docker.counted(connection.memory, share(at_once, ALL_HOSTS, MAX_ANSWER)):
            found = _with_docker(inventory, facts, docker, deep=deep, volumes=volumes)
        # Of what was listed much is not kept.
        return connection.memory.renew().keep(found)
    except TooMuch as error:
        fix = command_line("docker", "system", "df", on=connection.name)
        raise TooLong(connection.name, f"its Docker lists too much: {error}", hint=fix) from error


def _with_docker(inventory: Inventory, facts: HostFacts, docker: DockerApi, *, deep: bool, volumes: bool) -> HostFacts:
    """These facts with what the host's Docker lists."""
    # All of them: one with the name of the wanted container is in its way, with any labels.
    images = docker.images()
    every = without_copies(docker.containers(None), images)
    facts = replace(facts, containers=tuple(container for container in every if CLUSTER in container.labels))
    # What a cluster left names whose it was; where a node is, the node names it, if its version knew ids.
    node = node_of(inventory.cluster, facts)
    # A host that becomes the head, or is it again, may hold what a run that broke off gave it.
    follows = facts.host == inventory.head_name and node is not None and node.labels.get(ROLE) != "head"
    known = node is not None and ID in node.labels and not (volumes or follows)
    left = {} if known else docker.volumes.labelled(f"{CLUSTER}={inventory.cluster}")
    taken = [c for c in every if c.name == node_name(inventory.cluster) and c != node]
    others = [c for c in every if deep and CLUSTER not in c.labels and c not in taken]
    # What others wrote into their labels is theirs.
    strangers = tuple(replace(container, labels={}) for container in (*taken, *others))
    facts = replace(facts, volumes=left, images=images, member_record=_record(docker, node), other_containers=strangers)
    if facts.details is None:
        return facts
    return replace(
        facts,
        details=replace(facts.details, image=_image(docker.image_info(inventory.image))),
    )


def usable(facts: HostFacts) -> HostFacts:
    """These facts, of a host whose Docker can be used.

    Raises:
        DockerError: it cannot be.
    """
    if problem := engine_problem(facts):
        raise DockerError(facts.host, problem.message, hint=problem.fix)
    return facts


def run_fact_script(inventory: Inventory, connection: HostConnection, *, deep: bool = False) -> HostFacts:
    """What the host's own script finds; nothing is asked of Docker's API.

    Raises:
        HostError: the host did not answer, or not to the end.
    """
    folder = files("vllm_cluster.kernel.facts")
    script = b"".join(folder.joinpath(name).read_bytes() for name in ("facts.sh", "details.sh")[: 1 + deep])
    peers = ",".join(host.address for host in inventory.hosts.values())
    paths = [inventory.model_cache, *(volume.source for volume in inventory.volumes)]
    clock, memory = connection.runtime.clock, connection.memory.renew()
    asked, began = clock.time(), clock.monotonic()
    most = share(min(len(inventory.hosts), WORKERS), ALL_SCRIPTS, MAX_OUTPUT)
    result = connection.transport.run(
        ["sh", "-s", "--", peers, *paths], connection.runtime.after(OBSERVE_SECONDS), stdin=script, most=most
    )
    took = clock.monotonic() - began
    try:
        if len(result.stdout) == most:
            raise ValueError(f"the answer of the fact script is longer than {size(most)}")
        with one_at_a_time():
            found = parse.facts(connection.name, result.text, deep=deep)
            found = replace(found, observed_at=asked, observed_within=took)
            return memory.keep(_remembered(found, inventory, connection))
    except ValueError as error:
        stderr = result.stderr.decode("utf-8", "replace").strip()
        text = f"cannot read its facts: {error}: {end_of(stderr, 300)}"
        raise CommandFailed(connection.name, text, exit_code=result.returncode, stderr=stderr, again=()) from error


def _remembered(facts: HostFacts, inventory: Inventory, connection: HostConnection) -> HostFacts:
    """The same with what this machine remembers of heads."""
    heads, host = connection.runtime.visited.heads(inventory.cluster), inventory.hosts.get(connection.name)
    here = heads.get(way_to(inventory, host)) if host else None
    head = heads.get(way_to(inventory, inventory.hosts[inventory.head_name]))
    return replace(facts, known_heads=KnownHeads(here, head, tuple(heads.values())))


def _record(docker: DockerApi, node: Container | None) -> str:
    """What a head remembers of its members; a worker has nothing to remember."""
    if node is None or node.labels.get(ROLE) != "head":
        return ""
    return (docker.read_file(node.id, f"{STATE_FOLDER}/{RECORD_FILE}", MAX_RECORD) or b"").decode("utf-8", "replace")


def _image(found: ImageInfo | None) -> ImageDetails | None:
    """Where the image can run, by its own labels and variables."""
    if found is None:
        return None
    variables = dict(entry.partition("=")[::2] for entry in found.environment)
    return ImageDetails(found.id, found.architecture, variables.get("CUDA_VERSION", ""), found.entrypoint)
