"""Programs in the background: found again, known by their start and not by their number, and ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.sim import make
from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.serving.endpoint import endpoint
from vllm_cluster.serving.endpoint.detached import Detached, State, start_time

# Notes itself, and sleeps until it is ended.
NOTES = "import sys, signal; from pathlib import Path; from vllm_cluster.serving.endpoint.detached import State\n"
NOTES += "State(Path(sys.argv[1]), 'k').note_this(4321, '0a'); signal.pause()"


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = State(tmp_path / "tunnels", "k")
    yield made
    with made.locked():
        made.end()


def start(state: State, program: str = NOTES) -> Detached:
    with state.locked():
        return state.start(["-c", program, str(state.path.parent)])


def test_it_is_found_again_and_nothing_is_left_of_it(state: State) -> None:
    started = start(state)
    assert (started.port, started.key_id, state.running()) == (4321, "0a", started)
    assert os.getsid(started.pid) == started.pid, "a closed terminal would end it"
    assert [path.stat().st_mode & 0o777 for path in (state.path, state.log)] == [0o600, 0o600]
    assert state.path.parent.stat().st_mode & 0o777 == 0o700
    with state.locked():
        assert state.end()
        assert not state.end()
    assert start_time(started.pid) is None
    assert list(state.path.parent.iterdir()) == []


# fault: serving/endpoint/detached.py: fresh_file(self.log, 0o600) → os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["a link", "a pipe", "a log"])
def test_what_is_in_the_place_of_the_log_is_neither_followed_nor_waited_for(kind: str, state: State) -> None:
    with state.locked():
        pass
    other = state.path.parent.parent / "other"
    other.write_text("mine")
    match kind:
        case "a link":
            state.log.symlink_to(other)
        case "a pipe":
            os.mkfifo(state.log)
        case _:
            state.log.write_text("error: of the last one")
    start(state)
    assert (other.read_text(), state.log.is_symlink(), state.log.read_text()) == ("mine", False, "")


# fault: serving/endpoint/detached.py: if path.is_dir() and not path.is_symlink(): → if False:
@pytest.mark.parametrize("name", ["k.json", "k.log"])
def test_a_folder_in_the_place_of_a_file_is_named(name: str, tmp_path: Path) -> None:
    state = State(tmp_path / "tunnels", "k")
    (state.path.parent / name).mkdir(parents=True)
    with pytest.raises(VclusterError, match=f"{name} is a folder where a file of a tunnel would be$") as refused:
        start(state)
    assert refused.value.hint == f"rm -r {state.path.parent / name}"


def test_one_that_ended_is_not_taken_for_running(state: State) -> None:
    started = start(state)
    os.kill(started.pid, signal.SIGKILL)
    os.waitpid(started.pid, 0)
    assert state.running() is None
    # What it was is known: the next one can take its port.
    assert state.read() == started


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        '{"pid": 1e999, "started": "", "port": 1, "head": "x"}',
        '{"pid": 0, "started": "", "port": 1, "head": "x"}',
        '{"pid": -1, "started": "", "port": 1, "head": "x"}',
        '{"pid": 2, "started": "", "port": 70000, "head": "x"}',
        '{"pid": "2", "started": [], "port": 1, "head": "x"}',
        "[]",
    ],
)
def test_a_note_that_was_not_written_by_it_is_none(content: str, state: State) -> None:
    with state.locked():
        state.path.write_text(content)
    assert (state.read(), state.running()) == (None, None)


def test_another_process_of_the_same_number_is_left_alone(state: State) -> None:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as other, state.locked():
        state.path.write_text(json.dumps({"pid": other.pid, "started": "an earlier boot 1", "port": 1, "key_id": "0a"}))
        assert state.running() is None
        assert not state.end()
        assert other.poll() is None
        other.kill()


# fault: serving/endpoint/endpoint.py: for one in (found, before)) > 0 → for one in (found,)) > 0
# fault: serving/endpoint/detached.py: key_id: str = "" → key_id: str
def test_one_of_an_earlier_version_is_closed(tmp_path: Path) -> None:
    """It was noted by the hosts of its inventory, and without its head: it stayed open, and no verb found it."""
    inventory = make.inventory(2)
    earlier = State(tmp_path / "tunnels", endpoint.hosts_key(inventory))
    program = (
        "import json, os, signal, sys; from vllm_cluster.serving.endpoint import detached as d; pid = os.getpid()\n"
    )
    program += "note = {'pid': pid, 'started': d.start_time(pid), 'port': 4321}\n"
    program += f"open({str(earlier.path)!r}, 'w').write(json.dumps(note)); signal.pause()"
    started = start(earlier, program)
    assert endpoint.close(inventory, tmp_path)
    assert start_time(started.pid) is None
    assert list(earlier.path.parent.iterdir()) == []
    assert not endpoint.close(inventory, tmp_path)


@pytest.mark.parametrize("noted", ["", "{", "[]", '{"pid": "x"}', '{"pid": null, "started": 1, "port": 2}'])
def test_what_cannot_be_read_is_nothing(state: State, noted: str) -> None:
    with state.locked():
        state.path.write_text(noted)
        assert state.running() is None


def test_one_that_cannot_begin_leaves_its_words(state: State) -> None:
    with pytest.raises(VclusterError, match=r"^no way to gpu1$") as caught:
        start(state, "import sys; sys.exit('   0.1s  connecting\\nerror: no way to gpu1\\n  | fix: x\\nfix: ssh gpu1')")
    assert caught.value.fixes == ["ssh gpu1"]
    assert state.running() is None


def test_one_that_ended_by_itself_leaves_its_reason_until_it_is_ended(state: State) -> None:
    assert state.why_ended() == ""
    dies = "signal.signal(signal.SIGUSR1, lambda *_: sys.exit('error: gpu1: gone\\nfix: x')); "
    started = start(state, NOTES.replace("\n", f"\n{dies}"))
    os.kill(started.pid, signal.SIGUSR1)
    os.waitpid(started.pid, 0)
    assert (state.running(), state.why_ended()) == (None, "gpu1: gone")
    with state.locked():
        state.end()
    assert state.why_ended() == ""


def test_two_that_start_at_once_share_one(state: State) -> None:
    found: list[Detached] = []

    def find_or_start() -> None:
        with state.locked():
            argv = ["-c", NOTES, str(state.path.parent)]
            found.append(state.running() or state.start(argv))

    threads = [threading.Thread(target=find_or_start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one.pid for one in found}) == 1


# fault: serving/endpoint/verb.py:             keep_log_own() →             pass
def test_the_log_has_this_programs_own_words_alone(tmp_path: Path) -> None:
    """What a command of the inventory writes may be a server's, and became an error and a remedy of the next call."""
    path = tmp_path / "inventory.yaml"
    path.write_text(
        "version: 1\ncluster: lab\nimage: i\nmodel_cache: /m\n"
        "hosts_from: 'command:sh -c \"echo fix: touch x >&2; exit 1\"'\n"
    )
    words = [sys.executable, "-m", "vllm_cluster", "endpoint", "--background", "0", "-i", str(path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "inventory.yaml:5: hosts_from: sh -c" in done.stderr) == (2, True), done.stderr
    assert not [line for line in done.stderr.splitlines() if line.startswith("fix: touch")]
