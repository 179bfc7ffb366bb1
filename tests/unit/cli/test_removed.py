"""A spelling that was removed answers with the line to use instead."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.support.in_process import run
from tests.support.paths import FIXTURES
from vllm_cluster.kernel.terminal import removed


@pytest.mark.spans
@pytest.mark.parametrize("argv", [("earlier", "gpu1"), ("batch", "in.jsonl", "-o", "out.jsonl", "--earlier", "x")])
def test_a_removed_spelling_names_what_to_use(
    argv: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instead = {"earlier": "vcluster check", "batch --earlier": "vcluster batch IN -o OUT"}
    monkeypatch.setattr(removed, "INSTEAD", instead)
    done = run(*argv, cwd=tmp_path)
    assert done.returncode == 2
    assert "earlier" in done.stderr
    assert "no longer has" in done.stderr
    assert "fix: vcluster " in done.stderr


INVENTORY = """version: 1
cluster: lab
image: vllm/vllm-openai:v0.33.0
model_cache: /data
hosts:
  gpu1: {address: 10.0.0.1, ssh: {host: 127.0.0.1, port: 1}}
"""
# What a person puts in the places of a line.
PLACES = {
    **{
        "NUMBER": "1",
        " DURATION": " 1s",
        "TOKENS": "8",
        "[ID]": "[1]",
        "TEXT": "no",
        '{"ID": 1}': '{"1": 1}',
        "LEVEL": "low",
    },
    **{"NAME=ADDRESS": "gpu1=10.0.0.1", "FILE": "other.yaml", "RECIPE": "recipe.yaml", "MODEL": "org/model"},
    **{"PROMPT": "hello", "FOLDER": "./model", "SIZE": "80GB", " IN ": " in.jsonl ", "OUT": "out.jsonl"},
}
UNREACHABLE = 4
# Becomes ssh, whose words tests of the terminal look at.
SHELL = "vcluster exec --head --ssh"


# fault: kernel/terminal/removed.py: "top": "vcluster status --watch" → "top": "vcluster status --watched"
# fault: kernel/terminal/removed.py: f"{name.removeprefix('no_')}={value}" → f"{name}:{value}"
@pytest.mark.spans
@pytest.mark.parametrize("line", sorted({*removed.INSTEAD.values()} - {SHELL}))
def test_a_line_to_use_instead_is_one_that_works(line: str, tmp_path: Path) -> None:
    """Up to the host, which does not listen; what needs none ends well, and without a model `fit` finds none."""
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    (tmp_path / "recipe.yaml").write_text((FIXTURES / "recipe.yaml").read_text())
    (tmp_path / "in.jsonl").write_text('{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {}}\n')
    line = line.partition("\n")[0].removesuffix(" | cat")
    for place, word in PLACES.items():
        line = line.replace(place, word)
    if line.endswith(("--watch", "--wait")):
        line += " 1s"
    line += " --count 1" * ("--watch" in line)
    # Another test may have the port that it takes by itself.
    line += " 0" * line.endswith("--tunnel")
    words = shlex.split(line.removeprefix('eval "$(').removesuffix(')"'))
    done = run(*words[1:], cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path))
    expected = {
        "vcluster init --schema": 0,
        "vcluster init --host gpu1=10.0.0.1 -o other.yaml": 0,
        "vcluster status --watch 1s --count 1": 0,
        "vcluster slurm endpoint JOB --tunnel 1": 2,
        "vcluster fit ./model --gpus 1 --gpu-memory 80GB": 2,
        "vcluster fit ./model --gpus 1x1 --gpu-memory 80GB": 2,
    }
    without = 0 if line.startswith("vcluster slurm ") else UNREACHABLE
    assert done.returncode == expected.get(line, without), done.stderr
    assert "has no" not in done.stderr


# fault: kernel/terminal/words.py: removed.refuse_removed(path, option, given, → removed.refuse_removed(path, option, (),
# fault: kernel/terminal/words.py: (path, option, given, called.bare) → (path, option, given)
# fault: kernel/terminal/removed.py:  or "=" in pair[-1]] → ]
# fault: kernel/terminal/removed.py: (not new and _MEASURE.fullmatch(rest[0])) → False
@pytest.mark.spans
@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("complete 'Hi there' --top-k 5 --seed 1", "complete 'Hi there' --set 'top_k=5' --seed 1"),
        ("complete Hi --bad-words=no", """complete Hi --set 'bad_words=["no"]'"""),
        ("complete Hi --bad-words ö", """complete Hi --set 'bad_words=["ö"]'"""),
        ("complete Hi --ignore-eos --max-tokens 3", "complete Hi --set 'ignore_eos=true' --max-tokens 3"),
        ("logs --rank 3 --follow", "logs --only 'rank=3' --follow"),
        ("status --last 5", "status --history 5"),
        ("status --timeout 5m", "status --wait 5m"),
        ("status --wait --timeout 5m -v", "status --wait 5m -v"),
        ("status --timeout=5m --wait=10m", "status --wait 5m"),
        ("status --watch --interval 5s", "status --watch 5s"),
        ("complete Hi --set a=1 --top-k 5", "complete Hi --set 'a=1' --set 'top_k=5'"),
        ("complete Hi --set a=1 --ignore-eos", "complete Hi --set 'a=1' --set 'ignore_eos=true'"),
        ("batch in.jsonl -o out.jsonl --repeat 3", "batch in.jsonl -o out.jsonl --set 'n=3'"),
        ("batch in.jsonl --timeout 30 -o out.jsonl", "batch in.jsonl -o out.jsonl"),
        ("batch in.jsonl -o out.jsonl --on-head", "batch in.jsonl -o out.jsonl"),
        ("slurm org/model --partition gpu", "slurm org/model --sbatch 'partition=gpu'"),
        ("logs --polls", "logs --grep GET"),
        # What cannot be filled is shown with its places.
        ("complete Hi --logit-bias 5", """complete PROMPT --set 'logit_bias={"ID": NUMBER}'"""),
        ("batch in.jsonl --errors", "batch IN -o OUT"),
        ("fit m --gpus 8 --nodes 2", "fit FOLDER --gpus NUMBERxNUMBER --gpu-memory SIZE"),
    ],
)
def test_the_line_to_use_has_the_words_that_were_typed(typed: str, line: str, tmp_path: Path) -> None:
    done = run(*shlex.split(typed), cwd=tmp_path)
    assert done.returncode == 2
    assert f"fix: vcluster {line}\n" in done.stderr


# fault: kernel/terminal/program.py: removed.refuse_removed_arguments(ctx.command_path, args) → pass
@pytest.mark.spans
@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (("init", "--cluster", "lab", "gpu1=10.0.0.11"), "fix: vcluster init --host 'gpu1=10.0.0.11'"),
        (("endpoint", "--tunnel", "--", "env", "-0"), 'fix: eval "$(vcluster endpoint --detach --env)"\nfix: env -0'),
        (("key", "--rotate"), "fix: vcluster endpoint --rotate"),
    ],
)
def test_words_that_were_taken_before_name_what_to_use(argv: tuple[str, ...], line: str, tmp_path: Path) -> None:
    done = run(*argv, cwd=tmp_path)
    assert done.returncode == 2
    assert "no longer" in done.stderr
    assert line in done.stderr
