"""Whether a host is up, on a machine under load: what does not answer once is asked again, for a while."""

from __future__ import annotations

from typing import Any

import pytest
from docker.errors import APIError

from vcluster_sandbox import hosts
from vllm_cluster.kernel.errors import VclusterError


class Host:
    """A container whose key is answered so, one answer after the other, the last one from then on."""

    name = "vcluster-sandbox-1-gpu1"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: str | Exception, status: str = "running") -> None:
        self.answers, self.status = list(answers), status
        monkeypatch.setattr(hosts, "execute", lambda *_, **__: self._answer())

    def _answer(self) -> str:
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, Exception):
            raise found
        return found

    def reload(self) -> None:
        """Its state stays."""


def key(host: Host) -> str:
    """The key of the host, read as `sandbox up` does."""
    given: Any = host
    return hosts._read_key(given, "gpu1", "/data/key.pub")


# fault: vcluster_sandbox/hosts.py: if len(words) >= _KEY_WORDS: → if True:
# fault: vcluster_sandbox/hosts.py: or time.monotonic() >= end: → or True:
def test_a_key_that_is_not_there_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """`sandbox up` failed where Docker was late."""
    answers = (
        "",
        VclusterError("`cat` ended with 1"),
        APIError("is not running"),
        "ssh-ed25519",
        "ssh-ed25519 AAAA me",
    )
    assert key(Host(monkeypatch, *answers)) == "ssh-ed25519 AAAA"


# fault: vcluster_sandbox/hosts.py: if container.status != "running" or → if
@pytest.mark.timeout(60)
def test_the_state_of_a_host_that_has_ended_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "_KEY_S", 1e9)
    with pytest.raises(VclusterError) as ended:
        key(Host(monkeypatch, VclusterError("`cat` ended with 1"), status="exited"))
    why = "its host key cannot be read: `cat` ended with 1; its container vcluster-sandbox-1-gpu1 is exited"
    assert ended.value.message == f"gpu1: {why}"
    assert ended.value.hint == "vcluster sandbox up\ndocker logs vcluster-sandbox-1-gpu1"


def test_a_key_that_stays_empty_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "_KEY_S", 0.0)
    with pytest.raises(VclusterError, match=r"its host key cannot be read: it is empty; its container .* is running"):
        key(Host(monkeypatch, ""))
