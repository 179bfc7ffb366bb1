"""Where options may be, which verb was meant, and what a flag of vLLM in the wrong place becomes."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.support.in_process import run
from vllm_cluster.cli.app import app
from vllm_cluster.cli.verbs import VERBS
from vllm_cluster.features.images.verb import IMAGE
from vllm_cluster.features.pull.feature import MODELS
from vllm_cluster.features.sandbox.verb import SANDBOX
from vllm_cluster.features.slurm.feature import SLURM
from vllm_cluster.kernel.errors import UsageError, VclusterError
from vllm_cluster.kernel.terminal import edge, words
from vllm_cluster.kernel.terminal.settings import SETTINGS, Known
from vllm_cluster.kernel.terminal.typed import guessed

INVENTORY = "version: 1\ncluster: lab\nimage: a/b:c\nmodel_cache: /data\nhosts: {gpu1: {address: 10.0.0.1}}\n"
GROUPS = {"sandbox": SANDBOX, "image": IMAGE, "models": MODELS, "slurm": SLURM}
PATHS = [(name, inner) for name in VERBS for inner in GROUPS.get(name, ("",))]


def call(*argv: str) -> object:
    """What the program's parser makes of a command line: its exit code, or its error."""
    try:
        app(list(argv), prog_name="vcluster")
    except SystemExit as end:
        return end.code
    except VclusterError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("-i x status", "status -i x"),
        ("-v -i x status --json", "status -v -i x --json"),
        ("-qix --color=never up -y", "up -qix --color=never -y"),
        ("-ix -vv status", "status -ix -vv"),
        ("--version -v", "--version -v"),
        ("--help status", "status --help"),
        ("status -v", "status -v"),
        ("-- status", "-- status"),
        ("--inventory=a b", "b --inventory=a"),
        ("", ""),
    ],
)
def test_common_options_go_behind_the_verb(given: str, meant: str) -> None:
    assert words.options_last(given.split()) == meant.split()


# fault: kernel/terminal/words.py: return [*words[at : at + 1], *words[:at], *words[at + 1 :]] → return list(words)
@pytest.mark.parametrize(
    "where", ["-i {} status", "status -i {}", "-q -i {} status -v", "status --inventory={} --quiet"]
)
def test_both_sides_of_the_verb_name_the_inventory(where: str, tmp_path: Path) -> None:
    done = run(*where.format("missing.yaml").split(), cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "error: missing.yaml: no such file")


# fault: kernel/terminal/typed.py: if not {name, typed[0]} & {*CONSENT} for → for
# fault: kernel/terminal/typed.py: if not {name, typed[0]} & {*CONSENT} for → if name not in CONSENT for
# fault: kernel/terminal/typed.py: *INVENTORY, "-q", "-v") → *INVENTORY)
# fault: kernel/terminal/words.py: return guessed("vcluster", near, *rest) if → return " ".join(["vcluster", near, *rest]) if
# fault: kernel/terminal/words.py: hint=f"{guessed(*path.split(), *words)}\n → hint=f"{path} {' '.join(words)}\n
# fault: kernel/terminal/program.py: hint = guessed(*ctx.command_path.split(), near, *args[1:]) → hint = " ".join((ctx.command_path, near, *args[1:]))
# fault: kernel/terminal/removed.py: return guessed("vcluster", *_verb_of(line).split(), *made) → return " ".join(["vcluster", *_verb_of(line).split(), *made])
@pytest.mark.spans
@pytest.mark.parametrize(
    ("typed", "fix"),
    [
        ("dwn --yes", "vcluster down"),
        ("dwn -vyi x", "vcluster down -v -i x"),
        ("sop m -y", "vcluster stop m"),
        ("modles rm m --yes", "vcluster models rm m"),
        ("models remove m -y", "vcluster models --help"),
        ("slurm stp 4 --yes", "vcluster slurm stop 4"),
        ("up --yes --force", "vcluster up --former\nvcluster up --help"),
        ("down -i x --ye", "vcluster down -i x\nvcluster down --help"),
        ("status --yes --watsh", "vcluster status --help"),
        ("serve -y M --foo", "vcluster serve M -- --foo"),
        ("rollback --drain 5m --yes", "vcluster rollback"),
    ],
)
def test_no_consent_is_given_to_a_guess(typed: str, fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dwn --yes` was offered as `vcluster down --yes`: it was consent to another call."""
    monkeypatch.setattr(SETTINGS, "known", Known())
    found = call(*typed.split())
    assert isinstance(found, UsageError)
    assert found.hint == fix
    # A verb without the option may be a slip too, for one that has it.
    monkeypatch.setattr(SETTINGS, "known", Known({"-x": ("-x",)}))
    assert guessed("vcluster", "down", "--yes", "--", "-y") == "vcluster down -- -y"


# fault: kernel/terminal/words.py: if not others: → if others or own:
@pytest.mark.parametrize(
    ("typed", "fix"),
    [
        ("serve M --max-model-len 1024", "vcluster serve M -- --max-model-len 1024"),
        ("serve M --max-model-len 1024 --foo=1 -x", "vcluster serve M -- --max-model-len 1024 --foo=1 -x"),
        ("serve --enforce-eager org/m --tp 2 -i x", "vcluster serve org/m --tp 2 -i x -- --enforce-eager"),
        ("serve --foo", "vcluster serve MODEL -- --foo"),
        ("serve M --tp 2 --foo 2 --pp 2", "vcluster serve M --tp 2 --pp 2 -- --foo 2"),
        ("-i x serve M --foo -- --bar 1", "vcluster serve -i x M -- --foo --bar 1"),
    ],
)
def test_flags_of_vllm_before_the_dashes_are_reported_with_the_command(typed: str, fix: str) -> None:
    found = call(*typed.split())
    assert isinstance(found, UsageError)
    assert "flags of vLLM come after --" in found.message
    assert found.hint == fix


# fault: kernel/backends/vllm.py: ("--nodes", "--num-nodes", "--gpus", "--num-gpus") → ("--num-nodes", "--num-gpus")
@pytest.mark.parametrize("option", ["--nodes", "--gpus", "--num-nodes=2", "--num-gpus"])
def test_an_option_of_another_launcher_is_not_passed_to_vllm(option: str) -> None:
    """vLLM has none of these names: a remedy that puts them after -- would be refused by its parser."""
    found = call("serve", "M", option, "2")
    assert isinstance(found, UsageError)
    name = option.partition("=")[0]
    assert found.message == f"vcluster serve has no option {name}"
    named = [word for word in str(found.hint).split() if word.startswith("--")]
    assert named == ["--hosts", "--tp", "--pp"]
    assert call("serve", "M", "--hosts", "a,b", "--tp", "1", "--pp", "2", "--help") == 0


# fault: kernel/terminal/words.py: and not (for_vllm and _set_here(word)): → :
@pytest.mark.parametrize("words", [("--host", "0.0.0.0"), ("--host=0.0.0.0",)])
def test_the_address_of_vllm_is_not_a_misspelt_list_of_hosts(words: tuple[str, ...]) -> None:
    found = call("serve", "M", *words)
    assert isinstance(found, UsageError)
    assert found.message == "vcluster serve has no option --host"
    assert found.hint == "use --expose to listen on the head's private address"


# fault: features/batch/verb.py: if example.exists(): → if False:
# fault: features/batch/verb.py: if str(source) == "-" or expanded(source).exists(): → if False:
@pytest.mark.parametrize(
    ("source", "message", "fix"),
    [
        ("in.json", "in.json is not there", "stat ."),
        ("/dev/stdin", "/dev/stdin is not a file; a batch reads its input again when it continues", "save the"),
    ],
)
def test_no_remedy_of_a_batch_writes_over_a_file(source: str, message: str, fix: str, tmp_path: Path) -> None:
    (tmp_path / "prompts.json").write_text('["mine"]')
    done = run("batch", source, "-o", "out", cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, f"error: {message}")
    assert f"fix: {fix}" in done.stderr
    assert "> prompts.json" not in done.stderr


@pytest.mark.parametrize(
    ("typed", "message", "fix"),
    [
        ("serve M --port 9", "vcluster serve has no option --port", "set ports.api in the inventory"),
        ("serve M -tp 2", "vcluster serve has no option -tp", "use --tp"),
        (
            "serve --tpp 2 foo --ppp=1",
            "vcluster serve has no option --tpp (did you mean --tp?)",
            "vcluster serve --tp 2 foo --ppp=1\nvcluster serve --help",
        ),
        (
            "serve org/a org/b --expose -- --seed 1",
            "vcluster serve takes one MODEL, got org/b too",
            "vcluster serve org/a",
        ),
    ],
)
def test_what_no_flag_of_vllm_is_names_what_to_use(typed: str, message: str, fix: str) -> None:
    found = call(*typed.split())
    assert isinstance(found, UsageError)
    assert (found.message, found.hint) == (message, fix)


@pytest.mark.parametrize(
    ("source", "output", "message", "fix"),
    [
        ("in.json", ".", "cannot write .: Is a directory", "vcluster batch in.json -o answers.jsonl"),
        ("in.json", "", "cannot write .: Is a directory", "vcluster batch in.json -o answers.jsonl"),
        ("in.json", "/", "cannot write /: Is a directory", "vcluster batch in.json -o answers.jsonl"),
        ("~nouser/in.json", "out", "~nouser/in.json is not there", "vcluster batch prompts.json -o out"),
    ],
)
def test_files_that_cannot_be_are_a_wrong_call(
    source: str, output: str, message: str, fix: str, tmp_path: Path
) -> None:
    (tmp_path / "in.json").write_text('["a"]')
    done = run("batch", source, "-o", output, cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, f"error: {message}")
    assert f"fix: {fix}" in done.stderr.splitlines()


@pytest.mark.parametrize(
    ("typed", "message", "fix"),
    [
        (
            "status --watch --wait",
            "--watch and --wait exclude each other",
            "vcluster status --watch\nvcluster status --wait",
        ),
        ("status --count 3", "--count needs --watch", "vcluster status --count 3 --watch"),
        ("check gpu1", "a check is of all hosts: HOST is for --facts", "vcluster check gpu1 --facts"),
        (
            "check --deep --facts",
            "--facts and --deep exclude each other",
            "vcluster check --facts\nvcluster check --deep",
        ),
        (
            "endpoint --key --detach",
            "--key and --detach exclude each other",
            "vcluster endpoint --key\nvcluster endpoint --detach",
        ),
        (
            "endpoint --close --env",
            "--close and --env exclude each other",
            "vcluster endpoint --close\nvcluster endpoint --env",
        ),
        ("exec --all", "--all needs a command", "vcluster exec --all -- nvidia-smi"),
        ("exec --all --ssh -- ls", "--all and --ssh exclude each other", "vcluster exec --all -- COMMAND"),
        ("exec gpu1 --head -- ls", "gpu1 and --head exclude each other", "vcluster exec gpu1 -- COMMAND"),
    ],
)
def test_options_of_two_modes_are_refused(typed: str, message: str, fix: str, tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    done = run(*typed.split(), cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()) == (
        2,
        [f"error: {message}", *(f"fix: {line}" for line in fix.split("\n"))],
    )


# fault: kernel/terminal/program.py: words.ensure_dashes(_called(ctx), ctx.params, args, for_vllm=for_vllm) → pass
@pytest.mark.parametrize(
    ("typed", "fix"),
    [
        ("exec gpu1 nvidia-smi -q", "exec gpu1 -- nvidia-smi -q"),
        ("exec gpu1 grep -i x /y", "exec gpu1 -- grep -i x /y"),
        ("-i x exec gpu1 ls -t", "exec -i x gpu1 -- ls -t"),
        ("exec --all df -x", "exec --all -- df -x"),
        ("exec gpu1 --inventory x ls -l", "exec gpu1 --inventory x -- ls -l"),
        ("exec gpu1 --ssh df -x", "exec gpu1 --ssh -- df -x"),
        ("exec -it gpu1 bash --login", "exec -it gpu1 -- bash --login"),
    ],
)
def test_options_of_a_command_are_not_taken_for_those_of_the_verb(typed: str, fix: str) -> None:
    found = call(*typed.split())
    assert isinstance(found, UsageError)
    assert found.message.endswith(": a command comes after --")
    assert found.hint == f"vcluster {fix}"


@pytest.mark.parametrize("option", ["-i lab.yaml", "--inventory=lab.yaml"])
def test_an_inventory_behind_a_command_has_both_lines(option: str) -> None:
    found = call(*f"exec gpu1 ls -l {option}".split())
    assert isinstance(found, UsageError)
    name = option.split(maxsplit=1)[0]
    assert (
        found.message
        == f"ls: a command comes after --; {name} before it names the inventory, behind it it is the command's"
    )
    assert str(found.hint).splitlines() == [
        f"vcluster exec gpu1 {option} -- ls -l",
        f"vcluster exec gpu1 -- ls -l {option}",
    ]


@pytest.mark.parametrize(
    "typed", ["exec gpu1", "exec gpu1 -v", "exec --head", "exec --all -- ls", "endpoint --tunnel 0"]
)
def test_what_is_for_the_verb_needs_no_dashes(typed: str) -> None:
    assert call("-i", "missing.yaml", *typed.split()) == 2


@pytest.mark.parametrize(("typed", "meant"), [("help", "--help"), ("help serve", "serve --help")])
def test_help_is_also_a_word(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not call(*typed.split())
    shown = capsys.readouterr().out
    assert not call(*meant.split())
    assert shown == capsys.readouterr().out


@pytest.mark.parametrize("option", ["--yaml", "-z"])
def test_an_unknown_option_leads_to_the_help(option: str, tmp_path: Path) -> None:
    done = run("status", option, cwd=tmp_path)
    error = f"error: vcluster status has no option {option}\nfix: vcluster status --help\n"
    assert (done.returncode, done.stderr) == (2, error)


# fault: kernel/terminal/words.py: if one == f"{word}s"] → if False]
@pytest.mark.parametrize(("verb", "typed", "meant"), [("up", "--pull", "--pull-image"), ("fit", "--gpu", "--gpus")])
def test_the_beginning_of_an_option_is_completed(verb: str, typed: str, meant: str) -> None:
    """`fit` has --gpu-memory, too."""
    found = call(verb, typed)
    assert isinstance(found, UsageError)
    assert found.message == f"vcluster {verb} has no option {typed} (did you mean {meant}?)"
    assert found.hint == f"vcluster {verb} {meant}\nvcluster {verb} --help"


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("restart", "vcluster serve MODEL"),
        ("lgos", "vcluster logs"),
        ("download", "vcluster pull MODEL"),
        ("completion", "vcluster --install-completion"),
        ("ps", "vcluster status"),
        ("kill", "vcluster stop"),
        ("rm", "vcluster stop"),
        ("start", "vcluster up"),
        ("statsu", "vcluster status"),
        ("Logs", "vcluster logs"),
        ("qqqq", "vcluster --help"),
    ],
)
def test_a_verb_that_is_none_names_the_one_that_was_meant(typed: str, near: str, tmp_path: Path) -> None:
    found = call(typed)
    assert isinstance(found, UsageError)
    assert (found.exit_code, str(found.hint).splitlines()[0]) == (2, near)
    shown = run("-i", "a b.yaml", typed, cwd=tmp_path).stderr.splitlines()[1]
    assert shown.startswith("fix: vcluster --" if near.startswith("vcluster --") else f"fix: {near[:13]}")
    assert (" -i 'a b.yaml'" in shown) == (not near.startswith("vcluster --"))


def test_a_misspelt_verb_is_reported_with_the_rest_of_its_words() -> None:
    found = call("sevre", "org/model", "--tp", "2", "--", "--seed", "1")
    assert isinstance(found, UsageError)
    assert found.hint == "vcluster serve org/model --tp 2 -- --seed 1"


@pytest.mark.parametrize("command", sorted({line for lines in words.MEANINGS.values() for line in lines.split("\n")}))
def test_what_is_suggested_exists(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    program, *argv = command.split()
    assert program == "vcluster"
    # Not run where it is an option of the program: one of them changes the shell of whoever runs this.
    option = argv[0].startswith("-")
    assert call(*(() if option else argv), "--help") == 0
    assert not option or argv[0] in capsys.readouterr().out


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize(("verb", "inner"), PATHS)
def test_help_is_whole_and_in_the_words_of_the_field(
    verb: str, inner: str, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    argv = list(filter(None, (verb, inner, "--help")))
    assert call(*argv) == 0
    shown = capsys.readouterr().out
    for word in ("<int", "<str", "list[", "<path", "x>=", "<=x", "...\n", "[["):
        assert word not in shown.replace("]...", "]")
    assert "\nExamples:\n  vcluster " in shown
    # Names and examples are to be pasted: they are not broken.
    lines = shown.partition("\nExamples:\n")[0].splitlines()
    descriptions = [line for line in lines if len(line.split()) > 1]
    assert max(map(len, descriptions)) < columns
    if not inner:
        assert len(VERBS[verb].summary) <= 60
        assert " ".join(shown.split()).find(VERBS[verb].summary) > 0


@pytest.mark.parametrize("argv", [(), ("--help",), ("sandbox",), ("image",)])
def test_a_program_without_a_verb_shows_its_verbs(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert not call(*argv)
    shown = capsys.readouterr().out
    assert shown.startswith("Usage: vcluster")
    table = VERBS if not GROUPS.keys() & set(argv) else {}
    for name, verb in table.items():
        assert f"  {name}".ljust(13) + verb.summary in shown


@pytest.mark.parametrize("path", [f"{verb} {inner}".strip() for verb, inner in PATHS])
def test_examples_are_commands_of_the_program(path: str) -> None:
    """Each is parsed whole: the help that is asked for in its midst keeps it from being run."""
    name, _, inner = path.partition(" ")
    for example in (GROUPS[name][inner] if inner else VERBS[name]).examples:
        program, *argv = shlex.split(example.split(" > ")[0])
        if program == "vcluster":
            at = argv.index("--") if "--" in argv else len(argv)
            assert call(*argv[:at], "--help", *argv[at:]) == 0


@pytest.mark.parametrize("more", [[], ["-v"]])
def test_the_version_names_the_program(more: list[str], tmp_path: Path) -> None:
    assert run("--version", *more, cwd=tmp_path).stdout.startswith("vcluster 0.")


def test_an_error_of_the_command_line_is_json_where_json_is_asked_for(tmp_path: Path) -> None:
    for argv in (["serve", "--json"], ["stauts", "--json"]):
        done = run(*argv, cwd=tmp_path)
        found = json.loads(done.stdout)
        assert (done.returncode, done.stderr, found["event"], found["exit_code"]) == (2, "", "error", 2)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (["up"], "vcluster up -i lab.yaml --yes"),
        (["up", "-i", "lab.yaml"], "vcluster up -i lab.yaml --yes"),
    ],
)
def test_a_remedy_names_the_inventory_as_all_others_do(
    given: list[str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the environment names it: some remedies named it and others did not."""
    monkeypatch.setattr(sys, "argv", ["vcluster", *given])
    error = UsageError("a question", again=("--yes",))
    assert edge.remedy(error, lambda text: edge.with_inventory(text, Path("lab.yaml"))) == line


# fault: cli/main.py: ("-h, --help", "Show this message and exit."), → ("-h", "Show this message and exit."),
@pytest.mark.parametrize("columns", ["40", "80", "200"])
@pytest.mark.parametrize("words", [[], ["-h"], ["--help"], ["help"]], ids=str)
def test_the_help_that_needs_no_parser_is_the_parsers(
    words: list[str], columns: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(SystemExit):
        app(words, prog_name="vcluster")
    shown = capsys.readouterr().out
    assert shown.startswith("Usage: vcluster VERB")
    assert run(*words, cwd=tmp_path, COLUMNS=columns).stdout == shown
