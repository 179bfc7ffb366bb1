"""Each line that `endpoint` prints is one command of the words it shows, for any text that a host reports of itself."""

from __future__ import annotations

import json
import subprocess
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure

from tests.support.depth import cases
from tests.support.hostile import attack, batches, hostile, many, shown_by
from tests.support.pasted import NOTES, SHELLS, noted
from tests.support.sim import make
from vllm_cluster.kernel.plan.node_status import UnreadableStatus, parse_status
from vllm_cluster.kernel.text import host_port
from vllm_cluster.serving.ask_head import Endpoint
from vllm_cluster.serving.endpoint.detached import Detached
from vllm_cluster.serving.endpoint.endpoint import ClientEndpoint
from vllm_cluster.serving.endpoint.render import curl_line, show_clients
from vllm_cluster.wire.status import ServeStatus

# All the cases take minutes.
pytestmark = pytest.mark.timeout(3600)

# Fish keeps characters for itself that are nothing so far.
shown = hostile.map(lambda text: "".join(char for char in text if unicodedata.category(char) not in ("Co", "Cn")))
# What is started instead of curl and vcluster: it writes down its words, and prints a key.
PROGRAM = f"{NOTES}echo sk-key\n"
# It ends its words with what comes to it.
CURL = PROGRAM.replace("\n", "\ngiven=$(cat)\n", 1).replace('"$#"', '"$(($# + 1))"').replace('"$@"', '"$@" "$given"')
# The text of the status, each place that may become part of a line; all but the last are refused there or are numbers.
HOSTS = (
    st.just("10.0.0.1"),
    st.just("fd00::1"),
    hostile,
    *(attack.map(begin.__add__) for begin in ("::1", "fe80::1%")),
)
FIELDS = st.fixed_dictionaries(
    {
        "host": st.one_of(HOSTS),
        "port": st.one_of(st.just(8000), hostile, st.integers(-1, 70000), st.just(10**400)),
        "name": st.one_of(st.text(st.characters(categories=["L", "P", "S", "N"]), min_size=1), hostile),
    }
)


def document(**changed: Any) -> bytes:
    """The status of a head that serves a model."""
    serve = {
        **{"generation": "g", "model": "m", "name": "n", "host": "127.0.0.1", "port": 8000, "phase": "ready"},
        **{"detail": "", "progress": None, "since": 3.0, "attempt": 1, "gpus": [2, 2], "first_failure": None},
        **{"failure": None, "ready_at": 4.0, "seconds_to_ready": 1.0},
        **changed,
    }
    group = {"state": "up", "restarts": 0, "error": None, "version": "2.56.1", "nodes": []}
    return json.dumps({"v": 1, "role": "head", "updated": 2.5, "group": group, "serve": serve}).encode()


def reported(fields: dict[str, Any]) -> ServeStatus | None:
    """What is made of a head's status; None where it is refused."""
    try:
        return parse_status(document(**fields), "gpu1").serve
    except UnreadableStatus:
        return None


def lines_and_calls(serve: ServeStatus, folder: str, key: str) -> tuple[str, list[list[str]]]:
    """What is printed for a shell, and what it must start for that."""
    inventory, base = Path("/", folder, "lab.yaml"), f"http://{host_port(serve.host, serve.port)}/v1"
    loaded = make.inventory(1).model_copy(update={"path": inventory})
    of_key = ["vcluster", "endpoint", "-i", str(inventory), "--key"]
    printed, calls = "", list[list[str]]()

    def asks(path: str, given: str, body: dict[str, Any]) -> list[str]:
        sent = ["curl", "-s", f"{base}/{path}", "-H", "Content-Type: application/json"]
        ends = ["-d", json.dumps({"model": serve.name, **body}), f"Authorization: Bearer {given}"]
        return [*sent, "-H", "@-", *ends]

    for tunnel in (Detached(1, "", 1, ""), None):
        found = ClientEndpoint(base, key, serve.name, tunnel)
        variables, text = (
            shown_by(lambda: show_clients(found, loaded, env=env, as_json=False))  # noqa: B023
            for env in (True, False)
        )
        printed += variables + text.partition("\nkey:")[2].partition("\ntunnel: ")[0] + "\n"
        calls.append(of_key)
        printed += 'vcluster probe "$OPENAI_BASE_URL" "$OPENAI_API_KEY"\n'
        calls.append(["vcluster", "probe", base, key])
    printed += curl_line(Endpoint(serve.name, serve.host, "gpu1", serve.port), inventory) + "\n"
    return printed, [*calls, of_key, asks("completions", "sk-key", {"prompt": "Hello", "max_tokens": 16})]


# fault: kernel/shell_line.py: if _PLAIN.fullmatch(word): → if "'" not in word:
@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_starts_what_is_shown_and_nothing_else(shell: str, tmp_path: Path) -> None:
    bin_folder, traps, notes = tmp_path / "bin", tmp_path / "traps", tmp_path / "notes"
    bin_folder.mkdir()
    traps.mkdir()
    for name, program in (("curl", CURL), ("vcluster", PROGRAM)):
        (bin_folder / name).write_text(program)
        (bin_folder / name).chmod(0o755)
    environment = {"PATH": f"{bin_folder}:/usr/bin:/bin", "NOTES": str(notes), "HOME": str(tmp_path), "LANG": "C.UTF-8"}

    # The first case that is made up is the plainest.
    @settings(many, max_examples=cases(3, 6, 100), phases=(Phase.generate,))
    @given(batches(st.tuples(FIELDS, shown, shown)))
    def check(given_cases: list[tuple[dict[str, Any], str, str]]) -> None:
        # What a run left that was broken off would hide its error from the run that repeats it.
        notes.unlink(missing_ok=True)
        script, wanted = "vcluster\n", [["vcluster"]]
        for fields, folder, key in given_cases:
            if serve := reported(fields):
                printed, calls = lines_and_calls(serve, folder, key)
                script, wanted = script + printed, wanted + calls
        done = subprocess.run(
            [shell, "-c", script], env=environment, capture_output=True, cwd=traps, check=False, text=True
        )
        ended = (done.returncode, done.stderr[:1000], set(done.stdout.split()), list(traps.iterdir()))
        assert ended == (0, "", {"sk-key"}, [])
        assert noted(notes) == wanted

    try:
        check()
    except FlakyFailure as once:
        # Its own words are pages of made-up text, and the error behind them.
        pytest.fail(f"once, and not when it ran again: {str(once.exceptions[0])[:1500]}", pytrace=False)


# fault: wire/values.py: Annotated[str, _address] → str
@pytest.mark.parametrize("wrong", ["x;touch FILE;#", "fe80::1%$(touch FILE)", "", "gpu1", "1", "10.0.0.1 "])
def test_a_host_without_an_address_is_refused(wrong: str) -> None:
    assert reported({"host": wrong}) is None


@pytest.mark.parametrize("wrong", [0, -1, 65536, 10**400, "8000", 80.5, True])
def test_a_port_that_cannot_be_is_refused(wrong: object) -> None:
    assert reported({"port": wrong}) is None


@pytest.mark.parametrize("key", ["name", "model"])
@pytest.mark.parametrize("wrong", ["", "a\x1b[2Jb", "a\nb", "a\u202eb", "a\u200eb", "x" * 4097])
def test_a_name_that_cannot_be_shown_is_refused(key: str, wrong: str) -> None:
    assert reported({key: wrong}) is None


def test_what_a_refused_status_holds_is_not_repeated() -> None:
    with pytest.raises(UnreadableStatus) as caught:
        parse_status(document(host="x" * 100_000, port=-1, name="\x1b[2J"), "gpu1")
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()
    assert "serve." in caught.value.message
