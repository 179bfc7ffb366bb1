"""What the node knows of a model and of flags, before anything is stopped: the real program beside a small vLLM."""

from __future__ import annotations

import http.server
import io
import json
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from tests.support.node.world import World, eventually
from vllm_cluster.serving.node import model_files, request_check

SERVE = """
import argparse

FlexibleArgumentParser = argparse.ArgumentParser


class Command:
    def subparser_init(self, below):
        parser = below.add_parser("serve")
        parser.add_argument("model_tag", nargs="?")
        parser.add_argument("--model", default="default/one")
        parser.add_argument("--max-model-len", type=int)
        parser.add_argument("--nnodes", type=int, default=1)
        parser.add_argument("--port", type=int, default=8000)
        parser.add_argument("--revision")
        parser.add_argument("--tokenizer")
        parser.add_argument("--middleware", action="append", default=[])
        return parser

    def validate(self, args):
        if args.nnodes == 13:
            raise ValueError("13 nodes bring no luck")


def cmd_init():
    return [Command()]
"""
ENGINE = """
class AsyncEngineArgs:
    @classmethod
    def from_cli_args(cls, args):
        self = cls()
        self.args = args
        return self

    def create_model_config(self):
        if (self.args.max_model_len or 0) > 2048:
            raise ValueError("1 validation error for ModelConfig\\n  Value error, too long: 2048 at most [type=value]")
        if self.args.tokenizer:
            raise FileNotFoundError("tokenizer.json")
        self.architectures, self.max_model_len, self.registry = ["X"], 2048, self
        return self

    def is_pp_supported_model(self, architectures, config):
        return True
"""
# As vLLM does: the words of the file come before those of the command line.
PARSER = """
import argparse

class FlexibleArgumentParser(argparse.ArgumentParser):
    def parse_args(self, args):
        if "--config" in args:
            at = args.index("--config")
            with open(args[at + 1]) as file:
                rows = [line.split(": ") for line in file.read().splitlines()]
            found = None if not rows else dict(rows)
            args = [*args[:2], *(f"--{name}={value}" for name, value in found.items()), *args[2:at], *args[at + 2:]]
        return super().parse_args(args)
"""


def install(world: World, serve: str = SERVE) -> None:
    """A package called vllm with the parts that are asked."""
    for name, text in (
        ("entrypoints/cli/serve.py", serve),
        ("engine/arg_utils.py", ENGINE),
        ("model_executor/models/registry.py", ""),
    ):
        path = world.folder / "python" / "vllm" / name
        for folder in path.parents:
            if folder == world.folder / "python":
                break
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "__init__.py").touch()
        path.write_text(text)
    (world.folder / "python" / "vllm" / "__init__.py").write_text('__version__ = "0.33.0"')


def check(world: World, *flags: str, model: str = "org/model", seconds: float = 120, own: int = 0) -> dict[str, Any]:
    """What `node.py check` answers; the last `own` words are not a person's."""
    argv = ["serve", model, *flags]
    question = {
        "model": model,
        "argv": argv,
        "ask": ["nnodes", "gone", "port", "revision", "middleware"],
        "seconds": seconds,
    }
    question["own"] = own
    done = subprocess.run(
        [sys.executable, str(world.opt / "node.py"), "check"],
        input=json.dumps(question) + "\n",
        env={"VCLUSTER_STATE": str(world.state), "HF_HOME": str(world.folder / "hf"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.strip())
    return found


def cached(home: Path, name: str = "org/model", *, index: bool = False) -> Path:
    """A model in a cache of the hub's shape, with one file of weights."""
    folder = home / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    (snapshot / "config.json").write_text('{"model_type": "llama"}')
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    (snapshot / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    if index:
        (snapshot / "model.safetensors.index.json").write_text('{"weight_map": {"w": "model-2.safetensors"}}')
    return snapshot


def find_model(*asked: str, ask_hub: bool = True) -> dict[str, Any]:
    """What the node knows of a model's files."""
    return model_files.find_model(*asked, ask_hub=ask_hub)


def checkers(world: World) -> list[str]:
    """The processes that import vLLM to answer."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().decode().split("\0")
            found += [process.name] if words[1:3] == [str(world.opt / "node.py"), "checker"] else []
    return found


def judge(world: World, *, served: bool) -> None:
    """What vLLM's own parser answers about good and bad flags, while nothing or a model is served."""
    good = check(world, "--max-model-len", "1024")["vllm"]
    assert (good["flags"], good["values"], good["model"]) == (
        "accepted",
        {"nnodes": 1, "port": 8000, "revision": None, "middleware": []},
        "accepted",
    )
    assert set(good["given"]) >= {"max_model_len", "model_tag"}
    assert good["version"] == "0.33.0"
    typo = check(world, "--max-model-ln", "1024")["vllm"]
    assert (typo["flags"], typo["problem"]) == (
        "refused",
        "unrecognized arguments: --max-model-ln 1024; did you mean --max-model-len?",
    )
    assert check(world, "another/model")["vllm"]["problem"] == "unrecognized arguments: another/model"
    assert check(world, "--nnodes=13")["vllm"]["problem"] == "13 nodes bring no luck"
    long = check(world, "--max-model-len=4096")["vllm"]
    assert (long["flags"], long["model"], long["problem"]) == ("accepted", "refused", "too long: 2048 at most")
    # Questions leave nothing behind, and the model continues.
    assert len(world.attempts) == served


@pytest.mark.slow
def test_the_file_of_config_is_judged_as_the_words_are(world: World) -> None:
    install(world, SERVE.replace("import argparse\n\nFlexibleArgumentParser = argparse.ArgumentParser\n", PARSER))
    cached(world.folder / "hf")
    world.start("head", HF_HUB_OFFLINE="1")
    eventually((world.state / "check.sock").exists, "the parser")
    file = world.folder / "flags.yaml"

    def asked(text: str, *more: str) -> dict[str, Any]:
        file.write_text(text)
        return check(world, "--config", str(file), *more, "--port=8000", "--nnodes=1", own=2)

    found = asked("port: 9\nmax-model-len: 512")["vllm"]
    assert (found["values"]["port"], found["theirs"]) == (8000, {"port": 9, "middleware": []})
    assert asked("port: 8000")["vllm"]["theirs"]["port"] == 8000
    plain = asked("max-model-len: 512")["vllm"]
    assert "port" not in plain["theirs"]
    assert "nnodes" not in plain["given"]
    empty = asked("")["vllm"]
    assert empty["problem"] == f"--config {file}: it must hold options, each in a line as max-model-len: 8192"
    # The revision that is looked for is the one that vLLM would load, wherever it is given.
    for late in (asked("revision: other"), check(world, "--revision", "main", "--revision=other")):
        assert (late["files"]["where"], late["vllm"]["flags"]) == ("nowhere", "accepted")
        assert late["files"]["problem"] == "its revision other is not in the model cache, and HF_HUB_OFFLINE is set"
        assert late["files"]["near"] == ["org/model"]
    assert check(world, "--revision", "other", "--revision", "main")["files"]["where"] == "cache"
    appended = check(world, "--middleware", "a.B", "--middleware=ours", own=1)["vllm"]
    assert (appended["values"]["middleware"], appended["theirs"]["middleware"]) == (["a.B", "ours"], ["a.B"])
    assert check(world, "--help")["vllm"]["problem"] == "they print a text and serve nothing"
    absent = check(world, "--tokenizer", "org/none")["vllm"]
    assert absent["model"] == "refused"
    assert absent["problem"] == "a file that it needs is not here, and HF_HUB_OFFLINE is set: tokenizer.json"


# fault: serving/node/request_check.py: command.validate(arguments) → pass
@pytest.mark.slow
@pytest.mark.parametrize("served", [False, True])
def test_flags_are_judged_by_vllm_s_own_parser_before_anything_starts(world: World, *, served: bool) -> None:
    install(world)
    cached(world.folder / "hf")
    world.start()
    if served:
        world.want("one")
        world.phase("ready")
    eventually((world.state / "check.sock").exists, "the parser")
    judge(world, served=served)


@pytest.mark.slow
def test_who_asks_while_a_model_starts_is_answered_too(world: World) -> None:
    """A node that starts again beside a request imports vLLM for the model first, for the parser once it is asked."""
    install(world)
    cached(world.folder / "hf")
    world.plan({"loading": True})
    world.want("one")
    world.start()
    eventually(lambda: world.attempts, "vLLM")
    assert not checkers(world)
    assert check(world, "--max-model-ln", "1024")["vllm"]["flags"] == "refused"
    assert len(checkers(world)) == 1


@pytest.mark.slow
def test_a_vllm_that_ends_its_importer_is_an_answer(world: World) -> None:
    install(world, "import os\nos._exit(132)")
    world.start()
    eventually((world.state / "check.sock").exists, "the parser")
    assert check(world)["vllm"] == {"unchecked": "importing the image's vLLM ended with exit code 132"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("serve", "why"),
    [
        ("raise ImportError('another vLLM')", "ImportError: another vLLM"),
        ("def cmd_init(): return []", "AttributeError"),
    ],
)
def test_another_vllm_is_not_checked_and_that_is_reported(world: World, serve: str, why: str) -> None:
    install(world, serve)
    world.start()
    eventually((world.state / "check.sock").exists, "the parser")
    answer = check(world, "--no-such-flag")["vllm"]
    assert list(answer) == ["unchecked"]
    assert why in answer["unchecked"]


# fault: serving/node/model_files.py: , *folders] → ]
def test_what_lies_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    snapshot = cached(tmp_path)
    found = find_model("org/model")
    assert (found["where"], found["config"], found["missing"]) == ("cache", {"model_type": "llama"}, 0)
    assert (found["tensors"], found["lacking"]) == ([("w", "BF16", 4)], [])
    stat = subprocess.run(["stat", "-fc", "%T", str(tmp_path)], capture_output=True, text=True, check=True).stdout
    assert found["carrier"][:3] == stat[:3]  # stat calls ext4 "ext2/ext3" and overlay "overlayfs"
    assert found["memory"] > 1 << 20
    assert find_model(str(snapshot))["where"] == "folder"
    wrong = find_model("org/modl")
    assert (wrong["where"], wrong["near"]) == ("nowhere", ["org/model"])
    assert "HF_HUB_OFFLINE" in wrong["problem"]
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").write_text("{}")
    assert find_model("my-model")["near"] == ["org/model", "./my-model"]
    for word, text in (
        ("a/b/c", "neither a folder nor ORG/NAME"),
        ("./foo", "no such folder"),
        ("/nowhere", "no such"),
    ):
        assert text in find_model(word)["problem"]
    assert find_model("s3://bucket/model")["where"] == "unknown"
    assert find_model("org/model", "v2")["where"] == "nowhere"


# fault: serving/node/model_files.py: "lacking": [name for name in named if name not in sizes], → "lacking": [],
def test_a_part_of_a_model_is_not_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    snapshot = cached(tmp_path, index=True)
    assert "only a part" in find_model("org/model")["problem"]
    assert find_model(str(snapshot))["lacking"] == ["model-2.safetensors"]


class Hub(http.server.BaseHTTPRequestHandler):
    """A hub with one open and one gated model; what it was sent is kept."""

    seen: ClassVar[list[tuple[str, str | None]]] = []
    listed: ClassVar[str] = ""
    drips: ClassVar[str] = ""
    ended: ClassVar[threading.Event] = threading.Event()

    def do_GET(self) -> None:
        """Answer as the hub does."""
        Hub.seen.append((self.path, self.headers["Authorization"]))
        if Hub.drips:
            self._drip()
            return
        files = [{"rfilename": name, "size": 10} for name in ("a.safetensors", "b.safetensors", "pytorch_model.bin")]
        if "org/gone" in self.path:
            self._respond(404, b"")
        elif "/api/models/" in self.path:
            self._respond(200, (Hub.listed or json.dumps({"siblings": files})).encode())
        elif "org/gated" in self.path:
            self._respond(403, b"")
        else:
            self.send_response(302)
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.end_headers()

    def _drip(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\n" + (b"\r\n" if Hub.drips == "body" else b"a: "))
        with suppress(OSError):
            while not Hub.ended.wait(0.02):
                self.wfile.write(b" ")

    def _respond(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    Hub.seen.clear()
    Hub.ended.clear()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


# fault: serving/node/model_files.py: def redirect_request(self → def another_request(self
def test_the_hub_is_asked_from_the_node_with_its_token(
    hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_canary")
    found = find_model("org/open")
    # Not what vLLM leaves aside, and no redirect is followed, least of all with the token.
    assert (found["where"], found["weights"], found["missing"]) == ("hub", 20, 20)
    assert [token for _, token in Hub.seen] == ["Bearer hf_canary"] * 2
    assert "403 with the token that is set" in find_model("org/gated")["problem"]
    monkeypatch.delenv("HF_TOKEN")
    assert "403 without a token" in find_model("org/gated")["problem"]
    assert "has no such model" in find_model("org/gone")["problem"]
    assert find_model("org/open", ask_hub=False)["where"] == "hub"


SIZED = '{"siblings": [{"rfilename": "a.safetensors", "size": %s}]}'
LISTS = {
    "nested": "[" * 10**5,
    **{f"size {size:.6}": SIZED % size for size in ("1e999", "-1e999", "NaN", "-5", "true", "[]", "9" * 4000)},
    **{f"rows {rows}": f'{{"siblings": {rows}}}' for rows in ("5", "[null]", '{"a": 1}')},
    "many values": f'{{"siblings": [], "x": [{"[]," * 200_000} 0]}}',
}


# fault: serving/node/model_files.py: rows = read(_HubFiles, body or b"{}", "the hub", MAX_LIST).siblings or () → rows = [_HubFile(row["rfilename"], int(row["size"])) for row in json.loads(body or b"{}")["siblings"]]
@pytest.mark.parametrize("text", LISTS.values(), ids=LISTS)
def test_a_hub_s_list_of_impossible_rows_counts_nothing(hub: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub, "listed", text)
    found = find_model("org/open")
    assert (found["where"], found["weights"], found["missing"]) == ("hub", None, 0)


# fault: serving/node/model_files.py: return found.result(HUB_SECONDS) → return found.result()
@pytest.mark.parametrize("after", ["header", "body"])
def test_a_hub_that_drips_has_an_end(hub: str, after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time-out of a socket is for each receive; without an answer here, nothing was checked before it was served."""
    monkeypatch.setattr(Hub, "drips", after)
    monkeypatch.setattr(model_files, "HUB_SECONDS", 0.3)
    found = find_model("org/open")
    Hub.ended.set()
    assert found["where"] == "nowhere"
    assert "cannot be asked: timed out" in found["problem"]


# fault: serving/node/request_check.py: except Exception as error:  # what a hub → except KeyError as error:  # what a hub
def test_an_error_over_files_leaves_the_answer_on_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = {"flags": "refused", "problem": "unrecognized arguments: --nope"}
    question = json.dumps({"model": "org/m", "argv": ["serve", "org/m", "--nope"]})

    def fail(*_: object, **__: object) -> dict[str, object]:
        raise OverflowError("cannot convert float infinity to integer")

    monkeypatch.setattr(request_check, "find_model", fail)
    monkeypatch.setattr(request_check, "ask", lambda *_: refused)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(question.encode() + b"\n")))
    assert request_check.check(tmp_path) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["vllm"] == refused
    assert found["files"] == {
        "where": "unknown",
        "problem": "OverflowError: cannot convert float infinity to integer",
    }


def test_a_hub_that_cannot_be_reached_is_a_reason(hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    found = find_model("org/open")
    assert found["where"] == "nowhere"
    assert "cannot be asked" in found["problem"]
