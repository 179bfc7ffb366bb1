"""Every command that a message names is one of this program, with options that it has: a remedy can be pasted."""

from __future__ import annotations

import ast
import re
import shlex
import sys
import time
from functools import cache
from pathlib import Path

import pytest

from tests.support import messages
from tests.support.command_lines import parsed
from tests.support.messages import fixes, template
from tests.support.modules import MODULES, PACKAGE, nodes, room
from vllm_cluster.cli.app import app
from vllm_cluster.cli.verbs import VERBS, WITHOUT_INVENTORY
from vllm_cluster.kernel import errors
from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.explain.catalogue import FAILURES
from vllm_cluster.kernel.shell_line import Option, unbroken
from vllm_cluster.kernel.terminal import edge
from vllm_cluster.kernel.terminal.called import NAMES
from vllm_cluster.kernel.terminal.paste import pasteable
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.kernel.terminal.settings import SETTINGS, Known
from vllm_cluster.serving.explain.render import FIXES

# A verb of vcluster, and the options and placeholders right behind it; what comes then is a sentence.
COMMAND = re.compile(r"\bvcluster ([a-z-]+)((?: (?:--?[a-z][\w-]*(?:=\S+)?|\{\}|[A-Z][A-Z_]+\b…?|\d+\b))*)")
HOST_COMMAND = re.compile(r"\bon \{\}:((?: |$).*)")
# The programs that texts have run on hosts, and the words that these know.
KNOWN = set(
    re.findall(
        r"\w+",
        """all allow cdi chronyc cp dev df docker download du echo exec from generate get hostnamectl ibstat ip link
        logs ls makestep mkdir modprobe mtu neigh nvlink ps pull reboot restart rm route run serve set sh show ss ssh
        start stat sudo system systemctl tail tee timedatectl true ufw unpause up usermod vllm volume""",
    )
)
SENTENCE = re.compile(r"(?<!docker )\b(?:run|say|try) (?:vcluster|up|down|--)")


@cache
def texts() -> list[str]:
    """Every text of the package, its placeholders as {}."""
    return sorted({text for path in MODULES for text in messages.texts(nodes(path))})


@cache
def commands() -> list[str]:
    """Each command in the texts, its placeholders filled in."""
    found = (match for text in texts() for match in COMMAND.finditer(text) if match[1] in VERBS)
    return sorted({f"{one[1]}{one[2]}".replace("{}", "X").replace("…", "") for one in found})


@pytest.mark.spans
def test_the_texts_name_many_commands() -> None:
    assert len(commands()) > 20
    assert {"status", "up", "down", "serve MODEL", "check --deep"} <= set(commands())


def test_a_command_in_a_message_is_one_that_exists() -> None:
    """What follows an option in a message may be its value, or the rest of a sentence."""
    calls = [shlex.split(command) for command in commands()]
    assert [words for words in calls if parsed(words) != 0 and parsed([*words, "1"]) != 0] == []


@cache
def remedies() -> set[str]:
    """Every text of the package that a `fix:` line may show, its placeholders as {}."""
    values = [value for path in MODULES for node in nodes(path) for value in fixes(node)]
    return {text for value in values for part in (value, *_choices(value)) if (text := template(part).strip("{} "))}


def _choices(value: ast.expr) -> list[ast.expr]:
    """The two ends of a conditional."""
    if not isinstance(value, ast.IfExp):
        return []
    ends = [value.body, value.orelse]
    return [*ends, *(choice for end in ends for choice in _choices(end))]


def test_no_remedy_wraps_a_command_in_a_sentence() -> None:
    """`run vcluster up` cannot be pasted; `vcluster up` can."""
    assert len(remedies()) > 100
    assert [text for text in remedies() if SENTENCE.search(text)] == []


# fault: kernel/checks/gpus.py: look the number up in the list of Xid errors by NVIDIA → look it up in NVIDIA's list
# fault: kernel/explain/failures.toml: or the private address for the hostname → or the private address for `hostname`
def test_no_quote_of_a_sentence_is_one_of_a_shell() -> None:
    """It could end where a word in quotes begins, and the word would be a command: such a line is not shown so."""
    own = [line.replace("{}", "'x y'") if "'" in line else line for text in remedies() for line in text.split("\n")]
    own += [line for one in FAILURES.values() for line in (*one.fix.split("\n"), *one.job.split("\n"))]
    assert [line for line in own if unbroken(line) != line] == []


# fault: kernel/transport/connect_errors.py: hint=f"check that the → hint="check that the
def test_no_text_shows_its_own_code() -> None:
    """A text whose f is forgotten reads `nc -vz {at.host}`."""
    assert [text for text in texts() if re.search(r"(?<!\{)\{[a-z_]+[.\[(][^{}]*\}", text)] == []


# Errors that no person gets as they are: what becomes of them.
NOT_SHOWN = {
    "kernel/hosts/connection.py": "work that is not begun, since another host's has failed",
    "kernel/images/wheels.py": "its text is in another error",
    "kernel/inventory/load.py": "the problems of an inventory, each with its line and what is expected there",
    "kernel/inventory/problems.py": "as above",
    "kernel/inventory/sources.py": "as above",
    "kernel/plan/followed.py": "a note of `up`, which has the command",
    "kernel/terminal/edge.py": "without a text: nothing is printed",
    "kernel/terminal/words.py": "its text is in another error",
    "serving/api/client.py": "how an answer ended: the cause is looked for then",
}
# FILE:LINE of what was given, with what is expected there: it is corrected there.
PLACE = re.compile(r"\{\}:(\{\}|\d)")


@cache
def kinds() -> frozenset[str]:
    """The names of all classes of errors that people get, those of other files too."""
    found = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, VclusterError)}
    classes = [node for path in MODULES for node in nodes(path) if isinstance(node, ast.ClassDef)]
    for _ in range(3):  # each time those of one more step
        found |= {one.name for one in classes for base in one.bases if isinstance(base, ast.Name) and base.id in found}
    return frozenset(found - {"Aborted", "FleetError", "Interrupted"})


def without_remedy(path: Path) -> list[str]:
    """Each error that a file makes without a hint, a word that was meant or more options for the same call."""
    calls = [one for one in nodes(path) if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)]
    return [
        f"{room(path)}:{one.lineno}"
        for one in calls
        if isinstance(one.func, ast.Name)
        and one.func.id in kinds()
        and not {word.arg for word in one.keywords} & {"hint", "again", "instead"}
        and not (one.args and PLACE.match(template(one.args[0])))
    ]


# fault: features/pull/local_folder.py: has become shorter since it was hashed", again=()) → has become shorter since it was hashed")
def test_every_error_has_a_remedy() -> None:
    found = {room(path): lines for path in MODULES if path.is_relative_to(PACKAGE) and (lines := without_remedy(path))}
    assert {file: lines for file, lines in found.items() if file not in NOT_SHOWN} == {}
    assert sorted(NOT_SHOWN) == sorted(found)


def test_no_remedy_asks_what_was_meant() -> None:
    """What was probably meant is in the error; the remedy is the call with it."""
    assert {text for text in remedies() if text.startswith("did you mean")} == set()


@cache
def host_commands() -> list[str]:
    """Each command for a host that a text of the package has, as far as it is pasted within the quotes of ssh."""
    lines = [f"on gpu1:{found[1]}".replace("{}", "X") for text in texts() for found in HOST_COMMAND.finditer(text)]
    pasted = [line for text in lines for line in pasteable(text, {"gpu1": ["gpu1"]}).splitlines()]
    return sorted({shlex.split(line)[-1] for line in pasted if line.startswith("ssh ")})


def test_the_texts_have_commands_for_hosts() -> None:
    assert len(host_commands()) > 20
    assert "docker restart X" in host_commands()


def test_a_command_for_a_host_has_no_words_of_a_sentence() -> None:
    """Within the quotes of ssh each word is an option, a value, or one that the command knows."""
    words = {command: set(re.findall(r"(?<!\S)[a-z]+(?![^\s;])", command)) for command in host_commands()}
    assert {command: found - KNOWN for command, found in words.items() if found - KNOWN} == {}


def test_no_remedy_of_the_catalogue_runs_more_than_it_shows() -> None:
    """In fish what is in parentheses is a command too, and a comma behind a call would be of its inventory's name."""
    found = {*FIXES, *(text for one in FAILURES.values() for text in (one.fix, one.job) if text)}
    programs = "|".join((*KNOWN, *NAMES))
    assert len(found) > 100
    assert {text for text in found if re.search(rf"\((?:{programs})\b", text)} == set()
    assert {text for text in found if "a.yaml," in edge.with_inventory(text, Path("a.yaml"))} == set()


def test_a_word_that_was_probably_meant_is_the_call_to_paste(monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["vcluster", "serve", "-i", "a b.yaml", "bench/lama8b", "--tp", "2", "--", "--hf-token", "bench/lama8b"]
    monkeypatch.setattr(sys, "argv", argv)
    error = VclusterError("no such model", instead={"bench/lama8b": "bench/llama8b"})
    line = "vcluster serve -i 'a b.yaml' bench/llama8b --tp 2 -- --hf-token bench/lama8b"
    assert edge.remedy(error, lambda hint: hint) == line
    monkeypatch.setattr(sys, "argv", ["vcluster", "rollback"])
    assert edge.remedy(error, lambda hint: hint) is None


# fault: kernel/terminal/edge.py: reversed(lines) if "--yes" in error.again else lines → lines
# fault: kernel/terminal/edge.py: reversed(lines) if "--yes" in error.again else lines → reversed(lines)
@pytest.mark.parametrize(
    ("option", "fix"),
    [
        ("--yes", "vcluster serve x\nvcluster serve x --hosts gpu1 --yes"),
        ("--wait", "vcluster serve x --hosts gpu1 --wait\nvcluster serve x"),
    ],
)
def test_what_loses_something_is_the_last_remedy(option: str, fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["vcluster", "serve", "x", "--hosts", "gpu1"])
    assert edge.remedy(VclusterError("no", hint="vcluster serve x", again=(option,)), str) == fix


# fault: kernel/terminal/edge.py: [*_with(words[:end], error.again), → [*words[:end], *error.again,
# fault: kernel/terminal/edge.py: for name in known.same.get(word, (word,))} → for name in (word,)}
# fault: kernel/terminal/typed.py: name = word[:2] if word[:2] in known.same else → name =
# fault: kernel/terminal/typed.py: while len(word) > 2 and → while False and
# fault: kernel/terminal/typed.py: [word, left.pop(0)] if value else [word] → [word]
# fault: kernel/terminal/typed.py: not (name in known.bare and left[0].startswith("-")) → True
@pytest.mark.parametrize(
    ("call", "again", "fix"),
    [
        ("dashboard --port 38000 -q", "--port 0", "dashboard -q --port 0"),
        ("dashboard --port=38000 -q", "--port 0", "dashboard -q --port 0"),
        ("dashboard -q -p 38000", "--port 0", "dashboard -q --port 0"),
        ("dashboard -p38000 -q", "--port 0", "dashboard -q --port 0"),
        ("up --wait 5s --yes", "--wait 10m", "up --yes --wait 10m"),
        ("status --wait --json", "--wait 10m", "status --json --wait 10m"),
        ("init gpu1 --output lab.yaml", "-o -", "init gpu1 -o -"),
        ("serve x --tp 4 --pp 2 -- --tp 9", "--tp 2 --pp 1", "serve x --tp 2 --pp 1 -- --tp 9"),
        ("init gpu1 -o lab.yaml", "--force", "init gpu1 -o lab.yaml --force"),
        ("serve x -yi lab.yaml", "-i other", "serve x -y -i other"),
        ("logs --grep --yes gpu1", "--yes", "logs --grep --yes gpu1 --yes"),
        ("dashboard --port -1 -q", "--port 0", "dashboard -q --port 0"),
    ],
)
def test_an_option_that_the_call_has_is_replaced(
    call: str, again: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = call.split()
    monkeypatch.setattr(sys, "argv", ["vcluster", *words])
    monkeypatch.setattr(SETTINGS, "known", Known())
    parsed(words)
    assert edge.remedy(VclusterError("no", again=tuple(again.split())), str) == f"vcluster {fix}"


# fault: kernel/terminal/edge.py: has.match(line, end, following) else option → has.match(line, end, following) else ""
@pytest.mark.parametrize(
    "verb", [f"{name} push" if name == "image" else name for name in VERBS if name not in WITHOUT_INVENTORY]
)
def test_a_remedy_has_the_inventory_of_the_call(verb: str) -> None:
    text = edge.with_inventory(f"vcluster {verb}", Path("a b.yaml"))
    assert text == f"vcluster {verb} -i 'a b.yaml'"
    assert parsed(shlex.split(text)[1:]) == 0
    assert edge.with_inventory(text, Path("other")) == text


# fault: kernel/terminal/edge.py: (?=[,.;:)]*(?: |$)) → \b
@pytest.mark.parametrize("word", ["pull-made-by", "pull/x", "status.x", "plan@x"])
def test_an_option_is_added_behind_a_word_and_not_within(word: str) -> None:
    assert edge.with_inventory(f"vcluster {word} y", Path("a b.yaml")) == f"vcluster {word} y"
    assert edge.with_inventory("run vcluster up, then", Path("lab.yaml")) == "run vcluster up -i lab.yaml, then"


@pytest.mark.parametrize(("path", "option"), [(Path("lab.yaml"), " -i lab.yaml"), (None, "")])
def test_a_command_in_a_warning_has_the_inventory_too(
    path: Path | None, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Session(path, as_json=False).emit(Event("warning", "its node may still run; vcluster up --forget gpu2"))
    assert f"; vcluster up{option} --forget gpu2\n" in capsys.readouterr().err


# fault: kernel/terminal/edge.py: unbroken(with_inventory(text, inventory)) → unbroken(text)
@pytest.mark.spans
@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["pull"], "vcluster pull -i lab.yaml ORG/NAME"),
        (["bench", "--compare", "a"], "vcluster bench -i lab.yaml --compare BEFORE AFTER"),
        (["exec"], "vcluster exec -i lab.yaml --head"),
        (["logs", "--only", "rank=1", "--only", "ray"], "vcluster logs -i lab.yaml --only 'rank=1'"),
    ],
)
@pytest.mark.parametrize("by", ["-i", "--inventory=", "environment"])
def test_a_call_that_fails_before_it_reads_its_inventory_names_it(
    words: list[str], fix: str, by: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"-i": ["-i", "lab.yaml"], "--inventory=": ["--inventory=lab.yaml"], "environment": []}[by]
    if by == "environment":
        monkeypatch.setenv("VCLUSTER_INVENTORY", "lab.yaml")
        # It is found there again.
        fix = fix.replace(" -i lab.yaml", "")
    monkeypatch.setattr(sys, "argv", ["vcluster", *words, *given])
    assert edge.run_to_exit_code(lambda: app([*words, *given], prog_name="vcluster")) == 2
    assert f"fix: {fix}" in capsys.readouterr().err.splitlines()


# fault: kernel/inventory/find.py: hint="\n".join([*folder, command_line(*typed_words(INIT.split()), → hint="\n".join([*folder, command_line(*INIT.split(),
# fault: kernel/inventory/find.py: else command_line(*typed_words(INIT.split()), → else command_line(*INIT.split(),
@pytest.mark.spans
@pytest.mark.parametrize("folder", [False, True])
def test_an_inventory_that_is_not_there_is_made_by_the_line_shown(
    folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = tmp_path / "lab"
    if folder:
        wanted.mkdir()
    monkeypatch.setattr(sys, "argv", words := ["vcluster", "status", "-i", "lab"])
    assert edge.run_to_exit_code(lambda: app(words[1:], prog_name="vcluster")) == 2
    (fix,) = (line.removeprefix("fix: ") for line in capsys.readouterr().err.splitlines() if "init" in line)
    assert edge.run_to_exit_code(lambda: app(shlex.split(fix)[1:], prog_name="vcluster")) == 0
    assert "10.0.0.12" in (wanted / "inventory.yaml" if folder else wanted).read_text()


@pytest.mark.spans
@pytest.mark.parametrize(
    ("words", "fixes"),
    [
        (["nproc"], ["--head -- COMMAND"]),
        (["gup2"], ["gpu2"]),
        (["gup2", "--", "rm", "a b"], ["gpu2 -- COMMAND"]),
        (["gpu9"], ["gpu1"]),
        (["gpu3", "--", "rm", "a b"], ["gpu1 -- COMMAND"]),
    ],
)
def test_a_host_that_is_left_out_or_misspelt_is_seen_before_any_host_is_asked(
    words: list[str],
    fixes: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    hosts = "hosts:\n  gpu1:\n    address: 10.0.0.1\n  gpu2:\n    address: 10.0.0.2\n"
    top = "version: 1\ncluster: lab\nimage: vllm/vllm-openai:v0.19.0\nmodel_cache: /srv/models\n"
    Path("lab.yaml").write_text(top + hosts)
    given = ["-i", "lab.yaml", *words]
    monkeypatch.setattr(sys, "argv", ["vcluster", "exec", *given])
    assert edge.run_to_exit_code(lambda: app(["exec", *given], prog_name="vcluster")) == 2
    shown = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fix: ")]
    assert shown == [f"fix: vcluster exec -i lab.yaml {fix}" for fix in fixes]


@pytest.mark.parametrize(
    ("words", "instead", "fix"),
    [
        ("serve m -- --max-modle-len 100", {"--max-modle-len": "--max-model-len"}, "serve m -- --max-model-len 100"),
        ("serve m -- --max-modle-len=100", {"--max-modle-len": "--max-model-len"}, "serve m -- --max-model-len=100"),
        ("serve m -- --max-model-len=99999", {"99999": "2048"}, "serve m -- --max-model-len=2048"),
        # A file of the same name is another program's.
        ("exec gpu1 -i a.yaml -- cat a.yaml", {"a.yaml": Option("b.yaml")}, "exec gpu1 -i b.yaml -- cat a.yaml"),
    ],
)
def test_a_word_that_was_meant_is_in_its_place_behind_the_dashes_too(
    words: str, instead: dict[str, str], fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["vcluster", *words.split()])
    assert edge.remedy(VclusterError("x", instead=instead), str) == f"vcluster {fix}"


# What a host may have in its cache, or answer, for a model that is alike.
LED = ("-ilab/modle", "--from=lab/modle", "~/lab/modle", "/lab/modle", "../lab/modle", "./lab/modle", "gpu1:/lab/modle")
MORE = ("lab/../modle", "lab/modle x", "lab/modle\n-y", "lab/modl\u202ee", "--yes", "-", "")


# fault: kernel/terminal/edge.py: if _NAME.fullmatch(name) and name.isprintable() else typed → if name else typed
# fault: kernel/terminal/edge.py: _NAME.fullmatch(name) and name.isprintable() → _NAME.fullmatch(name)
# fault: kernel/terminal/edge.py: (?![-~./])( → (?![~./])(
# fault: kernel/terminal/edge.py: (?![-~./])( → (?![-./])(
# fault: kernel/terminal/edge.py: (?!.*(?::/|\.\.)) → (?!.*(?:\.\.))
# fault: kernel/terminal/edge.py: (?!.*(?::/|\.\.)) → (?!.*(?::/))
@pytest.mark.parametrize("begin", ["", "--set=model=", "model="])
@pytest.mark.parametrize("meant", LED + MORE)
def test_what_is_in_the_place_of_a_word_is_a_name(begin: str, meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`near: --from=TEXT` of a worker made `vcluster serve '--from=TEXT'` of the call, which serves what TEXT names."""
    monkeypatch.setattr(sys, "argv", ["vcluster", "serve", f"{begin}lab/modle", "--yes"])
    for word in {f"{begin}{meant}", meant}:
        assert edge.remedy(VclusterError("x", instead={f"{begin}lab/modle": word}), str) is None
    line = edge.remedy(VclusterError("x", instead={f"{begin}lab/modle": f"{begin}lab/model"}), str)
    assert shlex.split(line or "") == ["vcluster", "serve", f"{begin}lab/model"]


# fault: kernel/terminal/edge.py: (?:\./)?") → ")
def test_a_folder_of_a_cache_is_in_the_place_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["vcluster", "serve", "./modle"])
    assert edge.remedy(VclusterError("x", instead={"./modle": "./model"}), str) == "vcluster serve ./model"
    assert edge.remedy(VclusterError("x", instead={"./modle": "./../model"}), str) is None


# fault: kernel/terminal/edge.py: and nearest(typed, (meant,)) is not None → and True
# fault: kernel/terminal/edge.py: return meant.isascii() and meant.isdecimal() → return True
# fault: kernel/terminal/edge.py: and bool(_FLAG.fullmatch(meant)) → and True
@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--tp", "--pp=9"),
        ("--max-modle-len", "--trust-remote-code"),
        ("--max-modle-len", "--max-model-len=9"),
        ("99999", "--trust-remote-code"),
        ("99999", "9 9"),
    ],
)
def test_a_host_chooses_no_option_for_another_program(typed: str, meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["vcluster", "serve", "m", "--", "--max-modle-len", "99999", "--tp"])
    assert edge.remedy(VclusterError("x", instead={typed: meant}), str) is None


# fault: kernel/terminal/edge.py: or values.count(was) == 1 → or True
def test_which_of_two_equal_numbers_was_meant_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host named the largest length that fits, and the seed became it too."""
    for seed, fix in (("7", "vcluster serve m -- --max-model-len 4 --seed=7"), ("9", None)):
        monkeypatch.setattr(sys, "argv", ["vcluster", "serve", "m", "--", "--max-model-len", "9", f"--seed={seed}"])
        assert edge.remedy(VclusterError("x", instead={"9": "4"}), str) == fix


# fault: kernel/terminal/edge.py: has = re.compile(rf" --help|(?: {word})*? (?:-i|--inventory)") → has = re.compile(".*--inventory")
# fault: kernel/terminal/edge.py: has.match(line, end, following) → has.match(line, end)
# fault: kernel/terminal/edge.py: \S*(?<![,.;:)]))" → \S*)"
# fault: kernel/terminal/edge.py: (?!--(?: |$)|(?:{names}) ) → (?!(?:{names}) )
@pytest.mark.parametrize(
    "line",
    [
        "vcluster stop{} org/two-chat--inventory",
        "vcluster stop{} 'org/two --inventory x'",
        "vcluster exec{} --head -- grep -i x",
        "run vcluster up{}, it has no --inventory",
        "vcluster up{} gpu1; -i is missing",
        "vcluster plan{} x vcluster up -i lab.yaml",
        "vcluster plan{} x /vcluster up -i lab.yaml",
    ],
)
def test_a_call_has_the_inventory_beside_words_that_look_like_one(line: str) -> None:
    """The name of a served model took the option out of a remedy: it was then about another cluster."""
    assert edge.with_inventory(line.format(""), Path("lab.yaml")) == line.format(" -i lab.yaml")


@pytest.mark.parametrize("option", ["-i x.yaml", "-ix.yaml", "--inventory=x.yaml", "--inventory x.yaml"])
def test_a_call_that_names_its_inventory_gets_no_other(option: str) -> None:
    for line in (f"vcluster stop org/m {option}", f"vcluster logs --only 'rank=1 y' {option} -- x"):
        assert edge.with_inventory(line, Path("lab.yaml")) == line


def test_many_calls_in_a_line_take_no_time() -> None:
    began = time.monotonic()
    edge.with_inventory("vcluster up " * 20_000 + "x " * 20_000 + "'a' " * 20_000, Path("lab.yaml"))
    assert time.monotonic() - began < 5


# fault: kernel/terminal/edge.py: else words[0][2:] → else ""
# fault: kernel/terminal/typed.py: return known if known.same else Known( → return known if True else Known(
@pytest.mark.promise("P57")
@pytest.mark.parametrize(
    "words", ["-ip.yaml", "-yip.yaml", "-yi p.yaml", "-i p.yaml", "--inventory=p.yaml", "-i x.yaml --inventory p.yaml"]
)
def test_a_call_that_its_verb_has_not_read_has_the_inventory_that_it_names(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remedy of `vcluster kill -ip.yaml` was `vcluster down`, which is of the cluster in the folder of now."""
    monkeypatch.setattr(SETTINGS, "known", Known())
    assert edge._named_inventory(["kill", *words.split(), "--", "-i", "y.yaml"]) == Path("p.yaml")


# fault: kernel/terminal/typed.py: if not {name, typed[0]} & {*CONSENT} for → for
def test_no_consent_is_left_to_what_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SETTINGS, "known", Known())
    monkeypatch.setattr(sys, "argv", ["vcluster", "serve", "lab/modle", "-yi", "p.yaml"])
    error = VclusterError("no", instead={"lab/modle": "lab/model"})
    assert edge.remedy(error, str) == "vcluster serve lab/model -i p.yaml"


# fault: kernel/terminal/edge.py: return word if option in INVENTORY and not isinstance(found, Option) else → return
def test_a_host_names_no_inventory_though_it_is_called_as_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SETTINGS, "known", Known())
    monkeypatch.setattr(sys, "argv", ["vcluster", "serve", "chat", "-i", "chat"])
    assert edge.remedy(VclusterError("no", instead={"chat": "chat2"}), str) == "vcluster serve chat2 -i chat"
    own = {"chat": Option("chat/inventory.yaml")}
    assert (edge.remedy(VclusterError("no", instead=own), str) or "").endswith(" -i chat/inventory.yaml")


# fault: kernel/terminal/edge.py: return is_flag and not opposite and → return is_flag and
@pytest.mark.parametrize(("typed", "meant"), [("--no-trust-x", "--trust-x"), ("--async-x", "--no-async-x")])
def test_no_flag_is_meant_that_is_the_opposite(typed: str, meant: str) -> None:
    assert not edge._same_flag(typed, meant)
    assert edge._same_flag(typed, f"{typed}y")
