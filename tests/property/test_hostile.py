"""Any text that a person writes arrives as it was meant, or is refused before any connection."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import socket
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.support import world
from tests.support.hostile import CASES, anything, batches, hostile, many, recorded, some
from vllm_cluster.kernel.backends import ray, vllm
from vllm_cluster.kernel.backends.seam import Degrees
from vllm_cluster.kernel.docker.calls import path
from vllm_cluster.kernel.docker.container_body import node_body
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.hosts.connection import ssh_target
from vllm_cluster.kernel.inventory.model import HostSsh, Inventory, SshSettings
from vllm_cluster.kernel.plan.desired import desired
from vllm_cluster.kernel.plan.spec import BASE_IMAGE, ContainerSpec
from vllm_cluster.kernel.transport import command_line
from vllm_cluster.kernel.transport.base import Result
from vllm_cluster.kernel.transport.ssh_config import resolve_endpoint

# Installed by scripts/setup-sshd.sh.
SHELLS = ("sh", "dash", "bash", "zsh", "fish", "tcsh", "bsd-csh")
# All the cases take minutes.
pytestmark = pytest.mark.timeout(3600)


@pytest.mark.promise("P14")
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_hands_on_each_word_as_it_is(shell: str, tmp_path: Path) -> None:
    @many
    @given(batches(hostile))
    def check(words: list[str]) -> None:
        command = command_line.with_timeout(["printf", "%s\\0", *words], 60)
        done = subprocess.run(
            [shell, "-c", command_line.LINE], input=command.first, capture_output=True, check=True, cwd=tmp_path
        )
        own = command.own(Result(0, done.stdout, done.stderr))
        assert (own.stdout.split(b"\0")[:-1], own.stderr) == ([word.encode() for word in words], b"")

    with recorded("P14", f"words through a real {shell}"):
        check()
    assert not list(tmp_path.iterdir()), "a word was obeyed"


# Each place of an inventory that takes text, with what is often right for it.
PLACES: dict[str, st.SearchStrategy[Any]] = {
    "cluster": st.from_regex(r"\A[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?\Z"),
    "image": st.from_regex(r"\A[a-z0-9./-]{1,20}(:[\w.-]{1,9})?\Z"),
    "model_cache": anything.map("/".__add__),
    "environment": st.dictionaries(st.one_of(st.just("X"), hostile), hostile, min_size=1, max_size=3),
    "volumes": st.tuples(anything, anything).map(lambda two: [f"/{two[0]}:/{two[1]}:ro"]),
    "ray": hostile,
    "hosts": st.dictionaries(st.from_regex(r"\A[A-Za-z0-9][\w.-]{0,20}\Z"), st.just({}), min_size=1, max_size=3),
    "interface": st.from_regex(r"\A\w{1,15}\Z"),
    "address": st.ip_addresses().map(str),
}


def written(place: str, value: Any) -> dict[str, Any]:
    """An inventory with hostile text in one place."""
    words = world.inventory(1).model_dump(mode="json", exclude_unset=True)
    if place in ("interface", "address"):
        words["hosts"]["gpu1"][place] = value
    elif place == "hosts":
        names = value if isinstance(value, dict) else {value: {}}
        words["hosts"] = {name: {"address": f"10.0.0.{n}"} for n, name in enumerate(names, 1)}
    else:
        words[place] = value
    return words


def test_an_inventory_s_words_arrive_in_containers_as_they_are() -> None:
    accepted: list[int] = []

    def arrive(words: dict[str, Any]) -> None:
        try:
            inventory = Inventory.model_validate(words)
        except ValidationError:
            return
        accepted.append(1)
        facts = {name: world.host(n) for n, name in enumerate(inventory.hosts, 1)}
        for spec in desired(inventory, facts, world.INPUTS):
            assert dict(spec.environment).items() >= words.get("environment", {}).items()
            as_a_body(spec)

    @many
    @given(batches(st.one_of([st.tuples(st.just(place), likely | hostile) for place, likely in PLACES.items()])))
    def check(cases: list[tuple[str, Any]]) -> None:
        for place, value in cases:
            arrive(written(place, value))

    with recorded("P14", "inventory to Engine API body"):
        check()
    assert len(accepted) > CASES / 20, "hardly a case got as far as a container"


def as_a_body(spec: ContainerSpec) -> None:
    """What the engine is sent holds the same, and names that need no quoting in an address."""
    body = json.loads(json.dumps(node_body(spec, "vcluster-node:x", "sha256:x")).encode())
    assert body["Env"] == [f"{key}={value}" for key, value in spec.environment]
    assert all("\0" not in entry for entry in body["Env"])
    volumes = [[volume["Source"], volume["Target"]] for volume in body["HostConfig"]["Mounts"]]
    folders = [bind.split(":")[:2] for bind in body["HostConfig"]["Binds"]]
    assert volumes + folders == [[mount.source, mount.target] for mount in spec.mounts]
    assert not body["HostConfig"]["Privileged"]
    assert body["Cmd"] == list(spec.command[1:])
    assert body["Labels"] == {**spec.labels(), BASE_IMAGE: "sha256:x"}
    for name in (spec.name, spec.state_volume, spec.secrets_volume):
        assert re.fullmatch(r"[a-z0-9][a-z0-9_.-]+", name)
    sent = path("images", spec.image, "json").removeprefix("/images/")
    assert unquote(sent) == f"{spec.image}/json"
    assert not {"..", "."} & set(sent.split("/"))
    assert not set("?#") & set(sent)


OPTIONS = ("model", "served-model-name", "tensor-parallel-size", "pipeline-parallel-size", "host", "port", "uds",
           "api-key", "distributed-executor-backend", "nnodes", "node-rank", "master-addr", "headless")  # fmt: skip
SHORT = ("tp", "pp", "n", "r")
flag = st.one_of(
    hostile,
    st.builds(
        lambda dashes, name, cut, value: dashes + name[: cut or None] + value,
        st.sampled_from(["-", "--"]),
        st.sampled_from([*OPTIONS, *(name.replace("-", "_") for name in OPTIONS), *SHORT, "max-model-len"]),
        st.integers(0, 12),
        st.sampled_from(["", "=", "=x", "=4", "8"]),
    ),
)


def like_vllm() -> argparse.ArgumentParser:
    """A parser with the manners of vLLM's: any beginning of an option means it, the last of two wins."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("model_tag")
    parser.add_argument("-tp", "--tensor-parallel-size")
    parser.add_argument("-pp", "--pipeline-parallel-size")
    parser.add_argument("-n", "--nnodes")
    parser.add_argument("-r", "--node-rank")
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--trust-remote-code", action="store_true")
    for name in ("served-model-name", "host", "port", "uds", "api-key", "distributed-executor-backend", "master-addr",
                 "middleware", "max-model-len", "hf-overrides", "download-dir", "model"):  # fmt: skip
        parser.add_argument(f"--{name}")
    return parser


def dashed(word: str) -> str:
    """A word as vLLM's parser reads it: underscores in an option's name are dashes."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def test_vllm_gets_what_was_meant_and_no_option_of_vcluster() -> None:
    parser, accepted = like_vllm(), list[int]()

    def ensure_meant(model: str, name: str, extra: list[str]) -> None:
        try:
            argv = vllm.serve_argv(
                model, name=name, degrees=Degrees(2, 3), host="127.0.0.1", port=8000, extra=extra, engine=ray.FLAGS
            )
        except UsageError as refusal:
            assert all(line.isprintable() for line in refusal.message.split("\n"))
            return
        accepted.append(1)
        assert argv[:3] == ["vllm", "serve", model] and argv[3 : 3 + len(extra)] == extra
        assert model.isprintable() and not model.startswith("-")
        assert json.loads(json.dumps(argv)) == argv
        with contextlib.redirect_stderr(io.StringIO()):
            try:
                parsed, _ = parser.parse_known_args([dashed(word) for word in argv[2:]])
            except (argparse.ArgumentError, SystemExit):
                return  # vLLM refuses it too
        assert (parsed.model_tag, parsed.served_model_name, parsed.model) == (model, name, None)
        assert (parsed.tensor_parallel_size, parsed.pipeline_parallel_size) == ("2", "3")
        assert (parsed.host, parsed.port, parsed.uds, parsed.distributed_executor_backend) == (
            "127.0.0.1",
            "8000",
            None,
            "ray",
        )
        assert (parsed.nnodes, parsed.node_rank, parsed.master_addr, parsed.api_key) == (None,) * 4
        assert not parsed.headless

    word = st.one_of(
        hostile, st.text(st.characters(categories=["L", "N"], include_characters="._-/:@+=,~%"), min_size=1)
    )

    @many
    @given(batches(st.tuples(word, word, st.lists(flag, max_size=3))))
    def check(cases: list[tuple[str, str, list[str]]]) -> None:
        for case in cases:
            ensure_meant(*case)

    with recorded("P14", "model, name and flags to vLLM's parser"):
        check()
    assert len(accepted) > CASES / 20, "hardly a case got as far as a command"


def place_of(host: str) -> object:
    """What a host's name means: ssh writes numbers out, and names small."""
    with contextlib.suppress(OSError):
        return socket.inet_aton(host)
    return host.lower()


def test_ssh_reads_a_destination_as_it_was_meant() -> None:
    accepted: list[int] = []
    likely = st.from_regex(r"\A[A-Za-z0-9][\w.-]{0,20}\Z", alphabet=st.characters(max_codepoint=127))

    @some
    @given(st.sampled_from(["host", "user", "jump"]), st.one_of(hostile, likely))
    @example("host", "gpu1.Example")
    @example("user", "Ada-1")
    @example("jump", "None")
    def check(place: str, value: str) -> None:
        settings = SshSettings(config=Path("/dev/null"))
        try:
            ssh = HostSsh.model_validate({"host": "h", place: value})
        except ValidationError:
            return
        entry = world.inventory(1).hosts["gpu1"].model_copy(update={"ssh": ssh})
        try:
            found = resolve_endpoint(ssh_target(world.inventory(1).model_copy(update={"ssh": settings}), entry))
        except UsageError:
            return
        accepted.append(1)
        assert found.proxy_command is None
        if place == "user":
            assert found.user == value
        elif place == "host":
            assert place_of(found.host) == place_of(value)
        else:
            # `none`, however written, is ssh's word for no jump host at all.
            assert (found.jump is None) == (value.lower() == "none")

    with recorded("P14", "ssh destinations through the real ssh -G", some.max_examples):
        check()
    # The three that are named, and of few that are made up none may be.
    assert len(accepted) >= 3 + some.max_examples // 16
