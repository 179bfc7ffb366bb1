"""Each command that a message advises is one command of the words it shows, for any values in it."""

from __future__ import annotations

import ast
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.support.depth import cases
from tests.support.hostile import hostile, many, recorded
from tests.support.modules import MODULES, nodes, room
from tests.support.pasted import NOTES, SHELLS, noted, run
from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.shell_line import Option, command_line, unbroken
from vllm_cluster.kernel.terminal.edge import remedy, with_inventory
from vllm_cluster.kernel.terminal.paste import pasteable
from vllm_cluster.kernel.text import printable

# All the cases take minutes.
pytestmark = pytest.mark.timeout(3600)

# It asks another shell for what ssh would.
PROGRAM = f"""{NOTES}\
case "$*" in "-F a b gpu1 "* | "-t -F a b gpu1 "*) ;; *) exit 0 ;; esac
for last; do :; done
exec sh -c "$last"
"""
SSH = ["-F", "a b", "gpu1"]
# A word, or what it is made of: a value is None.
Word = tuple[str | None, ...]
TAILS = ("", "; then check the firewall of gpu2", ", then stop that process, or set ports.api", ", or reboot it")


@cache
def remedies() -> list[tuple[str, tuple[Word, ...], bool]]:
    """The place of each command of the package, its words, and whether it is for a host."""
    found = []
    for path in MODULES:
        for node in nodes(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "command_line":
                words = tuple(_word(one) for one in node.args)
                # What sh is given is composed of commands, which are here by themselves.
                if words and words[0][0] not in (None, "sh"):
                    found.append((f"{room(path)}:{node.lineno}", words, bool(node.keywords)))
    return found


def _word(node: ast.expr) -> Word:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Option":
        begin, *rest = _word(node.args[0])
        return (Option(begin or ""), *rest) if begin else (begin, *rest)
    if isinstance(node, ast.JoinedStr):
        return tuple(part for piece in node.values for part in _word(piece))
    return (node.value,) if isinstance(node, ast.Constant) and isinstance(node.value, str) else (None,)


def filled(word: Word, values: list[str]) -> str:
    """The word with the next of these values in each place."""
    text = "".join(values.pop() if part is None else part for part in word)
    return Option(text) if isinstance(word[0], Option) else text


def shown_as(word: str) -> str:
    """What a program gets: no word is an option but those of the program."""
    return printable(f"./{word}" if word.startswith("-") and not isinstance(word, Option) else word)


def test_the_package_advises_many_commands() -> None:
    assert len(remedies()) > 80
    assert {words[0][0] for _, words, _ in remedies()} >= {"vcluster", "docker", "sudo", "ip", "ss", "ssh"}


# fault: kernel/shell_line.py: line = printable(shell_line(map(_operand, words))) → line = printable(" ".join(map(str, words)))
# fault: kernel/shell_line.py: line = printable(shell_line(map(_operand, words))) → line = printable(shell_line(words))
# fault: kernel/terminal/paste.py: rf"{QUOTED}|(?P<end> → r"(?P<end>
@pytest.mark.promise("P46")
@pytest.mark.parametrize("shell", SHELLS)
def test_a_remedy_starts_its_program_alone(shell: str, tmp_path: Path) -> None:
    bin_folder, traps, notes = tmp_path / "bin", tmp_path / "traps", tmp_path / "notes"
    bin_folder.mkdir()
    traps.mkdir()
    for name in {words[0][0] for _, words, _ in remedies()} - {"echo", None}:
        (bin_folder / str(name)).write_text(PROGRAM)
        (bin_folder / str(name)).chmod(0o755)
    environment = {"PATH": f"{bin_folder}:/usr/bin:/bin", "NOTES": str(notes), "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    places = sum(part is None for _, words, _ in remedies() for word in words for part in word)

    # The first case that is made up is the plainest.
    @settings(many, max_examples=cases(2, 4, 200), phases=(Phase.generate,))
    @given(st.lists(hostile, min_size=places, max_size=places), hostile, st.sampled_from(TAILS))
    def check(values: list[str], file: str, tail: str) -> None:
        script, wanted, left = "", list[list[str]](), [*values]
        for place, parts, for_host in remedies():
            words = [filled(part, left) for part in parts]
            shown, own = [shown_as(word) for word in words], words[0] == "vcluster"
            if not for_host:
                line = with_inventory(command_line(*words), Path("/", file))
            else:
                line, *prose = pasteable(command_line(*words, on="gpu1") + tail, {"gpu1": SSH}).split("\n")
                if not line.startswith("ssh "):  # it has a value that is not for a host
                    continue
                assert prose == ([tail.strip(" ;,")] if tail else []), place
                terminal = ["-t"] if words[0] == "sudo" or " sudo " in command_line(*words) else []
                wanted.append(["ssh", *terminal, *SSH, command_line(*words)])
            assert "\n" not in line, place
            script += line + "\n"
            if words[0] == "echo":
                continue
            wanted.append(without_inventory(shown) if own else shown)
        done = subprocess.run(
            [shell, "-c", script], env=environment, capture_output=True, cwd=traps, check=False, text=True, timeout=300
        )
        got = [without_inventory(words) if words[0] == "vcluster" else words for words in noted(notes)]
        assert (done.stderr, list(traps.iterdir())) == ("", [])
        assert got == wanted

    with recorded("P46", f"a remedy with hostile values in {shell}", cases(2, 4, 200) * len(remedies())):
        check()


def without_inventory(words: list[str]) -> list[str]:
    """The words of a call of vcluster but for the option that was added behind the verb."""
    at = next((at for at in (2, 3) if words[at : at + 1] == ["-i"]), None)
    return words if at is None else [*words[:at], *words[at + 2 :]]


# Those of hosts that are alike, or a whole line.
LEADS = ("", "-", "-i", "--from=", "~/", "/", "./", "../", "gpu1:/", "x y", "--", "$(", "'", "model=")


# fault: kernel/terminal/edge.py: if _NAME.fullmatch(name) and name.isprintable() else typed → if name else typed
@pytest.mark.promise("P46")
def test_no_text_of_a_host_is_more_than_one_name_in_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (
        ("serve", "lab/modle", "--tp", "2", "--", "--max-model-len", "lab/modle"),
        ("pull", "lab/modle"),
        ("complete", "--set", "model=lab/modle"),
        ("batch", "--set=model=lab/modle"),
    )

    @settings(many, max_examples=cases(100, 400, 4000))
    @given(st.sampled_from(LEADS), hostile | st.just("lab/model"), st.sampled_from(lines))
    def check(lead: str, text: str, line: tuple[str, ...]) -> None:
        monkeypatch.setattr(sys, "argv", ["vcluster", *line])
        (typed,) = (word for word in line[:3] if word.endswith("lab/modle"))
        begin = typed.removesuffix("lab/modle")
        for meant in (f"{lead}{text}", f"{begin}{lead}{text}"):
            made = remedy(VclusterError("x", instead={typed: meant}), str)
            if made is None:
                continue
            words = shlex.split(made)[1:]
            at = line.index(typed)
            assert [*words[:at], *words[at + 1 :]] == [*line[:at], *line[at + 1 :]]
            name = words[at].removeprefix(begin)
            assert not name.startswith(("-", "~", ".", "/")) and name.isprintable()
            assert not [one for one in (":/", "..", " ") if one in name]

    with recorded("P46", "a word of a host in the place of a typed one", cases(100, 400, 4000)):
        check()


# What runs where it is not within the quotes of a word.
RUNS = st.sampled_from(("; touch RAN ;", "$(touch RAN)", "`touch RAN`", "| touch RAN |", "(touch RAN)", "it's"))
WORDS = st.lists(st.one_of(hostile, st.lists(RUNS | st.sampled_from("ab '\"\\$"), max_size=4).map("".join)), min_size=1)


# fault: kernel/shell_line.py: line if _WHOLE.fullmatch(line) else _quoted(line) → line
# fault: kernel/shell_line.py: vcluster (?:{_WORD}|[^'"\\$`;|&<>()])*+ → vcluster (?:{_WORD}|[^'"\\$`])*+
@pytest.mark.promise("P46")
def test_a_line_that_has_lost_a_quote_runs_nothing(tmp_path: Path) -> None:
    """As after a redaction, which takes a quote with the secret."""
    lines = set[str]()

    @settings(many, max_examples=cases(200, 600, 20_000))
    @given(WORDS, st.sampled_from(("", "***", "…")), st.data())
    def check(words: list[str], instead: str, data: st.DataObject) -> None:
        changed = command_line("vcluster", *words, Option("--as"))
        assert unbroken(changed) == changed
        for _ in range(2):
            quotes = [at for at, char in enumerate(changed) if char == "'"]
            if quotes:
                at, more = data.draw(st.sampled_from(quotes)), data.draw(st.integers(1, 3))
                changed = changed[:at] + instead + changed[at + more :]
        lines.add(unbroken(changed))

    with recorded("P46", "a printed line that has lost two quotes, in four shells", cases(200, 600, 20_000)):
        check()
        assert run(lines, tmp_path) == []
