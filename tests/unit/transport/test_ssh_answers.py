"""One answer of ssh for many hosts is what `ssh -G` prints for each."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.depth import cases
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.transport.base import Target
from vllm_cluster.kernel.transport.ssh_answers import SshAnswers
from vllm_cluster.kernel.transport.ssh_config import ask_ssh_config

HOSTS = ("gpu1", "gpu2", "gpu10", "10.0.0.1", "10.0.0.2", "GPU1", "bastion", "fd00::1")
PATTERNS = st.lists(
    st.sampled_from(
        ["*", "gpu*", "gpu?", "!gpu1", "gpu1", "10.0.0.*", "10.*", "bastion", "elsewhere", "GPU*", "[g]pu1"]
    ),
    min_size=1,
    max_size=3,
).map(" ".join)
SETTINGS = st.sampled_from(
    [
        "User me",
        "User=%h",
        "Port 2222",
        "port = 33",
        "HostName 10.9.9.9",
        "HostName %h.example",
        "ProxyJump bastion",
        "ProxyJump me@bastion:22,gpu1",
        "ProxyJump none",
        "ProxyCommand nc %h %p",
        "IdentityFile ~/.ssh/%h",
        "\tIdentityFile\t/k",
        "ControlPath ~/.ssh/%r@%h",
        "HostKeyAlias %h",
        "CanonicalizeHostname no",
        "LogLevel QUIET",
        "Ciphers aes256-ctr",
        "RequiredRSASize 3072",
        "IdentityAgent none",
        "# HostName x",
    ]
)
BLOCK = st.builds(lambda head, lines: [head, *lines], PATTERNS.map("Host {}".format), st.lists(SETTINGS, max_size=3))
CONDITION = st.sampled_from(
    [["Match all"], ["Match final all"], ["Match host gpu1", "User they"], ['Match exec "true"']]
)
FILE = st.lists(st.one_of(BLOCK, BLOCK, BLOCK, CONDITION, SETTINGS.map(lambda line: [line])), max_size=4).map(
    lambda blocks: "".join(f"{line}\n" for block in blocks for line in block)
)


# Without what the option -v changes, the place of connections that ssh shares, and the command to a jump host.
def compared(words: Any) -> dict[str, Any]:
    return {key: value for key, value in words.items() if key not in ("loglevel", "controlpath", "proxycommand")} | (
        {} if "proxyjump" in words else {"proxycommand": words.get("proxycommand")}
    )


# fault: kernel/transport/ssh_answers.py: if key == "hostname" or → if
# fault: kernel/transport/ssh_answers.py: found += [(_hop_name(hop), True) for hop in ",".join(words).split(",")] → pass
# fault: kernel/transport/ssh_answers.py: found.files <= first.files → found.files
@settings(max_examples=cases(5, 20, 2000))
@given(main=FILE, more=FILE, place=PATTERNS, jump=st.sampled_from([None, "bastion", "gpu2,bastion"]))
@example(main="Host gpu1\n", more="Host gpu10\n  Port 5\n", place="gpu2 gpu10", jump=None)
@example(main="Host *\n  HostName one.example\n", more="", place="elsewhere", jump=None)
@example(main="ProxyJump bastion\n", more="", place="elsewhere", jump=None)
def test_one_answer_for_many_hosts_is_that_of_each_alone(main: str, more: str, place: str, jump: str | None) -> None:
    with TemporaryDirectory() as folder:
        config, included = Path(folder, "config"), Path(folder, "more")
        config.write_text(f"{main}Host {place}\n  Include {included}\n")
        included.write_text(more)
        answers = SshAnswers()
        for name in HOSTS:
            target = Target(name, name, jump=jump, config=config)
            try:
                alone = ask_ssh_config(target)
            except UsageError as error:
                with pytest.raises(UsageError, match=str(error).splitlines()[0].partition(": ")[2][:20]):
                    answers(target)
                break
            assert compared(answers(target)) == compared(alone), name


def test_an_ssh_that_does_not_name_its_files_is_asked_for_each_host() -> None:
    asked: list[str] = []

    def ssh(argv: Sequence[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        asked.append(argv[-1])
        return subprocess.CompletedProcess(argv, 0, f"hostname at-{argv[-1]}\n".encode(), b"")

    answers = SshAnswers(ssh)
    assert [answers(Target(name, name))["hostname"] for name in HOSTS] == [[f"at-{name}"] for name in HOSTS]
    assert asked == [*HOSTS]


# fault: kernel/transport/ssh_config.py: if not line.startswith(("debug1: ", "OpenSSH_")) →
def test_a_refused_configuration_is_shown_without_debug_lines(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Nonsense x\n")
    with pytest.raises(UsageError, match="ssh refuses its configuration") as refused:
        SshAnswers()(Target("gpu1", "gpu1", config=tmp_path / "config"))
    assert "debug1" not in str(refused.value)
    assert "OpenSSH" not in str(refused.value)
    assert "nonsense" in str(refused.value)
