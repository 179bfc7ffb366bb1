"""Standard error of the ssh command, mapped to a `HostError`."""

from __future__ import annotations

import re

from vllm_cluster.kernel.errors import Unreachable
from vllm_cluster.kernel.transport import connect_errors
from vllm_cluster.kernel.transport.ssh_config import SshEndpoint

# A longer line is the host's.
MAX_LINE = 2000
_CONNECT = re.compile(r"connect to host (\S+) port (\d+): (.+)")
_SERVER_KEY = re.compile(r"Server host key: (\S+ SHA256:\S+)")
_OFFENDING = re.compile(r"Offending \S{1,80} key in (.{1,400}:\d{1,9})")
_REVOKED = re.compile(r"host key for (\S+) was revoked by (.+)|key for (\S+) is marked as revoked")
_UNKNOWN = re.compile(r"host key is known for (\S+) and you have requested")
_DENIED = re.compile(r"(\S{1,300}): Permission denied \((.{0,300})\)")
_OFFERED = re.compile(r"Offering public key: ([^\r\n]{1,400}?)(?: explicit| agent)*\r?$", re.M)
_PASSPHRASE = re.compile(r"incorrect passphrase supplied to decrypt private key|Load key \"(.{1,400})\": (.{1,400})")
_NO_NAME = re.compile(r"Could not resolve hostname (\S+): (.+)")
_NO_COMMON = re.compile(r"(no matching .+)|(Bad remote protocol version.*)|(banner line contains invalid characters)")
# Behind these the host's own text follows; it may have line breaks in it, so that what looks like ssh's own words
# from there on may be the host's. OpenSSH leaves them in: strnvis with VIS_SAFE, log.c.
_HOSTS_WORDS = re.compile(
    # Each begins a line: what comes before them, as a host's version, is text of the host too, but of one line.
    # With new keys the host's own key has been accepted: no word about it comes later.
    r"^(?:Received disconnect from |debug1: Remote: |Unable to negotiate with |Bad remote protocol version|"
    r"debug1: Server host certificate: |debug1: (?:expecting )?SSH2_MSG_NEWKEYS)",
    re.M,
)
_DISCONNECTS = re.compile(r"Received disconnect from \S{1,100} port \d{1,5}:\d{1,10}: (.*)")
_LAST_WORDS = re.compile(r"^(?:Received disconnect from |debug1: Remote: )", re.M)
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


def let_in(log: str) -> bool:
    """Whether the login was over when ssh ended."""
    refused = words(log)[-1:] == ["Host key verification failed."]
    return not refused and bool(_LET_IN.search(_before(_LAST_WORDS, log)))


def ended(log: str) -> str:
    """The words with which ssh ended a connection that was open; empty where it did not."""
    lines = words(log)
    return lines[-1] if lines and _ENDED.match(lines[-1]) else ""


def opened_no_session(log: str) -> bool:
    """Whether the server let the user in and opened no session."""
    return bool(_NO_SESSION.search("\n".join(words(log))))


def explain(log: str, at: SshEndpoint, seconds: float, *, of_proxy: str = "") -> Unreachable:
    """The reason why ssh could not connect: from its log with LogLevel DEBUG1, and what a proxy printed."""
    text = "\n".join(words(log))
    # A remedy for a key names a file and removes one: only what no host can have written leads to it.
    own = _before(_HOSTS_WORDS, log)
    return (
        _key_rejected(own, "\n".join(words(own)), at)
        or _certificate_rejected(log, text, at)
        or _login_refused(log, text, at)
        or _not_reached(text, at, seconds, None if "debug1: Remote protocol version" in own else of_proxy)
        or connect_errors.not_ssh(at, _reason(text) or _last_line(text) or "ssh exited without output")
    )


def _before(what: re.Pattern[str], log: str) -> str:
    found = what.search(log)
    return log[: found.start()] if found else log


def _key_rejected(log: str, text: str, at: SshEndpoint) -> Unreachable | None:
    keys = _SERVER_KEY.findall(log)
    shown = keys[-1] if keys else "one that ssh does not show"
    if found := _REVOKED.search(text):
        return connect_errors.revoked_key(at, shown, found[2] or "known_hosts")
    if "IDENTIFICATION HAS CHANGED" in text:
        line = _OFFENDING.search(text)
        return connect_errors.changed_key(at, shown, line[1] if line else "known_hosts")
    if _UNKNOWN.search(text):
        return connect_errors.unknown_key(at, shown)
    return None


def _certificate_rejected(log: str, text: str, at: SshEndpoint) -> Unreachable | None:
    # Its name is text of whoever made it, so that no more than this is known of why.
    if "Server host certificate: " in log and "Host key verification failed" in text:
        return connect_errors.refused_certificate(at)
    return None


def _login_refused(log: str, text: str, at: SshEndpoint) -> Unreachable | None:
    offered = [found.strip() for found in _OFFERED.findall(log)]
    skipped = [f"{found[1]} ({found[2]})" for found in _PASSPHRASE.finditer(text) if found[1]]
    if "Too many authentication failures" in text:
        return connect_errors.too_many_keys(at, offered, skipped)
    if found := _DENIED.search(text):
        if "with partial success" in text:
            return connect_errors.second_factor(at, found[2].replace(",", ", "), offered, skipped)
        if "publickey" not in found[2]:
            return connect_errors.no_keys(at, found[2].replace(",", ", "))
        return connect_errors.auth_refused(at, "no offered key was accepted", offered, skipped)
    return None


def _not_reached(text: str, at: SshEndpoint, seconds: float, of_proxy: str | None) -> Unreachable | None:
    if found := _NO_NAME.search(text):
        return connect_errors.no_name(at, found[2].strip())
    if found := _CONNECT.search(text):
        return _no_connection(at, found[3], seconds)
    proxy = at.jump.where if at.jump else at.proxy_command
    # Where the host has named its version, the way there is well.
    if proxy and of_proxy is not None and (of_proxy or "UNKNOWN port" in text or "Connection closed by remote" in text):
        found = _PROXY.search(of_proxy)
        why = found[1] if found else _last_line(of_proxy) or "it closed the connection"
        return connect_errors.proxy_failed(at, proxy, why[:MAX_LINE].strip())
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


def _reason(text: str) -> str:
    found = _DISCONNECTS.search(text)
    return f"it disconnects: {found[1]}" if found else ""


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
