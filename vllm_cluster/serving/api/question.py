"""What a person asks: the prompt, files, and fields of the request that need reading."""

from __future__ import annotations

import base64
import functools
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.laptop import expanded, read_given
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.terminal.settings import SETTINGS
from vllm_cluster.wire.reading import json_for_all

# A longer prompt fits no model's context.
MAX_INPUT = 64 << 20
SHORTER = "give a shorter file"
# What the first bytes of an image are.
_IMAGES = {b"\x89PNG\r\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}

Files = Annotated[
    list[Path] | None,
    typer.Option("--file", "-f", metavar="FILE", help="Put this text file before the prompt; repeatable."),
]
ChatFiles = Annotated[
    list[Path] | None,
    typer.Option("--file", "-f", metavar="FILE", help="Send this text file or image with the prompt; repeatable."),
]
Logprobs = Annotated[
    int | None,
    typer.Option(
        "--logprobs",
        metavar="N",
        min=0,
        help="Print each token with its probability, its rank and the N most probable tokens.",
    ),
]
JsonSchema = Annotated[
    Path | None, typer.Option("--json-schema", metavar="FILE", help="Answer in JSON of this schema.")
]
MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", metavar="NUMBER", min=0, help="End after this many tokens.")
]
Temperature = Annotated[
    float | None,
    typer.Option("--temperature", metavar="NUMBER", min=0, help="Randomness; 0 always takes the most probable token."),
]
TopP = Annotated[
    float | None,
    typer.Option(
        "--top-p", metavar="NUMBER", min=0, max=1, help="Sample from the most probable tokens that add up to this."
    ),
]
Stop = Annotated[list[str] | None, typer.Option("--stop", metavar="TEXT", help="End before this text; repeatable.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any field of the API's request (model=ADAPTER), as JSON or text; repeatable.",
    ),
]


def read_prompt(prompt: str | None, files: Sequence[Path]) -> str:
    """The prompt: as given, from standard input for `-` or where it is piped; empty where files are enough."""
    piped = prompt is None and not files and not sys.stdin.isatty()
    if prompt == "-" or piped:
        # The line end is that of echo or of a file, and would be a part of the text to continue.
        prompt = standard_input().removesuffix("\n")
    elif prompt is None and not files:
        raise UsageError("missing PROMPT", hint=command_line("vcluster", SETTINGS.verb, "Hello"))
    if not prompt and not files:
        raise UsageError("the prompt is empty", hint=command_line("vcluster", SETTINGS.verb, "Hello"))
    return prompt or ""


def standard_input(most: int = MAX_INPUT, instead: str = SHORTER) -> str:
    """What is piped into this program: at most so many bytes, which more are refused with what to do `instead`.

    Raises:
        UsageError: it is not text, or too long.
    """
    return _text(sys.stdin.buffer.read(most + 1), "standard input", most, instead)


def text_of(path: Path, most: int = MAX_INPUT, instead: str = SHORTER) -> str:
    """The content of a text file: at most so many bytes, which more are refused with what to do `instead`.

    Raises:
        UsageError: it cannot be read, is not text, or too long.
    """
    return _text(_read(path, most), str(path), most, instead)


def content(prompt: str, files: Sequence[Path]) -> str | list[dict[str, object]]:
    """A message of a chat: files by name before the prompt, images as parts of their own."""
    raw = {path: _read(path) for path in files}
    kinds = {path: _image(data) for path, data in raw.items()}
    texts = [f"{path.name}:\n{_text(data, str(path))}\n" for path, data in raw.items() if not kinds[path]]
    text = "\n".join([*texts, prompt]) if prompt else "\n".join(texts)
    images: list[dict[str, object]] = [
        {"type": "image_url", "image_url": {"url": f"data:{kinds[path]};base64,{base64.b64encode(data).decode()}"}}
        for path, data in raw.items()
        if kinds[path]
    ]
    return [*images, {"type": "text", "text": text}] if images else text


@dataclass(frozen=True)
class RequestOptions:
    """The fields of the request that options give: those with an option of their own, and those of --set."""

    json_schema: JsonSchema = None
    max_tokens: MaxTokens = None
    temperature: Temperature = None
    top_p: TopP = None
    stop: Stop = None
    set_: Set = None

    def fields(self) -> dict[str, object]:
        """Read them.

        Raises:
            UsageError: one cannot be read.
        """
        named = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("json_schema", "set_")}
        # Typer has an empty list for an option that was not given.
        found = {name: value for name, value in named.items() if value is not None and value != []}
        for one in self.set_ or ():
            name, equals, value = one.partition("=")
            if not equals or not name:
                raise UsageError(f"--set must be KEY=VALUE, got {one!r}", hint="--set top_k=20")
            found[name] = _value(name, value)
        return {**found, **({"response_format": _schema_format(self.json_schema)} if self.json_schema else {})}

    @property
    def names(self) -> list[str]:
        """The names of the fields that --set gives."""
        return [one.partition("=")[0] for one in self.set_ or ()]


def asks(verb: Callable[..., None]) -> Callable[..., None]:
    """Return a verb with the options of `RequestOptions` where it takes `asked`."""
    own = inspect.signature(verb, eval_str=True)
    options = inspect.signature(RequestOptions, eval_str=True).parameters
    parameters = [
        one for name, given in own.parameters.items() for one in (options.values() if name == "asked" else (given,))
    ]

    @functools.wraps(verb)
    def run(*args: object, **given: object) -> None:
        bound = inspect.Signature(parameters).bind_partial(*args, **given).arguments
        named = {name: bound.pop(name) for name in options if name in bound}
        verb(**bound, asked=RequestOptions(**named))

    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def _value(name: str, text: str) -> object:
    """A value as JSON, and where it is none as text."""
    try:
        return json_for_all(text.encode())
    except (ValueError, RecursionError):
        if text.lstrip()[:1] in ("{", "[", '"'):
            raise UsageError(
                f"--set {name}: not JSON: {text[:80]!r}", hint=command_line(Option("--set"), f"{name}=VALUE")
            ) from None
        return text


def _schema_format(path: Path) -> dict[str, object]:
    from vllm_cluster.serving.api.answer import schema_format

    try:
        schema = json_for_all(text_of(path).encode())
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{error.lineno}: --json-schema: not JSON: {error.msg}") from None
    except RecursionError:
        raise UsageError(f"{path}: --json-schema: nested too deeply", hint="--json-schema FILE") from None
    except ValueError:
        text = f"{path}: --json-schema: not JSON: a number larger than a double, or half a letter of UTF-16"
        raise UsageError(text, hint="--json-schema FILE") from None
    if not isinstance(schema, dict):
        raise UsageError(
            f"{path}:1: --json-schema: a schema is an object, got {json.dumps(schema)[:40]}", hint="--json-schema FILE"
        )
    return schema_format(schema)


def _read(path: Path, most: int = MAX_INPUT) -> bytes:
    try:
        return read_given(expanded(path), most + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{path}: cannot be read: {reason}", hint=command_line("stat", str(path))) from None


def _text(raw: bytes, name: str, most: int = MAX_INPUT, instead: str = SHORTER) -> str:
    if len(raw) > most:
        raise UsageError(
            f"{name}: longer than {f'{most >> 20} MB' if most >> 20 else f'{most // 1000} kB'}", hint=instead
        )
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UsageError(
            f"{name}:{line}: neither UTF-8 text nor an image", hint="give text, or an image in PNG, JPEG, GIF or WebP"
        ) from None


def _image(raw: bytes) -> str | None:
    return next((kind for start, kind in _IMAGES.items() if raw.startswith(start)), None)
