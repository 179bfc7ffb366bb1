"""ssh_config as the inventory uses it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.bounds import within
from vllm_cluster.kernel.errors import UsageError, combine
from vllm_cluster.kernel.transport import connect_errors, locate, ssh_config
from vllm_cluster.kernel.transport.base import Target
from vllm_cluster.kernel.transport.ssh_config import (
    SshEndpoint,
    config_lines,
    ensure_safe_names,
    expand,
    hosts_matching,
    resolve_endpoint,
    ssh_options,
)


def words(**values: str) -> dict[str, list[str]]:
    return {key: [value] for key, value in values.items()}


def test_hosts_are_listed_in_order_with_their_includes(tmp_path: Path) -> None:
    (tmp_path / "more").write_text("Host gpu3 bastion\nInclude config\n")
    (tmp_path / "config").write_text(
        "# Host gpu0\nHost gpu1 gpu2 gpu*\n  HostName x\nhost=gpu9\nMatch host gpu8\n"
        f"Include {tmp_path}/mo*\nHost !gpu7 gpu1 *\n"
    )
    assert hosts_matching(tmp_path / "config", "gpu*") == ["gpu1", "gpu2", "gpu9", "gpu3"]
    assert hosts_matching(tmp_path / "config", "gpu[12]") == ["gpu1", "gpu2"]
    assert hosts_matching(tmp_path / "config", "x") == []


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no-file") as refused:
        hosts_matching(tmp_path / "no-file", "*")
    assert refused.value.hint == "vcluster init --host NAME=ADDRESS"


# fault: kernel/transport/ssh_config.py: seen.add(file) → seen = {*seen, file}
def test_files_that_include_each_other_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By every order of ten there are ten million ways."""
    for number in range(6):
        (tmp_path / f"{number}.conf").write_text(f"Include {tmp_path}/*.conf\nHost gpu{number}\n")
    (tmp_path / "config").write_text(f"Include {tmp_path}/*.conf {tmp_path}/config\n")
    read, lines = list[Path](), ssh_config.config_lines

    def counted(file: Path) -> Iterator[tuple[str, list[str]]]:
        read.append(file)
        return lines(file)

    monkeypatch.setattr(ssh_config, "config_lines", counted)
    assert sorted(hosts_matching(tmp_path / "config", "gpu*")) == [f"gpu{number}" for number in range(6)]
    assert len(read) == 7


# fault: kernel/transport/ssh_config.py: if len(line) > MAX_QUOTED or not _QUOTED.search(line): → if False:
@pytest.mark.parametrize("quote", ["", "'"])
def test_a_long_line_takes_no_time(tmp_path: Path, quote: str) -> None:
    """One word of 900 kB took 13 s."""
    file = tmp_path / "config"
    file.write_text(f"Host {quote}{'x' * 900_000}{quote} b\nHost 'a b' \"c\"\n")
    with within(2):
        lines = list(config_lines(file))
    assert [words[-1] for _, words in lines] == ["b", "c"]
    assert lines[1][1] == ["a b", "c"]


# fault: kernel/transport/ssh_config.py: MAX_INCLUDES = 16 → MAX_INCLUDES = 1 << 20
def test_files_are_included_as_deeply_as_ssh_does(tmp_path: Path) -> None:
    for number in range(1100):
        (tmp_path / f"{number}").write_text(f"Host gpu{number}\nInclude {tmp_path}/{number + 1}\n")
    assert hosts_matching(tmp_path / "0", "gpu*") == [f"gpu{number}" for number in range(17)]


def test_a_relative_include_is_looked_for_in_the_user_s_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Include conf.d/*\n")
    (tmp_path / ".ssh/conf.d").mkdir()
    (tmp_path / ".ssh/conf.d/a").write_text('Host "gpu1"\n')
    assert hosts_matching(None, "*") == ["gpu1"]


# fault: kernel/transport/ssh_config.py: if path.exists() and not path.is_dir()] → if path.exists()]
# fault: kernel/transport/ssh_config.py: if path.exists() and not path.is_dir()] → if not path.is_dir()]
# fault: kernel/transport/ssh_config.py: if len(found) > MAX_INCLUDED: → if False:
def test_a_pattern_finds_files_alone_and_not_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`init --from-ssh-config` was refused for a folder beside the files, which ssh passes over."""
    more = tmp_path / "conf.d"
    (more / "old").mkdir(parents=True)
    (more / "gone").symlink_to(tmp_path / "nowhere")
    (more / "a").write_text("Host gpu1\n")
    (tmp_path / "config").write_text(f"Include {more}/*\n")
    assert hosts_matching(tmp_path / "config", "*") == ["gpu1"]
    monkeypatch.setattr(ssh_config, "MAX_INCLUDED", 2)
    with pytest.raises(UsageError, match="finds more than 2 files"):
        hosts_matching(tmp_path / "config", "*")


# fault: kernel/transport/ssh_config.py: agent=_agent(words.get("identityagent", ["SSH_AUTH_SOCK"])[0], → agent=_agent("SSH_AUTH_SOCK",
# fault: kernel/transport/ssh_config.py: known_hosts=paths("userknownhostsfile"), → known_hosts=paths("globalknownhostsfile"),
def test_the_answer_of_ssh_becomes_a_resolved_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    answer = {
        **words(user="me", hostname="10.0.0.1", port="2222", identitiesonly="yes", hostkeyalias="gpu"),
        **words(stricthostkeychecking="accept-new", hashknownhosts="yes", proxycommand="nc %h %p %%"),
        "identityfile": ["~/.ssh/a key", "/k/%r@%h"],
        # Quoted in the file; `ssh -G` prints it without.
        "userknownhostsfile": ["/a /my b/known hosts ~/.ssh/d"],
        "globalknownhostsfile": ["/c"],
        "identityagent": ["none"],
    }
    at = resolve_endpoint(Target("gpu1", "g"), lambda _: answer)
    assert at.where == "me@10.0.0.1:2222"
    assert at.identities == (tmp_path / ".ssh/a key", Path("/k/me@10.0.0.1"))
    assert at.known_hosts == (Path("/a"), Path("/my b/known hosts"), tmp_path / ".ssh/d")
    assert at.global_known_hosts == (Path("/c"),)
    assert (at.identities_only, at.host_key_alias, at.accept_new_keys, at.agent) == (True, "gpu", True, None)
    assert expand(at.proxy_command or "", at) == "nc 10.0.0.1 2222 %"


@pytest.mark.parametrize(
    ("answer", "agent"),
    [({}, "/run/agent"), ({"identityagent": ["SSH_AUTH_SOCK"]}, "/run/agent"), ({"identityagent": ["none"]}, None),
     ({"identityagent": ["$OTHER"]}, None), ({"identityagent": ["/a"]}, "/a")],
)  # fmt: skip
def test_the_agent_is_the_one_of_ssh_config(
    answer: dict[str, list[str]], agent: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `IdentityAgent none` a host learned the keys of an agent that was kept from it."""
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    monkeypatch.delenv("OTHER", raising=False)
    at = resolve_endpoint(Target("gpu1", "g"), lambda _: {**words(user="me"), **answer})
    assert at.agent == (Path(agent) if agent else None)


@pytest.mark.parametrize(
    ("answer", "only_ssh"),
    [
        ({"revokedhostkeys": "none", "knownhostscommand": "none", "pubkeyauthentication": "true"}, None),
        ({"pubkeyauthentication": "host-bound", "preferredauthentications": "password,publickey"}, None),
        ({"revokedhostkeys": "/r"}, "RevokedHostKeys /r"),
        ({"knownhostscommand": "/bin/keys %H"}, "KnownHostsCommand /bin/keys %H"),
        ({"pubkeyauthentication": "false"}, "PubkeyAuthentication false"),
        ({"pubkeyauthentication": "no"}, "PubkeyAuthentication no"),
        ({"preferredauthentications": "password"}, "PreferredAuthentications password"),
        ({"preferredauthentications": "none"}, "PreferredAuthentications none"),
        ({"bindinterface": "eth1"}, "BindInterface eth1"),
    ],
)
def test_a_word_that_ssh_alone_honours_is_kept(answer: dict[str, str], only_ssh: str | None) -> None:
    assert resolve_endpoint(Target("gpu1", "g"), lambda _: words(user="me", **answer)).only_ssh == only_ssh


# fault: kernel/transport/ssh_config.py: rsa_bits=max(MIN_RSA_BITS, int( → rsa_bits=max(0, int(
# fault: kernel/transport/ssh_config.py: for name in (word, *older): → for name in (word,):
def test_the_lists_of_algorithms_are_those_of_ssh_of_older_ones_too() -> None:
    def resolved(**answer: str) -> SshEndpoint:
        return resolve_endpoint(Target("gpu1", "g"), lambda _: words(user="me", **answer))

    at = resolved(ciphers="a,b", pubkeyacceptedkeytypes="c", requiredrsasize="3072")
    assert at.algorithms == (("Ciphers", "a,b"), ("PubkeyAcceptedAlgorithms", "c"))
    assert at.rsa_bits == 3072
    assert resolved().algorithms == ()
    assert resolved().rsa_bits == resolved(requiredrsasize="0").rsa_bits == 1024


# fault: kernel/transport/ssh_config.py: if token not in _PROXY_TOKENS: → if False:
# fault: kernel/transport/ssh_config.py: expand(resolved.proxy_command or "", resolved) → pass
# fault: kernel/transport/ssh_config.py: r"%.?", text, re.DOTALL → r"%.", text
@pytest.mark.parametrize("token", ["%u", "%C", "%", "%%%d", "%\n"])
def test_a_proxy_command_has_the_tokens_that_ssh_allows(token: str) -> None:
    def resolved(command: str, **more: str) -> SshEndpoint:
        return resolve_endpoint(Target("gpu1", "g"), lambda _: words(user="me", proxycommand=command, **more))

    with pytest.raises(UsageError, match=r"gpu1: ssh refuses ProxyCommand .*: unknown key %"):
        resolved(f"nc %h {token}")
    at = resolved("nc %%u %%%h %n %p %r %k", hostname="10.0.0.1")
    assert expand(at.proxy_command or "", at) == "nc %u %10.0.0.1 g 22 me g"
    at = resolved("nc %k", hostkeyalias="lab")
    assert expand(at.proxy_command or "", at) == "nc lab"


def test_jump_hosts_are_resolved_one_through_the_other() -> None:
    asked: list[tuple[str, str | None]] = []

    def ask(target: Target) -> dict[str, list[str]]:
        asked.append((target.destination, target.jump))
        answer = words(user="u", hostname=target.destination.rpartition("@")[2].removeprefix("ssh://").split(":")[0])
        return {**answer, "proxyjump": [target.jump]} if target.jump else answer

    at = resolve_endpoint(Target("gpu1", "g", jump="a,u@b:22,[::1]:2"), ask)
    assert asked == [("g", "a,u@b:22,[::1]:2"), ("ssh://[::1]:2", "a,u@b:22"), ("ssh://u@b:22", "a"), ("a", None)]
    assert at.jump is not None and at.jump.jump is not None and at.jump.jump.jump is not None
    assert at.jump.jump.jump.host == "a"


def test_a_circle_is_refused() -> None:
    with pytest.raises(UsageError, match="circle"):
        resolve_endpoint(Target("gpu1", "a"), lambda target: words(user="u", hostname="x", proxyjump="b"))


@pytest.mark.parametrize("bad", ["x y", "$(id)", "-v"])
def test_a_bad_name_in_ssh_config_is_refused(bad: str) -> None:
    with pytest.raises(UsageError, match="HostName"):
        resolve_endpoint(Target("gpu1", "a"), lambda _: words(user="u", hostname=bad))


@given(text=st.text(max_size=20))
def test_no_name_that_passes_can_be_an_option_or_a_command(text: str) -> None:
    for target in (Target("n", text), Target("n", "h", user=text), Target("n", "h", jump=text)):
        try:
            ensure_safe_names(target)
        except UsageError:
            continue
        if target.jump in ("", "none"):
            continue
        for part in text.split(",") if target.jump else [text]:
            assert part
            assert not part.startswith("-")
            assert not set(part) & set(" \t\n\r\0'\"`;&<>|(){}")


def test_options_come_before_the_destination(tmp_path: Path) -> None:
    target = Target("n", "h", user="u", port=2, identity=tmp_path / "k", jump="j", config=tmp_path / "c")
    assert ssh_options(target) == ["-F", f"{tmp_path}/c", "-l", "u", "-p", "2", "-i", f"{tmp_path}/k", "-J", "j"]


@pytest.fixture
def no_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without the ssh command."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))


@pytest.mark.usefixtures("no_ssh")
def test_without_ssh_the_error_names_what_to_install() -> None:
    with pytest.raises(UsageError, match="the ssh command is not installed") as refused:
        locate(Target("gpu1", "gpu1"))
    assert refused.value.hint == "install the OpenSSH client"


# fault: kernel/transport/connect_errors.py: "ssh", *typed_words(at.options), at.destination → "ssh", at.destination
def test_commands_to_paste_ask_ssh_as_the_inventory_does(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.touch()
    target = Target("gpu1", "10.0.0.7", user="ada", port=2222, identity=Path("/k e y"), jump="bastion", config=config)
    at = resolve_endpoint(target)
    options = f"-F {config} -l ada -p 2222 -i '/k e y' -J bastion 10.0.0.7"
    assert f"ssh {options}" in str(connect_errors.unknown_key(at, "SHA256:x").hint)
    copied = f"ssh-copy-id -F {config} -o 'User=ada' -p 2222 -i '/k e y' -o 'ProxyJump=bastion' 10.0.0.7"
    assert copied in str(connect_errors.auth_refused(at, "no offered key was accepted", [], []).hint)


# fault: kernel/transport/connect_errors.py: hint="correct the host's ssh address → hint=f"correct {at.name}'s ssh address
def test_hosts_whose_name_does_not_resolve_have_one_fix() -> None:
    failures = {
        name: connect_errors.no_name(SshEndpoint(name, name, f"{name}.lab", 22, "ann")) for name in ("gpu1", "gpu2")
    }
    error = combine(failures)
    assert error.message.splitlines() == [f"{name}: cannot resolve host name {name}.lab" for name in failures]
    assert error.hint == "correct the host's ssh address in the inventory, or give it a HostName in ssh_config"
