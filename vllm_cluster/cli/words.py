"""The words of a command line before they are parsed: where options may be, and what was meant."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_cluster.cli import removed
from vllm_cluster.cli.help import VLLM_FLAGS
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
    near = _nearest(lowered, [*verbs, *_BY_WORD], 0.7)
    return (shlex.join(["vcluster", near, *rest]),) if near in verbs else _BY_WORD.get(near, ())[:1]


def unknown(ctx: Any, given: Sequence[str], option: str) -> UsageError:
    """The error for an option that a verb does not have, given these words behind it."""
    path, near = ctx.command_path, _near(ctx, option)
    removed.refuse(path, [option])
    what = f"{path} has no option {shown(option)}"
    if not near:
        return UsageError(what, hint=f"{path} --help")
    words = [near + word.removeprefix(option) if word.partition("=")[0] == option else word for word in given]
    return UsageError(f"{what} (did you mean {near}?)", hint=f"{shlex.join([*path.split(), *words])}\n{path} --help")


def ensure_dashes(ctx: Any, given: Sequence[str], habits: Sequence[str]) -> None:
    """Refuse words for another program that do not follow `--`: some would be taken for options of this one.

    Raises:
        UsageError: there are such words; the hint is the command with them in their place.
    """
    end = given.index("--") if "--" in given else len(given)
    own, others, arguments = _split(ctx, given[:end], habits)
    if not others:
        return
    path, other, word = ctx.command_path, _other(ctx), others[0].partition("=")[0]
    is_option = word.startswith("-")
    error = unknown(ctx, given, word)
    if is_option and _near(ctx, word):
        raise error
    if other == VLLM_FLAGS:
        _refuse_for_vllm(path, word, arguments)
        own = own if arguments else ["MODEL", *own]
    what = error.message if is_option else shown(word)
    line = shlex.join([*path.split(), *own, "--", *others, *given[end + 1 :]])
    rule = "flags of vLLM come" if other == VLLM_FLAGS else "a command comes"
    raise UsageError(f"{what}: {rule} after --", hint=line)


def _refuse_for_vllm(path: str, word: str, arguments: Sequence[str]) -> None:
    """Refuse a word that vLLM does not know, though it may be typed behind a model."""
    from vllm_cluster.backends.vllm import instead

    if not word.startswith("-"):
        raise UsageError(f"{path} takes one MODEL, got {shown(word)} too", hint=f"{path} {shlex.quote(arguments[0])}")
    remedy = _INSTEAD_BY_NAME.get(word) or instead(word)
    if remedy:
        model = next(iter(arguments), "MODEL")
        raise UsageError(f"{path} has no option {shown(word)}", hint=remedy.replace("MODEL", model))


def _other(ctx: Any) -> str:
    """What a verb takes behind `--`, as its help names it; empty where it takes nothing."""
    names = (str(one.metavar) for one in ctx.command.params)
    return next((name for name in names if name.startswith("-- ")), "")


def _near(ctx: Any, option: str) -> str:
    """The option of a verb that was probably meant; empty where none is near."""
    known = [name for one in ctx.command.get_params(ctx) for name in (*one.opts, *one.secondary_opts)]
    # vLLM has hundreds of flags: only what differs in a letter is taken for an option of this program.
    return _nearest(option, known, 0.88 if _other(ctx) == VLLM_FLAGS else 0.7)


def _split(ctx: Any, given: Sequence[str], habits: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """The words that are for this program, those that are for another one, and the arguments among the first."""
    params = ctx.command.get_params(ctx)
    places = sum(one.param_type_name == "argument" for one in params) - 1
    options = [one for one in params if one.param_type_name == "option"]
    valued = {name: not (one.is_flag or one.count) for one in options for name in (*one.opts, *one.secondary_opts)}
    own: list[str] = []
    others: list[str] = []
    arguments: list[str] = []
    rest, into = list(given), own
    while rest:
        word = rest.pop(0)
        name = word.partition("=")[0]
        if word.startswith("-") and len(word) > 1:
            together = not word.startswith("--") and word[:2] in valued
            into = own if name in valued or together or word in habits else others
            into.append(word)
            if valued.get(word) and rest:
                own.append(rest.pop(0))
            # They are in place of the host.
            places -= word in ("--head", "--all")
        elif len(arguments) < places and (into is own or "/" in word):
            # An option of vLLM that takes no value does not swallow the model, which has a slash in its name.
            arguments.append(word)
            own.append(word)
        elif into is own:
            return own, [*others, word, *rest], arguments
        else:
            others.append(word)
    return own, others, arguments


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


def _nearest(word: str, known: Sequence[str], cutoff: float) -> str:
    """Of these the one that begins with the word, or is nearest to it; empty where none is near."""
    begun = [one for one in known if one.startswith(f"{word}-")]
    return next(iter(begun or difflib.get_close_matches(word, known, n=1, cutoff=cutoff)), "")


def shown(word: str) -> str:
    """A word of the command line as a message shows it."""
    word = printable(word)
    return word if len(word) <= MAX_SHOWN else word[:MAX_SHOWN] + "…"
