"""The words of a call as its parser reads them, and the call that a person may have meant by them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vllm_cluster.kernel.shell_line import command_line, typed_words
from vllm_cluster.kernel.terminal.settings import SETTINGS, Known

CONSENT, INVENTORY = ("--yes", "-y"), ("--inventory", "-i")


def guessed(*words: str) -> str:
    """Return the line of a call with another word than was typed.

    Without its consent, which was to what was typed.
    """
    end = words.index("--") if "--" in words else len(words)
    parsed = as_parsed(words[:end], known_options())
    # By its word too: a verb that has no such option is refused for it, and the guess is of another verb.
    own = [word for name, typed in parsed if not {name, typed[0]} & {*CONSENT} for word in typed]
    return command_line(*typed_words([*own, *words[end:]]))


def known_options() -> Known:
    """The options of the verb that was called, or where there is none what nearly all have."""
    known, flags = SETTINGS.known, (*CONSENT, *INVENTORY, "-q", "-v")
    return known if known.same else Known({name: (name,) for name in flags}, INVENTORY)


def as_parsed(words: Sequence[str], known: Known) -> Iterator[tuple[str, list[str]]]:
    """The words of a call as its parser reads them: the name of each option with its words, other words without one."""
    left = list(words)
    while left:
        word = left.pop(0)
        # -yp9 is -y -p 9
        while len(word) > 2 and word[1] != "-" and word[:2] in known.same and word[:2] not in known.valued:
            yield word[:2], [word[:2]]
            word = f"-{word[2:]}"
        name = word[:2] if word[:2] in known.same else word.partition("=")[0]
        value = name in known.valued and word == name and left and not (name in known.bare and left[0].startswith("-"))
        yield (name if name in known.same else ""), [word, left.pop(0)] if value else [word]
