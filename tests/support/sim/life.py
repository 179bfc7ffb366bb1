"""What runs in containers: the probe, and the node program with its Ray and vLLM, as far as others can see them."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tests.support.sim import pulls, shell
from vllm_cluster.kernel.plan.pull import FOLDER
from vllm_cluster.serving.node.kept_order import MAX_READY
from vllm_cluster.wire.order import (
    ACCEPTED,
    READY,
    RESULTS,
    TAKEN,
    WANTED,
    Order,
    Placement,
    Ready,
    Taken,
    read_ready,
)
from vllm_cluster.wire.order import read_order as _read_order
from vllm_cluster.wire.order import read_taken as _read_taken
from vllm_cluster.wire.parts import RECORD_FILE, CountedMember, CountedMembers
from vllm_cluster.wire.reading import RefusedDocument, convert, read
from vllm_cluster.wire.status import FailedRequest

if TYPE_CHECKING:
    from tests.support.sim.world import Box, Machine, World

STATE = "/var/lib/vcluster"
NODE_PROGRAM = "/opt/vcluster/node.py"
# Seconds: Ray's start, how long a dead node stays in the list, how long a raylet waits for a head that has gone.
RAY_START, GHOST, FOLLOW = 0.3, 0.5, 0.5
NO_SECRETS, NO_TOKEN = 78, "the Ray token file is not there"
PHASES = (("backoff", 0.3), ("importing", 0.3), ("loading", 0.3), ("probing", 0.3))
BEAT = 5.0
# Every node reads both at every step of every world, mostly what it read at the step before.
read_order, read_taken = lru_cache(64)(_read_order), lru_cache(64)(_read_taken)


def begin(world: World, machine: Machine, box: Box) -> None:
    """The first moment after a start."""
    image = machine.images.get(box.image)
    have = image.have if image else {}
    if box.argv[:2] == ["/bin/sh", "-c"]:
        out, errors, code = shell.run(box.argv[2])
        box.log, box.errors = box.log + out, box.errors + errors
        if code is not None:
            box.state, box.exit_code = "exited", code
    elif box.argv[-1:] == [f"{FOLDER}/main.py"]:
        pulls.bring(world, machine, box)
    elif NODE_PROGRAM in box.argv:
        problem = _cannot_run(machine, box, have)
        if problem:
            box.log += problem + "\n"
            box.state, box.exit_code = "restarting", NO_SECRETS if problem == NO_TOKEN else 2
        else:
            box.life = {"due": world.clock.now + RAY_START, "state": "starting", "restarts": 0, "error": None}
            write_status(world, machine, box)


def _cannot_run(machine: Machine, box: Box, have: dict[str, str]) -> str:
    if machine.read(box, NODE_PROGRAM) is None:
        return f"python3: can't open file '{NODE_PROGRAM}'"
    if by_ray(box) and "ray" not in have:
        return "exec: ray: not found"
    return "" if token(machine, box) else NO_TOKEN


def by_ray(box: Box) -> bool:
    """Whether Ray joins the nodes, and not the roll alone."""
    return "--" in box.argv


def own_address(box: Box) -> str:
    """The node's own address; a node of an earlier version has it among Ray's own options alone."""
    return box.argv[box.argv.index("--address") + 1] if "--address" in box.argv else flag(box, "node-ip-address")


def flag(box: Box, name: str) -> str:
    """The value of an option of `ray start`."""
    return next(word.split("=", 1)[1] for word in box.argv if word.startswith(f"--{name}="))


def gpus_of(box: Box) -> int:
    """The node's GPUs; a node of an earlier version has them among Ray's own options alone."""
    return int(flag(box, "gpus" if any(word.startswith("--gpus=") for word in box.argv) else "num-gpus"))


def role(box: Box) -> str:
    """head or worker."""
    return box.argv[box.argv.index(NODE_PROGRAM) + 1]


def token(machine: Machine, box: Box) -> bytes | None:
    """The cluster's token that the container sees."""
    names, environment = ("RAY_AUTH_TOKEN_PATH", "VCLUSTER_NODE_TOKEN_FILE"), box.environment
    return machine.read(box, next(environment[name] for name in names if name in environment))


def head_of(world: World, box: Box, *, up: bool = True) -> tuple[Machine, Box] | None:
    """The living head at the address that a worker got; where its Ray is to be up, only such a one."""
    place = box.environment["RAY_ADDRESS"] if by_ray(box) else box.argv[box.argv.index("--roll") + 1]
    for machine, other in world.nodes():
        if role(other) != "head":
            continue
        listens = flag(other, "port") if by_ray(other) else place.rpartition(":")[2]
        if f"{machine.address}:{listens}" == place:
            return (machine, other) if other.life.get("state") == "up" or not up else None
    return None


def advance(world: World) -> None:
    """Everything that has come due on any node."""
    for machine, box in list(world.nodes()):
        if role(box) == "head":
            _head(world, machine, box)
    for machine, box in list(world.nodes()):
        if role(box) == "worker":
            _worker(world, machine, box)
    for machine, box in list(world.nodes()):
        if role(box) == "head":
            _forget(world, box)
            _serve(world, machine, box)
        write_status(world, machine, box)


def _head(world: World, machine: Machine, box: Box) -> None:
    life = box.life
    if life["state"] != "up" and machine.ray_ends and world.clock.now >= life["due"]:
        ends = life["restarts"] + 1
        life.update(state="down", error=machine.ray_ends, restarts=ends, failures=ends, due=world.clock.now + ends)
    elif life["state"] == "down" and world.clock.now >= life["due"]:
        life.update(state="starting", due=world.clock.now + RAY_START)
    if life["state"] == "starting" and world.clock.now >= life["due"]:
        life["state"] = "up"
        life["nodes"] = {f"n{box.born}": _row(machine.address, gpus_of(box), (machine.name, box.born))}


def _row(address: str, gpus: int, where: tuple[str, int]) -> dict[str, Any]:
    return {"address": address, "gpus": gpus, "where": where, "alive": True, "lost": None}


def _worker(world: World, machine: Machine, box: Box) -> None:
    life, now = box.life, world.clock.now
    head = head_of(world, box)
    session = head[1].born if head else None
    if life["state"] == "up":
        if session != life["session"]:
            life.setdefault("cut", now)
            if now - life["cut"] >= FOLLOW:
                life.pop("cut")
                life.update(state="down", error="the head's Ray has ended", due=now + 1, restarts=life["restarts"] + 1)
        return
    if now < life["due"]:
        return
    if head is None:
        life.update(state="waiting", error="Connection refused", due=now + 0.5)
    elif token(*head) != token(machine, box):
        life.update(state="down", error="InvalidAuthToken", restarts=life["restarts"] + 1, due=now + 1)
    elif life["state"] in ("waiting", "down"):
        life.update(state="starting", error=None, due=now + RAY_START)
    else:
        life.update(state="up", session=session)
        row = _row(own_address(box), gpus_of(box), (machine.name, box.born))
        head[1].life["nodes"][f"n{box.born}-{life['restarts']}"] = row


def _forget(world: World, head: Box) -> None:
    """Nodes that are gone stay in the list as living ones for a while, then as dead ones."""
    for row in head.life.get("nodes", {}).values():
        name, born = row["where"]
        there = any(
            machine.name == name and box.born == born and box.life.get("state") == "up"
            for machine, box in world.nodes()
        )
        if there:
            row["lost"] = None
            continue
        row["lost"] = world.clock.now if row["lost"] is None else row["lost"]
        row["alive"] = row["alive"] and world.clock.now - row["lost"] < GHOST


def ghosts(head: Box) -> list[str]:
    """The nodes that Ray counts as living, and that have ended."""
    return [name for name, row in head.life.get("nodes", {}).items() if row["alive"] and row["lost"] is not None]


def members(head: Box) -> dict[str, int]:
    """Ray's truth: GPUs by address of the living."""
    found: dict[str, int] = {}
    for row in head.life.get("nodes", {}).values():
        if row["alive"]:
            found[row["address"]] = found.get(row["address"], 0) + row["gpus"]
    return found


# ---- vLLM


def _order(machine: Machine, box: Box) -> Order | None:
    """The order that the node program takes: one older than one that it has accepted is put back."""
    files, wanted, _ = machine.place(box, f"{STATE}/{WANTED}")
    _, accepted, _ = machine.place(box, f"{STATE}/{ACCEPTED}")
    if wanted not in files:
        return None
    order, before = read_order(files[wanted]), Order()
    with suppress(RefusedDocument):
        before = read_order(files.get(accepted, b"{}"))
    if order != before:
        if order.epoch <= before.epoch > 0:
            files[wanted], order = files[accepted], before
        else:
            files[accepted] = files[wanted]
    return order


def key_of(index: int) -> str:
    """Where a node's life has the course of a replica."""
    return f"serve-{index}" if index else "serve"


def fail(world: World, machine: Machine, box: Box, index: int, why: str) -> None:
    """End vLLM of a replica, which the head starts again."""
    course, failure = box.life[key_of(index)], {"time": world.host_time(machine), "summary": why, "lines": [why]}
    course.update(phase="backoff", since=world.clock.now, failure=failure, attempt=course["attempt"] + 1)


def _folder(index: int) -> str:
    """Where the node program keeps what it knows of a replica."""
    return f"{STATE}/replica-{index}" if index else STATE


def _taken(machine: Machine, box: Box, index: int = 0) -> Taken:
    """What the node program knows of the order that it took."""
    with suppress(RefusedDocument):
        return read_taken(machine.read(box, f"{_folder(index)}/{TAKEN}") or b"{}")
    return Taken()


def _take(machine: Machine, box: Box, taken: Taken, index: int = 0) -> Taken:
    files, inside, _ = machine.place(box, f"{_folder(index)}/{TAKEN}")
    files[inside] = json.dumps(taken.document).encode()
    return taken


def _accept(machine: Machine, box: Box, order: Order, index: int) -> Taken:
    """Take an order, where it is another than the last; what was ready before it is gone back to if it fails."""
    before, asked = _taken(machine, box, index), order.wanted
    if before != Taken() and (before.number, before.asked) == (order.epoch, asked):
        return before
    back_to = before.served if before.ready else before.back_to
    if order.back_to is not None:
        back_to = next(iter(order.back_to), None)
    if asked is None or (back_to and back_to.generation == asked.generation):
        back_to = None
    return _take(machine, box, Taken(order.epoch, asked, back_to=back_to), index)


def _serve(world: World, machine: Machine, box: Box) -> None:
    order = _order(machine, box)
    before: list[int] = box.life.setdefault("replicas", [])
    now = [one.index for one in order.deployments] if order else []
    for index in sorted({0, *before, *now}):
        _serve_one(world, machine, box, order.of(index) if order else None, index)
    box.life["replicas"] = now


def _serve_one(world: World, machine: Machine, box: Box, order: Order | None, index: int) -> None:
    taken = _accept(machine, box, order, index) if order else Taken()
    workload, key = taken.served, key_of(index)
    course = box.life.get(key)
    if workload is None:
        box.life[key] = None
        return
    asked = {"generation": workload.generation, "request": taken.number}
    if course and course["generation"] == workload.generation and course["phase"] != "failed":
        course.update(asked)
        if course["phase"] == "ready" and not taken.ready:
            _remember(world, machine, box, workload, index)
    elif course is None or {key: course[key] for key in asked} != asked:
        box.life[key] = course = {**asked, "phase": "waiting", "since": world.clock.now, "attempt": 1}
    if course["phase"] == "waiting":
        there = members(box)
        ranks = all(address in there for address in workload.replica.ranks)
        if box.life["state"] == "up" and there == planned(machine, box, workload) and ranks:
            course.update(phase="importing", since=world.clock.now)
        return
    for (phase, seconds), following in zip(PHASES, ("importing", "loading", "probing", "ready"), strict=True):
        # The second one is slower than the first, and so on.
        if course["phase"] == phase and world.clock.now - course["since"] >= seconds * (1 + index):
            refused = phase == "loading" and workload.deployment.model.startswith("no/")
            course.update(phase="failed" if refused else following, since=world.clock.now)
            _remember(world, machine, box, workload, index)
            return


def _words(workload: Placement) -> dict[str, str]:
    return {
        "generation": workload.generation,
        "model": workload.deployment.model,
        "name": workload.deployment.name,
    }


def _remember(world: World, machine: Machine, box: Box, workload: Placement, index: int) -> None:
    """What the node program keeps of an order that was ready, or failed."""
    course, taken = box.life[key_of(index)], _taken(machine, box, index)
    if course["phase"] not in ("ready", "failed"):
        return
    files, ready, _ = machine.place(box, f"{_folder(index)}/{READY}")
    _, results, _ = machine.place(box, f"{STATE}/{RESULTS}")
    words = _words(workload)
    result = "back" if taken.failed and course["phase"] == "ready" else course["phase"]
    end = {"time": world.host_time(machine), "request": course["request"], "result": result, "seconds": 0.9}
    line = {**words, "user": "ada@laptop", **end, "summary": "no such model" if course["phase"] == "failed" else ""}
    line |= {"replica": index, "replicas": workload.deployment.replicas}
    files[results] = files.get(results, b"") + json.dumps(line).encode() + b"\n"
    if course["phase"] == "failed" and taken.back_to and workload.deployment.rollback and not taken.failed:
        # What was ready is served in its place.
        _take(machine, box, replace(taken, failed=convert(FailedRequest, {**_FAILURE, **words}, "failure")), index)
        again = {"generation": taken.back_to.generation, "request": course["request"]}
        box.life[key_of(index)] = {**again, "phase": "waiting", "since": world.clock.now, "attempt": 1}
    if course["phase"] == "ready":
        _take(machine, box, replace(taken, ready=True), index)
        kept: tuple[Placement, ...] = ()
        with suppress(RefusedDocument):
            kept = read_ready(files.get(ready, b"{}")).requests
        kept = tuple(one for one in kept if not one.repeats(workload))
        files[ready] = json.dumps(Ready((*kept, workload)[-MAX_READY:]).document).encode()


def planned(machine: Machine, box: Box, workload: Placement) -> dict[str, int]:
    """The GPUs that must be there: those of the members that the head remembers, else those of the order."""
    rows: tuple[CountedMember, ...] = ()
    with suppress(RefusedDocument):
        rows = read(CountedMembers, machine.read(box, f"{STATE}/{RECORD_FILE}") or b"", RECORD_FILE).members
    return {row.address: row.gpus for row in rows if not row.leaving} or dict(workload.replica.ranks)


_FAILURE = {"time": 1.0, "summary": "no such model", "lines": ["OSError: no such model"]}


def _serve_status(world: World, machine: Machine, box: Box, index: int = 0) -> dict[str, Any] | None:
    course, taken = box.life.get(key_of(index)), _taken(machine, box, index)
    workload = taken.served
    if not course or not workload:
        return None
    return {
        **_words(workload),
        "host": workload.replica.host,
        "port": workload.replica.port,
        "generation": course["generation"],
        "request": course["request"],
        "phase": course["phase"],
        "detail": _detail(machine, box, workload) if course["phase"] == "waiting" else "",
        "progress": None,
        "since": world.host_time(machine) - world.clock.now + course["since"],
        "attempt": course["attempt"],
        "index": index,
        "gpus": [sum(members(box).values()), sum(planned(machine, box, workload).values())],
        "first_failure": _FAILURE if course["phase"] == "failed" else None,
        "failure": course.get("failure"),
        "ready_at": None,
        "seconds_to_ready": None,
        "ranks": workload.replica.ranks,
        "backend": workload.replica.backend,
        "instead_of": asdict(taken.failed) if taken.failed else None,
        "away_seconds": 137.0 if taken.failed else None,
    }


def _detail(machine: Machine, box: Box, workload: Placement) -> str:
    return f"GPUs {sum(members(box).values())}/{sum(planned(machine, box, workload).values())}"


# ---- status.json


def write_status(world: World, machine: Machine, box: Box) -> None:
    """Write status.json as the node program does: when there is something new, and at each beat."""
    life = box.life
    if life.get("stopped"):
        return
    each = (_serve_status(world, machine, box, index) for index in life.get("replicas", ()))
    rows = [row for row in each if row]
    told = {
        "v": 1,
        "role": role(box),
        "beat": BEAT,
        "group": {
            "state": life["state"],
            "restarts": life["restarts"],
            "failures": life.get("failures", 0),
            "error": life["error"],
            "version": "2.56.1",
            "by": "ray" if by_ray(box) else "mp",
            "nodes": [
                {"id": name, "address": row["address"], "alive": row["alive"], "gpus": row["gpus"]}
                for name, row in life.get("nodes", {}).items()
            ],
        },
        "serve": _serve_status(world, machine, box) if role(box) == "head" else None,
        "replicas": rows if len(rows) > 1 else [],
        "error": None,
        "roll": _roll(world, machine, box) if role(box) == "head" else {"nodes": [], "error": ""},
    }
    content = hashlib.sha256(json.dumps(told).encode()).hexdigest()
    if life.get("told") != content or world.clock.now - life["told_at"] >= BEAT:
        life.update(told=content, told_at=world.clock.now)
        files, inside, _ = machine.place(box, f"{STATE}/status.json")
        files[inside] = json.dumps({**told, "updated": world.host_time(machine)}).encode()


def _roll(world: World, machine: Machine, head: Box) -> dict[str, Any]:
    """The head's roll: itself, and each worker that has its token, here, silent where it is stopped, else gone."""
    rows: dict[str, dict[str, Any]] = head.life.setdefault("roll", {})
    states = {machine.name: (machine.address, gpus_of(head), "here")}
    for other, box in world.nodes():
        dials = role(box) == "worker" and not other.off_roll and head_of(world, box, up=False) == (machine, head)
        if dials and token(other, box) == token(machine, head):
            state = "silent" if box.life.get("stopped") else "here"
            states[other.name] = (own_address(box), gpus_of(box), state)
    for name in {*rows, *states}:
        before = rows.get(name, {})
        address, gpus, state = states.get(name) or (before["address"], before["gpus"], "gone")
        since = before["since"] if before.get("state") == state else world.host_time(machine)
        rows[name] = {"host": name, "address": address, "gpus": gpus, "state": state, "since": since}
    return {"nodes": list(rows.values()), "error": ""}


def goodbye(world: World, machine: Machine, box: Box) -> None:
    """The node program's last word when it is asked to end."""
    if NODE_PROGRAM in box.argv and box.life:
        box.life.update(state="down", error="the node stops", nodes={})
        write_status(world, machine, box)
