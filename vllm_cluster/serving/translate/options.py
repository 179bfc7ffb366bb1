"""vLLM's words as what serves here: taken over, dropped with the reason, or handed on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from vllm_cluster.kernel.backends import switches, vllm
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.inventory.container import steered_by
from vllm_cluster.kernel.text import count, printable, redact
from vllm_cluster.serving.translate.found import ServeWords
from vllm_cluster.serving.translate.reading import Reading
from vllm_cluster.serving.translate.words import ShellWord, shown
from vllm_cluster.wire.values import served_name

MAX_DEGREE = 1 << 16
Kind = Literal["chosen", "taken", "dropped", "passed", "variable"]

_RANKS = "vcluster starts the ranks on every host"
_LAYOUT = "follows from the hosts and --dp"
_BALANCED = "one endpoint shares the requests among the engines"
_DROPPED = {
    **dict.fromkeys(("--nnodes", "--node-rank", "--master-addr", "--master-port", "--headless"), _RANKS),
    "--distributed-executor-backend": "the inventory's backend joins the hosts; --backend chooses another",
    "--data-parallel-size-local": _LAYOUT,
    "--data-parallel-rank": _LAYOUT,
    "--data-parallel-start-rank": _LAYOUT,
    "--data-parallel-address": _LAYOUT,
    "--data-parallel-rpc-port": "ports.data_parallel of the inventory",
    "--data-parallel-backend": _RANKS,
    "--data-parallel-hybrid-lb": _BALANCED,
    "--data-parallel-external-lb": _BALANCED,
    "--data-parallel-multi-port-external-lb": _BALANCED,
    "--host": "the API listens on the head's loopback; --expose opens it on its private address",
    "--port": "ports.api of the inventory",
    "--api-key": "vcluster makes a key, or takes api_key of the inventory",
    "--hf-token": "hf_token of the inventory",
    "--worker-use-ray": _RANKS,
    "--engine-use-ray": _RANKS,
}
_TAKEN = {
    "--model": "MODEL",
    "--served-model-name": "--name",
    "--tensor-parallel-size": "--tp",
    "--pipeline-parallel-size": "--pp",
    "--data-parallel-size": "--dp",
    "--enable-expert-parallel": "--ep",
}
_DEGREES = ("--tp ", "--pp ", "--dp ")
_SECRET = ("--api-key", "--hf-token")
# Of vcluster's options those that take no value, and those that take several.
_SWITCHES = frozenset(
    {
        *("--headless", "--grpc", "--enable-expert-parallel", "--worker-use-ray", "--engine-use-ray"),
        *("--data-parallel-hybrid-lb", "--data-parallel-external-lb", "--data-parallel-multi-port-external-lb"),
    }
)
_SEVERAL = ("--served-model-name", "--api-key")
# Other options of vLLM without a value, as far as a name shows it: a word behind one may be the model.
_NO_VALUE = ("--no-", "--enable-", "--disable-", "--trust-remote-code", "--enforce-eager", "--async-scheduling")
_DASHES = ("\u2010", "\u2011", "\u2012", "\u2013", "\u2014", "\u2212")


@dataclass(frozen=True)
class TranslatedWord:
    """What became of one option or variable: its words, what they are here, and why."""

    kind: Kind
    given: str
    here: str
    why: str


@dataclass(frozen=True)
class Translation:
    """What a command line of vLLM asks for, in this program's terms.

    `name` is empty where it gives none; `flags` are handed on to vLLM, `variables` are those of its environment.
    """

    model: str
    name: str
    tp: int
    pp: int
    dp: int
    expert_parallel: bool
    flags: tuple[str, ...]
    rows: tuple[TranslatedWord, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    line: int = 1

    def beside(self, environment: Mapping[str, str], *, degrees: bool) -> Translation:
        """The same beside an inventory's environment, where variables may be, and a call with `degrees` of its own."""
        known = {name for name, value in self.variables.items() if environment.get(name) == value}

        def row(one: TranslatedWord) -> TranslatedWord:
            if one.kind == "variable" and one.given.partition("=")[0] in known:
                return replace(one, here="the same", why="environment of the inventory")
            if degrees and one.here.startswith(_DEGREES):
                return replace(one, kind="dropped", here="", why="this call gives another layout")
            return one

        return replace(self, rows=tuple(row(one) for one in self.rows if one.given or not degrees))

    def same_as(self, other: Translation) -> bool:
        """Whether both ask for the same: the commands of two hosts differ in what is dropped."""
        own = replace(self, rows=other.rows, variables=other.variables, line=other.line)
        return own == other


def translated(found: Sequence[ServeWords], reading: Reading) -> Translation:
    """The one request of several command lines: those of several hosts for the same model differ in what is dropped.

    Raises:
        UsageError: there is none, or they ask for different models, layouts or flags; or one cannot be served here, or
            a word of it has no value; with the line and the one reason.
    """
    if not found:
        text = f"{reading.place}: nothing in it serves a model"
        raise UsageError(text, hint="give a line that begins with: vllm serve MODEL")
    lines = [_CommandLine(one, reading) for one in found]
    first, *others = (one.request() for one in lines)
    if other := next((one for one in others if not first.same_as(one)), None):
        text = f"{count(len(found), 'command')} serve: those of lines {first.line} and {other.line} ask for different"
        raise UsageError(f"{reading.place}: {text} models or flags", hint="give one of them")
    return lines[0].whole(first)


class _CommandLine:
    """One pass over the words of a command line."""

    def __init__(self, found: ServeWords, reading: Reading) -> None:
        self._found, self._reading = found, reading
        self._words = list(found.words)
        self._rows: list[TranslatedWord] = []
        self._taken: dict[str, ShellWord] = {}
        self._flags: list[str] = []

    def request(self) -> Translation:
        """Return what it asks for, by which several are compared: without its rows and variables."""
        words, model = self._split()
        self._read(words)
        model = self._taken.get("--model", model)
        if model is None:
            raise self._error("names no model", self._found.line, hint="vllm serve MODEL …")
        self._complete(model)
        self._ensure_name("model", model)
        tp, pp, dp = (self._degree(option) for option in list(_TAKEN)[2:5])
        given = self._taken.get("--enable-expert-parallel")
        self._given_nothing(tp, pp)
        name = self._taken.get("--served-model-name")
        if name and (name.text or name.missing):
            self._complete(name)
            self._ensure_name("name", name)
        return Translation(
            model.text,
            name.text if name else "",
            tp,
            pp,
            dp,
            bool(given and given.text == "yes"),
            tuple(self._flags),
            (),
            line=self._found.line,
        )

    def whole(self, request: Translation) -> Translation:
        """Return the request with its variables, and the row of each of its words."""
        variables = dict(self._variables())
        if self._found.image:
            self._row("dropped", self._found.image, "", "image and the container's options are keys of the inventory")
        self._reading.spend("rows", len(self._rows), self._found.line)
        rows = (
            replace(one, given=redact(printable(one.given)), here=redact(printable(one.here))) for one in self._rows
        )
        return replace(request, rows=tuple(rows), variables=variables)

    def _split(self) -> tuple[list[ShellWord], ShellWord | None]:
        """The words without the model, where it is none of an option; and the model."""
        words = self._words
        if words and not words[0].text.startswith("-"):
            self._row("taken", shown(words[0]), "MODEL", "")
            return words[1:], words[0]
        if any(self._option(word) == "--model" for word in words):
            return words, None
        free = [at for at in range(1, len(words)) if not words[at].text.startswith("-") and self._alone(words[at - 1])]
        if len(free) == 1:
            self._row("taken", shown(words[free[0]]), "MODEL", "")
            return [word for at, word in enumerate(words) if at != free[0]], words[free[0]]
        if free:
            text = "several words may be the model"
            raise self._error(text, self._found.line, hint="write the model right behind: vllm serve MODEL …")
        return words, None

    def _alone(self, before: ShellWord) -> bool:
        """Whether this word takes no value behind it."""
        option = self._option(before)
        return not before.text.startswith("-") or "=" in before.text or option in _SWITCHES or _no_value(before.text)

    def _read(self, words: Sequence[ShellWord]) -> None:
        at = 0
        while at < len(words):
            word = words[at]
            option = self._option(word)
            end = at + 1
            while end < len(words) and not _is_option(words[end].text):
                end += 1
            if option is None:
                self._hand_on(words[at:end])
                at = end
                continue
            values, at = self._values(option, words, at, end)
            self._own(option, word, values)
            # Behind its value only the model could be, and that is known.
            self._refuse_rest(words[at:end], word)
            at = end

    def _option(self, word: ShellWord) -> str | None:
        """The option that this word is, of those that are not handed on."""
        text = word.text
        if text[:1] in _DASHES:
            raise self._error(f"{shown(word)} begins with a dash that vLLM does not know: write --", word.line)
        if not text.startswith("-"):
            return None
        name = text.partition("=")[0].replace("_", "-")
        if name in ("--no-enable-expert-parallel", "-ep"):
            return "--enable-expert-parallel"
        if name in _DROPPED or name in _TAKEN:
            return name
        return vllm.reserved_option(text)

    def _values(self, option: str, words: Sequence[ShellWord], at: int, end: int) -> tuple[list[ShellWord], int]:
        """The values of an option, and where the words behind them begin."""
        word = words[at]
        name, equals, value = word.text.partition("=")
        if equals:
            return [replace(word, text=value)], at + 1
        if name.startswith("-") and not name.startswith("--") and name[:2] in ("-n", "-r") and len(name) > 2:
            return [replace(word, text=name[2:])], at + 1
        if option in _SWITCHES:
            spelled = end > at + 1 and words[at + 1].text.lower() in ("true", "false")
            return list(words[at + 1 : at + 2]) if spelled else [], at + 1 + spelled
        last = end if option in _SEVERAL else min(end, at + 2)
        if last == at + 1:
            raise self._error(f"{name} has no value", word.line)
        return list(words[at + 1 : last]), last

    def _own(self, option: str, word: ShellWord, values: Sequence[ShellWord]) -> None:
        given = " ".join([word.text.partition("=")[0], *map(shown, values)])
        if option == "--enable-expert-parallel":
            off = word.text.startswith("--no") or (bool(values) and values[0].text.lower() == "false")
            self._taken[option] = ShellWord("" if off else "yes", word.line)
            self._row("taken", given, "" if off else "--ep", "")
        elif option in _TAKEN:
            self._taken[option] = values[0]
            why = f"a model has one name here: {', '.join(map(shown, values[1:]))} dropped" if values[1:] else ""
            here = "MODEL" if option == "--model" else f"{_TAKEN[option]} {shown(values[0])}"
            self._row("taken", given, here, why)
        elif option in _DROPPED:
            secret = option in _SECRET
            self._row("dropped", word.text.partition("=")[0] if secret else given, "", _DROPPED[option])
        elif option == "--prefill-context-parallel-size" and values[0].text == "1":
            self._row("dropped", given, "", "it is so anyway")
        else:
            raise self._error(f"{option} cannot be served here", word.line, hint=vllm.instead(option) or "")

    def _hand_on(self, words: Sequence[ShellWord]) -> None:
        """An option and its values, as they are; an old way to write a switch as vLLM writes it today."""
        first = words[0]
        if not _is_option(first.text):
            raise self._error(f"{shown(first)} belongs to no option", first.line, hint="put text with blanks in quotes")
        for word in words:
            self._complete(word)
        given, today = [word.text for word in words], switches.spelled_today([word.text for word in words])
        self._flags += today
        why = "as vLLM writes it today" if today != given else ""
        self._row("passed", " ".join(given), " ".join(today), why)

    def _refuse_rest(self, rest: Sequence[ShellWord], option: ShellWord) -> None:
        if rest:
            text = f"{shown(rest[0])} behind {shown(option)} belongs to no option"
            raise self._error(text, rest[0].line, hint="leave it out, or put text with blanks in quotes")

    def _degree(self, option: str) -> int:
        """A degree of parallelism; 1 where it is not given, as for vLLM."""
        word = self._taken.get(option)
        if word is None:
            return 1
        self._complete(word)
        try:
            number = int(word.text)
        except ValueError:
            number = 0
        if not (word.text.isascii() and 1 <= number <= MAX_DEGREE):
            raise self._error(f"{option} must be an integer of at least 1, got {shown(word)}", word.line)
        return number

    def _given_nothing(self, tp: int, pp: int) -> None:
        """The degrees that vLLM has by itself: they are others here."""
        for option, name, number in (("--tensor-parallel-size", "--tp", tp), ("--pipeline-parallel-size", "--pp", pp)):
            if option not in self._taken:
                self._row("taken", "", f"{name} {number}", "vLLM's default")

    def _complete(self, word: ShellWord) -> None:
        if word.missing:
            what = ", ".join(map(printable, word.missing))
            raise self._error(f"{what} has no value in this text", word.line, hint="write its value in its place")

    def _ensure_name(self, what: str, word: ShellWord) -> None:
        """Refuse what the line that is shown would have as an option, before it is shown."""
        try:
            served_name(word.text[:1000])
        except ValueError as error:
            raise self._error(f"{shown(word)} cannot be the {what}: it {error}", word.line) from None

    def _variables(self) -> Iterator[tuple[str, str]]:
        found: dict[str, ShellWord] = {}
        for layer in self._found.variables:
            found |= layer
        for name, word in found.items():
            if steered := steered_by(name):
                self._row("variable", name, "", steered)
                continue
            self._row("variable", f"{name}={shown(word)}", "", f"environment.{name} of the inventory, then vcluster up")
            if not word.missing:
                yield name, word.text

    def _row(self, kind: Kind, given: str, here: str, why: str) -> None:
        self._rows.append(TranslatedWord(kind, given, here, why))

    def _error(self, what: str, line: int, hint: str = "") -> UsageError:
        return UsageError(f"{self._reading.place}:{line}: {redact(what)}", hint=hint or None)


def _is_option(word: str) -> bool:
    """Whether vLLM's parser takes a word for an option: a negative number is a value."""
    return word.startswith("-") and not word[1:2].isdigit() and len(word) > 1


def _no_value(word: str) -> bool:
    return word.startswith(_NO_VALUE)
