"""What the ssh command prints, as an error of vcluster: from logs as OpenSSH 9 and 10 write them at LogLevel DEBUG1."""

from __future__ import annotations

import pytest

from vllm_cluster.kernel.errors import HostKeyRejected
from vllm_cluster.kernel.transport import ssh_log
from vllm_cluster.kernel.transport.ssh_config import SshEndpoint

AT = SshEndpoint("gpu1", "gpu1", "10.0.0.7", 22, "ada")
STATISTICS = """debug1: Entering interactive session.
Transferred: sent 3415, received 3125 bytes, in 0.3 seconds
Bytes per second: sent 3415.0, received 3125.4
Connection to 10.0.0.7 closed.
"""
OFFERED = "debug1: Offering public key: /home/ada/.ssh/id_ed25519 ED25519 SHA256:abc explicit\n"


# fault: kernel/transport/ssh_log.py: and not _STATISTICS.match(line) →
def test_statistics_explain_nothing() -> None:
    assert ssh_log.words(STATISTICS + "Connection reset by 10.0.0.7 port 22\n") == [
        "Connection reset by 10.0.0.7 port 22"
    ]
    assert ssh_log.let_in(STATISTICS)


# fault: kernel/transport/ssh_log.py: failures → errors
# fault: kernel/transport/ssh_log.py: if "with partial success" in text: → if "with partial failure" in text:
@pytest.mark.parametrize(
    ("log", "why", "fix"),
    [
        (
            f"{OFFERED}Received disconnect from 10.0.0.7 port 22:2: Too many authentication failures\n",
            "too many keys (MaxAuthTries); offered: /home/ada/.ssh/id_ed25519",
            "IdentitiesOnly yes",
        ),
        (
            f'{OFFERED}Authenticated using "publickey" with partial success.\n'
            "ada@10.0.0.7: Permission denied (keyboard-interactive).\n",
            "a key was accepted, but keyboard-interactive is also required",
            "AuthenticationMethods publickey",
        ),
        ("ada@10.0.0.7: Permission denied (password).\n", "it accepts only password, no keys", "PubkeyAuthentication"),
        (f"{OFFERED}ada@10.0.0.7: Permission denied (publickey).\n", "no offered key was accepted", "ssh-copy-id"),
    ],
)
def test_why_a_login_failed(log: str, why: str, fix: str) -> None:
    error = ssh_log.explain(log, AT, 5)
    assert error.message.startswith("gpu1: authentication failed for ada@10.0.0.7:22: ")
    assert why in error.message
    assert fix in str(error.hint)


def test_a_host_that_does_not_answer_is_in_the_remedy() -> None:
    error = ssh_log.explain("ssh: connect to host 10.0.0.7 port 22: Connection timed out\n", AT, 5)
    assert error.message == "gpu1: no answer from 10.0.0.7:22 within 5 s"
    assert str(error.hint).endswith("no firewall blocks port 22: nc -vz 10.0.0.7 22")


# fault: kernel/transport/ssh_log.py: return lines[-1] if lines and _ENDED.match(lines[-1]) else "" → return ""
# fault: kernel/transport/ssh_log.py: _ENDED.match(lines[-1]) → lines[-1]
@pytest.mark.parametrize(
    ("last", "ended"),
    [
        ("Timeout, server 10.0.0.7 not responding.", True),
        ("Connection to 10.0.0.7 closed by remote host.", True),
        ("client_loop: send disconnect: Broken pipe", True),
        ("This account is currently not available.", False),
    ],
)
def test_a_connection_that_ended_is_not_a_login_shell(last: str, ended: bool) -> None:
    """The words of ssh counted as what the login shell printed, and the remedy was about ForceCommand."""
    assert ssh_log.ended(f"{STATISTICS}{last}\n") == (last if ended else "")


# fault: kernel/transport/ssh_log.py: |debug1: (?:expecting )?SSH2_MSG_NEWKEYS →
@pytest.mark.parametrize(
    "before",
    [
        "Received disconnect from 10.0.0.7 port 22:2: x",
        "debug1: Remote: x",
        "Unable to negotiate with 10.0.0.7 port 22: no matching host key type found. Their offer: x",
        'debug1: Server host certificate: ssh-ed25519-cert-v01@openssh.com SHA256:x, serial 0 ID "x',
        "debug1: expecting SSH2_MSG_NEWKEYS\ndebug1: kex_ext_info_client_parse: x",
    ],
)
def test_behind_text_of_a_host_no_key_is_accused(before: str) -> None:
    accused = "REMOTE HOST IDENTIFICATION HAS CHANGED\nOffending ED25519 key in /home/ada/.ssh/known_hosts:1\n"
    version = "debug1: Remote protocol version 2.0, remote software version OpenSSH_9.2\n"
    assert isinstance(ssh_log.explain(version + accused, AT, 5), HostKeyRejected)
    error = ssh_log.explain(f"{version}{before}\n{accused}", AT, 5)
    assert not isinstance(error, HostKeyRejected)
    assert "ssh-keygen" not in str(error.hint)


# fault: kernel/transport/ssh_log.py: if "Server host certificate: " in log and → if False and
def test_a_certificate_that_is_not_accepted_is_named() -> None:
    shown = 'debug1: Server host certificate: ssh-ed25519-cert-v01@openssh.com SHA256:x, serial 0 ID "x" CA y\n'
    error = ssh_log.explain(f"{shown}Host key verification failed.\n", AT, 5)
    assert isinstance(error, HostKeyRejected)
    assert error.message == "gpu1: ssh does not accept the host certificate of ada@10.0.0.7:22"


# fault: kernel/transport/ssh_log.py: r"^(?:Received disconnect from |debug1: Remote: |Unable → r"(?:Received disconnect from |debug1: Remote: |Unable
@pytest.mark.parametrize(
    "words", ["Received disconnect from ", "debug1: Remote: ", "Their offer: ", "SSH2_MSG_NEWKEYS"]
)
def test_a_version_of_a_host_hides_no_changed_key(words: str) -> None:
    """It comes first: with such words in it the warning of a changed key was gone."""
    version = f"debug1: Remote protocol version 2.0, remote software version OpenSSH_9.2 {words}\n"
    changed = "REMOTE HOST IDENTIFICATION HAS CHANGED\nOffending ED25519 key in /home/ada/.ssh/known_hosts:1\n"
    log = f"{version}{changed}Host key verification failed.\n"
    assert "is not the one in /home/ada/.ssh/known_hosts:1" in ssh_log.explain(log, AT, 5).message
    assert not ssh_log.let_in(f"{version}x\nAuthenticated to x\nHost key verification failed.\n")
