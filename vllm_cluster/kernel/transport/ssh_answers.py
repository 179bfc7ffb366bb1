"""The options of many hosts by ssh_config, with one process of ssh for all that it treats alike."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Hashable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vllm_cluster.kernel.transport.base import Target
from vllm_cluster.kernel.transport.ssh_config import Run, Words, ask_ssh, config_lines, hops, ssh_options
from vllm_cluster.kernel.transport.wildcard import wildcard

# ssh shows no more of a path.
CUT_PATH = 200
# Names that ssh takes as they are, and the file that it reads, by its own words.
_ALIKE = re.compile(r"[a-z0-9][a-z0-9._:-]*")
_READ = re.compile(r"^debug1: Reading configuration data (.+?)\r?$", re.MULTILINE)


@dataclass(frozen=True)
class _Answer:
    """What ssh answered for a host, the files that it read for that, and the words on which its answer depends.

    Each entry is the pattern of a `Host` line, and whether an answer that it is in is for one host alone.
    """

    name: str
    words: Words
    files: frozenset[str]
    patterns: tuple[tuple[str, bool], ...] | None

    def kind(self, name: str) -> Hashable:
        """What hosts with the same answer have in common; the name itself where the answer may be its own."""
        if self.patterns is None or not _ALIKE.fullmatch(name):
            return name
        found = tuple((at, own) for at, (pattern, own) in enumerate(self.patterns) if wildcard(pattern, name))
        return name if any(own for _, own in found) else found

    def of(self, name: str) -> Words:
        """The answer for another host of the same kind."""
        # The one value into which ssh puts the host's name; it is not used here.
        others = {key: value for key, value in self.words.items() if key != "controlpath"}
        return {**others, "host": [name], "hostname": [name]}


class SshAnswers:
    """Asks `ssh -G` once for all hosts between which ssh_config makes no difference. Safe to use from several threads.

    64 processes of ssh take a second of two cores before the first connection. ssh alone reads the files; from them is
    taken here which hosts they may treat differently: those of other `Host` lines, of a HostName of their own, all of
    them beside a `Match` with a condition. These are asked for one by one.
    """

    def __init__(self, run: Run = subprocess.run) -> None:
        self._run, self._lock = run, threading.Lock()
        self._asked: dict[Hashable, Future[_Answer]] = {}

    def __call__(self, target: Target) -> Words:
        """The options for a host; as `ssh_words`.

        Raises:
            UsageError: ssh refuses its configuration, or does not answer.
        """
        name, options = target.destination, tuple(ssh_options(target))
        first = self._once(options, target)
        kind = first.kind(name)
        found = first if kind == first.kind(first.name) else self._once((options, kind), target)
        if found.name == name:
            return found.words
        # A file that the first did not read may have conditions that are not known here.
        return found.of(name) if found.files <= first.files else self._once((options, name), target).words

    def _once(self, key: Hashable, target: Target) -> _Answer:
        with self._lock:
            mine = key not in self._asked
            future = self._asked.setdefault(key, Future())
        if mine:
            try:
                future.set_result(self._answer(target))
            except BaseException as error:
                future.set_exception(error)
        return future.result()

    def _answer(self, target: Target) -> _Answer:
        # Verbose, it names each file that it reads.
        words, errors = ask_ssh(target, self._run, "-v")
        files = frozenset(_READ.findall(errors))
        patterns = None
        # It cuts a long path, and another program may name none.
        if errors.startswith("OpenSSH_") and all(len(file) < CUT_PATH for file in files):
            with suppress(OSError):
                patterns = _patterns(map(Path, files), target)
        return _Answer(target.destination, words, files, patterns)


def _patterns(files: Iterable[Path], target: Target) -> tuple[tuple[str, bool], ...] | None:
    """The patterns of the `Host` lines of these files; None where a condition may be about anything."""
    # A host that is a jump host does not jump through itself.
    found = [(hop, True) for hop in map(_hop_name, hops(target.jump))]
    for file in files:
        block = ["*"]
        for key, words in config_lines(file):
            if not key.isalnum() or key.startswith("canonical"):
                return None
            if key == "host":
                block = [word.removeprefix("!") for word in words]
                found += [(word, False) for word in block]
            elif key == "match":
                if [word.lower() for word in words] not in (["all"], ["final", "all"]):
                    return None
                block = ["*"]
            elif key == "proxyjump":
                found += [(_hop_name(hop), True) for hop in ",".join(words).split(",")]
            # Its value is the host's own, or has tokens, some of which `ssh -G` replaces.
            if key == "hostname" or ("%" in "".join(words) and key not in ("controlpath", "proxycommand")):
                found += [(word, True) for word in block]
    return tuple(found)


def _hop_name(hop: str) -> str:
    """The host in `[user@]host[:port]`, an URL too."""
    return re.sub(r"^ssh://|:\d+$", "", hop).rpartition("@")[2].strip("[]")
