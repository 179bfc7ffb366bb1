"""What a person asks: options as fields of the request, prompts, files and schemas."""

from __future__ import annotations

import io
import signal
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.support.sim import make
from vllm_cluster.cli import question
from vllm_cluster.cli.app import app
from vllm_cluster.cli.chat import _talk
from vllm_cluster.cli.sampling import PARAMETERS
from vllm_cluster.cli.session import SETTINGS, Session
from vllm_cluster.errors import UsageError


def given(monkeypatch: pytest.MonkeyPatch, *argv: str) -> dict[str, Any]:
    """The fields that a command line sends."""
    seen: list[dict[str, Any]] = []

    class Stop(SystemExit):
        """Not an error of the program's: it would be kept in the cache folder of whoever runs this."""

    def fields(sampling: dict[str, Any], *_: object) -> None:
        seen.append(sampling)
        raise Stop

    monkeypatch.setattr(question, "fields", fields)
    with pytest.raises(SystemExit):
        app([*argv], prog_name="vcluster")
    return seen[0]


@pytest.mark.parametrize("verb", ["complete", "chat"])
def test_what_is_not_given_is_not_sent(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert given(monkeypatch, verb, "Hi") == {}


@pytest.mark.parametrize("verb", ["complete", "chat"])
def test_every_parameter_is_sent_under_its_own_name(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words: list[str] = []
    expected: dict[str, Any] = {}
    for name, one in PARAMETERS.items():
        option = "--" + ("no-" if one.off else "") + name.replace("_", "-")
        value = {bool: not one.off, int: 1, float: 0.5, list[int]: [7, 8], list[str]: ["a", "b"], str: "left"}[one.type]
        for each in value if isinstance(value, list) else [value]:
            words += [option] if one.type is bool else [option, str(each)]
        expected[name] = value
    assert given(monkeypatch, verb, "Hi", *words) == expected


def test_zero_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert given(monkeypatch, "complete", "Hi", "--temperature", "0", "--seed", "0") == {"temperature": 0.0, "seed": 0}


def test_fields_with_a_form_of_their_own(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    found = question.fields({"logit_bias": ["5=-100", "7=0.5"]}, ['cache_salt="mine"', "vllm_xargs={}"], schema)
    assert found["logit_bias"] == {"5": -100.0, "7": 0.5}
    assert (found["cache_salt"], found["vllm_xargs"]) == ("mine", {})
    assert found["response_format"]["json_schema"]["schema"] == {"type": "object"}


@pytest.mark.parametrize("wrong", ["x", "x=", "=1", "x={", "x=" + "[" * 100_000, "x=NaN", "x=[-Infinity]", "x=1e999"])
def test_a_field_without_json_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="--set must be FIELD=JSON"):
        question.fields({}, [wrong], None)


@pytest.mark.parametrize("wrong", ["5", "a=1", "5=x", "=1", "5=nan", "5=1e999"])
def test_a_bias_without_a_number_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="--logit-bias must be ID=NUMBER"):
        question.fields({"logit_bias": [wrong]}, [], None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{\n "type": }', "schema.json:2: --json-schema: not JSON"),
        (b"[1]", "schema.json:1: --json-schema: a schema is an object, got [1]"),
        (b"\n\xff", "schema.json:2: neither UTF-8 text nor an image"),
        (b"[" * 100_000, "schema.json: --json-schema: nested too deeply"),
        (None, "schema.json: cannot be read: No such file or directory"),
    ],
)
def test_a_bad_schema_names_file_and_line(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        question.fields({}, [], path)
    assert caught.value.message.replace(f"{tmp_path}/", "").startswith(message)


def test_a_grace_is_a_time_for_a_rotation(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("soon", "-5m"):
        with pytest.raises(UsageError, match="--grace must be a duration such as 90s, 10m or 1h30m"):
            app(["endpoint", "--rotate", "--grace", wrong], prog_name="vcluster")
    with pytest.raises(SystemExit) as ended:
        app(["endpoint", "--grace", "5m"], prog_name="vcluster")
    assert (ended.value.code, "--grace needs --rotate" in capsys.readouterr().err) == (2, True)


@pytest.mark.parametrize(("given", "seconds"), [("1h30m", 5400.0), ("600", 600.0), (None, 0.0)])
def test_a_grace_is_written_as_any_duration(
    given: str | None, seconds: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graces = []

    def rotate(_inventory: object, _emit: object, *, grace: float, wait: float) -> str:
        graces.append(grace)
        return "new"

    monkeypatch.setattr("vllm_cluster.actions.rotate.rotate", rotate)
    monkeypatch.setattr("vllm_cluster.actions.metrics.renew_keys", lambda *_: None)
    monkeypatch.setattr(Session, "load", lambda _: make.inventory(1))
    app(["endpoint", "--rotate", *(("--grace", given) if given else ())], prog_name="vcluster", standalone_mode=False)
    assert (graces, capsys.readouterr().out) == ([seconds], "new\n")


class Piped(io.TextIOWrapper):
    """Standard input from a pipe."""

    def __init__(self, raw: bytes, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(raw))
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(
    ("prompt", "files", "piped", "expected"),
    [
        ("Hi", False, b"never read", "Hi"),
        ("-", False, b"from a pipe\n", "from a pipe"),
        ("-", True, b"two lines\n\n", "two lines\n"),
        (None, False, b"from a pipe", "from a pipe"),
        (None, True, b"never read", ""),
    ],
)
def test_where_a_prompt_comes_from(
    prompt: str | None, files: bool, piped: bytes, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Piped(piped))
    assert question.read_prompt(prompt, [Path("file")] if files else []) == expected


def test_a_missing_prompt_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Piped(b"", terminal=True))
    with pytest.raises(UsageError, match="missing PROMPT"):
        question.read_prompt(None, [])


def test_files_go_before_the_prompt_and_images_beside_it(tmp_path: Path) -> None:
    note, image = tmp_path / "note.txt", tmp_path / "image.bin"
    note.write_text("a note")
    image.write_bytes(b"\x89PNG\r\n\x1a\nrest")
    assert question.content("What?", [note]) == "note.txt:\na note\n\nWhat?"
    found = question.content("What?", [image, note])
    assert isinstance(found, list)
    picture, text = found
    assert picture["image_url"]["url"].startswith("data:image/png;base64,iVBORw0K")
    assert text == {"type": "text", "text": "note.txt:\na note\n\nWhat?"}


# fault: cli/chat.py: sys.stderr.write("Interrupted.\n") → return
@pytest.mark.parametrize("moment", ["at the prompt", "after the line", "in the question"])
def test_ctrl_c_ends_no_conversation(
    moment: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def ask(content: object) -> None:
        asked.append(content)
        if content == "in the question":
            raise KeyboardInterrupt

    class Line(str):
        def strip(self, chars: str | None = None) -> str:
            raise KeyboardInterrupt

    at_once: dict[str, Any] = {"at the prompt": KeyboardInterrupt, "after the line": Line("Hi")}
    monkeypatch.setattr("builtins.input", Mock(side_effect=[at_once.get(moment, moment), "Bye", EOFError]))
    # A test before this one may have been a call with -q, in this process.
    monkeypatch.setattr(SETTINGS, "verbosity", 0)
    handler = signal.getsignal(signal.SIGINT)
    try:
        _talk(Session(None, as_json=False), "m", ask, ())
    finally:
        signal.signal(signal.SIGINT, handler)
    assert asked[-1] == "Bye"
    assert capsys.readouterr().err.splitlines()[1:] == ([] if moment == "at the prompt" else ["Interrupted."])


@pytest.mark.parametrize(
    ("name", "message"), [("none.jsonl", "none.jsonl is not a file"), ("-", "IN must be a file: it is read twice")]
)
def test_a_batch_without_its_input_is_a_wrong_command_line(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        app(["batch", name, "-o", "out.jsonl"], prog_name="vcluster")
    assert (end.value.code, list(tmp_path.iterdir())) == (2, [])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("prompt", "piped"), [("", b""), ("-", b"\n"), (None, b"")])
def test_an_empty_prompt_is_refused(prompt: str | None, piped: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped)))
    with pytest.raises(UsageError, match="the prompt is empty"):
        question.read_prompt(prompt, [])
    assert question.read_prompt("", [Path("picture.png")]) == ""
