"""The words of a command line before they are parsed: where options may be, and what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.shell_line import command_line
from vllm_cluster.kernel.terminal import help, removed
from vllm_cluster.kernel.terminal.typed import guessed
from vllm_cluster.kernel.text import printable

# Options with a value that every verb takes, before it and behind it.
WITH_VALUE = ("-i", "--inventory", "--color")
Words = str | Sequence[str] | None
# A longer word is cut in a message.
MAX_SHOWN = 80
# What other programs call it.
MEANINGS = {
    "start": "vcluster up\nvcluster serve MODEL",
    "run": "vcluster serve MODEL",
    "restart": "vcluster serve MODEL\nvcluster up",
    "apply": "vcluster up",
    "kill": "vcluster stop\nvcluster down",
    "rm": "vcluster stop\nvcluster down",
    "delete": "vcluster stop\nvcluster down",
    "ps": "vcluster status",
    "ls": "vcluster status",
    "download": "vcluster pull MODEL",
    "shell": "vcluster exec --head",
    "completion": "vcluster --install-completion",
    "version": "vcluster --version",
}

# And what they call a verb of a group.
SAME = {"cancel": "stop", "scancel": "stop", "kill": "stop", "delete": "stop"}


def options_last(words: Sequence[str]) -> list[str]:
    """The words with the options that come before the verb behind it; as they are where there is no verb."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        at += 2 if words[at] in WITH_VALUE else 1
    return [*words[at : at + 1], *words[:at], *words[at + 1 :]]


def with_values(given: Sequence[str], bare: Mapping[str, str]) -> list[str]:
    """The words, in which an option that was given without its value has the one that is meant then."""
    made: list[str] = []
    for word, following in zip(given, [*given[1:], "-"], strict=False):
        made += [word, bare[word]] if word in bare and following.startswith("-") else [word]
    return made


def meant(word: str, verbs: Iterable[str], rest: Sequence[str]) -> str:
    """Commands that a verb which does not exist may have meant; a misspelt one has the rest of its words."""
    lowered = word.lower()
    if lowered in MEANINGS:
        return MEANINGS[lowered]
    near = _nearest(lowered, verbs, 0.7)
    return guessed("vcluster", near, *rest) if near else ""


def misspelt(word: str, verbs: Iterable[str]) -> str:
    """The verb that a word may be a slip of, or another name for, where it is none itself; empty where it is none."""
    known, same = [*verbs], SAME.get(word.lower(), "")
    return same if same in known else _nearest(word, known, 0.7)


class Called(NamedTuple):
    """A verb as it was called: its parameters, and those options that may be typed without their value."""

    path: str
    params: Sequence[help.Parameter]
    bare: Container[str]


def unknown_option(called: Called, given: Sequence[str], option: str) -> UsageError:
    """The error for an option that a verb does not have, given these words behind it."""
    path, near = called.path, _near(called.params, option)
    removed.refuse_removed(path, option, given, called.bare)
    what = f"{path} has no option {quote_word(option)}"
    if not near:
        return UsageError(what, hint=f"{path} --help")
    words = [near + word.removeprefix(option) if word.partition("=")[0] == option else word for word in given]
    return UsageError(f"{what} (did you mean {near}?)", hint=f"{guessed(*path.split(), *words)}\n{path} --help")


def ensure_dashes(called: Called, values: Mapping[str, Words], given: Sequence[str], *, for_vllm: bool) -> None:
    """Refuse words for another program, vLLM or a command, that do not follow `--`; `values` are those of parameters.

    Raises:
        UsageError: there are such words; the hint is the command with them in their place.
    """
    end = given.index("--") if "--" in given else len(given)
    own, path = list(given[:end]), called.path
    arguments = [values[str(one.name)] for one in called.params if one.param_type_name == "argument"]
    words = [word for one in arguments for word in ([one] if isinstance(one, str) else one or ())]
    # Each is in the place of the host.
    places = len(arguments) - 1 - ("--" not in given and ("--head" in own or "--all" in own))
    named = [word for word in words[:places] if not word.startswith("-")]
    others = words[len(named) :]
    if not others:
        return
    word = others[0].partition("=")[0]
    error = unknown_option(called, own, word) if word.startswith("-") else UsageError(quote_word(word))
    # A flag that vLLM has, and that this program sets, is not a misspelt one of it.
    if error.message.endswith("?)") and not (for_vllm and _set_here(word)):
        raise error
    if for_vllm:
        _refuse_for_vllm(path, word, named)
        # An option of vLLM that takes no value does not swallow the model, which has a slash in its name.
        named = named or [word for word in others if "/" in word][:1]
        others = [word for word in others if word not in named]
        at = 0
        for one in others:
            if one in own[at:]:
                at = own.index(one, at)
                del own[at]
        own = own if named else ["MODEL", *own]
    else:
        at = own.index(others[0]) if others[0] in own else len(own)
        own, others = own[:at], own[at:]
    rule = "flags of vLLM come" if for_vllm else "a command comes"
    line = guessed(*path.split(), *own, "--", *others, *given[end + 1 :])
    text = f"{error.message}: {rule} after --"
    if named_at := [place for place in range(len(others)) if _names_inventory(others[place:])]:
        first = named_at[0]
        size = 1 if "=" in others[first] else 2
        text += f"; {others[first]} before it names the inventory, behind it it is the command's"
        mine, behind = others[first : first + size], [*others[:first], *others[first + size :]]
        served = guessed(*path.split(), *own, *mine, "--", *behind, *given[end + 1 :])
        line = f"{served}\n{line}"
    raise UsageError(text, hint=line)


def _names_inventory(words: Sequence[str]) -> bool:
    """Whether words for another program may begin with the option for an inventory: grep has an -i of its own."""
    name, equals, file = words[0].partition("=")
    file = file if equals else " ".join(words[1:2])
    return name in ("-i", "--inventory") and file.endswith((".yaml", ".yml"))


def _refuse_for_vllm(path: str, word: str, named: Sequence[str]) -> None:
    """Refuse a word that vLLM does not know, though it may be typed behind a model."""
    if not word.startswith("-"):
        raise UsageError(
            f"{path} takes one MODEL, got {quote_word(word)} too", hint=command_line(*path.split(), named[0])
        )
    if remedy := _set_here(word):
        raise UsageError(f"{path} has no option {quote_word(word)}", hint=remedy)


def _set_here(word: str) -> str | None:
    """What to use in place of a flag of vLLM; None for one that this program does not set."""
    from vllm_cluster.kernel.backends.vllm import instead

    return instead(word)


def _near(params: Sequence[help.Parameter], option: str) -> str:
    """The option of a verb that was probably meant; empty where none is near."""
    known = [name for one in params for name in (*one.opts, *one.secondary_opts)]
    # vLLM has hundreds of flags: only what differs in a letter is taken for an option of this program.
    for_vllm = any(one.metavar == help.VLLM_FLAGS for one in params)
    return _nearest(option, known, 0.88 if for_vllm else 0.7)


def _nearest(word: str, known: Iterable[str], cutoff: float) -> str:
    """Of these its plural, the one that begins with the word, or is nearest to it; empty where none is near."""
    known = list(known)
    begun = [one for one in known if one == f"{word}s"] or [one for one in known if one.startswith(f"{word}-")]
    return next(iter(begun or difflib.get_close_matches(word, known, n=1, cutoff=cutoff)), "")


def quote_word(word: str) -> str:
    """A word of the command line as a message shows it."""
    word = printable(word)
    return word if len(word) <= MAX_SHOWN else word[:MAX_SHOWN] + "…"
