"""Images sent between hosts: what hosts it asks, what it warns of, and what it leaves behind."""

from __future__ import annotations

import gzip
import hashlib
from typing import Any

import pytest

from tests.support.figures import record
from tests.support.sim import blobs, lab, make
from tests.support.sim import carrier as streams
from tests.support.sim.engine import FakeEngine
from tests.support.sim.lab import Outcome
from tests.support.sim.world import Box, Machine, Picture, World, identity
from vllm_cluster.features.images.action import images
from vllm_cluster.features.images.push import push_image
from vllm_cluster.kernel.errors import HostError, PreflightFailed, UsageError
from vllm_cluster.kernel.events import Emit
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.hosts.program import RunningProgram
from vllm_cluster.kernel.hosts.runtime import Runtime
from vllm_cluster.kernel.images import carrier as image_carrier
from vllm_cluster.kernel.images import host_images
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.terminal.paste import pasteable

pytestmark = pytest.mark.promise("P45")

OTHER = "lab/other:1"


def sent(world: World, **words: Any) -> Outcome:
    """One `image push`."""

    def verb(inventory: Inventory, emit: Emit, runtime: Runtime) -> Any:
        return push_image(inventory, emit, runtime=runtime, **words)

    with lab.inside(world):
        return lab.run(world, make.inventory(len(world.machines) - ("local" in world.machines)), verb)


def listed(world: World) -> Outcome:
    """One `image ls`."""

    def verb(inventory: Inventory, emit: Emit, runtime: Runtime) -> Any:
        return images(inventory, emit, runtime=runtime)

    with lab.inside(world):
        return lab.run(world, make.inventory(len(world.machines)), verb)


def with_other(*hosts: str) -> World:
    """Three hosts, one image on all of them, and another on some."""
    world = make.world((2, 2, 2))
    for host in hosts:
        give(world, host, 7, OTHER)
    return world


def give(world: World, host: str, number: int, name: str) -> str:
    """An image of its own under a name on a host; its id."""
    made = make.base_image(number)
    there = world.machines[host].images.setdefault(made.id, Picture(made.id, [], dict(made.have)))
    for image in world.machines[host].images.values():
        image.tags = [tag for tag in image.tags if tag != name]
    there.tags.append(name)
    return made.id


@pytest.mark.parametrize("state", ["docker", "unreachable"])
@pytest.mark.parametrize("source", ["", "gpu1"])
def test_a_host_that_is_not_involved_stops_no_push(state: str, source: str) -> None:
    world = with_other("gpu1")
    dead = world.machines["gpu3"]
    dead.docker, dead.reachable = ("stopped", True) if state == "docker" else ("", False)
    outcome = sent(world, image=OTHER, hosts=["gpu2"], source=source)
    assert outcome.error is None, outcome.story()
    assert outcome.value == ("gpu2",)
    assert world.machines["gpu2"].picture(OTHER)
    # Where the source is to be found, it names the host that it could not ask.
    left_out = [event.host for event in outcome.events if event.data.get("code") == "host-left-out"]
    assert left_out == ([] if source else ["gpu3"])


def test_a_source_that_gets_the_image_too_is_one_host() -> None:
    outcome = sent(with_other("gpu1"), image=OTHER, source="gpu1")
    assert outcome.value == ("gpu2", "gpu3"), outcome.story()
    assert next(event.text for event in outcome.events) == "connecting to 3 hosts"


@pytest.mark.parametrize(("hosts", "source"), [((), ""), (("gpu3",), ""), (("gpu2",), "gpu3")])
def test_a_host_that_is_involved_has_to_have_a_docker(hosts: tuple[str, ...], source: str) -> None:
    world = with_other("gpu1")
    world.machines["gpu3"].docker = "stopped"
    error = sent(world, image=OTHER, hosts=hosts, source=source).error
    assert isinstance(error, PreflightFailed)
    assert error.message.startswith("gpu3: Docker does not answer")
    assert not world.machines["gpu2"].picture(OTHER)


def test_the_list_is_that_of_the_hosts_whose_docker_answers() -> None:
    world = make.world((2, 2, 2))
    world.machines["gpu1"].docker, world.machines["gpu3"].reachable = "stopped", False
    outcome = listed(world)
    assert outcome.error is None, outcome.story()
    assert list(outcome.value.hosts) == ["gpu2"]
    assert set(outcome.value.failures) == {"gpu1", "gpu3"}
    assert "gpu1: Docker does not answer" in outcome.value.failures["gpu1"].message


@pytest.mark.parametrize("name", ["../x", "--help-me", "a b", ";rm", "UPPER/x", "atk/b:1@sha256:00"])
def test_an_invalid_image_reference_is_refused_before_any_call(name: str) -> None:
    outcome = sent(make.world((2, 2)), image=name)
    assert isinstance(outcome.error, UsageError)
    assert outcome.script.calls == []


@pytest.mark.parametrize(
    ("source", "remedy"),
    [
        ("local", f"docker pull {OTHER}"),
        ("gpu2", f"ssh -F c gpu2 'docker pull {OTHER}'"),
        ("", f"ssh -F c gpu1 'docker pull {OTHER}'"),
    ],
)
def test_the_remedy_for_an_image_that_is_missing_can_be_pasted(source: str, remedy: str) -> None:
    """A call of Docker on this machine, or over ssh with the options of the host."""
    world = make.world((2, 2))
    inventory = make.inventory(2)
    world.machines["local"] = Machine("local", "127.0.0.1", 0, "machine-local")

    def verb(inventory: Inventory, emit: Emit, runtime: Runtime) -> Any:
        return push_image(inventory, emit, image=OTHER, source=source, runtime=runtime)

    with lab.inside(world):
        error = lab.run(world, inventory, verb).error
    assert isinstance(error, PreflightFailed)
    assert pasteable(str(error.hint), {name: ["-F", "c", name] for name in inventory.hosts}) == remedy


# fault: kernel/images/push.py: if _NO_PYTHON.search(error.detail): → if not error.detail:
@pytest.mark.parametrize(
    "words",
    [
        'unable to start container process: exec: "python3": executable file not found in $PATH: unknown',
        "OCI runtime error: crun: executable file `python3` not found in $PATH: No such file or directory",
    ],
)
def test_an_image_without_python_is_refused_before_anything_is_sent(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(connection: HostConnection, *_: object) -> RunningProgram:
        raise HostError(connection.name, f"its program does not run: Error response from daemon: {words}")

    monkeypatch.setattr(image_carrier, "start", start)
    world = with_other("gpu1")
    outcome = sent(world, image=OTHER)
    assert isinstance(outcome.error, PreflightFailed)
    assert f"{OTHER} has no python3, and no node can be made from it: nothing was sent" in outcome.error.message
    assert world.machines["gpu2"].picture(OTHER) is None


# fault: kernel/images/push.py: if left or digest.hexdigest() != blob: → if False:
@pytest.mark.promise("P47")
def test_a_source_that_gives_other_bytes_changes_no_host() -> None:
    world = with_other("gpu1")
    mine = give(world, "gpu2", 8, OTHER)
    world.forges = "gpu1"
    outcome = sent(world, image=OTHER, hosts=["gpu2"])
    assert "gpu1: image push: has an image that is not passed on: " in str(outcome.error)
    assert "its bytes are others" in str(outcome.error)
    there = world.machines["gpu2"]
    assert there.picture(OTHER) is there.images[mine]
    assert make.base_image(7).id not in there.images
    record("P47", "sim: a host gives other bytes of an image than it announced", "refused; no host changed", True)


# fault: kernel/images/push.py: check.feed(piece) → pass
# fault: kernel/images/carrier.py: if ended.code == REFUSED: → if ended.code == -1:
@pytest.mark.promise("P47")
@pytest.mark.parametrize("prepared", [True, False])
def test_a_source_whose_layer_would_fill_the_receivers_disk_is_named_and_not_asked_again(
    prepared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Docker lists what is packed as the layer: a receiver's Docker unpacks that before it compares anything."""
    world, loaded = with_other("gpu1"), set[str]()
    if prepared:
        next(iter(world.machines["gpu2"].images.values())).tags.append("vcluster-node:0123456789ab-ray2.56.1")
    packed, plain = gzip.compress(blobs.layer(make.base_image(7))), blobs.layer
    known = make.base_image(7).id
    monkeypatch.setattr(blobs, "layer", lambda one: packed if known in (one.id, one.content) else plain(one))
    monkeypatch.setattr(streams._LoadStream, "_load", lambda _, one: loaded.add(one.id))
    outcome = sent(world, image=OTHER, hosts=["gpu2"], source="gpu1")
    digest = hashlib.sha256(packed).hexdigest()
    assert f"gpu1: image push: has an image that is not passed on: {digest}: it is packed" in str(outcome.error)
    assert isinstance(outcome.error, HostError) and outcome.error.again is None
    by_hand = f"\nif you trust gpu1:\non gpu1: sh -c 'docker save {OTHER} | ssh HOST docker load'"
    assert outcome.error.hint == f"pull the image on each host{by_hand}"
    assert not loaded and world.machines["gpu2"].picture(OTHER) is None
    record("P47", "sim: a host gives a layer that unpacks without limit", "refused before Docker has it whole", True)


# fault: kernel/images/push.py: if there and there.id not in before and → if there and
# fault: kernel/images/push.py: if there and there.id not in before and → if there and there.id in before and
@pytest.mark.promise("P47")
@pytest.mark.parametrize("where", ["gpu2", "gpu3"])
@pytest.mark.parametrize("named", [True, False])
def test_a_source_that_gives_another_image_removes_none_of_the_receiver(where: str, named: bool) -> None:
    """What Docker has loaded is removed again, unless it is an image that was there."""
    world = with_other("gpu1")
    there, more = world.machines["gpu2"], with_more(world, where)
    other, world.swaps["gpu1"] = more.id, more
    more.tags = ["colleague/vllm:mine"] if named else []
    before = {*there.images}
    outcome = sent(world, image=OTHER, hosts=["gpu2"])
    text = f"what gpu1 sent as {make.base_image(7).id[:19]} is {other[:19]} there, and is not used"
    assert f"gpu2: image push: {text}" in str(outcome.error), outcome.story()
    assert {*there.images} == before
    record("P47", "sim: a host gives another image than the one to be sent", "refused; every image stays", True)


def with_more(world: World, host: str) -> Picture:
    """The same layers with a config that has commands run where an image is built upon it, on a host."""
    good = make.base_image(7)
    more = Picture(good.id, [], dict(good.have), config={"OnBuild": ["RUN id"]})
    return world.machines[host].take_image(more)


# fault: kernel/plan/images.py: image.architecture, image.configuration] → image.architecture]
@pytest.mark.promise("P47")
@pytest.mark.parametrize("source", ["gpu1", "local"])
@pytest.mark.parametrize("containerd", [True, False])
def test_a_host_that_sends_on_the_layers_with_another_config_changes_no_host(containerd: bool, source: str) -> None:
    """Of this machine's image, too: as its Docker describes it, it is to be on the hosts that get it from another."""
    world = with_other(*(["gpu1"] if source == "gpu1" else []))
    if source == "local":
        world.machines["local"] = Machine("local", "127.0.0.1", 0, "machine-local")
        give(world, "local", 7, OTHER)
    sender, receiver = ("gpu1", "gpu2") if source == "gpu1" else ("gpu2", "gpu3")
    world.machines[receiver].containerd = containerd
    world.swaps[sender] = with_more(world, "gpu1")
    before = {*world.machines[receiver].images}
    outcome = sent(world, image=OTHER, source=source, hosts=["gpu2", receiver])
    text = f"{receiver}: image push: what {sender} sent as {make.base_image(7).id[:19]} is "
    assert text in str(outcome.error), outcome.story()
    assert isinstance(outcome.error, HostError)
    again = {"gpu1": "vcluster image push --from gpu1", "local": f"vcluster image push {OTHER} gpu3 --from local"}
    assert outcome.error.hint == again[source]
    assert {*world.machines[receiver].images} == before
    record("P47", f"sim: {sender} passes on an image's layers with another config", "refused; no host changed", True)


# fault: features/images/push.py: source.send(connection, naming.name, naming.image) → source.send(connection, naming.name, source.image)
@pytest.mark.promise("P47")
def test_a_host_that_describes_what_came_from_this_machine_otherwise_decides_for_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, load = make.world((2, 2, 2)), streams._LoadStream._load
    world.machines["local"] = Machine("local", "127.0.0.1", 0, "machine-local")
    good, more = give(world, "local", 7, OTHER), with_more(world, "gpu1")
    world.machines["gpu3"].containerd = True

    def loaded(stream: Any, sent: Picture) -> None:
        load(stream, sent)
        if stream.transport.host == "gpu2":
            world.machines["gpu2"].images[good].config = dict(more.config)
            world.swaps["gpu2"] = more

    monkeypatch.setattr(streams._LoadStream, "_load", loaded)
    outcome = sent(world, image=OTHER, source="local", hosts=["gpu2", "gpu3"])
    assert f"gpu3: image push: what gpu2 sent as {good[:19]} is " in str(outcome.error), outcome.story()
    assert world.machines["gpu3"].picture(OTHER) is None


SLOW, MANY = 29.0, 400


def fill(world: World, host: str) -> None:
    """A host has many images that no other has."""
    for number in range(MANY):
        made = f"sha256:{identity(number)}"
        world.machines[host].images[made] = Picture(made, [f"a/b:{number}"], {})


# fault: kernel/images/host_images.py: find_held_image(connection, row.id, deadline) → find_held_image(connection, row.id)
# fault: kernel/images/host_images.py: except TimedOut: → except NotImplementedError:
@pytest.mark.promise("P29")
def test_a_host_that_takes_its_time_for_each_of_its_images_holds_up_no_push(monkeypatch: pytest.MonkeyPatch) -> None:
    world = with_other("gpu1")
    fill(world, "gpu2")
    picture = FakeEngine.picture

    def slow(engine: FakeEngine, reference: str) -> Picture:
        found = picture(engine, reference)
        if engine.machine.name == "gpu2" and "a/b:" in str(found.tags):
            world.clock.sleep(SLOW)
        return found

    monkeypatch.setattr(FakeEngine, "picture", slow)
    began = world.clock.monotonic()
    outcome = sent(world, image=OTHER, source="gpu1")
    assert outcome.error is None, outcome.story()
    assert all(world.machines[host].picture(OTHER) for host in ("gpu2", "gpu3"))
    took = world.clock.monotonic() - began
    assert took < 4 * host_images.LOOK_SECONDS
    notes = {event.text for event in outcome.events if event.kind == "note" and event.host == "gpu2"}
    assert f"its Docker described 3 of {MANY + 1} images in 60 s: the others are not compared" in notes
    record("P29", f"sim: image push, where a host takes {SLOW:.0f} s for each of {MANY} images", f"{took:.0f} s", True)


# fault: kernel/images/host_images.py: listed[:MAX_IMAGES] → listed
# fault: kernel/images/host_images.py: key=lambda one: one.created != image.created → key=lambda one: one.id
def test_of_many_images_those_of_the_same_date_are_looked_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """One image has the same date wherever it is, also where its id is another."""
    world, looked = with_other("gpu1"), list[str]()
    there = world.machines["gpu2"]
    there.containerd = True
    fill(world, "gpu2")
    picture = FakeEngine.picture

    def counted(engine: FakeEngine, reference: str) -> Picture:
        looked.append(engine.machine.name)
        return picture(engine, reference)

    monkeypatch.setattr(FakeEngine, "picture", counted)
    sent(world, image=OTHER, source="gpu1", hosts=["gpu2"])
    # Once for whether it is there, and once for its layers.
    assert MANY < looked.count("gpu2") < 2 * host_images.MAX_IMAGES + 20
    known = there.picture(OTHER)
    assert known
    known.tags.clear()
    looked.clear()
    outcome = sent(world, image=OTHER, source="gpu1", hosts=["gpu2"])
    assert known.tags == [OTHER], outcome.story()
    assert looked.count("gpu2") < 20


@pytest.mark.parametrize("prepared", [True, False])
def test_a_host_with_a_node_image_gets_it_from_the_others(prepared: bool) -> None:
    """One that has none, and no Python itself, gets it through this machine."""
    world = with_other("gpu1")
    there = world.machines["gpu2"]
    next(iter(there.images.values())).tags += ["vcluster-node:0123456789ab-ray2.56.1"] if prepared else []
    outcome = sent(world, image=OTHER, hosts=["gpu2"])
    assert outcome.error is None, outcome.story()
    assert there.picture(OTHER)
    notes = [event.text for event in outcome.events if event.kind == "note"]
    assert notes == ([] if prepared else [next(text for text in notes if "python3: not found" in text)])
    assert not there.boxes and not world.machines["gpu1"].boxes


# fault: kernel/images/carrier.py: user="0:0", drop=("ALL",), scratch=FOLDER → user="0:0", scratch=FOLDER
# fault: kernel/images/carrier.py: image", image_id, network="host", user="0:0" → image", image_id, network="bridge", user=""
# fault: kernel/docker/temporary.py: [{"Type": "volume", "Target": self.scratch}] if → [{"Type": "bind", "Source": "/var/lib/docker", "Target": self.scratch}] if
def test_the_container_of_a_push_has_its_own_volume_the_network_and_no_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    """On both hosts: root without a capability, and of the host neither a folder, a device nor Docker's socket."""
    world, started = with_other("gpu1"), list[dict[str, Any]]()

    def start(world: World, machine: Machine, box: Box) -> None:
        started.append(box.body)
        begin(world, machine, box)

    begin = World.start
    monkeypatch.setattr(World, "start", start)
    next(iter(world.machines["gpu2"].images.values())).tags.append("vcluster-node:0123456789ab-ray2.56.1")
    outcome = sent(world, image=OTHER, hosts=["gpu2"])
    assert outcome.error is None, outcome.story()
    assert len(started) == 2
    for body in started:
        assert body["HostConfig"] == {
            "NetworkMode": "host",
            "CapDrop": ["ALL"],
            "RestartPolicy": {"Name": "no"},
            "AutoRemove": True,
            "LogConfig": {"Type": "none"},
            "Mounts": [{"Type": "volume", "Target": image_carrier.FOLDER}],
        }
        assert (body["User"], body["WorkingDir"]) == ("0:0", image_carrier.FOLDER)
        assert {"Env", "Volumes", "ExposedPorts"}.isdisjoint(body)


def test_a_host_that_is_named_as_this_machine_is_a_source_as_any_other() -> None:
    world = make.world((2, 2))
    named = Machine("local", "10.0.0.9", 2, "machine-9")
    world.machines["local"] = named
    give(world, "local", 7, OTHER)
    hosts = {"gpu1": {"address": "10.0.0.1"}, "local": {"address": "10.0.0.9", "ssh": {"host": "local.lab"}}}

    def push_from(source: str) -> Outcome:
        def verb(inventory: Inventory, emit: Emit, runtime: Runtime) -> Any:
            return push_image(inventory, emit, image=OTHER, source=source, runtime=runtime)

        return lab.run(world, make.inventory_of(hosts=hosts), verb)

    with lab.inside(world):
        refused, found = push_from("local"), push_from("")
    assert "--from local: names this machine, and the host at local.lab" in str(refused.error)
    assert found.value == ("gpu1",), found.story()


def test_a_host_that_is_named_twice_is_one() -> None:
    outcome = sent(with_other("gpu1"), image=OTHER, hosts=["gpu2", "gpu2"])
    assert outcome.value == ("gpu2",)
    assert "on 2 hosts" in outcome.events[-1].text


def test_an_image_sent_by_its_id_gets_no_name_of_it() -> None:
    world = with_other("gpu1")
    whole = make.base_image(7).id
    outcome = sent(world, image=whole[7:19], hosts=["gpu2"])
    assert outcome.value == ("gpu2",), outcome.story()
    assert world.machines["gpu2"].images[whole].tags == []


# fault: kernel/images/push.py: elif not there.is_what_is_named(wanted): → elif not there.id:
@pytest.mark.promise("P47")
@pytest.mark.parametrize("written", [slice(None), slice(7, None), slice(7, 19)], ids=["whole", "bare", "short"])
def test_an_id_means_what_the_receivers_own_docker_knows_by_it(written: slice) -> None:
    world, wanted, other = make.world((2, 2)), make.base_image(7).id, make.base_image(8)
    world.machines["gpu1"].images[wanted] = Picture(wanted, [], dict(other.have), {}, other.id)
    before = {*world.machines["gpu2"].images}
    outcome = sent(world, image=wanted[written])
    text = f"gpu2: image push: what gpu1 sent as {wanted[:19]} is {other.id[:19]} there, and is not used"
    assert text in str(outcome.error), outcome.story()
    assert isinstance(outcome.error, HostError) and outcome.error.hint == "vcluster image push --from gpu1"
    assert {*world.machines["gpu2"].images} == before


# fault: kernel/images/host_images.py: if image_id in named | {one.image_id for → if image_id in {one.image_id for
# fault: kernel/images/host_images.py: if image_id in named | {one.image_id for one in connection.docker.containers(None)}: → if image_id in named:
@pytest.mark.promise("P47")
@pytest.mark.parametrize("way", ["name", "container", ""])
def test_an_image_that_others_use_meanwhile_is_left_where_a_push_is_refused(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push takes minutes, in which another person may bring the same image, or name it."""
    world, wanted, other = make.world((2, 2)), make.base_image(7).id, make.base_image(8)
    world.machines["gpu1"].images[wanted] = Picture(wanted, [], dict(other.have), {}, other.id)
    receiver, load = world.machines["gpu2"], streams._LoadStream._load

    def loaded(stream: Any, sent: Picture) -> None:
        load(stream, sent)
        receiver.images[other.id].tags += ["colleague/vllm:mine"] if way == "name" else []
        if way == "container":
            receiver.boxes["b"] = Box("b", "colleague", other.id, {"Image": other.id})

    monkeypatch.setattr(streams._LoadStream, "_load", loaded)
    error = str(sent(world, image=wanted).error)
    assert "and is not used" in error
    left = f"{other.id[:19]} is left there, since it has a name or a container by now"
    assert (other.id in receiver.images, left in error) == (bool(way), bool(way)), error


# fault: kernel/plan/images.py: if self.classic and named.classic: → if named.id:
# fault: features/images/push.py: if not self.name and image_id != self.image.id: → if self.name:
@pytest.mark.promise("P57")
@pytest.mark.parametrize("containerd", [("gpu1",), ("gpu2", "gpu3"), ("gpu1", "gpu2", "gpu3")])
@pytest.mark.parametrize("written", [slice(None), slice(7, 19)], ids=["whole", "short"])
def test_an_id_of_a_host_that_keeps_images_in_another_way_is_the_word_of_that_host(
    containerd: tuple[str, ...], written: slice
) -> None:
    world = make.world((2, 2, 2))
    for host in containerd:
        world.machines[host].containerd = True
    known = world.machines["gpu1"].take_image(make.base_image(7)).id
    for end in ("sent to gpu2, gpu3", " (no changes)"):
        outcome = sent(world, image=known[written])
        assert outcome.error is None, outcome.story()
        text = f"{known[written]}, as gpu1 names it, is {known[:19]} on 3 hosts"
        assert outcome.events[-1].text.startswith(text)
        assert outcome.events[-1].text.endswith(end)
    for host in ("gpu2", "gpu3"):
        got = [one for one in world.machines[host].images.values() if one.content == make.base_image(7).id]
        assert [one.tags for one in got] == [[]]


@pytest.mark.promise("P57")
def test_an_id_that_the_receivers_have_themselves_is_nobodys_word() -> None:
    outcome = sent(with_other("gpu1"), image=make.base_image(7).id)
    assert "names it" not in outcome.events[-1].text, outcome.story()


# fault: features/images/push.py: if not _ID.fullmatch(name): → if not found.image.id.startswith((name, f"sha256:{name}")) and not _ID.fullmatch(name):
def test_a_repository_whose_name_begins_as_an_id_is_a_name() -> None:
    world = make.world((2, 2))
    given = give(world, "gpu1", 7, "sha:latest")
    outcome = sent(world, image="sha")
    assert outcome.value == ("gpu2",), outcome.story()
    assert world.machines["gpu2"].images[given].tags == ["sha:latest"]


# fault: features/images/push.py: if not naming.name: → if naming.name is None:
@pytest.mark.promise("P47")
def test_a_host_that_has_what_an_id_is_claimed_to_be_does_not_have_the_id() -> None:
    world, wanted, other = make.world((2, 2)), make.base_image(7).id, make.base_image(8)
    world.machines["gpu1"].images[wanted] = Picture(wanted, [], dict(other.have), {}, other.id)
    world.machines["gpu2"].take_image(other)
    outcome = sent(world, image=wanted)
    assert "and is not used" in str(outcome.error), outcome.story()
    assert other.id in world.machines["gpu2"].images


# fault: features/images/push.py: raise HostError(found.connection.name, f"gives → return _Naming(name, None, emit) or HostError(found.connection.name, f"gives
@pytest.mark.promise("P47")
@pytest.mark.parametrize("written", [slice(None), slice(7, 19)], ids=["whole", "short"])
def test_a_source_that_gives_another_id_is_refused_before_anything_is_sent(written: slice) -> None:
    wanted = make.base_image(7).id[written]
    world = with_other()
    given = give(world, "gpu1", 8, wanted if ":" in wanted else f"{wanted}:latest")
    outcome = sent(world, image=wanted, hosts=["gpu2"])
    assert f"gpu1: gives {given[:19]} for the id {wanted[:19]}" in str(outcome.error), outcome.story()
    assert given not in world.machines["gpu2"].images


def moved(outcome: Outcome) -> list[tuple[str | None, str]]:
    """The hosts that a name was taken on, with the image that had it."""
    return [(event.host, str(event.data["id"])) for event in outcome.events if event.data.get("code") == "tag-moved"]


# fault: features/images/push.py: naming.given.add(connection.name) → pass
@pytest.mark.parametrize("there", [True, False])
def test_an_image_whose_name_moves_is_reported(there: bool) -> None:
    """Also where the host has the new one already, under no name."""
    world = make.world((2, 2))
    old, new = make.base_image(1).id, give(world, "gpu1", 2, make.IMAGE)
    if there:
        give(world, "gpu2", 2, "lab/unnamed:1")
    outcome = sent(world)
    assert outcome.error is None, outcome.story()
    assert moved(outcome) == [("gpu2", old)]
    machine = world.machines["gpu2"]
    assert machine.picture(make.IMAGE) is machine.images[new]
    # A name is a change as well.
    assert outcome.events[-1].text.endswith("; named on gpu2" if there else "; sent to gpu2")
    again = sent(world)
    assert (moved(again), again.events[-1].text[-13:]) == ([], " (no changes)")


@pytest.mark.parametrize("keeps", [True, False])
def test_an_image_of_others_whose_name_moves_is_left_as_it_is(keeps: bool) -> None:
    world = with_other("gpu1")
    old = give(world, "gpu2", 8, OTHER)
    there = world.machines["gpu2"].images[old]
    there.tags += ["colleague/vllm:mine"] if keeps else []
    assert moved(sent(world, image=OTHER, hosts=["gpu2"])) == [("gpu2", old)]
    assert there.tags == (["colleague/vllm:mine"] if keeps else [])
    assert old not in {row.id for row in listed(world).value.hosts["gpu2"]}


# Each byte alone puts off a time-out: so many a minute were waited for, without end or for two hours.
DRIPS = [
    ("_SplitStream", b'{"read": 1}\n', "gpu1: its program did not answer in time", 1100),
    ("_CarryStream", b'{"folder": "/vcluster", "serving": true, "bytes": 1}\n', "gpu2: image push: its", 600),
    ("_BlobsStream", b"", "gpu1: image push: gives no more of the image: it takes too long", 8000),
    ("_LoadStream", b".", "gpu2: image push: the image did not arrive: it takes too long", 1500),
]


# fault: kernel/clock.py: if amount > self._most: → if True:
# fault: kernel/images/push.py: piece := self._given(stream, due.sooner(STALL_SECONDS), left) → piece := self._given(stream, self._runtime.after(STALL_SECONDS), left)
# fault: kernel/images/push.py: piece := _next(stream, due): → piece := _next(stream, runtime.after(PUSH_SECONDS)):
@pytest.mark.promise("P46")
@pytest.mark.parametrize(("kind", "drip", "words", "seconds"), DRIPS)
def test_a_host_that_drips_is_not_waited_for_without_end(
    kind: str, drip: bytes, words: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends something each minute, and comes to no end."""
    world, left = with_other("gpu1"), iter(range(1000))
    if kind == "_CarryStream":
        next(iter(world.machines["gpu2"].images.values())).tags.append("vcluster-node:0123456789ab-ray2.56.1")

    def recv(stream: Any, size: int) -> Any:
        if kind == "_CarryStream" and stream.transport.host == "gpu1":
            return good(stream, size)
        next(left)
        if stream.seconds < 60:
            world.clock.sleep(stream.seconds)
            raise TimeoutError("it takes too long")
        world.clock.sleep(60)
        # A byte of the blobs is one of many that were announced.
        return drip or b"x"

    if kind == "_BlobsStream":
        made = blobs.row
        monkeypatch.setattr(
            blobs, "row", lambda *of: {**made(*of), "sizes": dict.fromkeys(blobs.of(of[0]), image_carrier.MAX_CONFIG)}
        )
    good = getattr(streams, kind).recv
    monkeypatch.setattr(getattr(streams, kind), "recv", recv)
    began = world.clock.now
    outcome = sent(world, image=OTHER, hosts=["gpu2"])
    assert words in str(outcome.error), outcome.story()
    assert world.clock.now - began < seconds
    assert world.machines["gpu2"].picture(OTHER) is None
