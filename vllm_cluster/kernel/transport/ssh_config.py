"""The endpoint and options of a host by ssh_config, as `ssh -G` prints them."""

from __future__ import annotations

import errno
import fnmatch
import glob
import hashlib
import json
import os
import re
import shlex
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.laptop import expanded, read_given
from vllm_cluster.kernel.shell_line import command_line, typed_words
from vllm_cluster.kernel.transport.base import Target

Run = Callable[..., subprocess.CompletedProcess[bytes]]
Words = Mapping[str, list[str]]

ASK_SECONDS = 10.0
MAX_HOPS = 8
# Of 10,000 hosts with ten lines each.
MAX_CONFIG = 4 << 20
# Of files that include files, as ssh has it.
MAX_INCLUDES = 16
# Of files that one pattern finds: a list of all files of a machine took 190 MB.
MAX_INCLUDED = 10_000
# Of a line with quotes.
MAX_QUOTED = 64 << 10
_QUOTED = re.compile(r"""['"\\]""")
DEFAULT_PORT = 22
# These could become options of ssh, or commands where a ProxyCommand or a Match exec quotes them badly.
_BAD_HOST = re.compile(r"""^-|[\s\0-\x1f\x7f'"`$\\;&<>|(){}]|^$""")
_BAD_USER = re.compile(r"""^-|[\s\0-\x1f\x7f'"`;&<>|(){}]|\\$|^$""")
_TOKEN = re.compile(r"%(.)")
_PROXY_TOKENS = ("%%", "%h", "%k", "%n", "%p", "%r")
# What keeps a session from running a command with its input; `ssh -G` shows whether this ssh knows them (8.7).
_SESSION = ("SessionType=default", "StdinNull=no", "ForkAfterAuthentication=no")
# Words that restrict a connection and that ssh alone honours, and with which values they do.
_ONLY_SSH: Mapping[str, Callable[[str], bool]] = {
    "RevokedHostKeys": lambda value: value != "none",
    # It may revoke a key, and ssh connects to no host for which it fails.
    "KnownHostsCommand": lambda value: value != "none",
    "PubkeyAuthentication": lambda value: value in ("no", "false"),
    "PreferredAuthentications": lambda value: "publickey" not in value.split(","),
    "BindInterface": lambda _: True,
}
# Lists of what may be agreed on with a host, and what older versions of ssh call them.
_ALGORITHMS = {
    "Ciphers": (),
    "MACs": (),
    "KexAlgorithms": (),
    "HostKeyAlgorithms": (),
    "PubkeyAcceptedAlgorithms": ("PubkeyAcceptedKeyTypes",),
}
# ssh takes no shorter key, also where RequiredRSASize is lower.
MIN_RSA_BITS = 1024


@dataclass(frozen=True)
class SshEndpoint:
    """Where a host is and what proves who is who, after ssh_config has spoken."""

    name: str
    destination: str
    host: str
    port: int
    user: str
    identities: tuple[Path, ...] = ()
    identities_only: bool = False
    agent: Path | None = None
    known_hosts: tuple[Path, ...] = ()
    # Lists of the whole machine: they are read, and never written.
    global_known_hosts: tuple[Path, ...] = ()
    host_key_alias: str | None = None
    accept_new_keys: bool = False
    hash_known_hosts: bool = False
    # A word of ssh_config that Fabric cannot honour, with its value.
    only_ssh: str | None = None
    # What ssh would agree on, as `ssh -G` lists it: text that hosts share, split where it is used.
    algorithms: tuple[tuple[str, str], ...] = ()
    rsa_bits: int = MIN_RSA_BITS
    address_family: str = "any"
    bind_address: str | None = None
    proxy_command: str | None = None
    jump: SshEndpoint | None = None
    # What undoes ssh_config's words about the session, as far as this ssh knows them.
    session: tuple[str, ...] = ()
    # How the inventory asks ssh for this host, for commands that people paste.
    options: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The host's address for error messages."""
        return f"{self.user}@{self.host}:{self.port}"

    @property
    def machine(self) -> str:
        """Which machine this is, by where SSH leads and not by the names for it: to be noted, and compared."""
        way, at = list[tuple[str, str, str]](), self
        while True:
            way.append((at.where, at.host_key_alias or "", expand(at.proxy_command or "", at)))
            if at.jump is None:
                return json.dumps(way)
            at = at.jump


def known_name(at: SshEndpoint) -> str:
    """The name under which known_hosts keeps a host."""
    return at.host_key_alias or (at.host if at.port == DEFAULT_PORT else f"[{at.host}]:{at.port}")


def ensure_safe_names(target: Target) -> None:
    """Refuse names that a shell or ssh could take for something else."""
    _refuse(_BAD_HOST, target.destination, f"{target.name}: ssh destination")
    if target.user is not None:
        _refuse(_BAD_USER, target.user, f"{target.name}: ssh user")
    for hop in hops(target.jump):
        _refuse(_BAD_HOST, hop, f"{target.name}: jump host")


def ask_ssh_config(target: Target, run: Run = subprocess.run) -> dict[str, list[str]]:
    """The options for a host as `ssh -G` resolves them, Include and Match among them."""
    return ask_ssh(target, run)[0]


def ask_ssh(target: Target, run: Run, *flags: str) -> tuple[dict[str, list[str]], str]:
    """What `ssh -G` prints, and its standard error."""
    argv = ["ssh", "-G", *flags, *ssh_options(target), "--", target.destination]
    try:
        done = run(argv, capture_output=True, timeout=ASK_SECONDS, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise UsageError("the ssh command is not installed here", hint="install the OpenSSH client") from None
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"{target.name}: `{shlex.join(argv)}` did not answer within {ASK_SECONDS:.0f} s",
            hint="look for a Match exec in ssh_config that hangs",
        ) from None
    errors = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode:
        text = "\n".join(line for line in errors.splitlines() if not line.startswith(("debug1: ", "OpenSSH_")))
        raise UsageError(
            f"{target.name}: ssh refuses its configuration: {text}", hint=f"try: {command_line(*typed_words(argv))}"
        )
    words: dict[str, list[str]] = {}
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        key, _, value = line.partition(" ")
        words.setdefault(key.lower(), []).append(value)
    return words, errors


def ssh_options(target: Target) -> list[str]:
    """The inventory's words about a host as options of ssh."""
    options = []
    for flag, value in (
        ("-F", target.config),
        ("-l", target.user),
        ("-p", target.port),
        ("-i", target.identity and expanded(target.identity)),
        ("-J", target.jump),
    ):
        if value is not None:
            options += [flag, str(value)]
    return options


def resolve_endpoint(target: Target, ask: Callable[[Target], Words] = ask_ssh_config) -> SshEndpoint:
    """Everything needed to connect to a host, its jump hosts included."""
    return _resolve(target, ask, ())


def hosts_matching(config: Path | None, pattern: str) -> list[str]:
    """The hosts that an ssh_config file (the user's own by default) names and that match a pattern."""
    start = config if config is not None else expanded("~/.ssh/config")
    if not start.is_file():
        raise UsageError(f"there is no ssh_config at {start}", hint="vcluster init --host NAME=ADDRESS")
    names = (name for name in _host_names(start, set()) if not re.search(r"[*?!]", name))
    return list(dict.fromkeys(name for name in names if fnmatch.fnmatchcase(name, pattern)))


def expand(text: str, resolved: SshEndpoint) -> str:
    """Replace the tokens of a ProxyCommand, such as %h.

    Raises:
        UsageError: it has one that ssh refuses there.
    """
    for token in re.findall(r"%.?", text, re.DOTALL):
        if token not in _PROXY_TOKENS:
            raise UsageError(
                f"{resolved.name}: ssh refuses ProxyCommand {text!r}: unknown key {token}",
                hint="use %h, %k, %n, %p and %r alone in it, and %% for a %",
            )
    name = resolved.host_key_alias or resolved.destination
    return _expand(text, resolved.destination, resolved.host, resolved.port, resolved.user, known_as=name)


def _resolve(target: Target, ask: Callable[[Target], Words], seen: tuple[str, ...]) -> SshEndpoint:
    ensure_safe_names(target)
    words = ask(target)
    resolved = _from_words(target, words)
    # The name and not the address: behind a bastion another host may well be called localhost again.
    place = f"{target.destination} (by {target.jump})" if target.jump else target.destination
    if place in seen or len(seen) >= MAX_HOPS:
        raise UsageError(
            f"{target.name}: the jump hosts lead in a circle: {' → '.join((*seen, place))}",
            hint="give the jump host ProxyJump none in ssh_config",
        )
    through = hops(_one(words, "proxyjump"))
    if not through:
        # Before anything runs: one that ssh refuses is refused here.
        expand(resolved.proxy_command or "", resolved)
        return resolved
    # As in ssh: the last hop is reached through those before it; the first by what ssh_config has for it.
    hop = Target(
        name=target.name,
        destination=through[-1],
        jump=",".join(through[:-1]) or None,
        config=target.config,
        accept_new_keys=target.accept_new_keys,
    )
    if "://" not in hop.destination and re.search(r"[^:\]]:\d+$|\]:\d+$", hop.destination):
        hop = replace(hop, destination=f"ssh://{hop.destination}")
    return replace(resolved, jump=_resolve(hop, ask, (*seen, place)), proxy_command=None)


def _from_words(target: Target, words: Words) -> SshEndpoint:
    host, user = _one(words, "hostname") or target.destination, _one(words, "user") or ""
    port = int(_one(words, "port") or DEFAULT_PORT)
    _refuse(_BAD_HOST, host, f"{target.name}: HostName")
    _refuse(_BAD_USER, user, f"{target.name}: User")

    alias = _one(words, "hostkeyalias") or target.destination

    def paths(key: str) -> tuple[Path, ...]:
        # Of these, only known_hosts may have several paths on a line.
        values = [value for line in words.get(key, []) for value in (_files(line) if "known" in key else [line])]
        named = (value for value in values if value != "none")
        filled = (_expand(value, target.destination, host, port, user, known_as=alias) for value in named)
        return tuple(dict.fromkeys(expanded(value) for value in filled))

    return SshEndpoint(
        name=target.name,
        destination=target.destination,
        host=host,
        port=port,
        user=user,
        identities=paths("identityfile"),
        identities_only=_one(words, "identitiesonly") == "yes",
        agent=_agent(words.get("identityagent", ["SSH_AUTH_SOCK"])[0], paths("identityagent")),
        known_hosts=paths("userknownhostsfile"),
        global_known_hosts=paths("globalknownhostsfile"),
        host_key_alias=_one(words, "hostkeyalias"),
        accept_new_keys=target.accept_new_keys
        or _one(words, "stricthostkeychecking") in ("no", "off", "false", "accept-new"),
        hash_known_hosts=_one(words, "hashknownhosts") == "yes",
        only_ssh=_only_ssh(words),
        algorithms=tuple(_algorithms(words)),
        rsa_bits=max(MIN_RSA_BITS, int(_one(words, "requiredrsasize") or 0)),
        address_family=_one(words, "addressfamily") or "any",
        bind_address=_one(words, "bindaddress"),
        proxy_command=_one(words, "proxycommand"),
        session=tuple(word for word in _SESSION if word.partition("=")[0].lower() in words),
        options=tuple(ssh_options(target)),
    )


def _only_ssh(words: Words) -> str | None:
    for word, restricts in _ONLY_SSH.items():
        for value in words.get(word.lower(), []):
            if restricts(value):
                return f"{word} {value}"
    return None


def _algorithms(words: Words) -> Iterator[tuple[str, str]]:
    for word, older in _ALGORITHMS.items():
        for name in (word, *older):
            yield from ((word, line) for line in words.get(name.lower(), []))


def _agent(word: str, paths: tuple[Path, ...]) -> Path | None:
    if word == "SSH_AUTH_SOCK":
        variable = word
    elif word.startswith("$"):
        variable = word[1:].strip("{}")
    else:
        return paths[0] if paths else None
    value = os.environ.get(variable)
    return Path(value) if value else None


def _one(words: Words, key: str) -> str | None:
    value = words.get(key, [""])[0]
    return value if value and value != "none" else None


def hops(jump: str | None) -> list[str]:
    """The jump hosts that a ProxyJump lists, the one next to this machine first."""
    return [] if jump is None or jump == "none" else jump.split(",")


def _files(line: str) -> list[str]:
    """The paths on a line of `ssh -G`, which quotes none: a word that begins no path is the rest of the one before."""
    return re.split(r" (?=[/~%$]|none\b)", line)


def config_lines(file: Path) -> Iterator[tuple[str, list[str]]]:
    """The lines of an ssh_config, each as its key in small letters and the words behind it.

    Raises:
        OSError: it cannot be read, or is none by its size.
    """
    raw = read_given(file, MAX_CONFIG + 1)
    if len(raw) > MAX_CONFIG:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(file))
    for line in raw.decode("utf-8", "replace").splitlines():
        key, *rest = re.split(r"\s*=\s*|\s+", line.strip(), maxsplit=1)
        if key and not key.startswith("#"):
            yield key.lower(), _split("".join(rest))


def _split(line: str) -> list[str]:
    # shlex reads a character at a time: 100,000 hosts took 12 s, and one word of 900 kB as long.
    if len(line) > MAX_QUOTED or not _QUOTED.search(line):
        return line.split()
    try:
        return shlex.split(line)
    except ValueError:
        return [line]


def _refuse(bad: re.Pattern[str], text: str, what: str) -> None:
    if bad.search(text):
        raise UsageError(f"{what} {text!r} is not a name that ssh may be given", hint="use letters, digits and . - _")


def _expand(text: str, destination: str, host: str, port: int, user: str, *, known_as: str) -> str:
    here = socket.gethostname()
    values = {
        "%": "%",
        "h": host,
        "p": str(port),
        "r": user,
        "n": destination,
        "k": known_as,
        "d": str(expanded("~")),
        "u": os.environ.get("USER", ""),
        "i": str(os.getuid()),
        "l": here,
        "L": here.split(".", maxsplit=1)[0],
        "C": hashlib.sha1(f"{here}{host}{port}{user}".encode(), usedforsecurity=False).hexdigest(),
    }
    return _TOKEN.sub(lambda found: values.get(found[1], found[0]), text)


def _host_names(file: Path, seen: set[Path], depth: int = 0) -> Iterator[str]:
    # Once each: files that include each other have more ways than anybody waits for.
    if file in seen or depth > MAX_INCLUDES:
        return
    seen.add(file)
    try:
        lines = list(config_lines(file))
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}", hint=command_line("stat", str(file))) from None
    for key, words in lines:
        if key == "host":
            yield from words
        elif key == "include":
            for word in words:
                for path in _included(expanded("~/.ssh") / expanded(word)):
                    yield from _host_names(path, seen, depth + 1)


def _included(pattern: Path) -> list[Path]:
    """The files that an Include finds; a relative one lies in ~/.ssh, wherever the including file is."""
    found = list(islice(glob.iglob(str(pattern)), MAX_INCLUDED + 1))  # noqa: PTH207 - Path.glob takes no absolute one
    if len(found) > MAX_INCLUDED:
        raise UsageError(
            f"Include {pattern} finds more than {MAX_INCLUDED} files", hint="name them more narrowly in ssh_config"
        )
    # A pattern also finds folders, and links that lead nowhere: ssh passes them over.
    return [path for path in map(Path, sorted(found)) if path.exists() and not path.is_dir()]
