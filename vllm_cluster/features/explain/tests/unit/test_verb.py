"""`vcluster explain FILE…` as its users call it."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import stat
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.json_schemas import validate
from tests.support.logs import FOLDER
from vllm_cluster.features.explain.verb import explain
from vllm_cluster.kernel.checks.codes import CODES
from vllm_cluster.kernel.errors import HostError, UsageError
from vllm_cluster.kernel.explain.catalogue import CHECKED, FAILURES
from vllm_cluster.kernel.explain.diagnosis import diagnose
from vllm_cluster.serving.explain import explain as action
from vllm_cluster.serving.explain import files as given_files

INVENTORY = "version: 1\ncluster: lab\nimage: i\nmodel_cache: /m\nhosts:\n  gpu1: {address: 10.0.0.1}\n"


def asked_models(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The models of a cluster that are explained from now on; nothing is wrong with them."""
    asked: list[str | None] = []

    def of_cluster(_inventory: object, _emit: object, model: str | None = None) -> action.Explanation:
        asked.append(model)
        return action.Explanation(diagnose([]), {})

    monkeypatch.setattr(action, "of_cluster", of_cluster)
    return asked


def run(*paths: Path, as_json: bool = False) -> int:
    """The exit code."""
    try:
        explain(list(paths), as_json=as_json)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_a_cause_with_its_lines_its_fix_and_what_finds_it_before(capsys: pytest.CaptureFixture[str]) -> None:
    path = FOLDER / "context-too-long.context.log"
    assert run(path) == 0
    said = capsys.readouterr().out
    assert said.startswith("The context does not fit beside the weights (vcluster explain context-too-long)\n")
    assert f"  {path}:" in said
    assert "(EngineCore pid=24) ValueError: To serve at least one request" in said
    fixes = ("vcluster serve MODEL -- --max-model-len N", "vcluster serve MODEL -- --kv-cache-dtype fp8")
    assert "".join(f"fix:     {fix}\n" for fix in fixes) in said
    assert "before:  vcluster fit MODEL" in said


def test_a_file_that_is_named_twice_is_read_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = (FOLDER / "context-too-long.context.log").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))
    assert run(Path("-"), Path("-"), as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["read"]["logs"] == 1


def test_the_remedy_of_a_model_that_cannot_be_served_has_its_name() -> None:
    words = (FOLDER / "context-too-long.context.log").read_text().splitlines()[49]
    error = HostError(
        "gpu1", "org/model cannot be served: vLLM ended with exit code 1", hint="vcluster serve org/model"
    )
    nowhere: Any = None  # the error's own words are enough: no host is asked
    hint = action.add_cause(error, nowhere, nowhere, f"\n{words}", model="org/model").hint or ""
    assert "vcluster serve org/model -- --max-model-len N\n" in hint
    assert "MODEL" not in hint


def test_as_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(FOLDER / "disk-full.log", FOLDER / "healthy-one-process.log", as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["result"], found["cause"]["id"], found["read"]["logs"]) == ("explained", "disk-full", 2)
    assert found["cause"]["lines"][0]["source"].endswith("disk-full.log")


@pytest.mark.parametrize(
    "name", ["disk-full", "rank-killed.rank-killed", "rank-stuck", "context-too-long.context", "healthy-slow-work"]
)
def test_the_document_is_as_its_schema(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(FOLDER / f"{name}.log", as_json=True)
    validate(["explain"], capsys.readouterr().out)


def test_no_failure_and_an_unknown_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(FOLDER / "healthy-one-process.log") == 0
    assert re.match(r"Healthy: it works, and no failure is in \d+ lines of 1 log\.\n", capsys.readouterr().out)
    strange = tmp_path / "strange.log"
    strange.write_text("StrangeError: \x1b[31mnever seen\x07\n")
    assert run(strange) == 5
    said = capsys.readouterr().out
    assert "StrangeError: never seen" in said
    assert "vcluster explain --bundle" in said
    (tmp_path / "empty").touch()
    assert run(tmp_path / "empty") == 0
    assert capsys.readouterr().out.startswith("The logs are empty.\n")


# fault: features/explain/verb.py: "unfinished": 75 → "unfinished": 0
def test_a_start_that_is_neither_ready_nor_ended_is_not_called_healthy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "serve.log"
    start = "2026-11-21T0{}:00:00Z vcluster starts vLLM\n"
    log.write_text(start.format(1) + "RuntimeError: CUDA out of memory.\n" + start.format(2))
    assert run(log) == 75
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "Unfinished: in 3 lines of 1 log the last start of vLLM is neither ready nor ended."
    assert any(line.startswith("before the last start: ") and "gpu-memory-full" in line for line in rest)
    log.write_text(log.read_text() + "Application startup complete.\n")
    assert run(log) == 0


def test_a_failure_before_the_last_start_has_its_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "serve.log"
    start = "2026-11-21T0{}:00:00Z vcluster starts vLLM\n"
    log.write_text(start.format(1) + "OSError: [Errno 28] No space left on device\n" + start.format(2))
    # Nothing has failed in that one yet.
    assert run(log) == 75
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("before the last start")]
    assert re.fullmatch(r"before the last start: \w.+ \(vcluster explain [a-z-]+\)", line)


def test_a_packed_log_a_pipe_and_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (FOLDER / "context-too-long.context.log").read_bytes()
    packed = tmp_path / "serve.log.1.gz"
    packed.write_bytes(gzip.compress(text))
    assert run(packed, as_json=True) == 0
    plain = json.loads(capsys.readouterr().out)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(text))))
    assert run(Path("-"), as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["cause"]["id"] == plain["cause"]["id"] == "context-too-long"
    reader, writer = os.pipe()
    os.write(writer, text[-4096:])
    os.close(writer)
    assert run(Path(f"/dev/fd/{reader}"), as_json=True) in (0, 1)
    assert json.loads(capsys.readouterr().out)["read"]["bytes"] == 4096
    os.close(reader)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is not text"),
        ("UTF-16 of another shell\n".encode("utf-16"), "is not text"),
        (gzip.compress(b"failed\n" * 100, mtime=0)[:-12], "cannot be read to its end"),
        (b"\x1f\x8b is no gzip", "cannot be read to its end"),
    ],
)
def test_a_file_without_a_log_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, reason: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert run(path) == 2
    assert reason in capsys.readouterr().err


# fault: serving/explain/files.py: rb"\0{16,}" → rb"\0{4096,}"
def test_a_log_with_what_was_never_written_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A program wrote on behind where its log was cut, or the host lost power: there are zero bytes."""
    path = tmp_path / "serve.log"
    path.write_bytes(bytes(500) + (FOLDER / "context-too-long.context.log").read_bytes() + bytes(445))
    assert run(path, as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["cause"]["id"] == "context-too-long"


def test_a_folder_of_logs_is_read_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As Ray keeps them: below session_latest/logs, beside files that are not logs."""
    logs = tmp_path / "session_latest" / "logs"
    logs.mkdir(parents=True)
    text = (FOLDER / "context-too-long.context.log").read_bytes()
    (logs / "worker-1.out").write_bytes(text)
    (logs / "old.log.1.gz").write_bytes(gzip.compress(text))
    (logs / "events.bin").write_bytes(b"\0" * 10)
    assert run(tmp_path, as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["cause"]["id"], found["read"]["logs"]) == ("context-too-long", 2)


def test_what_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, reason in [
        (tmp_path, "holds no logs"),
        (tmp_path / "none", "No such file"),
        (Path("/dev/zero"), "is not a file"),
    ]:
        assert run(path) == 2
        assert reason in capsys.readouterr().err
    secret = tmp_path / "secret"
    secret.write_text("x")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may read all
    assert run(secret) == 2
    assert "permission denied" in capsys.readouterr().err


# fault: serving/explain/files.py: self.size += len(part) → self.size = len(part)
@pytest.mark.parametrize("number", [1, 8])
def test_packed_files_that_grow_without_end_are_left(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(given_files, "MAX_UNPACKED_BYTES", 4 << 20)
    paths = [tmp_path / f"{name}.gz" for name in range(number)]
    for path in paths:
        path.write_bytes(gzip.compress(b"\n" * ((8 << 20) // number)))
    assert stat.S_ISREG(paths[0].stat().st_mode)
    with pytest.raises(UsageError, match="the packed logs are together more than"):
        action.of_files(paths, lambda _: None)


def test_files_that_are_not_packed_are_as_large_as_they_lie_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(given_files, "MAX_UNPACKED_BYTES", 1 << 20)
    path = tmp_path / "large.log"
    path.write_bytes(b"\n" * (8 << 20))
    assert action.of_files([path], lambda _: None).size == 8 << 20
    monkeypatch.setattr(given_files, "MAX_BYTES", 1 << 20)
    with pytest.raises(UsageError, match="is more than"):
        action.of_files([path], lambda _: None)


# fault: serving/explain/render.py: failure.cause if cause else None → failure.cause
@pytest.mark.parametrize("name", FAILURES)
def test_the_name_of_a_failure_shows_all_that_is_known_of_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    known = FAILURES[name]
    assert run(Path(name)) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{name}\nseen:    {known.symptom}\n")
    assert known.cause in said
    assert all(f"{line}\n" in said for line in known.fix.splitlines())
    assert all(code in said for code in known.checks)
    assert run(Path(name), as_json=True) == 0
    shown = capsys.readouterr().out
    validate(["explain", "NAME"], shown)
    (failure,) = json.loads(shown)["failures"]
    assert (failure["cause"] is None) == (failure["fix"] is None) == (known.kind == "symptom")
    assert set(failure["signs"]) == {sign.needle for sign in known.signs}


# fault: features/explain/verb.py: if not (found or name in CODES): → if not found:
# fault: features/explain/render_failure.py: if name in CODES else () → if False else ()
# fault: features/explain/render_failure.py: *(of_finding if both else ()) → *()
def test_the_code_of_a_finding_shows_why_it_matters(capsys: pytest.CaptureFixture[str]) -> None:
    """Also of one that forestalls no known failure."""
    for code in ("driver-differs", next(code for code in CODES if code not in {*CHECKED, *FAILURES})):
        assert run(Path(code)) == 0
        assert capsys.readouterr().out.startswith(f"{code}\nfinding: {CODES[code]}\n")
        assert run(Path(code), as_json=True) == 0
        document = capsys.readouterr().out
        validate(["explain", "NAME"], document)
        assert json.loads(document)["why"] == CODES[code]
    # Of one that has the name of a failure.
    assert run(Path("disk-full")) == 0
    assert f"\nfinding: {CODES['disk-full']}\n" in capsys.readouterr().out


def test_the_code_of_a_finding_shows_the_failures_that_it_is_found_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Path("driver-differs"), as_json=True) == 0
    shown = json.loads(capsys.readouterr().out)["failures"]
    assert [failure["id"] for failure in shown] == CHECKED["driver-differs"]
    assert len(shown) > 1
    assert all("driver-differs" in failure["checks"] for failure in shown)


# fault: features/explain/verb.py: return not file.exists() → return True
def test_a_file_that_is_named_as_a_failure_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rdma-path").write_text("OSError: [Errno 28] No space left on device\n")
    assert run(Path("rdma-path")) == 0
    assert "(vcluster explain disk-full)" in capsys.readouterr().out


# fault: features/explain/verb.py: f"; did you mean {near}?" if near else "" → ""
def test_an_unknown_name_is_refused_with_the_one_that_is_near(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Path("contxt-too-long")) == 2
    said = capsys.readouterr().err
    assert "; did you mean context-too-long?\n" in said
    assert "fix: vcluster explain context-too-long\n" in said
    assert run(Path("xyzzy")) == 2
    assert "xyzzy is neither a file nor the name of a failure or of a finding\n" in capsys.readouterr().err


# fault: features/explain/verb.py: if near or not session.has_inventory: → if True:
def test_a_word_that_names_nothing_else_is_a_model_of_the_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("inventory.yaml").write_text(INVENTORY)
    asked = asked_models(monkeypatch)
    run(Path("org/model"))
    assert asked == ["org/model"]
    # One that is wrong is not passed over: its own error shows what to change.
    Path("inventory.yaml").write_text("version: 1\n")
    assert run(Path("org/model")) == 2
    assert "inventory.yaml:1: cluster: is missing" in capsys.readouterr().err
    assert run(Path("vllm.log")) == 2
    assert "vllm.log cannot be read" in capsys.readouterr().err
    assert asked == ["org/model"]


# fault: features/explain/verb.py: return session.has_inventory and not holds_logs(file) → return False
# fault: serving/explain/files.py: not (of_model and ".txt" in one.name) → True
def test_a_folder_without_logs_may_have_the_name_of_a_model_that_is_served(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That of a model which was pulled from here has texts of its own."""
    monkeypatch.chdir(tmp_path)
    folder = Path("tiny2")
    folder.mkdir()
    assert run(folder) == 2
    assert "tiny2 holds no logs\n" in capsys.readouterr().err
    Path("inventory.yaml").write_text(INVENTORY)
    asked = asked_models(monkeypatch)
    run(folder)
    for name in ("config.json", "merges.txt"):
        (folder / name).write_text("{}\n")
    run(folder)
    assert asked == ["tiny2", "tiny2"]
    # By its path it is a folder, and so is one that has logs.
    assert run(Path.cwd() / "tiny2") == 0
    (folder / "serve.log").write_text("[Errno 28] No space left on device\n")
    run(folder)
    assert asked == ["tiny2", "tiny2"]
