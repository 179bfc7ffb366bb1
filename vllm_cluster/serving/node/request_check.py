"""Judges flags and a model's config as vLLM itself would, before anything is stopped for them.

Importing vLLM costs 10 s of a processor, so one process does it once, at the lowest priority and before anything is
asked, and forks for every question: its answer takes a tenth of a second. The socket is the node program's and outlives
that process: who asks while vLLM is imported waits in its queue.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import itertools
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from vllm_cluster.serving.node.model_files import find_model, offline
from vllm_cluster.serving.node.process import Child, secret_environment
from vllm_cluster.wire.programs import CheckQuestion
from vllm_cluster.wire.reading import MAX_BYTES, bounded, read

SOCKET = "check.sock"
ANSWER_SECONDS = 60
MAX_QUESTION = 1 << 20
# Seconds before it is started again after it ended.
PAUSE = 60.0


def listening(state: Path) -> socket.socket:
    """The socket on which questions come in, for this container's user alone."""
    server = socket.socket(socket.AF_UNIX)
    with _short(state) as path:
        Path(path).unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            server.bind(path)
        finally:
            os.umask(before)
    server.listen(8)
    return server


@contextlib.contextmanager
def _short(state: Path) -> Iterator[str]:
    """The path of the socket: it may have 108 bytes, and that of its folder can be longer."""
    folder = os.open(state, os.O_PATH)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET}"
    finally:
        os.close(folder)


def serve_checks() -> int:
    """Answer questions on the socket that is standard input, until this process is ended."""
    os.nice(19)
    parser, trouble = _load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=os.dup(0)) as server:
        while True:
            client, _ = server.accept()
            with client:
                if os.fork() == 0:
                    _answer(client, parser, trouble)


def _load() -> tuple[Any, str]:
    """vLLM's own parser, made as its command makes it; or why there is none of the shape that we know."""
    try:
        module = importlib.import_module("vllm.entrypoints.cli.serve")

        top = module.FlexibleArgumentParser(prog="vllm")
        below = top.add_subparsers(dest="subparser")
        (command,) = module.cmd_init()
        return (top, command, command.subparser_init(below)), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"[:300]


def _answer(client: socket.socket, parser: Any, trouble: str) -> None:
    """In a process of its own: nothing that vLLM does here outlives the answer."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.alarm(ANSWER_SECONDS)
        with client.makefile("rwb") as file:
            question = read(CheckQuestion, file.readline(MAX_QUESTION), "the question")
            os.environ.update(question.env)
            for part in [{"unchecked": trouble}] if parser is None else judged(parser, question):
                file.write(json.dumps(part, default=str).encode() + b"\n")
                file.flush()
        code = 0
    finally:
        os._exit(code)


def judged(parser: Any, question: CheckQuestion) -> Iterator[dict[str, object]]:
    """First what the parser takes the flags for, then vLLM's judgement of the model with them."""
    top, command, sub = parser
    reply, argv = io.StringIO(), list(question.argv)
    try:
        with contextlib.redirect_stderr(reply), contextlib.redirect_stdout(reply):
            theirs = _given(top, sub, argv[: len(argv) - question.own], question.ask)
            arguments = top.parse_args(argv)
            arguments.model = arguments.model_tag or arguments.model
            command.validate(arguments)
    except SystemExit as ended:
        refusal = (
            reply.getvalue().rpartition("error: ")[2].strip() if ended.code else "they print a text and serve nothing"
        )
        yield {"flags": "refused", "problem": refusal[-1000:] + _near(refusal, sub)}
        return
    except Exception as error:
        yield {"flags": "refused", "problem": _of_file(argv, error)}
        return
    given = sorted(name for name, value in theirs.items() if value != sub.get_default(name))
    asked = {name: getattr(arguments, name) for name in question.ask if hasattr(arguments, name)}
    mine = {name: theirs[name] for name in question.ask if name in theirs}
    yield {"flags": "accepted", "values": asked, "given": given, "theirs": mine}
    if question.model_here:
        yield _model(arguments)


def _given(top: Any, sub: Any, argv: list[str], ask: Sequence[str]) -> dict[str, object]:
    """What a person's words and file set, without those of vcluster: of two equal flags the last one hides the first.

    Of the options asked for, a value that equals the default is given all the same.
    """
    defaults = {name: sub.get_default(name) for name in {action.dest for action in sub._actions}.intersection(ask)}
    # What is appended to must stay a list.
    defaults = {name: value for name, value in defaults.items() if not isinstance(value, list)}
    absent = object()
    sub.set_defaults(**dict.fromkeys(defaults, absent))
    try:
        found = vars(top.parse_args(argv))
    finally:
        sub.set_defaults(**defaults)
    return {name: value for name, value in found.items() if value is not absent}


def _of_file(argv: Sequence[str], error: Exception) -> str:
    """What vLLM cannot read, and the file where it was in one."""
    text = str(error)[:1000] or type(error).__name__
    file = next(
        (word for before, word in itertools.pairwise(argv) if before == "--config" and not word.startswith("-")), ""
    )
    if isinstance(error, IndexError):
        text = "the last of them lacks its value"
    if isinstance(error, AttributeError) and file:
        text = "it must hold options, each in a line as max-model-len: 8192"
    return f"--config {file}: {text}" if file and file not in text else text


def _near(refusal: str, sub: Any) -> str:
    """The flags of vLLM that are nearest to those that its parser does not know."""
    if not refusal.startswith("unrecognized arguments: "):
        return ""
    known = [name for action in sub._actions for name in action.option_strings]
    unknown = [word.partition("=")[0].replace("_", "-") for word in refusal.split() if word.startswith("--")]
    near = [found for word in unknown for found in difflib.get_close_matches(word, known, n=1, cutoff=0.7)]
    return f"; did you mean {', '.join(dict.fromkeys(near))}?" if near else ""


def _model(arguments: Any) -> dict[str, object]:
    try:
        engine = importlib.import_module("vllm.engine.arg_utils")
        registry: Any = importlib.import_module("vllm.model_executor.models.registry")
        # vLLM asks a process of its own about a model's class, which imports all again; this one ends right after.
        if hasattr(registry, "_run_in_subprocess"):
            registry._run_in_subprocess = lambda ask: ask()
        config = engine.AsyncEngineArgs.from_cli_args(arguments).create_model_config()
        stages = bool(config.registry.is_pp_supported_model(config.architectures, config))
        version = str(getattr(importlib.import_module("vllm"), "__version__", ""))
        found = {"model": "accepted", "max_model_len": config.max_model_len, "supports_pp": stages}
        return {**found, "version": version}
    except ValueError as error:
        return {"model": "refused", "problem": _first_words(str(error))}
    except Exception as error:
        # Without a hub, a file that is not there now is not there when vLLM starts either.
        if isinstance(error, FileNotFoundError) and offline():
            return {
                "model": "refused",
                "problem": f"a file that it needs is not here, and HF_HUB_OFFLINE is set: {error}"[:1000],
            }
        return {"unchecked": f"{type(error).__name__}: {error}"[:300]}


def _first_words(text: str) -> str:
    """Of pydantic's report the sentence that vLLM wrote."""
    words = text.partition("Value error, ")[2] or text
    return words.partition(" [type=")[0].strip()[:1000]


def ask(state: Path, question: CheckQuestion, seconds: float) -> dict[str, object]:
    """The answer of the process above; `unchecked` is why there is none, or only a part of it."""
    answer: dict[str, object] = {}
    deadline = time.monotonic() + seconds
    try:
        with socket.socket(socket.AF_UNIX) as client, _short(state) as path:
            client.settimeout(max(0.1, seconds))
            client.connect(path)
            client.sendall(json.dumps(asdict(question)).encode() + b"\n")
            with client.makefile("rb") as file:
                while line := file.readline(MAX_BYTES):
                    answer |= json.loads(bounded(line))
                    client.settimeout(max(0.1, deadline - time.monotonic()))
    except TimeoutError:
        answer["unchecked"] = f"the image's vLLM has not answered within {seconds:.0f} s"
    except (OSError, ValueError) as error:
        answer["unchecked"] = f"the image's vLLM cannot be asked: {error}"
    if not answer:
        answer["unchecked"] = "the image's vLLM gave no answer"
    return answer


def check(state: Path) -> int:
    """`node.py check`: what is known here of a model and of the flags for it, as one JSON document.

    The question is a line of standard input: who lists processes does not see the model's variables in it.
    """
    os.environ.update(secret_environment())
    question = read(CheckQuestion, sys.stdin.buffer.readline(), "the question")
    deadline = time.monotonic() + question.seconds
    answer = ask(state, question, deadline - time.monotonic()) if question.argv else {}
    # As vLLM's own parser reads it: the last of several, or one in the file of --config.
    values = answer.get("values")
    revision = (values.get("revision") if isinstance(values, dict) else None) or question.revision or "main"
    try:
        files = find_model(question.model, revision, ask_hub=question.ask_hub)
    except Exception as error:  # what a hub or a cache holds must not hide what vLLM refuses
        files = {"where": "unknown", "problem": f"{type(error).__name__}: {error}"[:300]}
    if answer.get("flags") == "accepted" and files["where"] in ("folder", "cache", "hub"):
        answer = ask(state, replace(question, model_here=True), deadline - time.monotonic())
    sys.stdout.write("\n" + json.dumps({"v": 1, "files": files, "vllm": answer}) + "\n")
    return 0


class Standby:
    """Keeps the process that answers, from when the cluster is up; while a model starts, only once it is asked."""

    def __init__(self, state: Path) -> None:
        self.child: Child | None = None
        self._state = state
        self._server: socket.socket | None = None

    def keep(self, *, due: bool) -> None:
        """Start it when it is due or asked; where it has just ended, answer so."""
        if self.child and self.child.code() is None:
            return
        with contextlib.suppress(OSError):  # a full disk: the next look may find room
            self._server = self._server or listening(self._state)
        if self._server is None:
            return
        asked = bool(select.select([self._server], [], [], 0)[0])
        if self.child and time.monotonic() - self.child.began < PAUSE:
            if asked:
                _refuse(self._server, f"importing the image's vLLM ended with exit code {self.child.code()}")
        elif due or asked:
            program = [sys.executable, str(Path(__file__).parents[__name__.count(".")] / "node.py"), "checker"]
            self.child = Child("checker", program, os.environ, lambda _: None, quiet=True, stdin=self._server.fileno())


def _refuse(server: socket.socket, why: str) -> None:
    client, _ = server.accept()
    client.settimeout(0.5)
    with client, contextlib.suppress(OSError), client.makefile("rwb") as file:
        file.readline(MAX_QUESTION)  # what is not read resets the connection, and the answer with it
        file.write(json.dumps({"unchecked": why}).encode() + b"\n")
