"""Packs what a report needs: logs, facts, plan, versions; without secrets, from the hosts that answer."""

from __future__ import annotations

import io
import itertools
import json
import os
import platform
import re
import subprocess
import tarfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from vllm_cluster import __version__
from vllm_cluster.kernel.backends import TOKEN
from vllm_cluster.kernel.checks.docker import engine_problem
from vllm_cluster.kernel.checks.registry import preflight
from vllm_cluster.kernel.debug_log import MAX_BYTES, inventory_key, kept
from vllm_cluster.kernel.errors import HostError, UsageError, VclusterError
from vllm_cluster.kernel.events import Emit, Event
from vllm_cluster.kernel.explain.diagnosis import diagnose
from vllm_cluster.kernel.explain.scan import scan_all
from vllm_cluster.kernel.facts.docker_objects import Image
from vllm_cluster.kernel.facts.host_facts import OF_THIS_MACHINE, HostFacts
from vllm_cluster.kernel.facts.values import items, mapping
from vllm_cluster.kernel.held import share
from vllm_cluster.kernel.hosts.connection import Fleet, HostConnection
from vllm_cluster.kernel.hosts.observe import observe
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.hosts.secrets import read_references, references
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.known_secrets import Comparisons, redactor
from vllm_cluster.kernel.laptop import cache_folder, read_own_file
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.node.program import program_digest
from vllm_cluster.kernel.plan.desired import Inputs, desired, settled
from vllm_cluster.kernel.plan.diff import diff
from vllm_cluster.kernel.plan.identity import decide_cluster_id, node_of
from vllm_cluster.kernel.plan.kept import kept_secrets, secret_ids
from vllm_cluster.kernel.plan.spec import LABEL, SPEC, stored_spec
from vllm_cluster.kernel.private_keys import looks_random
from vllm_cluster.kernel.text import REDACTED, count, redact
from vllm_cluster.serving.explain.logs import Log, collect, sources

# Of a log, what is looked through for secrets; with one emoji in it each of its copies then has four times that.
MAX_FILE_BYTES = 3 << 20
SSH_SECONDS = 5
# Each is a request to the host, and 64 KiB; an inventory with as many was not seen.
MAX_SECRETS = 128
# The bytes of all, and of one host's: each is kept in several forms.
ALL_SECRETS, HOST_SECRETS = 2 << 20, 256 << 10
_NOT_IN_NAMES, MAX_FILE_NAME = re.compile(r"[^A-Za-z0-9._-]+"), 120
# Of this machine's own runs; the last one is this run.
MAX_CALL_LOGS = 5

Packed = tuple[dict[str, int], Mapping[str, VclusterError]]


@dataclass
class _Host:
    """What one host gave."""

    facts: HostFacts
    logs: list[Log]
    inspected: Mapping[str, object]
    secrets: list[str]


def bundle(inventory: Inventory, emit: Emit, path: Path, *, runtime: Runtime = SYSTEM) -> Packed:
    """Write the bundle; returns what is in it with sizes, and the hosts that gave nothing.

    Raises:
        UsageError: the file exists, or cannot be written.
    """
    if path.exists():
        raise UsageError(f"{path} already exists", hint="vcluster explain --bundle FILE")
    with Fleet(inventory, runtime) as fleet:
        emit(Event("phase", f"collecting from {count(len(inventory.hosts), 'host')}"))
        hosts, failures = fleet.each(lambda connection: _look(inventory, connection))
    known = [*_own_secrets(inventory), *(secret for host in hosts.values() for secret in host.secrets)]
    without_secrets = redactor([*known, *_secret_variables(inventory)])
    # By host: each decides how many files it has, and how much in them is like a secret.
    budgets = defaultdict[str, Comparisons](Comparisons)
    files = {
        name: without_secrets(text, budgets[name[: name.find("/") + 1]])[:MAX_FILE_BYTES].encode()
        for name, text in chain(_files(inventory, hosts, failures), _calls(inventory))
    }
    for folder in (folder for folder, budget in budgets.items() if budget.left < 0):
        text = f"{folder or path}: too much is like secrets to look through: the rest of such files is left out"
        emit(Event("warning", text))
    files["contents.txt"] = "".join(f"{len(content):>10}  {name}\n" for name, content in files.items()).encode()
    _write(path, files)
    return {name: len(content) for name, content in files.items()}, failures


def _look(inventory: Inventory, connection: HostConnection) -> _Host:
    connection.connect()
    facts = observe(inventory, connection)
    if engine_problem(facts):
        return _Host(facts, [], {}, [])
    node = NodeHandle(connection, inventory.cluster)
    secrets: list[str] = []
    there = node_of(inventory.cluster, facts)
    named = secret_ids(there.labels) if there else {}
    if len(named) > MAX_SECRETS:
        raise HostError(connection.name, f"its node names more than {MAX_SECRETS} secrets", again=())
    room = share(len(inventory.hosts), ALL_SECRETS, HOST_SECRETS)
    for name, identity in named.items():
        with suppress(VclusterError):
            content = node.secret(name, identity)
            if (room := room - len(content or b"")) < 0:
                break
            text = (content or b"").decode("utf-8", "replace").strip()
            secrets += [text, *(text.split() if name == "api-key" else ())]
    if room < 0:
        raise HostError(connection.name, "the secrets of its node are too long to be looked for in all files", again=())
    return _Host(
        facts,
        collect(connection, inventory.cluster, len(inventory.hosts)),
        _without_values(connection.docker.container_document(node.name)),
        secrets,
    )


def _own_secrets(inventory: Inventory) -> Iterator[str]:
    for name, reference in references(inventory).items():
        # A reference that leads nowhere any more must not keep the rest from being redacted and packed.
        with suppress(VclusterError):
            yield from read_references(inventory, {name: reference}).values()


def _secret_variables(inventory: Inventory) -> Iterator[str]:
    """The values under `environment` that may be secrets: elsewhere WARN or a path is worth reading."""
    for name, value in inventory.environment.items():
        if redact(f"{name}={value}") != f"{name}={value}" or looks_random(value):
            yield value


def _without_values(inspected: Mapping[str, object]) -> dict[str, object]:
    """The output of `docker inspect`, the values of the environment left out."""
    config = mapping(inspected.get("Config"))
    config["Env"] = [f"{str(entry).partition('=')[0]}={REDACTED}" for entry in items(config.get("Env"))]
    config["Labels"] = _our_labels({name: str(value) for name, value in mapping(config.get("Labels")).items()})
    return {**inspected, "Config": config}


def _our_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels of vcluster alone; what is stored of a node's environment stays by name."""
    kept = {name: value for name, value in labels.items() if name.startswith(LABEL)}
    if SPEC in kept:
        spec = stored_spec(kept)
        hidden = tuple((name, REDACTED) for name, _ in spec.environment) if spec else ()
        kept[SPEC] = replace(spec, environment=hidden).document if spec else REDACTED
    return kept


def _facts(facts: HostFacts, image: str) -> dict[str, Any]:
    """The facts without what others wrote into labels, and without the names of their images."""
    base = image.partition("@")[0].rpartition(":")[0]
    images = tuple(replace(one, labels=_our_labels(one.labels)) for one in facts.images if _is_of(one, base))
    named = {one.id for one in images}
    containers = tuple(
        replace(one, labels=_our_labels(one.labels), image=one.image if one.image_id in named else "")
        for one in facts.containers
    )
    document = asdict(replace(facts, containers=containers, images=images))
    return {key: value for key, value in document.items() if key not in OF_THIS_MACHINE}


def _is_of(image: Image, base: str) -> bool:
    """Whether an image is the inventory's, or was made from it."""
    return bool(_our_labels(image.labels)) or any(name.startswith(base) for name in (*image.tags, *image.digests))


def _files(
    inventory: Inventory, hosts: Mapping[str, _Host], failures: Mapping[str, VclusterError]
) -> Iterator[tuple[str, str]]:
    """Every file of the bundle by name, before redaction."""
    yield "versions.json", _json(_versions())
    yield "inventory.json", _json(_inventory(inventory))
    yield "unreachable.json", _json({host: error.words() for host, error in failures.items()})
    yield "plan.json", _json(_plan(inventory, {name: host.facts for name, host in hosts.items()}))
    found = diagnose(scan_all(sources(host.logs for host in hosts.values())), together=True)
    places = found.named.places if found.named else found.error_lines
    failure = found.named.failure.slug if found.named else None
    document = {"result": found.result, "failure": failure, "lines": [asdict(place) for place in places]}
    yield "explain.json", _json(document)
    for name, host in hosts.items():
        yield f"{name}/facts.json", _json(_facts(host.facts, inventory.image))
        yield f"{name}/inspect.json", _json(host.inspected)
        for file, log in _named(host.logs):
            yield f"{name}/logs/{file}", _text(log)


def _calls(inventory: Inventory) -> Iterator[tuple[str, str]]:
    """What this machine has sent to the hosts of this inventory file in its last runs."""
    key = inventory_key(inventory.cluster, inventory.path)
    with suppress(OSError, VclusterError):
        for number, path in enumerate(kept(cache_folder(), key)[-MAX_CALL_LOGS:], 1):
            yield f"calls/{number}.log", _last_lines(read_own_file(path, 2 * MAX_BYTES))


def _text(log: Log) -> str:
    """A log with a word where lines were left out."""
    lines, due = [], 1
    for number, part in log.parts:
        if number != due:
            lines.append(f"[… lines {due} to {number - 1} left out …]\n".encode())
        lines.append(part)
        due = number + part.count(b"\n")
    return _last_lines(b"".join(lines))


def _last_lines(content: bytes) -> str:
    """The end of a log in whole lines: a part of a secret has its shape no more."""
    end = content[-MAX_FILE_BYTES:].partition(b"\n")[2] if len(content) > MAX_FILE_BYTES else content
    return end.decode("utf-8", "replace")


def _inventory(inventory: Inventory) -> dict[str, Any]:
    content = inventory.model_dump(mode="json", exclude_none=True)
    content["environment"] = dict.fromkeys(inventory.environment, REDACTED)
    for name in ("hf_token", "api_key"):
        if name in content:
            content[name] = f"{content[name]['kind']}:{REDACTED}"
    content["secrets"] = {name: f"{ref.kind}:{REDACTED}" for name, ref in inventory.secrets.items()}
    return content


def _plan(inventory: Inventory, facts: Mapping[str, HostFacts]) -> dict[str, Any]:
    """What `up` would do now, as far as the facts of the hosts that answered show it."""
    if set(facts) != set(inventory.hosts):
        return {"unknown": "not every host answered"}
    try:
        findings = [asdict(finding) for finding in preflight(inventory, facts)]
        kept = {TOKEN: "unknown", "api-key": "unknown", **kept_secrets(inventory, facts)}
        inputs = Inputs(program_digest(), kept, decide_cluster_id(inventory, facts) or "")
        specs, _ = settled(desired(inventory, facts, inputs), facts)
        plan = diff(specs, facts)
    except (VclusterError, KeyError) as error:
        return {"unknown": str(error)}
    operations = [{"host": one.host, "operation": one.verb, "message": one.text} for one in plan.operations()]
    return {"findings": findings, "operations": operations}


def _versions() -> dict[str, str]:
    try:
        ssh = subprocess.run(["ssh", "-V"], capture_output=True, text=True, timeout=SSH_SECONDS, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        ssh = "none"
    here = {"vcluster": __version__, "python": platform.python_version(), "system": platform.platform()}
    return {**here, "ssh": ssh.strip()}


def _json(value: object) -> str:
    return json.dumps(value, indent=1, default=_plainly) + "\n"


def _plainly(value: object) -> object:
    return sorted(value) if isinstance(value, frozenset) else str(value)


def _write(path: Path, files: Mapping[str, bytes]) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"vcluster-bundle/{_safe(name)}")
            entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
            tar.addfile(entry, io.BytesIO(data))
    try:
        # A new file for its owner alone, also where another process made one a moment ago.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            try:
                stream.write(content.getvalue())
                stream.flush()
            except OSError:
                path.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", hint="vcluster explain --bundle FILE") from None


def _named(logs: Iterable[Log]) -> Iterator[tuple[str, Log]]:
    """Each log with the name of its file, none twice: a host names it, and a `/` or a `\\` would lead elsewhere."""
    taken = set[str]()
    for log in logs:
        flat = _NOT_IN_NAMES.sub("_", log.name)[:MAX_FILE_NAME].strip("._-") or "log"
        name = next(
            one for one in chain([flat], (f"{flat}-{n}" for n in itertools.count(2))) if one.lower() not in taken
        )
        taken.add(name.lower())
        yield name, log


def _safe(name: str) -> str:
    """A name from a host, which must not lead out of the folder where it is unpacked."""
    return "/".join(
        "".join(c for c in part if c.isprintable()) for part in name.split("/") if part not in ("", ".", "..")
    )
