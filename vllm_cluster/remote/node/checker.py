"""Judges flags and a model's config as vLLM itself would, before anything is stopped for them.

Importing vLLM costs 10 s of a processor, so one process does it once, at the lowest priority while a model is served,
and forks for every question: its answer takes a tenth of a second.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vllm_cluster.remote.node.model_files import look
from vllm_cluster.remote.node.process import Child, secret_environment

SOCKET = "check.sock"
ANSWER_SECONDS = 60
MAX_QUESTION = 1 << 20
# Seconds before it is started again after it ended.
PAUSE = 60.0


def serve_checks(state: Path) -> int:
    """Answer questions until this process is ended."""
    os.nice(19)
    # A path of a socket may have 108 bytes, that of the folder can be longer.
    os.chdir(state)
    Path(SOCKET).unlink(missing_ok=True)
    os.umask(0o177)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(SOCKET)
        server.listen(8)  # who asks while vLLM is imported waits in this queue
        parser, trouble = _load()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
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
            question = json.loads(file.readline(MAX_QUESTION))
            os.environ.update(question.get("env", {}))
            for part in [{"unchecked": trouble}] if parser is None else judged(parser, question):
                file.write(json.dumps(part, default=str).encode() + b"\n")
                file.flush()
        code = 0
    finally:
        os._exit(code)


def judged(parser: Any, question: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """First what the parser takes the flags for, then vLLM's judgement of the model with them."""
    top, command, sub = parser
    reply = io.StringIO()
    try:
        with contextlib.redirect_stderr(reply), contextlib.redirect_stdout(reply):
            arguments = top.parse_args(list(question["argv"]))
            arguments.model = arguments.model_tag or arguments.model
            command.validate(arguments)
    except SystemExit:
        refusal = reply.getvalue().rpartition("error: ")[2].strip()
        yield {"flags": "refused", "problem": refusal[-1000:]}
        return
    except Exception as error:
        yield {"flags": "refused", "problem": str(error)[:1000] or type(error).__name__}
        return
    given = {name: value for name, value in vars(arguments).items() if value != sub.get_default(name)}
    asked = {name: getattr(arguments, name) for name in question["ask"] if hasattr(arguments, name)}
    yield {"flags": "accepted", "values": asked, "given": sorted(given)}
    if question.get("model_here"):
        yield _model(arguments)


def _model(arguments: Any) -> dict[str, Any]:
    try:
        engine = importlib.import_module("vllm.engine.arg_utils")
        registry: Any = importlib.import_module("vllm.model_executor.models.registry")
        # vLLM asks a process of its own about a model's class, which imports all again; this one ends right after.
        if hasattr(registry, "_run_in_subprocess"):
            registry._run_in_subprocess = lambda ask: ask()
        config = engine.AsyncEngineArgs.from_cli_args(arguments).create_model_config()
        stages = bool(config.registry.is_pp_supported_model(config.architectures, config))
        return {"model": "accepted", "max_model_len": config.max_model_len, "supports_pp": stages}
    except ValueError as error:
        return {"model": "refused", "problem": _first_words(str(error))}
    except Exception as error:
        return {"unchecked": f"{type(error).__name__}: {error}"[:300]}


def _first_words(text: str) -> str:
    """Of pydantic's report the sentence that vLLM wrote."""
    words = text.partition("Value error, ")[2] or text
    return words.partition(" [type=")[0].strip()[:1000]


def ask(state: Path, question: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """The answer of the process above; `unchecked` is why there is none, or only a part of it."""
    answer: dict[str, Any] = {}
    deadline = time.monotonic() + seconds
    os.chdir(state)
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(max(0.1, seconds))
            client.connect(SOCKET)
            client.sendall(json.dumps(question).encode() + b"\n")
            with client.makefile("rb") as file:
                while line := file.readline():
                    answer |= json.loads(line)
                    client.settimeout(max(0.1, deadline - time.monotonic()))
    except (FileNotFoundError, ConnectionRefusedError):
        answer["unchecked"] = "vLLM checks them itself when it starts"  # the process above runs once a model is ready
    except TimeoutError:
        answer["unchecked"] = f"the image's vLLM has not answered within {seconds:.0f} s"
    except (OSError, ValueError) as error:
        answer["unchecked"] = f"the image's vLLM cannot be asked: {error}"
    if not answer:
        answer["unchecked"] = "the image's vLLM gave no answer"
    return answer


def check(state: Path, text: str) -> int:
    """`node.py check JSON`: what is known here of a model and of the flags for it, as one JSON document."""
    os.environ.update(secret_environment())
    question = json.loads(text)
    files = look(question["model"], question.get("revision") or "main", ask_hub=question.get("ask_hub", True))
    answer = {}
    if "argv" in question:
        here = files["where"] in ("folder", "cache", "hub")
        answer = ask(state, {**question, "model_here": here}, float(question["seconds"]))
    sys.stdout.write("\n" + json.dumps({"v": 1, "files": files, "vllm": answer}) + "\n")
    return 0


class Standby:
    """Keeps the process that answers, from when a model is first ready: before, a bad request costs nothing."""

    def __init__(self) -> None:
        self.child: Child | None = None

    def keep(self, *, ready: bool) -> None:
        """Start it when it is due."""
        if not ready or (self.child and (self.child.code() is None or time.monotonic() - self.child.began < PAUSE)):
            return
        program = [sys.executable, str(Path(__file__).parents[__name__.count(".")] / "node.py"), "checker"]
        self.child = Child("checker", program, os.environ, lambda _: None, quiet=True)
