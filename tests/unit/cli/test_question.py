"""What a person asks: options as fields of the request, prompts, files and schemas."""

from __future__ import annotations

import io
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.support.sim import make
from vllm_cluster.cli.app import app
from vllm_cluster.features.ask.verb import _talk
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.kernel.terminal.settings import SETTINGS
from vllm_cluster.serving.api import question


def given(monkeypatch: pytest.MonkeyPatch, *argv: str) -> dict[str, Any]:
    """The fields that a command line sends."""
    seen: list[dict[str, Any]] = []
    real = question.RequestOptions.fields

    class Stop(SystemExit):
        """Not an error of the program's: it would be kept in the cache folder of whoever runs this."""

    def fields(asked: question.RequestOptions) -> None:
        seen.append(real(asked))
        raise Stop

    monkeypatch.setattr(question.RequestOptions, "fields", fields)
    with pytest.raises(SystemExit):
        app([*argv], prog_name="vcluster")
    return seen[0]


@pytest.fixture(params=["complete", "chat", "batch"])
def asks(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, ...]:
    """The words of a verb that sends requests."""
    source = tmp_path / "in.json"
    source.write_text('["Hi"]')
    return {"batch": ("batch", str(source), "-o", str(tmp_path / "out.jsonl"))}.get(
        request.param, (request.param, "Hi")
    )


def test_what_is_not_given_is_not_sent(asks: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    assert given(monkeypatch, *asks) == {}


# fault: serving/api/question.py: name == "asked" else (given,) → name == "given" else (given,)
def test_options_are_sent_under_the_names_of_the_api(asks: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--max-tokens", "0", "--temperature", "0", "--top-p", "0.5", "--set", "seed=0"]
    words += ["--stop", "a", "--stop", "b", "--set", "top_k=5"]
    expected = {"max_tokens": 0, "temperature": 0.0, "top_p": 0.5, "seed": 0, "stop": ["a", "b"], "top_k": 5}
    assert given(monkeypatch, *asks, *words) == expected


def test_set_takes_json_or_text(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    words = ["truncation_side=left", 'cache_salt="mine"', 'logit_bias={"5": -100}', "n=2", "ignore_eos=true", "user="]
    found: dict[str, Any] = question.RequestOptions(json_schema=schema, set_=words).fields()
    assert found.pop("response_format")["json_schema"]["schema"] == {"type": "object"}
    assert found == {
        "truncation_side": "left",
        "cache_salt": "mine",
        "logit_bias": {"5": -100},
        "n": 2,
        "ignore_eos": True,
        "user": "",
    }


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("x", "--set must be KEY=VALUE, got 'x'"),
        ("=1", "--set must be KEY=VALUE, got '=1'"),
        ("x={", "--set x: not JSON: '{'"),
        ("x=" + "[" * 100_000, "--set x: not JSON: '[["),
        ("x=[-Infinity]", "--set x: not JSON"),
        ('x="half', "--set x: not JSON"),
    ],
)
def test_what_is_neither_json_nor_text_is_refused(wrong: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        question.RequestOptions(set_=[wrong]).fields()
    assert caught.value.message.startswith(message)


OLD = [
    ("complete", "--top-k", "vcluster complete in.json --set 'top_k=1'"),
    ("chat", "--bad-words", "vcluster chat in.json --set 'bad_words=[\"1\"]'"),
    ("batch", "--no-skip-special-tokens", "vcluster batch IN -o OUT --set 'skip_special_tokens=false'"),
    ("chat", "--reasoning-effort", "vcluster chat in.json --set 'reasoning_effort=1'"),
    ("batch", "--repeat", "vcluster batch IN -o OUT --set n=NUMBER"),
    ("batch", "--on-head", "vcluster batch IN -o OUT"),
    ("batch", "--errors", "vcluster batch IN -o OUT"),
]


@pytest.mark.parametrize(("verb", "option", "line"), OLD)
def test_a_removed_option_names_what_to_use(
    verb: str, option: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((SystemExit, UsageError)) as end:
        app([verb, "in.json", option, "1"], prog_name="vcluster")
    shown = capsys.readouterr().err + str(getattr(end.value, "hint", ""))
    assert line in shown


# fault: serving/api/question.py: schema = json_for_all(text_of(path).encode()) → schema = json.loads(text_of(path))
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{\n "type": }', "schema.json:2: --json-schema: not JSON"),
        (b"[1]", "schema.json:1: --json-schema: a schema is an object, got [1]"),
        (b"\n\xff", "schema.json:2: neither UTF-8 text nor an image"),
        (b"[" * 100_000, "schema.json: --json-schema: nested too deeply"),
        (b'{"maximum": ' + b"1" * 5000 + b"}", "schema.json: --json-schema: not JSON: a number larger than a double"),
        (b'{"title": "\\ud800"}', "schema.json: --json-schema: not JSON: a number larger than a double, or half a"),
        (None, "schema.json: cannot be read: No such file or directory"),
    ],
)
def test_a_bad_schema_names_file_and_line(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        question.RequestOptions(json_schema=path).fields()
    assert caught.value.message.replace(f"{tmp_path}/", "").startswith(message)


def test_a_grace_is_a_time_for_a_rotation() -> None:
    for wrong in ("soon", "-5m"):
        with pytest.raises(UsageError, match="--rotate must be a duration such as 90s, 10m or 1h30m"):
            app(["endpoint", f"--rotate={wrong}"], prog_name="vcluster")


@pytest.mark.parametrize(("given", "seconds"), [("1h30m", 5400.0), ("600", 600.0), (None, 0.0)])
def test_a_grace_is_written_as_any_duration(
    given: str | None, seconds: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graces = []

    def rotate(_inventory: object, _emit: object, *, grace: float, **_: object) -> tuple[str, str]:
        graces.append(grace)
        return "new", "old"

    monkeypatch.setattr("vllm_cluster.serving.endpoint.rotate.rotate", rotate)
    monkeypatch.setattr("vllm_cluster.features.dashboard.prometheus.renew_keys", lambda *_, **__: None)
    monkeypatch.setattr(Session, "load", lambda _: make.inventory(1))
    app(["endpoint", "--rotate", *([given] if given else ())], prog_name="vcluster", standalone_mode=False)
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
    assert "data:image/png;base64,iVBORw0K" in str(picture["image_url"])
    assert text == {"type": "text", "text": "note.txt:\na note\n\nWhat?"}


# fault: features/ask/verb.py: err("Interrupted.") → return
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


# fault: features/ask/verb.py: {plain(error.message)} → {error.message}
def test_what_a_server_refuses_steers_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(_content: object) -> None:
        raise UsageError("refused: \x1b]52;c;eA==\x07too long\x1b[2J")

    monkeypatch.setattr("builtins.input", Mock(side_effect=["Hi", EOFError]))
    monkeypatch.setattr(SETTINGS, "verbosity", -1)
    handler = signal.getsignal(signal.SIGINT)
    try:
        _talk(Session(None, as_json=False), "m", ask, ())
    finally:
        signal.signal(signal.SIGINT, handler)
    assert capsys.readouterr().err == "error: refused: too long\n"


@pytest.mark.parametrize(
    ("name", "message"), [("none.jsonl", "none.jsonl is not there"), ("-", "- is not a file; a batch")]
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


@pytest.mark.parametrize("verb", ["complete", "chat"])
def test_fields_of_set_are_checked_before_they_are_sent(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM leaves out a field that it does not know without a word."""
    api = Mock(ensure_fields=Mock(side_effect=UsageError("no such field")))
    monkeypatch.setattr("vllm_cluster.serving.endpoint.api.open_api", lambda _: nullcontext(api))
    monkeypatch.setattr(Session, "load", lambda _: make.inventory(1))
    with pytest.raises(SystemExit) as end:
        app([verb, "Hi", "--top-p", "1", "--set", "temprature=0"], prog_name="vcluster")
    assert (end.value.code, api.ensure_fields.call_args.args[1], api.ask.called) == (2, ["temprature"], False)
