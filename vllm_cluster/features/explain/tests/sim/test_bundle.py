"""A report holds no value of anybody's environment: Docker's labels hold what a node was made from."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

import pytest

from tests.support.bounds import within
from tests.support.sim import lab, make
from tests.support.sim.world import Box, Picture, World, identity
from vllm_cluster.features.explain import bundle
from vllm_cluster.kernel import known_secrets
from vllm_cluster.kernel.facts.heads import Led
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.known_secrets import Comparisons, redactor
from vllm_cluster.kernel.plan.spec import SECRET
from vllm_cluster.kernel.text import redact
from vllm_cluster.serving.explain.logs import Log


def add_neighbours(world: World) -> None:
    """On each host another team's cluster, with what that team wrote into it."""
    for machine in world.machines.values():
        other = Picture(f"sha256:{identity('other', machine.name)}", ["lab/app:9"], {})
        machine.images[other.id] = other
        labels = {"io.vcluster.cluster": "others", "com.example.owner": "zqxowner"}
        labels["io.vcluster.spec"] = json.dumps({"environment": [["PLAIN", "zqxtheirs"]], "cluster": "others"})
        body = {"Image": other.id, "Labels": labels, "Entrypoint": ["app"], "Cmd": []}
        box = Box(identity("box", machine.name), "vcluster-others", other.id, body, state="running", born=-1)
        machine.boxes[box.id] = box


# fault: features/explain/bundle.py: if key not in OF_THIS_MACHINE} → }
def test_what_this_laptop_remembers_of_other_clusters_is_in_no_bundle(tmp_path: Path) -> None:
    inventory, world, path = make.inventory(2), make.world((2, 2)), tmp_path / "report.tar.gz"
    with lab.inside(world):
        lab.succeed(world, inventory, lab.do_up)
        world.heads["lab"][("elsewhere", None, None, None)] = Led("10.9.8.7", "feedfeedfeedfeed")
        lab.succeed(world, inventory, lab.verb(bundle.bundle, path))
    with tarfile.open(path) as tar:
        streams = [tar.extractfile(member) for member in tar]
        assert not any(b"10.9.8.7" in stream.read() for stream in streams if stream)


# fault: features/explain/bundle.py: [f"{str(entry).partition('=')[0]}={REDACTED}" for → [entry for
def test_no_value_of_environment_is_in_a_bundle_whosever_node_has_it(tmp_path: Path) -> None:
    secret = {"MODE_SECRET": "cmd:echo zqxsecretvalue"}
    inventory = make.inventory(2, environment={"MODE": "zqxplain"}, secrets=secret)
    world, path = make.world((2, 2)), tmp_path / "report.tar.gz"
    with lab.inside(world):
        lab.succeed(world, inventory, lab.do_up)
        add_neighbours(world)
        lab.succeed(world, inventory, lab.verb(bundle.bundle, path))
    with tarfile.open(path) as tar:
        streams = [tar.extractfile(member) for member in tar]
        whole = "\n".join(stream.read().decode() for stream in streams if stream)
    assert [value for value in ("zqxplain", "zqxtheirs", "zqxowner", "zqxsecretvalue") if value in whole] == []
    assert "MODE" in whole


# fault: features/explain/bundle.py: if there else {} → if there and there.labels["io.vcluster.role"] == "head" else {}
def test_the_secrets_of_each_hosts_own_node_are_redacted(tmp_path: Path) -> None:
    """A worker has secrets too, and what it was given before the inventory's value changed is in its logs."""
    inventory = make.inventory(2, secrets={"PASSPHRASE": "cmd:echo earlier-passphrase"})
    renewed = make.inventory(2, secrets={"PASSPHRASE": "cmd:echo later-passphrase"})
    world, path = make.world((2, 2)), tmp_path / "report.tar.gz"
    with lab.inside(world):
        lab.succeed(world, inventory, lab.do_up)
        for machine in world.machines.values():
            for box in machine.boxes.values():
                box.log += f"{machine.name} logged earlier-passphrase\n"
        # The head's node alone is gone: of the value that it had, the worker's holds the last copy.
        head = world.machines["gpu1"]
        world.remove(head, next(box for box in head.boxes.values() if box.name == "vcluster-lab"))
        lab.succeed(world, renewed, lab.verb(bundle.bundle, path))
    with tarfile.open(path) as tar:
        files = {member.name: tar.extractfile(member) for member in tar}
        whole = {name: stream.read().decode() for name, stream in files.items() if stream}
    assert "gpu2 logged" in whole["vcluster-bundle/gpu2/logs/docker.log"], sorted(whole)
    assert [name for name, text in whole.items() if "earlier-passphrase" in text] == []


# fault: features/explain/bundle.py: if len(named) > MAX_SECRETS: → if len(named) > 10 * MAX_SECRETS:
def test_a_host_that_names_secrets_without_end_is_not_asked_for_each(tmp_path: Path) -> None:
    """Each is a request that may take its time, and 64 KiB of memory."""
    inventory = make.inventory(2)
    world, path = make.world((2, 2)), tmp_path / "report.tar.gz"
    with lab.inside(world):
        lab.succeed(world, inventory, lab.do_up)
        node = next(box for box in world.machines["gpu2"].boxes.values() if box.name == "vcluster-lab")
        node.body["Labels"] |= {f"{SECRET}made-up-{number}": "0" * 16 for number in range(bundle.MAX_SECRETS)}
        lab.succeed(world, inventory, lab.verb(bundle.bundle, path))
    with tarfile.open(path) as tar:
        found = tar.extractfile("vcluster-bundle/unreachable.json")
        assert found and "its node names more than 128 secrets" in json.load(found)["gpu2"]["message"]


# fault: features/explain/bundle.py: if (room := room - len(content or b"")) < 0: → if False:
def test_a_host_with_long_secrets_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is kept in several forms: those of 64 hosts, with 8 MB each, would take gigabytes."""
    inventory, world, path = make.inventory(2), make.world((2, 2)), tmp_path / "report.tar.gz"
    monkeypatch.setattr(bundle, "HOST_SECRETS", 10)
    with lab.inside(world):
        lab.succeed(world, inventory, lab.do_up)
        lab.succeed(world, inventory, lab.verb(bundle.bundle, path))
    with tarfile.open(path) as tar:
        found = tar.extractfile("vcluster-bundle/unreachable.json")
        assert found and "too long to be looked for" in json.load(found)["gpu1"]["message"]


# fault: features/explain/bundle.py: {name}/logs/{file} → {name}/{file}
# fault: features/explain/bundle.py: _NOT_IN_NAMES.sub("_", log.name)[ → log.name[
# fault: features/explain/bundle.py: if one.lower() not in taken → if one
def test_a_log_s_name_makes_a_file_in_its_host_s_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the place of that folder cannot be unpacked beside what is in it."""
    names = ("", "..", "../gpu1/facts.json", "/etc/x", "a\x1b[31m\u202e", "facts.json", "state.json", "State.json")
    strange = ("docker.log", "docker.log/x", "..\\..\\x", "C:\\x", "x" * 300)
    monkeypatch.setattr(bundle, "collect", lambda *_: [Log("gpu2", name, ((1, b"x"),)) for name in (*names, *strange)])
    inventory, world, path = make.inventory(2), make.world((2, 2)), tmp_path / "report.tar.gz"
    with lab.inside(world):
        lab.succeed(world, inventory, lab.do_up)
        packed, _ = lab.succeed(world, inventory, lab.verb(bundle.bundle, path)).value
    with tarfile.open(path) as tar:
        assert set(packed) == {name.removeprefix("vcluster-bundle/") for name in tar.getnames()}
        tar.extractall(tmp_path, filter="data")
    files = [name.removeprefix("gpu2/logs/") for name in packed if name.startswith("gpu2/logs/")]
    assert [name for name in files if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,130}", name)] == []
    assert {"log", "log-2", "gpu1_facts.json", "facts.json", "state.json", "State.json-2", "docker.log_x"} <= set(files)
    assert json.loads((tmp_path / "vcluster-bundle" / "gpu2" / "facts.json").read_text())["host"] == "gpu2"
    assert "\x1b" not in (tmp_path / "vcluster-bundle" / "contents.txt").read_text()


# fault: features/explain/bundle.py: if len(content) > MAX_FILE_BYTES else content → if False else content
def test_of_a_long_log_the_last_whole_lines_are_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "calls.log"
    log.write_text("".join(f"{number:09}\n" for number in range(bundle.MAX_FILE_BYTES // 10 + 100)))
    monkeypatch.setattr(bundle, "kept", lambda *_: [log])
    ((name, text),) = bundle._calls(make.inventory(2))
    assert name == "calls/1.log" and text.endswith(f"{bundle.MAX_FILE_BYTES // 10 + 99:09}\n")
    assert len(text.encode()) <= bundle.MAX_FILE_BYTES and text[9] == "\n"
    assert bundle._text(Log("gpu1", "serve.log", ((1, log.read_bytes()),))) == text


# fault: kernel/text.py: lowered = text.encode("utf-8", "surrogatepass").lower() → lowered = text.lower().encode()
def test_a_long_log_with_an_emoji_is_looked_through_in_little_memory() -> None:
    # A twelfth of a file: under what counts its memory, a whole one takes two minutes.
    text = "\N{GRINNING FACE}" + "a line\n" * (bundle.MAX_FILE_BYTES // 7 // 12) + "password=hunter22"
    redact("password=hunter22")
    with within(60, megabytes=3):
        redactor(["secret-not-there"])(text, Comparisons())


# fault: features/explain/bundle.py: budgets[name[: name.find("/") + 1]] → Comparisons()
def test_a_host_s_files_have_one_budget_and_the_others_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One host gave secrets and files that nearly match, and each file had all of the time again."""
    monkeypatch.setattr(known_secrets, "MAX_COMPARED", 8_000_000)
    near = b"a" * 700
    kept = {"gpu1": [b"aaaaaaa", b"honest"], "gpu2": [near] * 5}

    def collect(connection: HostConnection, *_: object) -> list[Log]:
        return [Log(connection.name, f"ray/{n}.log", ((1, text),)) for n, text in enumerate(kept[connection.name])]

    monkeypatch.setattr(bundle, "collect", collect)
    monkeypatch.setattr(bundle, "_own_secrets", lambda _: ["a" * (1000 + number) + "b" for number in range(5)])
    inventory, world, path = make.inventory(2), make.world((2, 2)), tmp_path / "report.tar.gz"
    with lab.inside(world):
        lab.succeed(world, inventory, lab.do_up)
        outcome = lab.succeed(world, inventory, lab.verb(bundle.bundle, path))
    with tarfile.open(path) as tar:
        files = {member.name: tar.extractfile(member) for member in tar}
        whole = {name.removeprefix("vcluster-bundle/"): stream.read() for name, stream in files.items() if stream}
    assert [whole[f"gpu1/logs/ray_{n}.log"] for n in (0, 1)] == kept["gpu1"]
    cut = [n for n in range(5) if whole[f"gpu2/logs/ray_{n}.log"] != near]
    assert cut and cut == list(range(cut[0], 5)), cut
    assert [event.text for event in outcome.events if event.kind == "warning"] == [
        "gpu2/: too much is like secrets to look through: the rest of such files is left out"
    ]
