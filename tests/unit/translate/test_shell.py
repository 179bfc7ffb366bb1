"""The words of commands in a shell text, with their lines, and without running anything."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.serving.translate.reading import Reading
from vllm_cluster.serving.translate.shell import ShellCommand, commands
from vllm_cluster.serving.translate.words import ShellWord

PLACE = "run.sh"


def words(text: str) -> list[list[str]]:
    """The words of each command."""
    return [[word.text for word in command.words] for command in read(text)]


def read(text: str) -> list[ShellCommand]:
    """Its commands, with all that a text may take."""
    return list(commands(text, Reading.of(text, PLACE)))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a b  c", [["a", "b", "c"]]),
        ("a \\\n  b # c\nd", [["a", "b"], ["d"]]),
        ("a \\  \n  b", [["a", "b"]]),
        ("# a\n\n a", [["a"]]),
        ("a; b && c | d & (e)", [["a"], ["b"], ["c"], ["d"], ["e"]]),
        ("a 'b c' \"d  e\" f\\ g", [["a", "b c", "d  e", "f g"]]),
        ("""a '{"x": "y"}' "{\\"x\\": 1}" """, [["a", '{"x": "y"}', '{"x": 1}']]),
        ("a '' \"\"", [["a", "", ""]]),
        ("a > log 2>&1 < in &", [["a"]]),
        ("a 2", [["a", "2"]]),
        ("cat <<'END'\nvllm serve x\nEND\na", [["cat"], ["a"]]),
        ("```bash\n$ a b\n```\n", [["a", "b"]]),
        ("`a b`", [["a", "b"]]),
        ("if true; then a; fi", [["true"], ["a"]]),
        ("exec a b\r\nc", [["a", "b"], ["c"]]),
        ("X=1 Y=2 a", [["a"]]),
        ("X='b c'\na $X \"$X\" ${X} '$X'", [["a", "b", "c", "b c", "b", "c", "$X"]]),
        ("a ${X:-b c} \"${X:-d e}\" ${1:-f}", [["a", "b", "c", "d e", "f"]]),
        ("X=(--b 'c d'\n --e)\nX+=(f)\na \"${X[@]}\"", [["a", "--b", "c d", "--e", "f"]]),
        ("X=b\nX+=c\na $X", [["a", "bc"]]),
        ("export X=b\na $X", [["a", "b"]]),
        ("X=\"b\nc\"\na \"$X\" $", [["a", "b\nc", "$"]]),
    ],
)  # fmt: skip
def test_words_are_those_of_a_shell(text: str, found: list[list[str]]) -> None:
    assert words(text) == found


# fault: serving/translate/shell.py: self.values.update(dict.fromkeys(own) if unsure else own) → self.values.update(own)
@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("a $X", ("$X",)),
        ("a ${X#b}", ("${X#b}",)),
        ("a $(b (c) | d)", ("$(b (c) | d)",)),
        ("a `b c`", ("`b c`",)),
        ("if b; then X=c; fi\na $X", ("$X",)),
        ("b && X=c\na $X", ("$X",)),
        ("X=$Y\na x$X", ("$Y",)),
    ],
)
def test_what_a_run_would_give_has_no_value(text: str, missing: tuple[str, ...]) -> None:
    last = [command.words[-1] for command in read(text)][-1]
    assert last.missing == missing


def test_a_word_has_its_line_and_a_command_its_variables() -> None:
    found = read("export A=1\nB=2\n\nC=3 a \\\n  b\n")
    assert [(word.text, word.line) for word in found[0].words] == [("a", 4), ("b", 5)]
    assert {name: word.text for layer in found[0].variables for name, word in layer.items()} == {"A": "1", "C": "3"}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a\nb 'c\nd", "run.sh:2: a ' that does not end"),
        ('a\n\nb "c', 'run.sh:3: a " that does not end'),
        ("a $(b", "run.sh:1: a $( that does not end"),
        ("X=(a\nb", "run.sh:1: an array that does not end"),
        ("a\n" * 6000, "run.sh:5001: more than 5000 commands"),
        ("X=aaaaaaaaaa\n" + "X=$X$X$X$X$X$X$X$X\n" * 20 + "a $X", "too long for one command"),
        ("X=(a b)\n" + 'X=("${X[@]}" "${X[@]}")\n' * 20, "too long for one command"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(text: str, error: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(text)
    assert error in str(refused.value)


PRINTABLE = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=12)


@given(st.lists(PRINTABLE, min_size=1, max_size=6))
def test_quoted_words_arrive_as_they_are(argv: list[str]) -> None:
    [command] = read(shlex.join(["a", *argv]))
    assert list(command.words) == [ShellWord(word, 1) for word in ["a", *argv]]


@given(st.text("ab'\"\\$`{}()<>|&;=#+@[]:- \n", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read(text)
    except UsageError as error:
        assert str(error).startswith("run.sh:")


@pytest.mark.slow
@given(st.text("aX'\"\\ \n;#=$", max_size=24))
def test_words_are_those_that_bash_finds(text: str) -> None:
    """A function prints the words of each command; what bash refuses, or knows no command for, counts for nothing."""
    script = f'a() {{ printf \'%s\\0\' "$#" "$@"; }}\na {text}'
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=False, env={})
    # A line that continues is one here also where blanks, or nothing, follow: so people paste them. A name that
    # continues on the next line is none.
    if done.stderr or "$" in text.replace("$X", "") or re.search(r"\\( |$)|[^ ]\\\n", text):
        return
    assume(all(not word.missing for command in read(f"a {text}") for word in command.words))
    found = [[str(len(one) - 1), *one[1:]] for one in words(f"a {text}")]
    assert "".join(f"{word}\0" for one in found for word in one) == done.stdout
