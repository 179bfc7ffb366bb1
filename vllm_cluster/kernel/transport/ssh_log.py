"""Standard error of the ssh command, mapped to a `HostError`."""

from __future__ import annotations

import re

from vllm_cluster.kernel.errors import Unreachable
from vllm_cluster.kernel.transport import connect_errors
from vllm_cluster.kernel.transport.ssh_config import SshEndpoint, known_name

# A longer line is the host's.
MAX_LINE = 2000
_CONNECT = re.compile(r"connect to host (\S+) port (\d+): (.+)")
_SERVER_KEY = re.compile(r"Server host key: (\S+ SHA256:\S+)")
_OFFENDING = re.compile(r"Offending \S{1,80} key in (.{1,400}:\d{1,9})")
_REVOKED = re.compile(r"host key for (\S+) was revoked by (.+)|key for (\S+) is marked as revoked")
_UNKNOWN = re.compile(r"host key is known for (\S+) and you have requested")
_CHANGED = re.compile(r"Host key for (\S+) has changed")
_DENIED = re.compile(r"(\S{1,300}): Permission denied \((.{0,300})\)")
_OFFERED = re.compile(r"Offering public key: (.{1,400}?)(?: explicit| agent)*$", re.M)
_PASSPHRASE = re.compile(r"incorrect passphrase supplied to decrypt private key|Load key \"(.{1,400})\": (.{1,400})")
_NO_NAME = re.compile(r"Could not resolve hostname (\S+): (.+)")
_NO_COMMON = re.compile(r"(no matching .+)|(Bad remote protocol version.*)|(banner line contains invalid characters)")
_PROXY = re.compile(r"(stdio forwarding failed|open failed: .+|administratively prohibited.*)")


# What ssh prints of connections that are well, and what it counts at their end: it explains nothing.
_STATISTICS = re.compile(r"Authenticated to |Transferred: |Bytes per second: |Connection to \S+ closed\.$")
_NO_SESSION = re.compile(r"^channel \d+: open failed: ", re.M)
# ssh's own words where the connection ended after the login; a program on the host is not what they are about.
_ENDED = re.compile(
    r"Timeout, server \S+ not responding|(Connection (closed|reset) by|Connection to) \S+.*|"
    r"(client_loop|ssh_dispatch_run_fatal): .+|Host key verification failed"
)
_LET_IN = re.compile(r"^Authenticated to |debug1: Entering interactive session", re.M)


def words(log: str) -> list[str]:
    """The part of ssh's output that is for users."""
    lines = [line[:MAX_LINE].strip() for line in log.splitlines()]
    return [line for line in lines if line and not line.startswith("debug") and not _STATISTICS.match(line)]


def answered(log: str) -> bool:
    """Whether the server has named its version, and may have shown a banner."""
    return "Remote protocol version" in log


def let_in(log: str) -> bool:
    """Whether the login was over when ssh ended."""
    return bool(_LET_IN.search(log))


def ended(log: str) -> str:
    """The words with which ssh ended a connection that was open; empty where it did not."""
    lines = words(log)
    return lines[-1] if lines and _ENDED.match(lines[-1]) else ""


def opened_no_session(log: str) -> bool:
    """Whether the server let the user in and opened no session."""
    return bool(_NO_SESSION.search("\n".join(words(log))))


def explain(log: str, at: SshEndpoint, seconds: float) -> Unreachable:
    """The reason why ssh could not connect, from the log of a run with LogLevel DEBUG1."""
    text = "\n".join(words(log))
    return (
        _key_rejected(log, text, at)
        or _login_refused(log, text, at)
        or _not_reached(text, at, seconds)
        or connect_errors.not_ssh(at, _last_line(text) or "ssh exited without output")
    )


def _key_rejected(log: str, text: str, at: SshEndpoint) -> Unreachable | None:
    keys = _SERVER_KEY.findall(log)
    shown = keys[-1] if keys else "one that ssh does not show"
    if found := _REVOKED.search(text):
        return connect_errors.revoked_key(_named(at, found[1] or found[3]), shown, found[2] or "known_hosts")
    if "IDENTIFICATION HAS CHANGED" in text:
        line, name = _OFFENDING.search(text), _CHANGED.search(text)
        return connect_errors.changed_key(
            _named(at, name[1] if name else ""), shown, line[1] if line else "known_hosts"
        )
    if found := _UNKNOWN.search(text):
        return connect_errors.unknown_key(_named(at, found[1]), shown)
    return None


def _login_refused(log: str, text: str, at: SshEndpoint) -> Unreachable | None:
    offered = [found.strip() for found in _OFFERED.findall(log)]
    skipped = [f"{found[1]} ({found[2]})" for found in _PASSPHRASE.finditer(text) if found[1]]
    if "Too many authentication failures" in text:
        return connect_errors.too_many_keys(at, offered, skipped)
    if found := _DENIED.search(text):
        user, _, host = found[1].rpartition("@")
        refused = next((hop for hop in _chain(at) if hop.user == user and hop.host == host), at)
        if "with partial success" in text:
            return connect_errors.second_factor(refused, found[2].replace(",", ", "), offered, skipped)
        if "publickey" not in found[2]:
            return connect_errors.no_keys(refused, found[2].replace(",", ", "))
        return connect_errors.auth_refused(refused, "no offered key was accepted", offered, skipped)
    return None


def _not_reached(text: str, at: SshEndpoint, seconds: float) -> Unreachable | None:
    if found := _NO_NAME.search(text):
        return connect_errors.no_name(next((hop for hop in _chain(at) if hop.host == found[1]), at), found[2].strip())
    if found := _CONNECT.search(text):
        where = [hop for hop in _chain(at) if hop.host == found[1] and str(hop.port) == found[2]]
        return _no_connection(where[0] if where else at, found[3], seconds)
    proxy = at.jump.where if at.jump else at.proxy_command
    if proxy and ((found := _PROXY.search(text)) or "UNKNOWN port" in text or "Connection closed by remote" in text):
        return connect_errors.proxy_failed(at, proxy, found[1] if found else "it closed the connection")
    if found := _NO_COMMON.search(text):
        return connect_errors.not_ssh(at, found[0])
    if "timed out" in text or not text:
        return connect_errors.no_answer(at, seconds)
    if "Connection closed by" in text or "Connection reset" in text:
        return connect_errors.closed_early(at)
    return None


def _no_connection(at: SshEndpoint, why: str, seconds: float) -> Unreachable:
    if "refused" in why:
        return connect_errors.nothing_listens(at)
    if "timed out" in why:
        return connect_errors.no_answer(at, seconds)
    return connect_errors.no_route(at, why.strip())


def _chain(at: SshEndpoint) -> list[SshEndpoint]:
    return [at, *(_chain(at.jump) if at.jump else [])]


def _named(at: SshEndpoint, name: str) -> SshEndpoint:
    return next((hop for hop in _chain(at) if known_name(hop) == name), at)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
