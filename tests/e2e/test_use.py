"""The served model as its people use it: complete, chat, endpoint and the key, on real hosts with real vLLM."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.support.endpoint import MODEL, PROMPT, TOKENS, complete, serving, status_code, tunnel
from tests.support.hosts import Run, Sandbox
from tests.support.paths import ROOT, VCLUSTER
from tests.support.terminal import CTRL_C, CTRL_D, Terminal
from tests.support.waiting import until
from vllm_cluster.serving.endpoint.detached import start_time

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

GREEDY = ("--temperature", "0", "--max-tokens", str(TOKENS))


@pytest.fixture
def laptop(cluster: Sandbox, tmp_path: Path) -> Iterator[Sandbox]:
    """A laptop with a cache of its own; a tunnel that a test leaves open is ended."""
    here = Sandbox(cluster.folder, {**cluster.environment, "XDG_CACHE_HOME": str(tmp_path)})
    yield here
    here.vcluster("endpoint", "--close").ok()


def shell(sandbox: Sandbox, script: str) -> str:
    """What a shell prints, with the program and Python of these tests on its path."""
    path = f"{VCLUSTER.parent}:{os.environ['PATH']}"
    environment = {**os.environ, **sandbox.environment, "PATH": path}
    done = subprocess.run(
        ["bash", "-ec", script], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.cluster("serving")
def test_any_field_of_vllms_requests_is_set_and_no_other(cluster: Sandbox) -> None:
    """By the schema that the server itself has: what it does not know it leaves out without a word."""
    asked = ("complete", PROMPT, "--max-tokens", str(TOKENS))
    fields = ("--set", "top_k=5", "--set", "ignore_eos=true", "--set", "truncation_side=left", "--set", "n=2")
    assert len(cluster.vcluster(*asked, *fields, "--json").ok().json()["answers"]) == 2
    wrong = cluster.vcluster(*asked, "--set", "repetition_penaltie=1.1")
    assert (wrong.code, "no field repetition_penaltie; did you mean repetition_penalty?" in wrong.err) == (2, True)
    refused = cluster.vcluster(*asked, "--set", "top_k=many")
    assert (refused.code, "top_k" in refused.err) == (2, True)


@pytest.mark.cluster("serving")
def test_a_completion_is_the_answer_alone(cluster: Sandbox) -> None:
    asked = cluster.vcluster("complete", PROMPT, *GREEDY).ok()
    key = cluster.vcluster("endpoint", "--key").ok().out.strip()
    with tunnel(cluster) as url:
        assert asked.out.removesuffix("\n") == complete(url, key).removesuffix("\n")
    assert f"{TOKENS} tokens in " in asked.err
    assert " tokens/s" in asked.err
    # Random weights, and all the same words: those of the text that the model is made from.
    text = (ROOT / "docker/cpu/make_model.py").read_text().split('"""')[3]
    assert {*re.findall(r"\w+", asked.out)} <= {*re.findall(r"\w+", text)}
    document = cluster.vcluster("complete", PROMPT, *GREEDY, "--logprobs", "3", "--json").ok().json()
    (answer,) = document["answers"]
    assert answer["text"].removesuffix("\n") == asked.out.removesuffix("\n")
    # At temperature 0 each token is the most probable one; where parts of characters have one name it is not known.
    ranks = [row["rank"] for row in answer["logprobs"]]
    assert (len(ranks), set(ranks) - {None}) == (TOKENS, {1})
    tables = cluster.vcluster("-q", "complete", PROMPT, *GREEDY, "--logprobs", "3", "--set", "prompt_logprobs=1").ok()
    assert tables.err == ""
    assert {"Tokens of the prompt:", "Tokens of the answer:"} <= set(tables.out.splitlines())


@pytest.mark.cluster("serving")
def test_a_chat_is_a_conversation_that_ctrl_c_does_not_end(cluster: Sandbox) -> None:
    environment = {**os.environ, **cluster.environment, "VCLUSTER_INVENTORY": str(cluster.inventory)}
    with Terminal([VCLUSTER, "chat", "--max-tokens", "2000", "--set", "ignore_eos=true"], env=environment) as terminal:
        terminal.until("> ", 60)
        for number, word in enumerate(("Hello\n", "Bye\n"), start=1):
            terminal.press(word)
            # The answer has begun when its line is more than what was typed.
            terminal.until_more(terminal.until(word.replace("\n", "\r\n"), 60), 60)
            terminal.press(CTRL_C)
            terminal.until("\n> ", 60, after=terminal.shown.index(word.strip()))
            assert terminal.shown.count("Interrupted.") == number
        terminal.press(CTRL_D)
        assert terminal.end(60) == 0
    piped = shell(cluster, "echo Hello | vcluster -q chat --max-tokens 4 --temperature 0")
    assert piped == cluster.vcluster("chat", "Hello", "--max-tokens", "4", "--temperature", "0").ok().out


@pytest.mark.cluster("serving")
def test_what_cannot_be_answered_has_a_clear_word(cluster: Sandbox, tmp_path: Path) -> None:
    schema, bad = tmp_path / "schema.json", tmp_path / "bad.json"
    schema.write_text('{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}')
    bad.write_text('{"type": "nonsense"}')

    def asked(*argv: str) -> Run:
        return cluster.vcluster("complete", *argv)

    assert "max_model_len=2048" in (long := asked("Hi", "--max-tokens", "99999")).err
    assert "--json-schema: " in (wrong := asked("Hi", "--json-schema", str(bad))).err
    assert f"other is not served on sandbox; it serves {MODEL}" in (other := asked("Hi", "--set", "model=other")).err
    assert [run.code for run in (long, wrong, other)] == [2, 2, 3]
    assert "n" in json.loads(asked("Hi", "--json-schema", str(schema), "--max-tokens", "200").ok().out)


@pytest.mark.cluster("serving")
def test_the_openai_client_finds_its_way_and_nothing_is_left(laptop: Sandbox) -> None:
    missing = laptop.vcluster("endpoint", "--env")
    assert (missing.code, f"fix: vcluster endpoint -i {laptop.inventory} --env --detach" in missing.err) == (3, True)
    words = dict(
        line.removeprefix("export ").split("=", 1)
        for line in laptop.vcluster("endpoint", "--detach", "--env").ok().out.splitlines()
    )
    with openai.OpenAI(base_url=words["OPENAI_BASE_URL"], api_key=words["OPENAI_API_KEY"]) as client:
        answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=TOKENS, temperature=0)
        assert answer.choices[0].text.strip() == laptop.vcluster("complete", PROMPT, *GREEDY).ok().out.strip()
        with client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_tokens=4, stream=True
        ) as events:
            assert len(list(events)) > 1
    # A second call finds the tunnel; what is printed runs.
    found = laptop.vcluster("endpoint", "--detach", "--json").ok().json()
    assert found["base_url"] == words["OPENAI_BASE_URL"]
    # One whose note is lost is found again.
    tunnels = Path(laptop.environment["XDG_CACHE_HOME"], "vcluster", "tunnels")
    (note,) = tunnels.glob("*.json")
    note.unlink()
    until(note.exists)
    assert "Closed the tunnel." in laptop.vcluster("endpoint", "--close").ok().err
    assert start_time(found["tunnel"]["pid"]) is None
    assert list(tunnels.iterdir()) == []


@pytest.mark.cluster("serving")
def test_a_rotated_key_is_the_only_one_and_vllm_keeps_running(cluster: Sandbox) -> None:
    before = cluster.vcluster("status", "--json").ok().json()["serving"]
    old, nodes = cluster.vcluster("endpoint", "--key").ok().out.strip(), cluster.nodes()
    with tunnel(cluster) as url:
        graced = cluster.vcluster("endpoint", "--rotate", "10m").ok().out.strip()
        assert [status_code(f"{url}/v1/models", key) for key in (old, graced)] == [200, 200]
        new = cluster.vcluster("endpoint", "--rotate").ok().out.strip()
        assert len({old, graced, new}) == 3
        # Without a duration no other key is accepted, nor one whose time is not over.
        assert [status_code(f"{url}/v1/models", key) for key in (old, graced, new)] == [401, 401, 200]
        # The file of the next one has the same size and time.
        last, new = new, cluster.vcluster("endpoint", "--rotate").ok().out.strip()
        assert [status_code(f"{url}/v1/models", key) for key in (last, new)] == [401, 200]
    assert cluster.vcluster("up", "--json").ok().event("result")["operations"] == 0
    assert cluster.vcluster("endpoint", "--key").ok().out.strip() == new
    assert cluster.vcluster("complete", "Hi", "--max-tokens", "1").code == 0
    after = cluster.vcluster("status", "--json").ok().json()["serving"]
    assert (after["ready_at"], after["attempt"], cluster.nodes()) == (before["ready_at"], before["attempt"], nodes)
    verbs = [entry["verb"] for entry in cluster.vcluster("status", "--history", "--json").ok().json()["entries"]]
    assert verbs[-3:] == ["endpoint"] * 3


def at_terminal(sandbox: Sandbox, *argv: str) -> Terminal:
    """The program on a terminal of its own."""
    where = {"VCLUSTER_INVENTORY": str(sandbox.inventory), "PYTHONPATH": str(ROOT)}
    return Terminal([sys.executable, "-m", "vllm_cluster", *argv], env={**os.environ, **sandbox.environment, **where})


@pytest.mark.promise("P17", "P35")
@pytest.mark.cluster("up", leaves="plain")
def test_ctrl_c_ends_the_program_and_not_the_model(sandbox: Sandbox) -> None:
    with at_terminal(sandbox, "serve", MODEL) as terminal:
        terminal.until("importing", 120)
        terminal.press(CTRL_C)
        assert terminal.end() == 130, terminal.shown
        assert f"continues to start {MODEL}" in terminal.shown
        assert "Traceback" not in terminal.shown
    sandbox.vcluster("serve", MODEL).ok()
    for verb, key in (("stop", CTRL_C), ("down", CTRL_D)):
        with at_terminal(sandbox, verb) as terminal:
            question = terminal.until("[y/N] ", 120)
            assert f"Stop {MODEL} (ready for " in question
            assert "0 requests running) on sandbox" in question
            terminal.press(key)
            assert terminal.end() == 130, terminal.shown
    refused = sandbox.vcluster("stop")
    assert refused.code == 2
    # The environment names the inventory, for the remedy too.
    assert "fix: vcluster stop --yes" in refused.err.splitlines()
    assert serving(sandbox) == "ready"
