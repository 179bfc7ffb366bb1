"""The words of a command line before they are parsed: where options may be, and what was meant."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from vllm_cluster.errors import UsageError
from vllm_cluster.text import printable

# Options that every verb takes, before it and behind it.
WITH_VALUE = ("-i", "--inventory", "--color")
# A longer word is cut in a message.
MAX_SHOWN = 80
FLAGS = ("-v", "--verbose", "-q", "--quiet", "--json")

# What other programs call it, by the commands that do it here.
_RUN = ("vcluster up", "vcluster serve MODEL")
_REMOVE = ("vcluster stop", "vcluster down")
_MEANINGS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("restart", "reload", "redeploy", "switch"): ("vcluster serve MODEL", "vcluster up"),
    ("start", "run", "launch", "deploy", "load"): _RUN,
    ("apply", "create", "install", "join", "scale", "upgrade", "update"): ("vcluster plan", "vcluster up"),
    ("kill", "rm", "delete", "remove", "destroy"): _REMOVE,
    ("unload", "pause", "undeploy"): ("vcluster stop",),
    ("teardown", "purge", "clean", "uninstall"): ("vcluster down",),
    ("ps", "ls", "list", "get", "state", "health", "info", "show"): ("vcluster status",),
    ("watch",): ("vcluster status --watch",),
    ("events", "audit", "who"): ("vcluster status --history",),
    ("download", "fetch", "sync", "prefetch"): ("vcluster pull MODEL",),
    ("shell", "attach"): ("vcluster exec HOST", "vcluster exec HOST --ssh"),
    ("benchmark", "measure", "perf", "speed"): ("vcluster bench",),
    ("monitor", "prometheus", "grafana"): ("vcluster metrics", "vcluster dashboard"),
    ("ui", "web"): ("vcluster dashboard",),
    # Without it the nearest is `complete`, which would send the shell's name to the model.
    ("completion", "completions", "autocomplete"): ("vcluster --install-completion",),
    ("log", "tail"): ("vcluster logs", "vcluster explain"),
    ("why", "debug", "diagnose", "troubleshoot"): ("vcluster explain",),
    ("report", "dump", "collect"): ("vcluster explain --bundle FILE",),
    ("diff", "dry-run", "preview"): ("vcluster plan",),
    ("doctor", "verify", "validate", "preflight", "lint", "test"): ("vcluster check",),
    ("connect", "forward", "port-forward", "proxy", "open"): ("vcluster endpoint", "vcluster endpoint --tunnel"),
    ("rotate", "rotate-key"): ("vcluster endpoint --rotate",),
    ("url", "env", "openai", "client"): ("vcluster endpoint",),
    ("ask", "prompt", "generate", "query"): ("vcluster chat", "vcluster complete PROMPT"),
    ("token", "password", "secret", "auth", "api-key", "login"): ("vcluster endpoint --key",),
    ("hosts", "nodes", "gpus", "describe", "inspect", "hardware"): ("vcluster check --facts",),
    ("estimate", "size", "memory", "plan-memory"): ("vcluster fit MODEL",),
    ("new", "config", "configure", "setup"): ("vcluster init",),
    ("man",): ("vcluster --help",),
    ("version",): ("vcluster --version",),
}
# What no flag of vLLM is, though it may be typed behind a model; MODEL is the one that was given.
_INSTEAD: Mapping[tuple[str, ...], str] = {
    ("--dry-run", "--check", "--plan", "--fit"): "vcluster fit MODEL\nvcluster plan",
    (
        "--detach",
        "-d",
        "--background",
        "--no-wait",
    ): "press Ctrl-C once it starts: the start continues on the head\nvcluster status",
    ("--image",): "set image in the inventory\nvcluster up",
    ("--env", "-e", "--environment"): "set environment in the inventory\nvcluster up",
    ("--gpus", "--gpu"): "use --tp and --pp; the inventory has the GPUs of each host",
    ("--nodes", "--nnodes", "--num-nodes"): "use --hosts, with the names of the hosts",
}
_INSTEAD_BY_NAME = {name: instead for names, instead in _INSTEAD.items() for name in names}
_BY_WORD = {word: commands for words, commands in _MEANINGS.items() for word in words}


def options_last(words: Sequence[str]) -> list[str]:
    """The words with the common options that come before the verb behind it."""
    moved: list[str] = []
    kept: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        width = _common(rest[0])
        (moved if width else kept).extend(rest[: width or 1])
        del rest[: width or 1]
    if not rest:
        return [*kept, *moved]
    return [*kept, rest[0], *moved, *rest[1:]]


def _common(word: str) -> int:
    """How many words a common option takes; 0 where this is none."""
    if word in WITH_VALUE:
        return 2
    together = len(word) > 1 and word[1] != "-" and not word[1:].strip("vq")
    attached = word.startswith(("--inventory=", "--color=")) or (word.startswith("-i") and not word.startswith("--"))
    return int(word in FLAGS or together or attached)


def meant(word: str, verbs: Sequence[str], rest: Sequence[str] = ()) -> tuple[str, ...]:
    """Commands that a verb which does not exist may have meant; a misspelt one has the rest of its words."""
    lowered = word.lower()
    if lowered in _BY_WORD:
        return _BY_WORD[lowered]
    close = difflib.get_close_matches(lowered, [*verbs, *_BY_WORD], n=1, cutoff=0.7)
    return tuple(shlex.join(["vcluster", name, *rest]) if name in verbs else _BY_WORD[name][0] for name in close)


@dataclass
class Sorted:
    """The words of a verb: arguments, known options with their values, and what follows `--`; and unknown options.

    A word behind an unknown option is taken for its value.
    """

    arguments: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)


def sort(words: Sequence[str], flags: Sequence[str], with_value: Sequence[str]) -> Sorted:
    """Sort the words behind a verb that has these options."""
    found = Sorted()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name = word.split("=", 1)[0]
        if word == "--":
            found.after = rest
            break
        if not word.startswith("-") or len(word) == 1:
            found.arguments.append(word)
        elif name in with_value:
            found.options += [word, *([rest.pop(0)] if "=" not in word and rest else [])]
        elif name in flags or _short(word, flags, with_value):
            found.options.append(word)
        else:
            found.names.append(name)
            found.unknown.append(word)
            while "=" not in word and rest and not rest[0].startswith("-"):
                found.unknown.append(rest.pop(0))
    return found


def _short(word: str, flags: Sequence[str], with_value: Sequence[str]) -> bool:
    """Whether this is known short options together, or one with its value: -vv, -yv, -iFILE."""
    if word.startswith("--") or len(word) < 3:
        return False
    return word[:2] in with_value or all(f"-{letter}" in flags for letter in word[1:])


def ensure_dashes(path: str, words: Sequence[str], with_value: Sequence[str], places: int) -> None:
    """Refuse a command for elsewhere with options that this verb would take; `places` arguments precede the command.

    Raises:
        UsageError: an option follows the first word of the command, and no `--` precedes it.
    """
    if "--" in words:
        return
    at = 0
    while at < len(words):
        if words[at].startswith("-"):
            # They are in place of the host.
            places -= words[at] in ("--head", "--all")
            at += words[at] in with_value
        elif places > 0:
            places -= 1
        else:
            break
        at += 1
    option = next((word for word in words[at + 1 :] if word.startswith("-") and word != "-"), None)
    if option:
        text = f"{shown(option)} follows {shown(words[at])}: options of a command come after --"
        raise UsageError(text, hint=shlex.join([*path.split(), *words[:at], "--", *words[at:]]))


def misplaced(verb: str, given: Sorted, what: str) -> UsageError:
    """The error for unknown options: flags of vLLM follow `--`, for others it names what to use."""
    from vllm_cluster.backends.vllm import instead

    remedies = {name: _INSTEAD_BY_NAME.get(name) or instead(name) for name in given.names}
    lines = [remedy for remedy in dict.fromkeys(remedies.values()) if remedy]
    known = {name for name, remedy in remedies.items() if remedy}
    model = _argument(given)
    rest = replace(given, arguments=[model], unknown=_without(given.unknown, {*known, model}))
    if known != set(given.names):
        what += ": flags of vLLM come after --"
        lines.append(behind_dashes(verb, rest))
    return UsageError(what, hint="\n".join(lines).replace("MODEL", model))


def of_one(verb: str, given: Sorted) -> str:
    """The command with the first of several arguments alone."""
    behind = ["--", *given.after] if given.after else []
    return shlex.join(["vcluster", verb, given.arguments[0], *given.options, *behind])


def _without(unknown: Sequence[str], names: set[str]) -> list[str]:
    """The unknown words without these, and without the values of these options."""
    kept: list[str] = []
    dropped = False
    for word in unknown:
        dropped = word.split("=", 1)[0] in names or (dropped and not word.startswith("-"))
        kept += [] if dropped else [word]
    return kept


def _argument(given: Sorted) -> str:
    """The one argument; an option that takes no value may have swallowed it: a repository has a slash in its name."""
    values = [word for word in given.unknown if not word.startswith("-")]
    return next(iter([*given.arguments, *(word for word in values if "/" in word), *values[-1:]]), "MODEL")


def behind_dashes(verb: str, given: Sorted) -> str:
    """The command of a verb with one argument in which what it does not know follows `--`, for vLLM."""
    return shlex.join(["vcluster", verb, *given.arguments, *given.options, "--", *given.unknown, *given.after])


def inventory_option(words: Sequence[str]) -> str:
    """The inventory that these words name, as an option to paste behind another command; empty where they name none."""
    for at, word in enumerate(words):
        if word == "--":
            break
        if word in ("-i", "--inventory") and at + 1 < len(words):
            return f" -i {shlex.quote(words[at + 1])}"
        if word.startswith("--inventory="):
            return f" -i {shlex.quote(word.partition('=')[2])}"
    return ""


def closest(names: Sequence[str], known: Sequence[str], cutoff: float) -> dict[str, str]:
    """For each of these names the option that begins with its words, or is nearest to it, where one is near."""
    near = {
        name: [one for one in known if one.startswith(f"{name}-")]
        or difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
        for name in names
    }
    return {name: found[0] for name, found in near.items() if found}


def corrected(words: Sequence[str], near: Mapping[str, str]) -> str:
    """The command with other options in place of those that it does not have."""
    pairs = (word.partition("=") for word in words)
    return shlex.join(near.get(name, name) + sign + value for name, sign, value in pairs)


def shown(word: str) -> str:
    """A word of the command line as a message shows it."""
    word = printable(word)
    return word if len(word) <= MAX_SHOWN else word[:MAX_SHOWN] + "…"
